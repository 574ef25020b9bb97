"""Moments of the gradient at random weights, in whose null space the census searches symmetries."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon, randomise, trainable
from undertow.torch.census.axes import Axis, Symmetry, unfold
from undertow.torch.census.candidates import Level

__all__ = ["MAX_DRAWS", "AxisMoments"]

MAX_DRAWS = 16
"""Largest number of draws of random weights; each takes one forward and one backward pass."""
MIN_BRANCH_DRAWS = 8
"""Least number of draws where a parameter may be dropped at random (stochastic depth, LayerDrop): a branch that is
dropped with probability 0.2 is missing from all of them in 3 of a million cases, one at 0.5 in 4 of a thousand."""
ZERO_GRADIENT_RTOL = 1e-9
"""Gradients below this, relative to the largest, count as zero: those of key biases under softmax, of biases before a
norm."""
BLOCK_RTOL = 1e-7
"""Entries of the matrices G W' of both sides agree if they differ by less than this, relative to the largest."""


class AxisMoments:
    """Moments of the axes of every level at several draws of weights, each with its own random numbers for dropout.

    Where the network drops parts at random, draws are added until every part was present in `draws` of them.
    """

    def __init__(
        self, twin: nn.Module, batch: Batch, loss: Loss, searched: list[Level], eps: float, draws: int, seed: int,
        *, stochastic: bool,
    ):  # fmt: skip
        self.searched = searched
        self.unclear: list[str] = []
        """Sentences about candidates that could not be interpreted."""
        self._twin, self._batch, self._loss, self._eps, self._seed = twin, batch, loss, eps, seed
        self._names = list(trainable(twin))
        rows: list[list[np.ndarray]] = [[] for _ in searched]
        axes = [axis for level in searched for axis in level.axes]
        is_zero = {id(axis): True for axis in axes}
        self.bounds = dict.fromkeys(self._names, 0.0)
        """Upper bounds |G| |W| of the moments, by parameter."""
        self.nonzero = np.zeros((0, len(self._names)), bool)
        """(draws, parameters): whether the gradient of a parameter was nonzero in a draw."""
        while not self._has_enough_draws(draws, stochastic):
            self._draw(len(self.nonzero))
            sizes = {name: float(g.abs().max()) for name, g in self.gradients.items()}
            self.nonzero = np.concatenate([self.nonzero, [[sizes[name] > 0 for name in self._names]]])
            limit = ZERO_GRADIENT_RTOL * max(sizes.values())
            for axis in axes:
                is_zero[id(axis)] = is_zero[id(axis)] and self._below(axis, sizes[axis.parameter], limit)
            for name, g in self.gradients.items():
                self.bounds[name] = max(self.bounds[name], float(g.norm() * self.values[name].norm()))
            sums = _sums(axes, self.values, self.gradients)
            for level, matrix in zip(searched, rows, strict=True):
                columns = [sums[a.parameter, a.axis, a.shift][a.index].sum(1) for a in level.axes]
                matrix.append(np.stack(columns, axis=1))
        self.zero_axes = [axis for axis in axes if is_zero[id(axis)]]
        """Axes without a gradient in any draw."""
        self.is_zero = [[is_zero[id(axis)] for axis in level.axes] for level in searched]
        """Whether each axis of each level has no gradient in any draw."""
        self.moments = [np.concatenate(matrix) for matrix in rows]
        """One matrix (indices of all draws, axes) per level."""

    def _has_enough_draws(self, draws: int, stochastic: bool) -> bool:
        done, counts = len(self.nonzero), self.nonzero.sum(0)
        if not stochastic or done == 0:
            return done >= draws
        needed = max(draws, MIN_BRANCH_DRAWS) if (counts < done).any() else draws
        return done >= needed and (done >= 4 * needed or bool((counts[counts > 0] >= draws).all()))

    def _draw(self, number: int) -> None:
        """Compute the weights and gradients of a draw."""
        params = trainable(self._twin)
        with norm_epsilon(self._twin, self._eps):
            randomise(self._twin, self._seed + number)
            value, _ = forward(self._twin, self._batch, self._loss, self.dropout_seed(number))
            gradients = torch.autograd.grad(value, list(params.values()), allow_unused=True)
        self.gradients = {
            name: torch.zeros_like(p) if g is None else g
            for (name, p), g in zip(params.items(), gradients, strict=True)
        }
        self.values = {name: p.detach().clone() for name, p in params.items()}
        self._current_draw = number
        bad = [name for name, g in self.gradients.items() if not bool(torch.isfinite(g).all())]
        if bad:
            raise ValueError(f"`census`: the gradient of {bad[0]} is not finite at random weights.")

    def dropout_seed(self, number: int) -> int:
        """Return the seed of the random numbers for dropout in a draw."""
        return self._seed + number

    def _below(self, axis: Axis, size: float, limit: float) -> bool:
        if axis.index.size == axis.length or size <= limit:
            return size <= limit
        return float(unfold(self.gradients[axis.parameter], axis).abs().max()) <= limit

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
        order = []
        for number, symmetry in enumerate(symmetries):
            present = self.nonzero[:, [column[name] for name in symmetry.parameters]].sum(1)
            order.append((len(present) - 1 - int(np.argmax(present[::-1])), number))  # the last of the best draws
        blocks = {}
        for draw, number in sorted(order, reverse=True):
            if draw != self._current_draw:
                self._draw(draw)
            blocks[number] = _largest_block(symmetries[number], self.gradients, self.values)
        return [replace(symmetry, block=blocks[number]) for number, symmetry in enumerate(symmetries)]


def _sums(
    axes: list[Axis], values: dict[str, Tensor], gradients: dict[str, Tensor]
) -> dict[tuple[str, int, float], np.ndarray]:
    """Return sum G (W + shift) over all dimensions but the axis, by parameter, axis and shift."""
    sums = {}
    for axis in axes:
        key = (axis.parameter, axis.axis, axis.shift)
        if key not in sums:
            g, w = gradients[axis.parameter], values[axis.parameter]
            product = g * (w + axis.shift) if axis.shift else g * w
            others = [k for k in range(g.ndim) if k != axis.axis]
            sums[key] = (product.sum(others) if others else product).numpy(force=True)
    return sums


def _largest_block(symmetry: Symmetry, gradients: dict[str, Tensor], values: dict[str, Tensor]) -> int:
    """Return the largest block on which the sum of G W' over plus is the transpose of that over minus."""
    if not symmetry.minus or any(axis.shift or axis.role == "gain" for axis in symmetry.axes):
        return 1
    plus, minus = (
        [[unfold(t[axis.parameter], axis).flatten(1) for t in (gradients, values)] for axis in side]
        for side in (symmetry.plus, symmetry.minus)
    )

    @functools.cache
    def agrees(row: int) -> np.ndarray:
        one = sum((w @ g[row] for g, w in plus), torch.zeros(()))
        two = sum((g @ w[row] for g, w in minus), torch.zeros(()))
        scale = torch.maximum(one.abs(), two.abs()).max().clamp_min(1e-300)
        return ((one - two).abs() <= BLOCK_RTOL * scale).numpy(force=True)

    first = agrees(0)
    largest = int(np.argmin(first)) if not first.all() else symmetry.size
    for width in symmetry.block_sizes(max(largest, 1)):
        tried = {0, width - 1, width // 2, symmetry.size - 1, symmetry.size // 2}
        if all(agrees(row)[row // width * width : (row // width + 1) * width].all() for row in tried):
            return width
    return 1
