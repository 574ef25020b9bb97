"""The structure of a network, without its weights: shapes of parameters, sizes and settings of its modules.

A census stores the structure of its network, so that `Census.transfer` can compare it with a larger one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

__all__ = ["ModuleSizes", "Structure", "structure_of"]

PASSING = ("training", "gradient_checkpointing")
"""Settings that may change while a network trains."""
NO_SIZES = ("layer", "token", "position", "window", "_id", "idx", "vocab")
"""Parts of the names of integers that are not the width of anything: they count or number layers and tokens."""


@dataclass(frozen=True)
class ModuleSizes:
    """The integers of a module that are sizes, and its class with its other settings as text."""

    module: str
    sizes: tuple[tuple[str, int], ...]
    settings: str


@dataclass(frozen=True)
class Structure:
    """Shapes of the parameters, sizes of the modules, and integers of the configuration where there is one."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    modules: tuple[ModuleSizes, ...]
    configuration: tuple[tuple[str, int], ...]


def structure_of(model: nn.Module) -> Structure:
    """Return the structure of a network; its weights may be on the meta device.

    >>> import torch
    >>> from undertow.torch.census.structure import structure_of
    >>> structure_of(torch.nn.MultiheadAttention(6, 2)).shapes[0]
    ('in_proj_weight', (18, 6))
    """
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in model.named_parameters())
    modules = tuple(_module_sizes(name, module) for name, module in model.named_modules())
    config = getattr(model, "config", None)
    values = config.to_dict() if hasattr(config, "to_dict") else config if isinstance(config, dict) else {}
    return Structure(shapes, modules, tuple(_integers(values)))


def _module_sizes(name: str, module: nn.Module) -> ModuleSizes:
    public = {key: value for key, value in vars(module).items() if not key.startswith("_") and key not in PASSING}
    sizes = tuple((key, v) for key, v in public.items() if _is_size(key, v))
    settings = [f"{key}={value}" for key, value in sorted(public.items()) if _is_setting(key, value)]
    return ModuleSizes(name, sizes, " ".join([type(module).__name__, *settings]))


def _is_size(name: str, value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and value > 1 and not any(word in name for word in NO_SIZES)


def _is_setting(name: str, value: object) -> bool:
    return isinstance(value, bool | str) or (value is None and "window" in name)


def _integers(values: dict, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Return the sizes in a configuration and in the configurations inside it, by name."""
    for key, value in values.items():
        if _is_size(key, value):
            yield f"{prefix}{key}", value
        elif isinstance(value, dict) and str(key).endswith("config"):
            yield from _integers(value, f"{prefix}{key}.")
