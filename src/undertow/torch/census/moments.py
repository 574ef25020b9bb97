"""Moments of the gradient at random weights, in whose null space the census searches symmetries.

The gradient of each parameter is reduced to its moments as soon as it is there, and dropped: all gradients of a large
network at once would take as much memory as the network.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import (
    Batch,
    Loss,
    forward,
    norm_epsilon,
    on_host,
    trainable,
    visit_gradients,
)
from undertow.torch._random_weights import LARGE_PARAMETER, RandomWeights, enlarge
from undertow.torch.census.axes import Axis, Symmetry, all_rows, unfold
from undertow.torch.census.candidates import Level

__all__ = ["MAX_DRAWS", "AxisMoments", "enough_draws"]

MAX_DRAWS = 16
"""Largest number of draws of random weights; each takes one forward and one backward pass."""
ROWS_PER_AXIS = 2.1
"""Least number of indices in all draws per axis of a level; with fewer, chance makes null vectors."""
ONE_DRAW_LENGTH = 64
"""Length of the shortest level from which one draw may do: a few inactive units decide nothing there."""
MIN_BRANCH_DRAWS = 8
"""Least number of draws where a parameter may be dropped at random (stochastic depth, LayerDrop): a branch that is
dropped with probability 0.2 is missing from all of them in 3 of a million cases, one at 0.5 in 4 of a thousand."""
ZERO_GRADIENT_RTOL = 1e-9
"""Gradients below this, relative to the largest, count as zero: those of key biases under softmax, of biases before a
norm."""
BLOCK_RTOL = 1e-7
"""Entries of the matrices G W' of both sides agree if they differ by less than this, relative to the largest."""


def enough_draws(levels: Sequence[Level]) -> int:
    """Return the number of draws of weights in which the moments of all levels determine their null spaces."""
    least = 1 if min((level.size for level in levels), default=0) >= ONE_DRAW_LENGTH else 2
    needed = max([least, *(math.ceil(ROWS_PER_AXIS * len(level.axes) / level.size) for level in levels)])
    return min(needed, MAX_DRAWS)


