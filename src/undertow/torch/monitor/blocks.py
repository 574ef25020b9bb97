"""GL symmetries under SGD: noise, charges and equilibria of all blocks of one size at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undertow.torch.equilibrium.amounts import RANK_RTOL
from undertow.torch.monitor.balance import BlockSolution, block_solution
from undertow.torch.monitor.entries import BlockEntries, BlockMap
from undertow.torch.monitor.statistics import StatisticRequest, inner_products
from undertow.torch.monitor.steps import Steps
from undertow.torch.monitor.tensors import at_least_single, joined

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
    sums: Mapping[StatisticRequest, Tensor],
    samples: Tensor,
    scale: Tensor,
) -> BlockReading:
    """Return noise, charges and equilibria of the GL symmetries with one block size, under SGD."""
    device = steps.step.device
    names = [request.parameter for request in own.requests]
    zero = lambda request: torch.zeros(*request.index.shape[:2], own.block, dtype=torch.float64, device=device)
    weight = _grams(own.requests, {name: parameters[name].detach() for name in names}, device)
    slopes = {name: g.detach() for name in names if (g := parameters[name].grad) is not None}
    used = [request for request in own.requests if request.parameter in slopes]
    of_slopes = _grams(used, slopes, device)
    gradient = torch.cat([of_slopes.get(request, zero(request)) for request in own.requests])[rows.request]
    second = joined([sums.get(request, zero(request)) for request in own.requests], device)
    second = second.reshape(-1, own.block, own.block)[rows.request]
    weight = torch.cat([weight[request] for request in own.requests])[rows.request]
    unscale = steps.by_parameter.unscale[rows.parameter][:, None, None]
    gradient, second = gradient * unscale, second * unscale
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


def _grams(
    requests: Sequence[StatisticRequest], tensors: Mapping[str, Tensor], device: torch.device
) -> dict[StatisticRequest, Tensor]:
    """Return the requested inner products, computed together for tensors and indices that are alike."""
    alike: dict[tuple, list[StatisticRequest]] = {}
    for request in requests:
        tensor = tensors[request.parameter]
        index = b"" if request.index is None else request.index.tobytes()
        key = tensor.shape, tensor.dtype, tensor.device, request.axis, request.matrices, index
        alike.setdefault(key, []).append(request)
    result = {}
    for group in alike.values():
        stack = torch.stack([at_least_single(tensors[request.parameter]) for request in group])
        products = inner_products(stack.reshape(len(group), *(stack.shape[1:] or (1,))), group[0])
        result |= dict(zip(group, products.to(device, torch.float64), strict=True))
    return result
