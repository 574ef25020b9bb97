"""Names of layers, and the patterns by which quantisation tools select them.

A layer is a module with a `weight`, or a parameter of another name (the experts of a mixture in one tensor).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LayerMatch", "folded", "layer_of", "match_layers", "pair_layers"]

REGULAR_EXPRESSION = "re:"
"""Prefix of patterns that are regular expressions, matched at the start of a name as `re.match` does."""


def layer_of(parameter: str) -> str:
    """Return the layer that a parameter belongs to.

    >>> from undertow.torch.census.scaling.layers import layer_of
    >>> layer_of("layers.0.up_proj.bias"), layer_of("experts.gate_up_proj"), layer_of("attention.in_proj_bias")
    ('layers.0.up_proj', 'experts.gate_up_proj', 'attention.in_proj_weight')
    """
    path, _, leaf = parameter.rpartition(".")
    if leaf in ("weight", "bias"):
        return path
    if leaf.endswith("_bias"):
        stem = parameter.removesuffix("_bias")
        return f"{stem}_weight" if leaf == "in_proj_bias" else stem
    return parameter


def match_layers(pattern: str, layers: Iterable[str]) -> list[str]:
    """Return the layers that a pattern selects: a regular expression after "re:", a name, or the end of a name.

    >>> from undertow.torch.census.scaling.layers import match_layers
    >>> layers = ["layers.0.q_proj", "layers.0.k_proj", "layers.1.q_proj"]
    >>> match_layers("re:.*q_proj$", layers), match_layers("k_proj", layers)
    (['layers.0.q_proj', 'layers.1.q_proj'], ['layers.0.k_proj'])
    >>> match_layers("layers.1.q_proj.weight", layers)
    ['layers.1.q_proj']
    """
    if pattern.startswith(REGULAR_EXPRESSION):
        try:
            expression = re.compile(pattern.removeprefix(REGULAR_EXPRESSION))
        except re.error as error:
            raise ValueError(f"the pattern {pattern!r} is not a regular expression: {error}.") from error
        return [layer for layer in layers if expression.match(layer)]
    names = {pattern, layer_of(pattern)}
    return [layer for layer in layers if layer in names or any(layer.endswith(f".{name}") for name in names)]


@dataclass(frozen=True)
class LayerMatch:
    """One layer that a source pattern selects, with the readers that belong to it."""

    source: str
    readers: tuple[str, ...]


def pair_layers(sources: Sequence[str], readers: Sequence[Sequence[str]]) -> list[LayerMatch]:
    """Return each source with its readers; `readers` has the layers that each reader pattern selects.

    A reader belongs to the source with which it shares the deepest parent. Of the layers that one pattern selects, a
    source keeps those that share its own deepest parent.

    >>> from undertow.torch.census.scaling.layers import pair_layers
    >>> for match in pair_layers(["layers.0.norm", "layers.1.norm"], [["layers.0.mlp.up", "layers.1.mlp.up"]]):
    ...     print(match.source, match.readers)
    layers.0.norm ('layers.0.mlp.up',)
    layers.1.norm ('layers.1.mlp.up',)
    """
    to_sources = _by_parent(sources)
    parents_of_readers = [_by_parent(selected) for selected in readers]
    matches = []
    for source in sources:
        own: dict[str, None] = {}
        for by_parent in parents_of_readers:
            parent = _deepest(source, by_parent)
            own |= dict.fromkeys(r for r in by_parent.get(parent, ()) if _deepest(r, to_sources) == parent)
        matches.append(LayerMatch(source, tuple(own)))
    return matches


Path = tuple[str, ...]


def _parents(layer: str) -> list[Path]:
    """Return the parents of a layer as paths, the deepest first."""
    parts = tuple(layer.split(".")[:-1])
    return [parts[:depth] for depth in range(len(parts), -1, -1)]


def _by_parent(layers: Sequence[str]) -> dict[Path, list[str]]:
    """Return the layers below each parent."""
    below: dict[Path, list[str]] = {}
    for layer in layers:
        for parent in _parents(layer):
            below.setdefault(parent, []).append(layer)
    return below


def _deepest(layer: str, below: dict[Path, list[str]]) -> Path:
    """Return the deepest parent of a layer that has other layers below it."""
    return next((parent for parent in _parents(layer) if parent in below), ())


def folded(layer: str) -> str:
    """Return the name of a layer with its numbers replaced by `*`.

    >>> from undertow.torch.census.scaling.layers import folded
    >>> folded("model.layers.3.mlp.experts.12.up_proj")
    'model.layers.*.mlp.experts.*.up_proj'
    """
    return ".".join("*" if part.isdigit() else part for part in layer.split("."))
