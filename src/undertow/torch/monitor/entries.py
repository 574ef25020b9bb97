"""Which sums over entries belong to which generator, for all symmetries of a census at once.

A generator A multiplies entry i of the parameters by exp(A_i s), with A_i the power of its axis, negative on the side
minus. Sums over A_i x_i are then one gather and one addition by index for all generators of all symmetries. Blocks of a
GL are added in the same way, matrix by matrix.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.census import Census
from undertow.torch.monitor.arrays import Array, add_by_index, as_array, joined_array
from undertow.torch.monitor.columns import StepColumns
from undertow.torch.monitor.requests import Requests, own_matrices
from undertow.torch.monitor.stacks import Slot
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.tensors import on_device

__all__ = ["BlockEntries", "BlockMap", "Entries", "EntryMap"]


class Entries(NamedTuple):
    """One row for each index of each axis of each symmetry, as arrays for the device of the model."""

    column: Array
    """Place among the sums over entries."""
    samples: Array
    """Place among the statistics of the samples; the last place holds 0."""
    parameter: Array
    generator: Array
    symmetry: Array
    factor: Array
    """A_i, in double precision."""
    size: Array
    """Place of |A_i| in `EntryMap.powers`."""
    owner: Array
    """The symmetry of each generator."""

    def by_generator(self, values: Array) -> Array:
        """Return the sums of (..., entries) over the entries of each generator."""
        return add_by_index(values, self.generator, len(self.owner))


class BlockEntries(NamedTuple):
    """One row for each block of each axis of the GL symmetries with one block size."""

    request: Tensor
    """Place of the matrix among those of all requests."""
    parameter: Tensor
    block: Tensor
    """Place of the block among those of all symmetries."""
    symmetry: Tensor
    plus: Tensor
    """Whether the axis is on the side plus."""
    owner: Tensor
    """The symmetry of each block."""

    def by_side(self, matrices: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of factor * matrix over the rows of each block, on the side plus and on the side minus.

        `matrices` is (rows, d, d) and `factor` is (rows,); the sums are (blocks, d, d).
        """
        count = len(self.owner)
        side = torch.where(self.plus, self.block, self.block + count)
        sums = matrices.new_zeros(2 * count, *matrices.shape[1:])
        plus, minus = sums.index_add_(0, side, factor[:, None, None] * matrices).split(count)
        return plus, minus


@dataclass(frozen=True)
class BlockMap:
    """The GL symmetries with one block size."""

    block: int
    symmetries: tuple[int, ...]
    """Places in the census."""
    requests: tuple[StatisticRequest, ...]
    arrays: BlockEntries
    """Arrays as tensors on the CPU."""

    def on(self, device: torch.device) -> BlockEntries:
        """Return the arrays on a device."""
        return BlockEntries(*(on_device(x, device) for x in self.arrays))