class AxisMoments:
    """Moments of the axes of every level at several draws of weights, each with its own random numbers for dropout.

    Where the network drops parts at random, draws are added until every part was present in `draws` of them.
    """

    def __init__(
        self, twin: nn.Module, batch: Batch, loss: Loss, searched: list[Level], eps: float, draws: int, seed: int,
        *, stochastic: bool, known: Sequence[Symmetry] = (), largest: float = 1.0,
    ):  # fmt: skip
        """Take the moments; in the first draw also what `with_blocks` needs of the known symmetries.

        Each parameter is multiplied by a random factor between 1 and `largest`.
        """
        self.searched = searched
        self._products = {id(symmetry): _Products(symmetry) for symmetry in known}
        self.unclear: list[str] = []
        """Sentences about candidates that could not be interpreted."""
        self.twin, self._batch, self.loss, self._eps, self._seed, self._largest = twin, batch, loss, eps, seed, largest
        self._weights = RandomWeights(twin)
        self._names = list(trainable(twin))
        axes = [axis for level in searched for axis in level.axes]
        self._places = _Places(axes)
        bounds, self.gradient_size = np.zeros(len(self._names)), 0.0
        """`gradient_size`: norm of the largest gradient of a parameter."""
        self.inactive: dict[_Key, list[float]] = {}
        """Shares of the indices of each axis without a gradient, in the draws in which its parameter has one."""
        self.nonzero = np.zeros((0, len(self._names)), bool)
        """(draws, parameters): whether the gradient of a parameter was nonzero in a draw."""
        is_zero, columns = np.ones(len(axes), bool), []
        while not self._has_enough_draws(draws, stochastic):
            sums, sizes, norms = self._moments(len(self.nonzero))
            self.gradient_size = max(self.gradient_size, float(norms[0].max()))
            bounds = np.maximum(bounds, norms[1])
            by_parameter = self._places.largest_by_parameter(sizes, self._names)
            self.nonzero = np.concatenate([self.nonzero, [by_parameter > 0]])
            limit = ZERO_GRADIENT_RTOL * by_parameter.max()
            is_zero &= self._places.largest_by_axis(sizes) <= limit
            for key, share in self._places.shares_below(sizes, limit).items():
                self.inactive.setdefault(key, []).append(share)
            columns.append(self._places.sums_by_generator(sums))
        self.bounds = dict(zip(self._names, bounds.tolist(), strict=True))
        """Upper bounds |G| |W| of the moments, by parameter."""
        self.zero_axes = [axis for axis, zero in zip(axes, is_zero, strict=True) if zero]
        """Axes without a gradient in any draw."""
        ends = np.cumsum([len(level.axes) for level in searched])[:-1]
        self.is_zero = [part.tolist() for part in np.split(is_zero, ends)]
        """Whether each axis of each level has no gradient in any draw."""
        ends = np.cumsum([len(level.axes) * level.size for level in searched])[:-1]
        by_draw = [np.split(column, ends) for column in columns]
        self.moments = [
            np.concatenate([parts[k].reshape(len(level.axes), level.size).T for parts in by_draw])
            for k, level in enumerate(searched)
        ]
        """One matrix (indices of all draws, axes) per level."""

    def joined(self, other: "AxisMoments") -> "AxisMoments":
        """Return the moments of both, of the same levels: a null vector of these is one of both."""
        both = copy.copy(self)
        size = lambda matrix: max(float(np.linalg.norm(matrix)), 1e-300)
        both.moments = [
            np.concatenate([one, two * (size(one) / size(two))])
            for one, two in zip(self.moments, other.moments, strict=True)
        ]
        both.is_zero = [
            [one and two for one, two in zip(*pair, strict=True)]
            for pair in zip(self.is_zero, other.is_zero, strict=True)
        ]
        both.unclear = []
        return both

    def _has_enough_draws(self, draws: int, stochastic: bool) -> bool:
        done, counts = len(self.nonzero), self.nonzero.sum(0)
        if not stochastic or done == 0:
            return done >= draws
        needed = max(draws, MIN_BRANCH_DRAWS) if (counts < done).any() else draws
        return done >= needed and (done >= 4 * needed or bool((counts[counts > 0] >= draws).all()))

    def _moments(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the moments of all places in a draw, the largest gradient there, and by parameter |G| and |G| |W|.

        Everything stays on the device until the pass ends.
        """
        sums: dict[_Key, Tensor] = {}
        sizes: dict[_Key, Tensor] = {}
        norms: dict[str, Tensor] = {}

        of_parameter = _by_parameter(list(self._products.values()) if number == 0 else [])

        def visit(name: str, weight: Tensor, gradient: Tensor) -> None:
            for products in of_parameter.get(name, ()):
                products.add(name, weight, gradient)
            norm, length = gradient.norm(), weight.norm()
            norms[name] = torch.stack([norm, norm * length])
            views = self._places.by_parameter.get(name, {})
            offsets = {key: axis.shift * all_rows(gradient, axis).sum(1) for key, axis in views.items() if axis.shift}
            # in place for large parameters, to save memory; none of their random values is zero, so that the product
            # vanishes where the gradient does
            small = weight.numel() < LARGE_PARAMETER
            product = gradient * weight if small else gradient.mul_(weight)
            for key, axis in views.items():
                total = all_rows(product, axis).sum(1)
                sums[key] = total + offsets[key] if key in offsets else total
            size, unit = (gradient.abs_(), 1.0) if small else (product.abs_(), weight.numel() ** 0.5 / length)
            for key, axis in views.items():
                sizes[key] = all_rows(size, axis).amax(1) * unit

        self._draw(number, visit)
        table = np.zeros((len(self._names), 2))
        table[[name in norms for name in self._names]] = on_host(
            [norms[name] for name in self._names if name in norms]
        ).reshape(-1, 2)
        for name, norm in zip(self._names, table[:, 0], strict=True):
            if not np.isfinite(norm):
                raise ValueError(f"`census`: the gradient of {name} is not finite at random weights.")
        return self._places.joined(sums), self._places.joined(sizes), table.T

    def _draw(self, number: int, visit: Callable[[str, Tensor, Tensor], None]) -> None:
        """Visit the weights and gradients of a draw."""
        with norm_epsilon(self.twin, self._eps):
            self._weights.draw(self._seed + number)
            enlarge(self.twin, self._largest, self._seed + number)
            value, _ = forward(self.twin, self._batch, self.loss, self.dropout_seed(number))
            visit_gradients(self.twin, value, visit)

    def dropout_seed(self, number: int) -> int:
        """Return the seed of the random numbers for dropout in a draw."""
        return self._seed + number

    def covering_seeds(self) -> list[int]:
        """Return dropout seeds of a few draws such that every parameter with a gradient has one in some of them."""
        missing, chosen = self.nonzero.any(0), []
        while missing.any():
            best = int(np.argmax(self.nonzero[:, missing].sum(1)))
            chosen.append(self.dropout_seed(best))
            missing = missing & ~self.nonzero[best]
        return chosen or [self.dropout_seed(0)]

    def with_blocks(self, symmetries: Sequence[Symmetry]) -> list[Symmetry]:
        """Return each symmetry with the largest GL block that the gradients of a draw with all its parameters allow."""
        column = {name: number for number, name in enumerate(self._names)}
        by_draw: dict[int, list[_Products]] = {}
        result = []
        for symmetry in symmetries:
            present = self.nonzero[:, [column[name] for name in symmetry.parameters]].sum(1)
            best, products = int(np.argmax(present)), self._products.get(id(symmetry))
            if products is None or present[0] < present[best]:
                products = _Products(symmetry)
                if products.rows:
                    by_draw.setdefault(best, []).append(products)
            result.append(products)
        for draw, all_products in by_draw.items():
            of_parameter = _by_parameter(all_products)

            def visit(name: str, weight: Tensor, gradient: Tensor, of_parameter=of_parameter) -> None:
                for products in of_parameter.get(name, ()):
                    products.add(name, weight, gradient)

            self._draw(draw, visit)
        return [replace(products.symmetry, block=products.largest_block()) for products in result]


_Key = tuple[str, int, bool, float]
"""Parameter, axis, whether it counts by matrix, and shift."""


def _key(axis: Axis) -> _Key:
    return axis.parameter, axis.axis, axis.by_matrix, axis.shift


class _Places:
    """All indices of the parameters along the axes of the levels in one vector, and the axes as positions in it."""

    def __init__(self, axes: Sequence[Axis]):
        self.by_parameter: dict[str, dict[_Key, Axis]] = {}
        for axis in axes:
            self.by_parameter.setdefault(axis.parameter, {}).setdefault(_key(axis), axis)
        self._lengths = {key: axis.length for views in self.by_parameter.values() for key, axis in views.items()}
        firsts = np.cumsum([0, *self._lengths.values()])
        self._count = int(firsts[-1])
        self._first = dict(zip(self._lengths, firsts.tolist(), strict=False))
        empty = [np.zeros(0, int)]
        self._positions = np.concatenate(empty + [self._first[_key(axis)] + axis.index.reshape(-1) for axis in axes])
        self._axis_starts = np.cumsum([0, *(axis.index.size for axis in axes)])[:-1]
        together = np.concatenate(empty + [np.full(axis.size, axis.index.shape[1]) for axis in axes])
        self._generator_starts = np.cumsum([0, *together])[:-1]

    def joined(self, values: dict[_Key, Tensor]) -> np.ndarray:
        """Return the values of all places as one vector, zero where a parameter has none."""
        result = np.zeros(self._count)
        held = [key for key in self._lengths if key in values]
        vector = on_host([values[key] for key in held])
        ends = np.cumsum([self._lengths[key] for key in held])
        for key, end in zip(held, ends.tolist(), strict=True):
            first, length = self._first[key], self._lengths[key]
            result[first : first + length] = vector[end - length : end]
        return result

    def sums_by_generator(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over the indices that move together, for each generator of each axis."""
        return np.add.reduceat(values[self._positions], self._generator_starts) if len(self._positions) else values

    def largest_by_axis(self, values: np.ndarray) -> np.ndarray:
        """Return the largest value of each axis."""
        return np.maximum.reduceat(values[self._positions], self._axis_starts) if len(self._positions) else values

    def shares_below(self, values: np.ndarray, limit: float) -> dict[_Key, float]:
        """Return the share of the values of each view that are at most `limit`, where a larger one occurs."""
        parts = {key: values[first : first + self._lengths[key]] for key, first in self._first.items()}
        return {key: float((part <= limit).mean()) for key, part in parts.items() if part.max(initial=0.0) > limit}

    def largest_by_parameter(self, values: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Return the largest value of each parameter, zero for one without axes."""
        part = lambda key: values[self._first[key] : self._first[key] + self._lengths[key]].max()
        return np.array([max(map(part, self.by_parameter.get(name, ())), default=0.0) for name in names])


def _by_parameter(all_products: Sequence["_Products"]) -> dict[str, list["_Products"]]:
    of_parameter: dict[str, list[_Products]] = {}
    for products in all_products:
        for name in products.symmetry.parameters if products.rows else ():
            of_parameter.setdefault(name, []).append(products)
    return of_parameter


class _Products:
    """Some rows of the sums of G W' over both sides of a symmetry, from which the size of its blocks follows."""

    def __init__(self, symmetry: Symmetry):
        self.symmetry = symmetry
        scales_only = not symmetry.minus or any(
            axis.shift or axis.role == "gain" or axis.power > 1 for axis in symmetry.axes
        )
        self._tried: dict[int, set[int]] = {}
        if not scales_only:
            last, middle = symmetry.size - 1, symmetry.size // 2
            self._tried = {w: {0, w - 1, w // 2, last, middle} for w in symmetry.block_sizes(symmetry.size)}
        self.rows = sorted(set().union(*self._tried.values()))
        self._sums = [torch.zeros(()), torch.zeros(())]
        self._missing, self._block = len(symmetry.axes), 0

    def add(self, name: str, weight: Tensor, gradient: Tensor) -> None:
        """Add the products of a parameter."""
        for side, axes in enumerate((self.symmetry.plus, self.symmetry.minus)):
            for axis in axes:
                if axis.parameter == name:
                    w, g = (unfold(tensor, axis).flatten(1) for tensor in (weight, gradient))
                    product = w @ g[self.rows].T if side == 0 else g @ w[self.rows].T
                    total = self._sums[side]
                    self._sums[side] = product if total.ndim == 0 else total + product.to(total.device)
                    self._missing -= 1
        if self._missing == 0:  # the products of all symmetries at once would take as much memory as a layer
            self._block, self._sums = self.largest_block(), [torch.zeros(()), torch.zeros(())]

    def largest_block(self) -> int:
        """Return the largest block on which the sum of G W' over plus is the transpose of that over minus."""
        if self._block:
            return self._block
        if not self.rows or 0 in (self._sums[0].ndim, self._sums[1].ndim):
            return 1
        one, two = (total.numpy(force=True) for total in self._sums)
        scale = np.maximum(np.abs(one), np.abs(two)).max(0).clip(1e-300)
        agrees = dict(zip(self.rows, (np.abs(one - two) <= BLOCK_RTOL * scale).T, strict=True))
        for width, tried in self._tried.items():
            if all(agrees[row][row // width * width : (row // width + 1) * width].all() for row in tried):
                return width
        return 1
