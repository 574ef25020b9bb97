"""Moments of the gradient at random weights: what the census looks for relations in."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import Loss, epsilon, forward, randomise, trainable
from undertow.torch.census.axes import Axis, Relation, unfold
from undertow.torch.census.hints import Level

__all__ = ["MOST_DRAWS", "Moments"]

MOST_DRAWS = 16
"""Draws of random weights, each one forward and backward pass."""
BRANCH_DRAWS = 8
"""At least so many draws where a parameter may be left out at random (stochastic depth, LayerDrop): a branch that is
dropped with probability 0.2 is missing from all of them in 3 of a million cases, one at 0.5 in 4 of a thousand."""
SILENT = 1e-9
"""A gradient below this, relative to the largest, is none: key biases under softmax, biases into a norm."""


class Moments:
    """Moments of every level at several draws of weights; each draw has its own random numbers for dropout.

    Where the network leaves parts out at random, draws are added until every part was there in `draws` of them.
    """

    def __init__(
        self, twin: nn.Module, loss: Loss, batch: Any, searched: list[Level], eps: float, draws: int, seed: int,
        *, stochastic: bool,
    ):  # fmt: skip
        self.searched = searched
        self.unclear: list[str] = []
        self._twin, self._loss, self._batch, self._eps, self._seed = twin, loss, batch, eps, seed
        self._names = list(trainable(twin))
        rows: list[list[np.ndarray]] = [[] for _ in searched]
        pieces = [axis for level in searched for axis in level.axes]
        quiet = {id(axis): True for axis in pieces}
        self.bounds = dict.fromkeys(self._names, 0.0)
        self.alive = np.zeros((0, len(self._names)), bool)
        """(draws, parameters): whether the gradient of a parameter was not 0 in a draw."""
        while not self._enough(draws, stochastic):
            self._draw(len(self.alive))
            sizes = {name: float(g.abs().max()) for name, g in self.gradients.items()}
            self.alive = np.concatenate([self.alive, [[sizes[name] > 0 for name in self._names]]])
            limit = SILENT * max(sizes.values())
            for axis in pieces:
                quiet[id(axis)] = quiet[id(axis)] and self._below(axis, sizes[axis.parameter], limit)
            for name, g in self.gradients.items():
                self.bounds[name] = max(self.bounds[name], float(g.norm() * self.values[name].norm()))
            sums = _sums(pieces, self.values, self.gradients)
            for level, matrix in zip(searched, rows, strict=True):
                columns = [sums[a.parameter, a.axis, a.shift][a.index].sum(1) for a in level.axes]
                matrix.append(np.stack(columns, axis=1))
        self.silent = [axis for axis in pieces if quiet[id(axis)]]
        self.quiet = [[quiet[id(axis)] for axis in level.axes] for level in searched]
        self.moments = [np.concatenate(matrix) for matrix in rows]

    def _enough(self, draws: int, stochastic: bool) -> bool:
        done, counts = len(self.alive), self.alive.sum(0)
        if not stochastic or done == 0:
            return done >= draws
        wanted = max(draws, BRANCH_DRAWS) if (counts < done).any() else draws
        return done >= wanted and (done >= 4 * wanted or bool((counts[counts > 0] >= draws).all()))

    def _draw(self, number: int) -> None:
        """The weights and gradients of a draw."""
        params = trainable(self._twin)
        with epsilon(self._twin, self._eps):
            randomise(self._twin, self._seed + number)
            value, _ = forward(self._twin, self._loss, self._batch, self.seed_of(number))
            found = torch.autograd.grad(value, list(params.values()), allow_unused=True)
        self.gradients = {
            name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(params.items(), found, strict=True)
        }
        self.values = {name: p.detach().clone() for name, p in params.items()}
        self._now = number
        bad = [name for name, g in self.gradients.items() if not bool(torch.isfinite(g).all())]
        if bad:
            raise ValueError(f"`census`: the gradient of {bad[0]} is not finite at random weights.")

    def seed_of(self, number: int) -> int:
        """The seed of dropout in a draw."""
        return self._seed + number

    def _below(self, axis: Axis, size: float, limit: float) -> bool:
        if axis.index.size == axis.length or size <= limit:
            return size <= limit
        return float(unfold(self.gradients[axis.parameter], axis).abs().max()) <= limit

    def covering(self) -> list[int]:
        """Seeds of dropout of few draws, in which every parameter with a gradient has one."""
        missing, chosen = self.alive.any(0), []
        while missing.any():
            best = int(np.argmax(self.alive[:, missing].sum(1)))
            chosen.append(self.seed_of(best))
            missing = missing & ~self.alive[best]
        return chosen or [self.seed_of(0)]

    def grown(self, found: Sequence[Relation]) -> list[Relation]:
        """Each relation with the largest GL block it allows, by the gradients of a draw that has all its parameters."""
        place = {name: number for number, name in enumerate(self._names)}
        order = []
        for number, relation in enumerate(found):
            there = self.alive[:, [place[name] for name in relation.parameters]].sum(1)
            order.append((len(there) - 1 - int(np.argmax(there[::-1])), number))  # the last of the best
        blocks = {}
        for draw, number in sorted(order, reverse=True):
            if draw != self._now:
                self._draw(draw)
            blocks[number] = _block(found[number], self.gradients, self.values)
        return [replace(relation, block=blocks[number]) for number, relation in enumerate(found)]


def _sums(pieces: list[Axis], values: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict:
    """sum G (W + shift) over all axes but one."""
    found = {}
    for axis in pieces:
        key = (axis.parameter, axis.axis, axis.shift)
        if key not in found:
            g, w = gradients[axis.parameter], values[axis.parameter]
            both = g * (w + axis.shift) if axis.shift else g * w
            others = [k for k in range(g.ndim) if k != axis.axis]
            found[key] = (both.sum(others) if others else both).numpy(force=True)
    return found


def _block(relation: Relation, gradients: dict[str, Tensor], values: dict[str, Tensor]) -> int:
    """The largest block on which the sum of G W' over plus is the transpose of that over minus."""
    if not relation.minus or any(axis.shift or axis.role == "gain" for axis in relation.axes):
        return 1

    both = [
        [[unfold(t[axis.parameter], axis).flatten(1) for t in (gradients, values)] for axis in side]
        for side in (relation.plus, relation.minus)
    ]

    @functools.cache
    def agree(row: int) -> np.ndarray:
        one = sum((w @ g[row] for g, w in both[0]), torch.zeros(()))
        two = sum((g @ w[row] for g, w in both[1]), torch.zeros(()))
        scale = torch.maximum(one.abs(), two.abs()).max().clamp_min(1e-300)
        return ((one - two).abs() <= 1e-7 * scale).numpy(force=True)

    first = agree(0)
    most = int(np.argmin(first)) if not first.all() else relation.size
    for width in relation.blocks(max(most, 1)):
        tried = {0, width - 1, width // 2, relation.size - 1, relation.size // 2}
        if all(agree(row)[row // width * width : (row // width + 1) * width].all() for row in tried):
            return width
    return 1
