"""One forward pass that records which layers run and which of them read the outputs of given layers."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward

__all__ = ["Trace", "trace_layers"]


TESTED_ROWS = 32
"""Rows of an input that are compared with the output of a source; single rows may pass a ReLU unchanged."""


@dataclass(frozen=True)
class Trace:
    """Modules that ran on a batch, and those whose input is the output of a source."""

    used: frozenset[str]
    readers: dict[str, tuple[str, ...]]
    """For each source that ran, the modules with parameters that read it, in the order in which they ran."""

    def uses(self, layer: str) -> bool:
        """Return whether a layer, or the module that holds it as a parameter, ran on data."""
        return layer in self.used or layer.rpartition(".")[0] in self.used


@torch.no_grad()
def trace_layers(model: nn.Module, batch: Batch, loss: Loss, sources: Sequence[str]) -> Trace:
    """Return which modules with parameters ran on data, and which read the outputs of the sources.

    A module reads a source if the rows of its input are bitwise equal to rows of the source's output; an expert
    receives some of them. A module that receives a function of the output is not found.

    >>> import torch
    >>> from undertow.torch.census.scaling.trace import trace_layers
    >>> net = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> trace_layers(net, torch.randn(5, 4), lambda model, x: model(x).sum(), ["0", "1"]).readers
    {'0': ('1',), '1': ()}
    """
    outputs: dict[str, Tensor] = {}
    readers: dict[str, dict[str, None]] = {}
    used: set[str] = set()

    def before(name: str, args: tuple, kwargs: dict[str, object]) -> None:
        given = _first_tensor(*args, *kwargs.values())
        if given is None or not given.numel():
            return
        used.add(name)
        for source, out in outputs.items():
            if source != name and _is_part(given, out):
                readers[source][name] = None

    def after(name: str, out: object) -> None:
        tensor = _first_tensor(out)
        if tensor is not None and name in used:
            outputs[name] = tensor
            readers.setdefault(name, {})

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not any(True for _ in module.parameters(recurse=False)):
                continue
            enter = lambda module, args, kwargs, name=name: before(name, args, kwargs)
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            if name in sources:
                leave = lambda module, args, out, name=name: after(name, out)
                stack.callback(module.register_forward_hook(leave).remove)
        forward(model, batch, loss)
    return Trace(frozenset(used), {source: tuple(names) for source, names in readers.items()})


def _first_tensor(*values: object) -> Tensor | None:
    values = tuple(inner for value in values for inner in (value if isinstance(value, tuple) else (value,)))
    return next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), None)


def _is_part(given: Tensor, out: Tensor) -> bool:
    """Return whether rows of a tensor, evenly spaced, are rows of another one."""
    if not given.ndim or not out.numel() or given.shape[-1] != out.shape[-1]:
        return False
    rows, all_rows = given.reshape(-1, given.shape[-1]), out.reshape(-1, out.shape[-1])
    tested = torch.linspace(0, len(rows) - 1, min(len(rows), TESTED_ROWS)).long()
    return all(
        bool((all_rows[all_rows[:, 0] == row[0]] == row).all(dim=-1).any())  # few rows have the same first number
        for row in rows[tested.to(rows.device)]
    )
