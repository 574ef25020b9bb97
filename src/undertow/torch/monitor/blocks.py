"""GL symmetries under SGD: noise, charges and equilibria of all blocks of one size at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undertow.torch.equilibrium.amounts import RANK_RTOL
from undertow.torch.monitor.balance import BlockSolution, block_solution
from undertow.torch.monitor.entries import BlockEntries, BlockMap
from undertow.torch.monitor.settings import StepRule
from undertow.torch.monitor.statistics import StatisticRequest, statistic
from undertow.torch.monitor.steps import Steps
from undertow.torch.monitor.tensors import at_least_single

__all__ = ["BlockReading", "rank_rtol", "read_blocks"]

SINGLE_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class BlockReading:
    """The blocks of the GL symmetries of one size: matrices (blocks, d, d)."""

    map: BlockMap
    sides: tuple[Tensor, Tensor]
    """Noise of the side plus and of the side minus."""
    gradient: Tensor
    charge: Tensor
    push: tuple[Tensor, Tensor]
    """What pushes the charge up and down."""
    weights: tuple[Tensor, Tensor]
    inertia: tuple[Tensor, Tensor]
    solution: BlockSolution


def read_blocks(
    own: BlockMap,
    rows: BlockEntries,
    steps: Steps,
    parameters: Mapping[str, nn.Parameter],
    rules: Mapping[str, StepRule],
    sums: Mapping[StatisticRequest, Tensor],
    samples: Tensor,
    scale: Tensor,
) -> BlockReading:
    """Return noise, charges and equilibria of the GL symmetries with one block size, under SGD."""
    device = steps.step.device
    moments: list[list[Tensor]] = [[], [], []]
    for request in own.requests:
        parameter = parameters[request.parameter]
        weight = _gram(parameter.detach(), request)
        gradient, recorded = torch.zeros_like(weight), sums.get(request)
        if recorded is not None and parameter.grad is not None:
            gradient = _gram(parameter.grad.detach(), request)
        unscale = rules[request.parameter].grad_scale
        factor = 1.0 if unscale is None else 1 / unscale.to(weight) ** 2
        second = torch.zeros_like(weight) if recorded is None else recorded.to(weight) * factor
        for values, new in zip(moments, (weight, gradient * factor, second), strict=True):
            values.append(new.to(device))
    weight, gradient, second = (torch.cat(values).double()[rows.request] for values in moments)
    noise = (second * scale**2 - gradient / samples) * samples / (samples - 1)
    noise = (noise + noise.mT) / 2
    settings, column = steps.by_parameter, lambda x: x[:, None, None]
    moves = steps.moves[rows.symmetry]
    step = column(torch.where(moves, settings.step[rows.parameter], 1.0))
    decay, unit = column(settings.decay[rows.parameter]), column(steps.reference[rows.symmetry]) / step
    plus = column(rows.plus)
    side = lambda values, is_plus: rows.by_block(torch.where(plus == is_plus, values, 0.0))
    up = side(step / 2 * noise, True) + side(decay * weight, False)
    down = side(step / 2 * noise, False) + side(decay * weight, True)
    weights, inertia = ((side(x, True), side(x, False)) for x in (weight, weight / step))
    rank_rtol = _rank_rtol(own, rows, parameters, device)
    return BlockReading(
        own,
        (side(noise, True), side(noise, False)),
        side(gradient, True) - side(gradient, False),
        (side(unit * weight, True) - side(unit * weight, False)) / 2,
        (up, down),
        weights,
        inertia,
        block_solution(up, down, weights, inertia, rank_rtol),
    )


def rank_rtol(block: int, dtypes: Sequence[torch.dtype]) -> float:
    """Return the noise, relative to the largest, below which a direction of a GL has only rounding."""
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
    return max(RANK_RTOL, 8 * block * min(rounding, SINGLE_EPS))  # half precision is summed in single precision


def _rank_rtol(
    own: BlockMap, rows: BlockEntries, parameters: Mapping[str, nn.Parameter], device: torch.device
) -> Tensor:
    dtypes = {parameters[request.parameter].dtype for request in own.requests}
    return torch.full((len(rows.owner),), rank_rtol(own.block, list(dtypes)), dtype=torch.float64, device=device)


def _gram(tensor: Tensor, request: StatisticRequest) -> Tensor:
    """Return the requested inner products of one tensor."""
    return statistic(at_least_single(tensor).reshape(1, *(tensor.shape or (1,))), request)
