"""Moving along orbits: outputs and loss stay, at every draw of dropout and every size of weights, or it is no symmetry.

A network can seem to have a symmetry that it does not have: a branch was dropped, ReLU6 or clipped queries did not
reach their limits, the loss has a term that the outputs do not show. `refute` tries relations in several situations.
All relations move at once, each by its own random transformation; only where that changes something they are tried
apart.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch._copies import Loss, epsilon, forward, trainable
from undertow.torch.census.axes import Relation, move

__all__ = ["HOLDS", "Bench", "Refuted", "Situation", "random_transform", "refute", "situations"]

HOLDS = 1e-5
"""The relative change of outputs in float32 that rounding explains."""
LOSS_HOLDS = 1e-8
"""The relative change of a loss in float64 that rounding explains, if the outputs change by less than a tenth of it."""
NUDGE = 1e-13
"""A relative change of the weights, well above rounding in float64, that shows how far rounding is magnified."""
LARGE_SCALES = (4.0, 8.0, 64.0)
"""Random weights alone keep activations near 1. At 8 times that ReLU6 and Hardtanh saturate, and queries and keys that
are clipped at 8 or 30, for the gain of the norm before them is larger too."""
DRAWS = 8
"""Draws of dropout in which relations are tried."""


def random_transform(relation: Relation, seed: int, dtype: torch.dtype) -> Tensor:
    """Factors between 0.6 and 1.6, or well-conditioned matrices; never a power of two, which rounds nothing."""
    generator = torch.Generator().manual_seed(seed)
    if relation.block == 1:
        drawn = torch.rand(relation.size, generator=generator, dtype=torch.float64) - 0.5
        return (drawn + 0.05 * drawn.sign()).exp().to(dtype)
    width = relation.block
    drawn = torch.randn(relation.size // width, width, width, generator=generator, dtype=torch.float64)
    return (torch.eye(width, dtype=torch.float64) + 0.3 * drawn / width**0.5).to(dtype)


@contextmanager
def _moved(model: nn.Module, relations: Sequence[Relation], seed: int) -> Generator[None]:
    """The parameters moved along the orbits of all these relations meanwhile, independently."""
    params = trainable(model)
    kept = {name: params[name].detach().clone() for relation in relations for name in relation.parameters}
    values: dict[str, Tensor] = dict(kept)
    for place, relation in enumerate(relations):
        values |= move(values, relation, random_transform(relation, seed + place, params[relation.parameters[0]].dtype))
    try:
        for name, value in values.items():
            params[name].copy_(value)
        del values
        yield
    finally:
        for name, value in kept.items():
            params[name].copy_(value)


class Bench:
    """A copy of a network on which relations are tried, in one draw of dropout."""

    def __init__(self, twin: nn.Module, loss: Loss, batch: Any, draw: int = 0):
        self.twin, self.loss, self.batch, self.draw = twin, loss, batch, draw
        self._before: dict[float | None, Tensor] = {}

    @torch.no_grad()
    def _outputs(self, eps: float | None) -> Tensor:
        with epsilon(self.twin, eps):
            return forward(self.twin, self.loss, self.batch, self.draw)[1].clone()

    @torch.no_grad()
    def change(self, relation: Relation, seed: int = 0, eps: float | None = None) -> float:
        """How far outputs move along the orbit, relative to their size."""
        if eps not in self._before:
            self._before[eps] = self._outputs(eps)
        with _moved(self.twin, [relation], seed):
            return _relative(self._outputs(eps), self._before[eps])


def _relative(after: Tensor, before: Tensor) -> float:
    return float((after - before).norm() / before.norm().clamp_min(1e-300))


class Situation(NamedTuple):
    """Weights and random numbers with which relations are tried."""

    words: str
    scale: float
    """A power of two by which all weights are multiplied."""
    own: bool
    """Whether the weights are the user's, or else random."""
    draw: int
    """The seed of dropout."""


