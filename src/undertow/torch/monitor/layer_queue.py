"""Layers whose per-sample gradients are known, and whose statistics are computed together where they are alike.

A model has many layers of the same shape. One matrix product for all of them takes a fraction of the time that the host
needs to start one for each. The inputs and derivatives of the layers in the queue stay in memory, which bounds it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.sample_gradients import Dense, Outer, SampleGradients
from undertow.torch.monitor.statistics import Autotuner, StatisticRequest, batch_statistics, layer_statistics, statistic

__all__ = ["LayerQueue", "Waiting"]

GPU_BYTES, CPU_BYTES = 2**29, 2**21
"""Bytes of inputs and derivatives that wait at most."""


class Waiting(NamedTuple):
    """A parameter whose uses in a backward pass are complete."""

    name: str
    uses: list[SampleGradients]
    requests: Sequence[StatisticRequest]


class LayerQueue:
    """Parameters that wait for their statistics, by kind and shape of their gradients."""

    def __init__(self, autotuner: Autotuner):
        self.autotuner = autotuner
        self._groups: dict[tuple, list[Waiting]] = {}
        self._names: set[str] = set()
        self._bytes = 0
        self._limit = CPU_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, one: Waiting) -> None:
        """Add a parameter."""
        self._groups.setdefault(_kind(one), []).append(one)
        self._names.add(one.name)
        tensors = [x for use in one.uses for x in use.tensors]
        self._bytes += sum(x.nbytes for x in tensors)
        self._limit = GPU_BYTES if tensors[0].is_cuda else CPU_BYTES

    @property
    def full(self) -> bool:
        """Whether the statistics have to be computed now."""
        return self._bytes >= self._limit

    def take(self) -> Iterator[list[Waiting]]:
        """Empty the queue; return an iterator over the groups of parameters that are computed together."""
        groups = list(self._groups.values())
        self._groups, self._names, self._bytes = {}, set(), 0
        return iter(groups)

    def compute(self, group: list[Waiting]) -> BatchSums:
        """Return the statistics and the probes of a group."""
        part, uses, first = BatchSums(), [one.uses[0] for one in group], group[0]
        stack: Outer | Tensor
        if len(group) == 1:
            sums: list[Sequence[Tensor]] = [(x,) for x in batch_statistics(first.uses, first.requests, self.autotuner)]
            flipped = {use.flipped for use in first.uses}
            part.flipped[first.name] = flipped.pop() if len(flipped) == 1 else None
            whole = part.flipped[first.name] is None
            probes: Sequence[Tensor] = [sum(use.total().flatten() if whole else use.probe() for use in first.uses)]
        elif isinstance(uses[0], Outer):
            stack = Outer.stacked([use for use in uses if isinstance(use, Outer)])
            sums = [*layer_statistics(stack, first.requests, self.autotuner)]
            part.flipped |= dict.fromkeys((one.name for one in group), stack.flipped)
            probes = stack.probes()
        else:
            stack = torch.cat([use.formed() for use in uses])
            sums = [statistic(stack, request, len(group)) for request in first.requests]
            part.flipped = dict.fromkeys(one.name for one in group)
            probes = stack.unflatten(0, (len(group), -1)).sum(1).flatten(1)
        by_layer = [values.unbind() if isinstance(values, Tensor) else values for values in (*sums, probes)]
        for one, *values, probe in zip(group, *by_layer, strict=True):
            part.sums |= zip(one.requests, values, strict=True)
            part.probes[one.name] = probe
        return part


def _kind(one: Waiting) -> tuple:
    """Return what parameters must have in common to be computed together; the name where it is computed alone."""
    use = one.uses[0]
    if len(one.uses) > 1 or not isinstance(use, Outer | Dense) or any(r.matrices > 1 for r in one.requests):
        return (one.name,)
    first, last = use.tensors[0], use.tensors[-1]
    kinds = tuple(request.kind for request in one.requests)
    return type(use), first.shape, last.shape, first.dtype, first.device, use.shape, use.flipped, kinds
