"""Narrow twins: tiny networks with the structure of a configuration of `transformers`.

A twin has the modules, the settings and the layer pattern of the network, a few layers, and different numbers for
different sizes, so that every size of the twin has one meaning.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from undertow._validate import kind_of, shown
from undertow.torch.census.folding import wildcard
from undertow.torch.census.layers import LayerMap, LayersError
from undertow.torch.census.narrowing import Fields, layer_choices, narrowed
from undertow.torch.census.structure import structure_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["build_model", "narrow_twin"]

LARGEST = 4_000_000
"""Largest number of parameters of a twin; above it a size was not made smaller."""
FAMILIES = ("CausalLM", "ImageClassification")
"""Tasks that are tried where a configuration names no class."""


def narrow_twin(config: "PretrainedConfig", *, seed: int = 0) -> nn.Module:
    """Return a tiny network with random weights and the structure of a configuration, on the CPU.

    The twin has the flags of the configuration, its number of query heads per key head (up to 8), few experts, and
    three layers or as many as the pattern of layers needs. A `ValueError` names a field that cannot be made smaller.

    **Arguments:**

    - `config`: the configuration of a network of `transformers`, of any size.

    >>> from transformers import LlamaConfig
    >>> from undertow.torch import narrow_twin
    >>> twin = narrow_twin(LlamaConfig(num_key_value_heads=8))
    >>> print(twin.config.num_hidden_layers, twin.config.num_attention_heads, twin.config.num_key_value_heads)
    3 12 3
    """
    if not hasattr(config, "to_dict") or not hasattr(type(config), "from_dict"):
        raise TypeError(
            f"`narrow_twin(config={shown(config)})`: `config` is {kind_of(config)}; give a configuration of "
            "transformers, "
            "such as `model.config`."
        )
    fields: Fields = config.to_dict()
    try:
        with torch.device("meta"):
            full = build_model(config)
    except Exception as error:
        raise ValueError(f"`narrow_twin(config)`: transformers cannot build this configuration: {error}") from error
    problem, chosen = "the configuration has no field for the number of layers", None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for layers in layer_choices(fields):
            small = narrowed(fields, layers)
            try:
                candidate = type(config).from_dict(small)
                with torch.device("meta"):
                    sketch = build_model(candidate)
            except Exception as error:
                problem = f"a configuration with {_differences(fields, small)} cannot be built: {error}"
                continue
            pair = LayerMap(structure_of(sketch), structure_of(full))
            problem = _difference(pair, sketch, fields)
            if not problem:
                chosen = chosen or candidate
                if pair.same_places():
                    return build_model(candidate)
        if chosen is not None:
            return build_model(chosen)
    raise ValueError(f"`narrow_twin(config)`: {problem}. Build a small {type(full).__name__} yourself.")


def build_model(config: "PretrainedConfig") -> nn.Module:
    """Return a network in float32 with random weights, of the class that it names or of a common task."""
    import transformers

    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)(config)
    masked = not getattr(config, "is_decoder", False)
    both = getattr(config, "is_encoder_decoder", False)
    for family in ("Seq2SeqLM",) * both + ("MaskedLM",) * masked + FAMILIES:
        factory = getattr(transformers, f"AutoModelFor{family}")
        if type(config) in factory._model_mapping:
            return factory._model_mapping[type(config)](config)
    return transformers.AutoModel.from_config(config, dtype=torch.float32)


def _difference(layers: LayerMap, sketch: nn.Module, fields: Fields) -> str:
    """Return how a twin differs in structure from the full network, in words; an empty text if it does not."""
    try:
        layers.check_names()
        layers.check_layers()
    except LayersError as error:
        return str(error)
    if sum(p.numel() for p in sketch.parameters()) <= LARGEST:
        return ""
    wide = {wildcard(name): shape for name, shape in layers.deep.shapes}
    name, shape = max(((n, tuple(p.shape)) for n, p in sketch.named_parameters()), key=lambda pair: max(pair[1]))
    kept = max((s for s in shape if s in wide[wildcard(name)]), default=max(shape))
    named = [key for key, value in _flat(fields) if value == kept]
    field = f"the field `{named[0]}` = {kept}" if named else f"the size {kept}"
    return f"{field} cannot be made smaller: {name} has shape {shape} in the twin"


def _flat(fields: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        yield f"{prefix}{key}", value


def _differences(fields: Fields, other: Fields) -> str:
    """Return the integers in which two configurations differ, as text."""
    after = dict(_flat(other))
    whole = ((key, value) for key, value in _flat(fields) if isinstance(value, int))
    return ", ".join(f"{key}={after.get(key)}" for key, value in whole if after.get(key) != value)