@dataclass(frozen=True)
class EntryMap:
    """The entries of a census. A GL appears by its diagonal generators too, one for each of its indices."""

    census: Census
    slots: tuple[Slot, ...]
    parameters: tuple[str, ...]
    requests: tuple[StatisticRequest, ...]
    powers: tuple[int, ...]
    starts: tuple[int, ...]
    """The first generator of each symmetry, and the number of generators."""
    blocks: tuple[BlockMap, ...]
    arrays: Entries
    _placed: dict[torch.device, tuple[Entries, list[BlockEntries]]] = field(default_factory=dict, repr=False)
    _counts: dict[torch.device, Array] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(census: Census, requests: Requests) -> "EntryMap":
        """Return the entries of a census."""
        slots: dict[Slot, int] = {}
        for axis in (axis for symmetry in census for axis in symmetry.axes):
            slots.setdefault(_slot(axis), 0)
        at = 0
        for slot in slots:
            slots[slot], at = at, at + slot.length
        names = {name: k for k, name in enumerate(dict.fromkeys(slot.parameter for slot in slots))}
        statistics = requests.all()
        places, at = {}, 0
        for request in statistics:
            places[id(request)] = at
            at += _length(request, slots)
        powers = sorted({abs(axis.power) for symmetry in census for axis in symmetry.axes})
        rows, starts = [], [0]
        for number, symmetry in enumerate(census):
            for axis, sign in _signed(symmetry):
                index, request = axis.index, requests.of(axis, symmetry)
                ones = np.ones_like(index)
                if request.index is None:
                    samples = places[id(request)] + index
                else:  # the statistic of a GL is a sum over the indices that move together: it is added once
                    samples = np.full_like(index, at)
                    samples[:, 0] = places[id(request)] + np.arange(axis.size)
                generator = starts[-1] + np.arange(axis.size)[:, None] * ones
                rows.append(
                    [slots[_slot(axis)] + index, samples, names[axis.parameter] * ones, generator, number * ones,
                     sign * axis.power * ones, powers.index(abs(axis.power)) * ones]
                )  # fmt: skip
            starts.append(starts[-1] + symmetry.size)
        columns = [torch.as_tensor(np.concatenate([row[k].reshape(-1) for row in rows])) for k in range(7)]
        owner = torch.as_tensor(np.repeat(np.arange(len(census)), np.diff(starts)))
        columns[5] = columns[5].double()
        sizes = [] if requests.diagonal else sorted({s.block for s in census if s.block > 1})
        blocks = tuple(_block_map(census, requests, d, names) for d in sizes)
        return EntryMap(
            census, tuple(slots), tuple(names), tuple(statistics), tuple(powers), tuple(starts), blocks,
            Entries(*columns, owner),
        )  # fmt: skip

    @functools.cached_property
    def columns(self) -> StepColumns:
        """The sums over entries along axes."""
        return StepColumns(self.slots)

    def on(self, device: torch.device) -> tuple[Entries, list[BlockEntries]]:
        """Return the entries as arrays and the blocks as tensors for a device, to which they are moved once."""
        if device not in self._placed:
            entries = Entries(*(as_array(on_device(torch.as_tensor(x), device)) for x in self.arrays))
            self._placed[device] = entries, [one.on(device) for one in self.blocks]
        return self._placed[device]

    def counts(self, parameters: Mapping[str, nn.Parameter], device: torch.device) -> Array:
        """Return the number of entries in each of the sums along axes."""
        if device not in self._counts:
            each = [parameters[slot.parameter].numel() / slot.length for slot in self.slots]
            numbers = np.repeat(each, [slot.length for slot in self.slots])
            self._counts[device] = as_array(on_device(torch.as_tensor(numbers), device))
        return self._counts[device]

    def sample_sums(self, sums: Mapping[StatisticRequest, Tensor], device: torch.device) -> Array:
        """Return the statistics of the samples in the order of `Entries.samples`, and a 0; 0 where there are none."""
        parts = []
        for request in self.requests:
            value = sums.get(request)
            if value is None:
                parts.append(torch.zeros(_length(request, self.slots), dtype=torch.float64, device=device))
            else:
                parts.append(value if value.ndim == 1 else value.diagonal(dim1=1, dim2=2))
        return joined_array([*parts, torch.zeros(1, dtype=torch.float64, device=device)], device)


def _slot(axis: Axis) -> Slot:
    return Slot(axis.parameter, axis.axis, own_matrices(axis), axis.shift, axis.length)


def _length(request: StatisticRequest, slots: Sequence[Slot] | Mapping[Slot, int]) -> int:
    if request.index is not None:
        return request.index.shape[0] * request.index.shape[1]
    own = request.parameter, request.axis, request.matrices
    return next(slot.length for slot in slots if slot[:3] == own)


def _signed(symmetry: Symmetry) -> list[tuple[Axis, int]]:
    return [(axis, 1) for axis in symmetry.plus] + [(axis, -1) for axis in symmetry.minus]


def _block_map(census: Census, requests: Requests, block: int, names: Mapping[str, int]) -> BlockMap:
    places: dict[StatisticRequest, int] = {}
    symmetries, rows, at, first = [], [], 0, 0
    for number, symmetry in enumerate(census):
        if symmetry.block != block:
            continue
        symmetries.append(number)
        count = symmetry.size // block
        for axis, sign in _signed(symmetry):
            request = requests.of(axis, symmetry)
            if request not in places:
                places[request], at = at, at + count
            ones = np.ones(count, int)
            rows.append([places[request] + np.arange(count), names[axis.parameter] * ones, first + np.arange(count),
                         number * ones, ones * (sign > 0)])  # fmt: skip
        first += count
    columns = [torch.as_tensor(np.concatenate([row[k] for row in rows])) for k in range(5)]
    owner = torch.as_tensor(np.concatenate([np.full(census.symmetries[k].size // block, k) for k in symmetries]))
    return BlockMap(block, tuple(symmetries), tuple(places), BlockEntries(*columns[:4], columns[4].bool(), owner))
