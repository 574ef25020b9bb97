"""Moments of the gradient at random weights, in whose null space the census searches symmetries.

The gradient of each parameter is reduced to its moments as soon as it is there, and dropped: all gradients of a large
network at once would take as much memory as the network.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon, randomise, trainable
from undertow.torch.census.axes import Axis, Symmetry, all_rows, unfold
from undertow.torch.census.candidates import Level

__all__ = ["MAX_DRAWS", "AxisMoments", "visit_gradients"]

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


def visit_gradients(model: nn.Module, value: Tensor, visit: Callable[[str, Tensor, Tensor], None]) -> None:
    """Call `visit(name, parameter, gradient)` for every trainable parameter with a gradient, and drop the gradient."""

    def hook(name: str, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            with torch.no_grad():
                visit(name, parameter.detach(), gradient)

    handles = [
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: hook(name, p))
        for name, parameter in trainable(model).items()
    ]
    try:
        value.backward()
    finally:
        for handle in handles:
            handle.remove()


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
        self._by_parameter: dict[str, dict[_Key, Axis]] = {name: {} for name in self._names}
        for axis in axes:
            self._by_parameter[axis.parameter].setdefault(_key(axis), axis)
        is_zero = {id(axis): True for axis in axes}
        self.inactive: dict[_Key, list[float]] = {}
        """Shares of the indices of each axis without a gradient, in the draws in which its parameter has one."""
        self.bounds = dict.fromkeys(self._names, 0.0)
        """Upper bounds |G| |W| of the moments, by parameter."""
        self.nonzero = np.zeros((0, len(self._names)), bool)
        """(draws, parameters): whether the gradient of a parameter was nonzero in a draw."""
        while not self._has_enough_draws(draws, stochastic):
            sums, sizes = self._moments(len(self.nonzero))
            largest = {name: max((s.max() for s in by_axis.values()), default=0.0) for name, by_axis in sizes.items()}
            self.nonzero = np.concatenate([self.nonzero, [[largest.get(name, 0.0) > 0 for name in self._names]]])
            limit = ZERO_GRADIENT_RTOL * max(largest.values(), default=0.0)
            for name in (name for name, size in largest.items() if size > limit):
                for key, size in sizes[name].items():
                    self.inactive.setdefault(key, []).append(float((size <= limit).mean()))
            for axis in axes:
                size = sizes.get(axis.parameter, {}).get(_key(axis))
                is_zero[id(axis)] &= size is None or bool(size[axis.index].max() <= limit)
            for level, matrix in zip(searched, rows, strict=True):
                columns = [sums.get(_key(a), np.zeros(a.length))[a.index].sum(1) for a in level.axes]
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

    def _moments(self, number: int) -> tuple[dict["_Key", np.ndarray], dict[str, dict["_Key", np.ndarray]]]:
        """Return the moments of all axes in a draw, and the largest gradient of each index by parameter and axis."""
        sums: dict[_Key, np.ndarray] = {}
        sizes: dict[str, dict[_Key, np.ndarray]] = {}

        def visit(name: str, weight: Tensor, gradient: Tensor) -> None:
            if not bool(torch.isfinite(gradient).all()):
                raise ValueError(f"`census`: the gradient of {name} is not finite at random weights.")
            self.bounds[name] = max(self.bounds[name], float(gradient.norm() * weight.norm()))
            product, size = gradient * weight, gradient.abs()
            sizes[name] = {}
            for key, axis in self._by_parameter[name].items():
                sums[key] = all_rows(product, axis).sum(1).numpy(force=True)
                if axis.shift:
                    sums[key] = sums[key] + axis.shift * all_rows(gradient, axis).sum(1).numpy(force=True)
                sizes[name][key] = all_rows(size, axis).amax(1).numpy(force=True)

        self._draw(number, visit)
        return sums, sizes

    def _draw(self, number: int, visit: Callable[[str, Tensor, Tensor], None]) -> None:
        """Visit the weights and gradients of a draw."""
        with norm_epsilon(self._twin, self._eps):
            randomise(self._twin, self._seed + number)
            value, _ = forward(self._twin, self._batch, self._loss, self.dropout_seed(number))
            visit_gradients(self._twin, value, visit)

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
        result = [_Products(symmetry) for symmetry in symmetries]
        for products in result:
            if products.rows:
                present = self.nonzero[:, [column[name] for name in products.symmetry.parameters]].sum(1)
                by_draw.setdefault(int(np.argmax(present)), []).append(products)
        for draw, all_products in by_draw.items():
            of_parameter: dict[str, list[_Products]] = {}
            for products in all_products:
                for name in products.symmetry.parameters:
                    of_parameter.setdefault(name, []).append(products)

            def visit(name: str, weight: Tensor, gradient: Tensor, of_parameter=of_parameter) -> None:
                for products in of_parameter.get(name, ()):
                    products.add(name, weight, gradient)

            self._draw(draw, visit)
        return [replace(products.symmetry, block=products.largest_block()) for products in result]


_Key = tuple[str, int, bool, float]
"""Parameter, axis, whether it counts by matrix, and shift."""


def _key(axis: Axis) -> _Key:
    return axis.parameter, axis.axis, axis.by_matrix, axis.shift


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

    def add(self, name: str, weight: Tensor, gradient: Tensor) -> None:
        """Add the products of a parameter."""
        for side, axes in enumerate((self.symmetry.plus, self.symmetry.minus)):
            for axis in axes:
                if axis.parameter == name:
                    w, g = (unfold(tensor, axis).flatten(1) for tensor in (weight, gradient))
                    product = w @ g[self.rows].T if side == 0 else g @ w[self.rows].T
                    self._sums[side] = self._sums[side] + product.cpu()

    def largest_block(self) -> int:
        """Return the largest block on which the sum of G W' over plus is the transpose of that over minus."""
        if not self.rows or 0 in (self._sums[0].ndim, self._sums[1].ndim):
            return 1
        one, two = (total.numpy(force=True) for total in self._sums)
        scale = np.maximum(np.abs(one), np.abs(two)).max(0).clip(1e-300)
        agrees = dict(zip(self.rows, (np.abs(one - two) <= BLOCK_RTOL * scale).T, strict=True))
        for width, tried in self._tried.items():
            if all(agrees[row][row // width * width : (row // width + 1) * width].all() for row in tried):
                return width
        return 1