def situations(seed: int, stochastic: bool) -> list[Situation]:
    """Where relations are tried, with other random numbers for dropout each time."""
    again = "in another draw of dropout" if stochastic else "at random weights"
    found = [Situation(again, 1.0, False, seed + k) for k in range(DRAWS if stochastic else 1)]
    found += [
        Situation(f"at random weights times {scale:g}", scale, False, seed + 100 + k)
        for k, scale in enumerate(LARGE_SCALES)
    ]
    return [*found, Situation("at the weights of the model", 1.0, True, seed + 200)]


class Refuted(NamedTuple):
    """A relation that is no symmetry of the loss."""

    relation: Relation
    words: str
    """Where it failed."""
    change: float
    """The relative change there, of the loss if the outputs stayed, else of the outputs."""
    by_loss: bool
    """Whether the outputs stayed and the loss did not."""


@torch.no_grad()
def refute(
    twin: nn.Module,
    own: Sequence[Tensor],
    loss: Loss,
    batch: Any,
    relations: Sequence[Relation],
    tried: Sequence[Situation],
    eps: float | None,
) -> tuple[list[Relation], list[Refuted]]:
    """Which relations hold in all situations, with smaller blocks where only those hold, and what became of the others.

    `twin` is in double precision at random weights, and has the user's weights, `own`, afterwards. A situation says
    nothing, and is left out, where numbers are not finite or where rounding is magnified too far (large weights in a
    deep network that is chaotic there).
    """
    left, refuted = list(relations), []
    for situation in tried if relations else ():
        if situation.own:
            for parameter, value in zip(twin.parameters(), own, strict=True):
                parameter.copy_(value)
        with _scaled(twin, situation.scale), epsilon(twin, eps):
            trial = _Trial(twin, loss, batch, situation.draw)
            if trial.means_something:
                left, out = trial.sort(left)
                refuted += [Refuted(relation, situation.words, *why) for relation, why in out]
    return left, refuted


@contextmanager
def _scaled(model: nn.Module, scale: float) -> Generator[None]:
    floating = [p for p in model.parameters() if p.is_floating_point()] if scale != 1 else []
    for parameter in floating:
        parameter.mul_(scale)
    try:
        yield
    finally:
        for parameter in floating:
            parameter.div_(scale)


class _Trial:
    """Relations against one situation, at weights that are nudged once to see how far rounding is magnified."""

    def __init__(self, twin: nn.Module, loss: Loss, batch: Any, draw: int):
        self._run = lambda: forward(twin, loss, batch, draw)
        self.twin, self.draw = twin, draw
        value, outputs = self._run()
        generator = torch.Generator().manual_seed(draw)
        for parameter in trainable(twin).values():
            by = torch.randn((*parameter.shape[:1], *[1] * (parameter.ndim - 1)), generator=generator)
            parameter.mul_((1 + NUDGE * by.double()).to(parameter))
        self.value, self.outputs = self._run()
        self.rounding = float((self.value - value).abs()) / NUDGE * 1e-10
        finite = bool(torch.isfinite(self.outputs).all()) and bool(torch.isfinite(self.value))
        self.means_something = finite and _relative(self.outputs, outputs) <= HOLDS / 10

    def sort(self, relations: list[Relation]) -> tuple[list[Relation], list[tuple[Relation, tuple[float, bool]]]]:
        """The relations that hold, and the others with the change and whether it is one of the loss alone."""
        why = self._broken(relations)
        if why is None:
            return relations, []
        if len(relations) > 1:
            halves = relations[: len(relations) // 2], relations[len(relations) // 2 :]
            (one, out), (two, more) = map(self.sort, halves)
            return one + two, out + more
        (relation,) = relations
        for block in relation.blocks(relation.block - 1):
            smaller = replace(relation, block=block)
            if self._broken([smaller]) is None:
                return [smaller], []
        return [], [(relation, why)]

    def _broken(self, relations: list[Relation]) -> tuple[float, bool] | None:
        if not relations:
            return None
        with _moved(self.twin, relations, self.draw):
            value, outputs = self._run()
        change = _relative(outputs, self.outputs)
        if not change <= HOLDS:
            return change, False
        size = float(self.value.abs())
        apart = float((value - self.value).abs())
        if apart <= (LOSS_HOLDS + 10 * change) * size + self.rounding:
            return None
        return apart / size if size else math.inf, True
