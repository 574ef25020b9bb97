"""Sums over the processes of a distributed training run, and sharded parameters as whole ones.

Under DistributedDataParallel and FSDP2 every process has its own samples, and `.grad` is the mean over the processes
of their gradients: a sample with the contribution c to the gradient of its process contributes c/processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.settings import StepRule
from undertow.torch.monitor.statistics import StatisticRequest

__all__ = [
    "Selected",
    "WholeParameters",
    "is_sharded",
    "runs_distributed",
    "sum_over_ranks",
    "validate_wrapper",
    "whole_state",
]


def is_sharded(model: nn.Module) -> bool:
    """Return whether parameters of a model are shards, as FSDP2 (`fully_shard`) makes them."""
    return any(hasattr(p, "full_tensor") for p in model.parameters())


def validate_wrapper(model: nn.Module) -> None:
    """Raise an error for wrappers whose samples or parameters are not accessible."""
    if isinstance(model, nn.DataParallel):
        raise ValueError(
            "`NoiseMonitor`: a DataParallel spreads the samples over replicas, which it does not measure; use "
            "DistributedDataParallel."
        )
    if type(model).__name__ == "FullyShardedDataParallel":
        raise ValueError(
            "`NoiseMonitor`: FullyShardedDataParallel (FSDP1) flattens the parameters, so that those of a layer cannot "
            "be separated; use FSDP2 (`torch.distributed.fsdp.fully_shard`)."
        )


def runs_distributed() -> bool:
    """Return whether several processes train together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


class _Status(NamedTuple):
    """What one process recorded, without the numbers."""

    problem: str | None
    samples: int
    names: tuple[tuple[str, bool | None], ...]
    half: frozenset[str]
    uncovered: dict[str, str]


def sum_over_ranks(
    sums: BatchSums, problem: str | None, requests: Mapping[str, Sequence[StatisticRequest]], uncovered: dict[str, str]
) -> tuple[BatchSums, str | None]:
    """Return the sums over all processes, with the first problem of any of them; add to `uncovered`.

    Every process has to call it at the same steps. After a problem of one process all of them return it.
    """
    names = tuple((name, sums.flipped[name]) for name in requests if name in sums.probes)
    mine = _Status(problem, sums.samples, names, frozenset(sums.half), dict(uncovered))
    statuses: list[_Status | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(statuses, mine)
    known = [status for status in statuses if status is not None]
    for rank, status in enumerate(known):
        uncovered |= status.uncovered
        if status.problem is not None:
            return sums, f"on rank {rank}, {status.problem}"
    if len({status.names for status in known}) > 1:
        return sums, "the processes used different parameters in this step, so that their sums cannot be added"
    total = BatchSums()
    total.samples = sum(status.samples for status in known)
    total.half = set().union(*(status.half for status in known))
    total.flipped, total.not_separable = dict(names), dict(sums.not_separable)
    keys = [r for name, _ in names for r in requests[name] if r in sums.sums]
    if not names:
        return total, None
    sums.settle()
    tensors = [*(sums.sums[key] for key in keys), *(sums.probes[name] for name, _ in names)]
    counted = torch.as_tensor(sums.counted, device=tensors[0].device)
    total.counted, *rest = _all_reduce([counted, *tensors])
    added = iter(rest)
    share = 1 / len(known)
    total.sums = {key: next(added) * share**2 for key in keys}
    total.probes = {name: next(added) * share for name, _ in names}
    return total, None


def _all_reduce(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sums of tensors over the processes, by one exchange."""
    flat = torch.cat([x.reshape(-1).to(torch.float64) for x in tensors])
    distributed.all_reduce(flat)
    parts = flat.split([x.numel() for x in tensors])
    return [part.reshape(x.shape) for part, x in zip(parts, tensors, strict=True)]


class WholeParameters(Mapping[str, nn.Parameter]):
    """Parameters by name, whole ones for those that are sharded. One of them at a time is held.

    To read a sharded parameter is an exchange between the processes: all of them have to read in the same order.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]):
        self._parameters = parameters
        self._newest: tuple[str, nn.Parameter] | None = None

    def __getitem__(self, name: str) -> nn.Parameter:
        if self._newest is None or self._newest[0] != name:
            self._newest = name, _whole(self._parameters[name])
        return self._newest[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


class Selected(Mapping[str, nn.Parameter]):
    """Some parameters of a mapping, looked up when they are used."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], names: Sequence[str]):
        self._parameters, self._names = parameters, tuple(names)

    def __getitem__(self, name: str) -> nn.Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def whole_state(rule: StepRule) -> StepRule:
    """Return how a parameter is stepped, with whole tensors for the sharded state of the optimiser."""
    whole = lambda x: x.full_tensor() if hasattr(x, "full_tensor") else x
    return rule if rule.state is None else replace(rule, state={key: whole(x) for key, x in rule.state.items()})


def _whole(parameter: nn.Parameter) -> nn.Parameter:
    if not hasattr(parameter, "full_tensor"):
        return parameter
    with torch.no_grad():
        whole = nn.Parameter(parameter.full_tensor(), requires_grad=parameter.requires_grad)
    if parameter.grad is not None:
        whole.grad = parameter.grad.full_tensor()
    return whole
