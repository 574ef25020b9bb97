"""Modules that use the parameters of interest, and their calls."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

__all__ = [
    "Call",
    "Site",
    "autocast_now",
    "batch_norm_problem",
    "depends_on_parameters_only",
    "find_sites",
    "in_backward",
    "unrecordable",
]

CONTAINERS = (nn.ParameterList, nn.ParameterDict)
"""Modules that are never called; the module that holds them is."""
PLAIN_NODES = {
    f"{step}Backward0"
    for step in (
        "Add", "Addmm", "Clone", "Div", "Gelu", "Linear", "Mm", "Mul", "NativeLayerNorm", "Permute", "Relu", "Sigmoid",
        "Silu", "Slice", "Squeeze", "Sub", "T", "Tanh", "ToCopy", "Transpose", "UnsafeView", "Unsqueeze", "View",
    )
}  # fmt: skip
"""Nodes of a graph that list all tensors they depend on and make no copies per sample, as `expand` does."""
MAX_NODES = 256
"""Nodes of a graph that are followed before the search gives up."""


@dataclass(frozen=True, eq=False)
class Site:
    """A module that uses parameters of interest."""

    name: str
    module: nn.Module
    leaves: dict[str, str]
    """Names of the parameters in the module, with their names in the model."""

    def __str__(self) -> str:
        return f"the layer {self.name} ({type(self.module).__name__})"


@dataclass(eq=False)
class Call:
    """One call of a site: its arguments, and the derivatives with respect to its outputs so far."""

    site: Site
    args: tuple
    kwargs: dict[str, object]
    inputs: list[Tensor]
    """The tensors among the arguments."""
    outputs: int
    samples: int
    step: int
    """Number of the step in which the call was made."""
    autocast: Callable[[], AbstractContextManager]
    """The autocast context of the call."""
    problem: str | None = None
    """Why the derivatives cannot be separated by sample, if so."""
    recomputed: bool = False
    """Whether the call was made inside the backward pass, by an activation checkpoint."""
    back: list[Tensor | None] = field(init=False)
    """Derivatives of the loss with respect to the outputs."""

    def __post_init__(self) -> None:
        self.back = [None] * self.outputs


def autocast_now(device: str) -> Callable[[], AbstractContextManager]:
    """Return a function that makes a context with the autocast settings of now."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext
    dtype, on = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return lambda: torch.autocast(device, dtype, on, cache_enabled=False)


def depends_on_parameters_only(x: Tensor, parameters: dict[int, nn.Parameter]) -> bool:
    """Return whether a tensor is certainly computed from these parameters alone, and without copies per sample."""
    if x.grad_fn is None:
        return id(x) in parameters
    nodes: list[torch.autograd.graph.Node | None] = [x.grad_fn]
    for followed, node in enumerate(nodes):
        if followed == MAX_NODES or node is None:  # None: a tensor that needs no gradient, such as the batch
            return False
        if node.name() in PLAIN_NODES:
            nodes += [further for further, _ in node.next_functions if further not in nodes]
        elif node.name() != "torch::autograd::AccumulateGrad" or id(node.variable) not in parameters:
            return False
    return True


def find_sites(model: nn.Module, parameters: dict[str, nn.Parameter]) -> list[Site]:
    """Return every module that uses one of the parameters, under any of its names."""
    names = {id(p): name for name, p in parameters.items()}
    modules = dict(model.named_modules())
    sites: dict[str, Site] = {}
    for path, module in modules.items():
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in names:
                continue
            owner, inside = path, leaf
            while owner and _never_called(modules, owner):
                owner, _, last = owner.rpartition(".")
                inside = f"{last}.{inside}"
            if hasattr(modules[owner], "weight_g") and hasattr(modules[owner], "weight_v"):
                raise ValueError(
                    f"`NoiseMonitor`: {owner} has the old `torch.nn.utils.weight_norm`, which computes the weight "
                    "outside of the call; use `torch.nn.utils.parametrizations.weight_norm`."
                )
            site = sites.setdefault(owner, Site(owner or type(model).__name__, modules[owner], {}))
            site.leaves[inside] = names[id(parameter)]
    return list(sites.values())


def unrecordable(model: nn.Module, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Iterate over the parameters that no layer of their own holds, each with the reason.

    A module that holds other layers would have to be run again as a whole for each sample.
    """
    modules = dict(model.named_modules())
    for name in names:
        owner = name.rpartition(".")[0]
        while owner and _never_called(modules, owner):
            owner = owner.rpartition(".")[0]
        module = modules[owner]
        if hasattr(module, "weight_g") and hasattr(module, "weight_v"):
            yield (
                name,
                f"{owner} has the old `torch.nn.utils.weight_norm`, which computes the weight outside of the call",
            )
        elif isinstance(module, nn.MultiheadAttention):
            continue
        elif any(
            any(True for _ in child.parameters()) and not _never_called(modules, f"{owner}.{key}".lstrip("."))
            for key, child in module.named_children()
        ):
            yield (
                name,
                f"{owner or 'the model'} uses it directly, beside layers of its own: give it a module of its own",
            )


def _never_called(modules: dict[str, nn.Module], path: str) -> bool:
    """Return whether a module is a container, a parametrization, or the output layer inside `nn.MultiheadAttention`."""
    parent, _, last = path.rpartition(".")
    around = modules[parent]
    in_attention = isinstance(around, nn.MultiheadAttention) and last == "out_proj"
    in_parametrizations = last == "parametrizations" or parent.rpartition(".")[2] == "parametrizations"
    return isinstance(modules[path], CONTAINERS) or in_attention or in_parametrizations


def in_backward() -> bool:
    """Return whether a backward pass runs. A forward pass inside it repeats a recorded one (activation checkpoints)."""
    return torch._C._current_graph_task_id() != -1


def batch_norm_problem(batch_norms: Iterable[tuple[str, nn.Module]]) -> str | None:
    """Return why the samples of a batch are not independent, None if they are."""
    for name, module in batch_norms:
        if module.training or module.running_mean is None:
            return (
                f"the samples of a batch are not independent: {name or 'the model'} is a {type(module).__name__} "
                "that trains; put it in eval mode, or use LayerNorm or GroupNorm"
            )
    return None
