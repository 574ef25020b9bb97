"""Random codes: indices that are set to zero in some passes, and gradients that vanish with them."""

import math
from collections import defaultdict

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
from undertow.torch._random_weights import RandomWeights
from undertow.torch.census.axes import Axis, all_rows
from undertow.torch.census.candidates import is_bias
from undertow.torch.census.inplace import multiply_along

__all__ = ["Codes", "Toggled", "varies"]

ZEROS = 0.35
"""Share of the indices that are zero in a pass. A product of two factors is then zero in more than half of them."""
NORM_EPS = 0.1
MOST_CANDIDATES = 64
"""Largest number of indices among which a pair is searched."""
LEAST_PAIRS = 0.3
"""Share of the indices of an axis that must have a pair, where pairs are accepted at all."""

OTHER_ZEROS = 0.25
"""Share of the passes without a gradient that a pair need not explain: all values of a narrow head may be zero."""

Toggled = list[tuple[Axis, ...]]


class Codes:
    """Random codes of the indices of some axes, and the zeros of gradients that they cause.

    The axes of a tuple of `toggled` are equally long and share a code: they write to one stream.
    """

    def __init__(self, twin: nn.Module, batch: Batch, loss: Loss, toggled: Toggled, seen: list[Axis], seed: int):
        self._twin, self._batch, self._loss, self._seed = twin, batch, loss, seed
        self._weights = RandomWeights(twin)
        self.toggled, self.seen = toggled, seen
        self.codes = [np.zeros((axes[0].length, 0), bool) for axes in toggled]
        self.zeros = [np.zeros((axis.length, 0), bool) for axis in seen]
        self.valid = [np.zeros(0, bool) for _ in seen]
        """Passes in which the parameter of each axis has a gradient at all."""
        self._bounds = np.cumsum([0, *(len(codes) for codes in self.codes)])

    @property
    def passes(self) -> int:
        return self.codes[0].shape[1]

    @torch.no_grad()
    def _set_to_zero(self, random: np.random.Generator) -> None:
        """Set the biases and randomly chosen indices of every toggled axis to zero."""
        params = trainable(self._twin)
        with torch._C.DisableTorchFunction():  # no casts to replace here
            for name, parameter in params.items():
                if is_bias(name):
                    parameter.zero_()
            for number, axes in enumerate(self.toggled):
                drawn = random.random(axes[0].length) < ZEROS
                if drawn.all():
                    drawn[random.integers(len(drawn))] = False
                self.codes[number] = np.concatenate([self.codes[number], drawn[:, None]], axis=1)
                for axis in axes:
                    multiply_along(params[axis.parameter], axis, (~drawn).astype(float))

    def run(self, passes: int) -> None:
        """Make some more passes."""
        by_parameter: dict[str, list[tuple[int, Axis]]] = defaultdict(list)
        for place, axis in enumerate(self.seen):
            by_parameter[axis.parameter].append((place, axis))
        for _ in range(passes):
            number = self.passes
            self._weights.draw(self._seed + number)
            self._set_to_zero(np.random.default_rng([self._seed, number]))
            with norm_epsilon(self._twin, NORM_EPS):
                value, _ = forward(self._twin, self._batch, self._loss, self._seed + number)
            sizes: dict[int, Tensor] = {}

            def visit(name: str, weight: Tensor, gradient: Tensor, sizes=sizes) -> None:
                gradient.abs_()
                for place, axis in by_parameter[name]:
                    sizes[place] = all_rows(gradient, axis).amax(1)

            visit_gradients(self._twin, value, visit)
            ends = np.cumsum([len(size) for size in sizes.values()])
            parts = np.split(on_host(list(sizes.values())) != 0, ends[:-1])
            alive = dict(zip(sizes, parts, strict=True)) if sizes else {}
            for place, axis in enumerate(self.seen):
                rows = alive.get(place, np.zeros(axis.length, bool))
                self.zeros[place] = np.concatenate([self.zeros[place], ~rows[:, None]], axis=1)
                self.valid[place] = np.append(self.valid[place], rows.any())

    def likely_writers(self, reader: int) -> tuple[list[int], bool]:
        """Return the toggled axes that have partners for more of the indices of an axis than chance gives.

        Also whether another axis has partners for all of them, but so may chance.
        """
        zeros, valid = self.zeros[reader], self.valid[reader]
        varying = np.flatnonzero(zeros[:, valid].any(1) & ~zeros[:, valid].all(1))
        if valid.sum() < 8 or len(varying) < max(2, 0.02 * len(zeros)):
            return [], False
        sample = varying[np.linspace(0, len(varying) - 1, min(32, len(varying))).astype(int)]
        match = _contained(np.concatenate(self.codes)[:, valid], zeros[sample][:, valid])
        found = (np.add.reduceat(match, self._bounds[:-1], axis=1) > 0).sum(0)
        chance = (1 - ZEROS) ** (~zeros[sample][:, valid]).sum(1)
        expected = [np.minimum(chance * len(codes), 1).sum() for codes in self.codes]
        likely = found > 1 + 2 * np.array(expected) + 2 * np.sqrt(expected)
        return np.flatnonzero(likely).tolist(), bool((~likely & (found == len(sample))).any())

    def by_chance(self, reader: int, writer: int) -> float:
        """Return the expected number of partners that are not."""
        zeros = self.zeros[reader][:, self.valid[reader]]
        chance = (1 - ZEROS) ** (~zeros).sum(1)
        return float(chance[zeros.any(1) & ~zeros.all(1)].sum() * len(self.codes[writer]))

    def partners(self, reader: int, writer: int) -> np.ndarray:
        """Return which indices of a toggled axis make each index of another vanish whenever they are zero."""
        valid = self.valid[reader]
        zeros = self.zeros[reader][:, valid]
        varying = np.asarray(zeros.any(1) & ~zeros.all(1))
        return _contained(self.codes[writer][:, valid], zeros) & varying[:, None]

    def pairs(self, reader: int, writer: int, left: np.ndarray) -> tuple[np.ndarray | None, bool]:
        """Return pairs of indices of a toggled axis that make an index of another vanish when both are zero.

        Rotary embeddings couple pairs. None if there are no pairs; also whether some are ambiguous.
        """
        valid = self.valid[reader]
        zeros, codes = self.zeros[reader][:, valid], self.codes[writer][:, valid]
        varies = np.flatnonzero(left & (zeros.sum(1) > 1) & ~zeros.all(1))
        if valid.sum() < 8 or len(varies) < 2:
            return None, False
        pairs, doubtful = np.full((len(zeros), 2), -1), 0
        for k in varies.tolist():
            total = int(zeros[k].sum())
            least = math.ceil((1 - OTHER_ZEROS) * total)
            inside = np.flatnonzero((zeros[k] & codes).sum(1) >= least)  # zero (almost) whenever the gradient vanishes
            if len(inside) < 2 or len(inside) > MOST_CANDIDATES:
                continue
            both = codes[inside][:, None] & codes[inside][None]
            explained = np.triu(np.where((both & ~zeros[k]).any(2), 0, both.sum(2)), 1)
            one, two = np.nonzero(explained >= max(least, explained.max()))
            doubtful += len(one) > 1
            if len(one) == 1:
                pairs[k] = inside[one[0]], inside[two[0]]
        decoded = int((pairs[:, 0] >= 0).sum())
        likely = decoded >= max(2, LEAST_PAIRS * len(varies))
        return (pairs if likely else None), doubtful >= max(2, LEAST_PAIRS * len(varies))

    def two_writers(self, reader: int, left: np.ndarray) -> list[tuple[int, int, int, int, int]]:
        """Return (index, axis, its index, other axis, its index) where two axes must be zero for an index to vanish.

        Both write what the index reads, as a layer and the branch that is added to a part of its outputs.
        """
        valid = self.valid[reader]
        codes, zeros = np.concatenate(self.codes)[:, valid], self.zeros[reader][:, valid]
        owner = np.repeat(np.arange(len(self.codes)), np.diff(self._bounds))
        found = []
        for k in np.flatnonzero(left & (zeros.sum(1) > 1) & ~zeros.all(1)).tolist():
            inside = np.flatnonzero(~(zeros[k] & ~codes).any(1))
            if not 2 <= len(inside) <= MOST_CANDIDATES:
                continue
            both = (codes[inside][:, None] & codes[inside][None] == zeros[k]).all(2)
            both &= owner[inside][:, None] < owner[inside][None]
            if both.sum() == 1:
                one, two = (inside[n] for n in np.argwhere(both)[0])
                first, second = int(owner[one]), int(owner[two])
                found.append((k, first, int(one - self._bounds[first]), second, int(two - self._bounds[second])))
        return found


def _contained(codes: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return whether the gradient of each index vanishes in all passes in which a code is zero: (indices, codes)."""
    alive = (~zeros).astype(np.float32) @ codes.astype(np.float32).T
    return (alive == 0) & np.asarray(codes.any(1))[None]


def varies(zeros: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return which indices have a gradient that vanishes in some passes and not in others."""
    return np.asarray(zeros[:, valid].any(1) & ~zeros[:, valid].all(1))
