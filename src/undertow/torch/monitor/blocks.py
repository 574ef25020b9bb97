"""GL symmetries under SGD: noise, charges and equilibria of all blocks of one size at once.

The matrices are computed on the device of the model. The equilibria need eigenvalues, for which a GPU takes as long as
for several training steps: they are computed on the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.equilibrium import closed_forms
from undertow.torch.equilibrium.amounts import RANK_RTOL, Amount, Solution, relaxation_times
from undertow.torch.equilibrium.charge_moments import ChargeMoments
from undertow.torch.monitor.arrays import Array
from undertow.torch.monitor.balance import block_solution
from undertow.torch.monitor.entries import BlockEntries, BlockMap, EntryMap
from undertow.torch.monitor.statistics import StatisticRequest, inner_products
from undertow.torch.monitor.steps import Steps
from undertow.torch.monitor.tensors import at_least_single, joined

__all__ = ["BlockEquilibria", "BlockProducts", "BlockReading", "block_products", "rank_rtol", "read_blocks"]

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
    """Noise and weight decay that increase the charge, and those that decrease it."""
    weights: tuple[Tensor, Tensor]
    inertia: tuple[Tensor, Tensor]
    rank_rtol: float
    """The noise, relative to the largest, below which a direction has only rounding."""

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """The matrices from which the equilibria follow."""
        return *self.push, *self.weights, *self.inertia

    def parts(self, entries: EntryMap) -> list[tuple[int, slice]]:
        """Return the places of the symmetries in the census, each with its blocks."""
        counts = [entries.census.symmetries[place].size // self.map.block for place in self.map.symmetries]
        ends = np.cumsum([0, *counts]).tolist()
        return [(place, slice(*ends[k : k + 2])) for k, place in enumerate(self.map.symmetries)]


class BlockEquilibria:
    """The equilibria of the blocks of one size, from `BlockReading.matrices` on the host."""

    def __init__(self, reading: BlockReading, matrices: Sequence[np.ndarray]):
        self.reading, self._matrices = reading, matrices
        up, down, *others = map(torch.from_numpy, matrices)
        rtol = torch.full((len(up),), reading.rank_rtol, dtype=torch.float64)
        solution = block_solution(up, down, tuple(others[:2]), tuple(others[2:]), rtol)
        self._logs, self._vectors, self._times, self._regular = (x.numpy() for x in solution)

    def numbers(self, part: slice, *, moves: bool) -> tuple[dict[str, float], np.ndarray]:
        """Return the numbers of one symmetry, and the amounts of its blocks."""
        if self._regular[part].all():
            logs, vectors, times = self._logs[part], self._vectors[part], self._times[part]
            times = times[np.isfinite(times)]
            amount, infinite, dead = (vectors * logs[:, None]) @ np.swapaxes(vectors, 1, 2), 0, 0
        else:
            up, down, plus, minus, *inertia = (x[part] for x in self._matrices)
            moments = ChargeMoments(up, down, plus, minus)
            found = Amount(*closed_forms.gl_amounts(moments, 1.0, 0.0, self.reading.rank_rtol))
            logs, vectors = np.linalg.eigh(found.amount)
            pushed = ChargeMoments(2 * up, 2 * down, inertia[0], inertia[1])
            times = relaxation_times(pushed, Solution(found, logs, vectors), 1.0, 0.0)
            amount, infinite, dead = found.amount, found.infinite, found.dead
        numbers = {
            "distance": float(np.sqrt(np.mean(logs**2))),
            "farthest": float(np.abs(logs).max(initial=0.0)),
            "infinite": infinite,
            "dead": dead,
            "timed": times.size if moves and infinite + dead < logs.size else 0,
            "relaxation": float(np.median(times)) if times.size else 0.0,
            "slowest": float(times.max(initial=0.0)),
        }
        return numbers, amount


@dataclass(frozen=True)
class BlockProducts:
    """The inner products of the parameters and of their gradients, by request."""

    map: BlockMap
    weight: dict[StatisticRequest, Tensor]
    gradient: dict[StatisticRequest, Tensor]
    rank_rtol: float


def block_products(own: BlockMap, parameters: Mapping[str, nn.Parameter], device: torch.device) -> BlockProducts:
    """Return what `read_blocks` needs of the parameters and gradients of a step."""
    names = [request.parameter for request in own.requests]
    weight = _grams(own.requests, {name: parameters[name].detach() for name in names}, device)
    slopes = {name: g.detach() for name in names if (g := parameters[name].grad) is not None}
    used = [request for request in own.requests if request.parameter in slopes]
    dtypes = {parameters[request.parameter].dtype for request in own.requests}
    return BlockProducts(own, weight, _grams(used, slopes, device), rank_rtol(own.block, list(dtypes)))


def read_blocks(
    products: BlockProducts,
    rows: BlockEntries,
    steps: Steps,
    sums: Mapping[StatisticRequest, Tensor],
    samples: Array,
    scale: Array,
) -> BlockReading:
    """Return noise and charges of the GL symmetries with one block size, under SGD."""
    device, own = rows.request.device, products.map
    flat = lambda of: joined([of[r] if r in of else _zero(r, own.block, device) for r in own.requests], device)
    matrices = lambda of: flat(of).reshape(-1, own.block, own.block)[rows.request]
    gradient, second, weight = (matrices(of) for of in (products.gradient, sums, products.weight))
    by_parameter = lambda x: torch.as_tensor(x)[rows.parameter]
    by_symmetry = lambda x: torch.as_tensor(x)[rows.symmetry]
    settings, samples, scale = steps.by_parameter, torch.as_tensor(samples), torch.as_tensor(scale)
    step = torch.where(by_symmetry(steps.moves), by_parameter(settings.step), 1.0)
    decay, unscale, ones = by_parameter(settings.decay), by_parameter(settings.unscale), torch.ones_like(step)
    noise = torch.addcmul(second.mul_(scale**2), gradient, -1 / samples)
    noise = noise.add_(noise.mT.clone()).mul_(samples / (samples - 1) / 2)
    push, decayed = rows.by_side(noise, unscale * step / 2), rows.by_side(weight, decay)
    slope, charge = rows.by_side(gradient, unscale), rows.by_side(weight, by_symmetry(steps.reference) / step)
    return BlockReading(
        own,
        rows.by_side(noise, unscale),
        slope[0] - slope[1],
        (charge[0] - charge[1]) / 2,
        (push[0] + decayed[1], push[1] + decayed[0]),
        rows.by_side(weight, ones),
        rows.by_side(weight, 1 / step),
        products.rank_rtol,
    )


def _zero(request: StatisticRequest, block: int, device: torch.device) -> Tensor:
    assert request.index is not None
    return torch.zeros(*request.index.shape[:2], block, dtype=torch.float64, device=device)


def rank_rtol(block: int, dtypes: Sequence[torch.dtype]) -> float:
    """Return the noise, relative to the largest, below which a direction of a GL has only rounding."""
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
    return max(RANK_RTOL, 8 * block * min(rounding, SINGLE_EPS))  # half precision is summed in single precision


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
