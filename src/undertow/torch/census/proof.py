"""Proofs of symmetries: outputs and loss do not change along the orbit, for several weights and draws of dropout.

A network can seem to have a symmetry that it does not have: a branch was dropped, ReLU6 or clipped queries did not
reach their limits, or the loss has a term that does not depend on the outputs. `verify_symmetries` therefore tests
symmetries in several situations. All symmetries are moved at once, each by its own random transformation. Only where
this changes something they are tested separately.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon, trainable
from undertow.torch.census.axes import Symmetry, move

__all__ = [
    "LARGE_SCALES",
    "OUTPUT_RTOL",
    "OrbitTrial",
    "Refuted",
    "Situation",
    "random_transform",
    "situations",
    "verify_symmetries",
]

OUTPUT_RTOL = 1e-5
"""Relative change of outputs in float32 that rounding explains."""
LOSS_RTOL = 1e-8
"""Relative change of a loss in float64 that rounding explains if the outputs change by less than a tenth of it."""
PERTURBATION = 1e-13
"""Relative change of the weights, well above rounding in float64, that shows how far the network amplifies rounding."""
LARGE_SCALES = (4.0, 8.0, 64.0)
"""Factors on random weights, whose activations are near 1. At 8 times the weights ReLU6 and Hardtanh saturate. So do
queries and keys that are clipped at 8 or 30, because the gain of the norm before them is larger too."""
DROPOUT_DRAWS = 8
"""Draws of dropout in which symmetries are tested."""


def random_transform(symmetry: Symmetry, seed: int, dtype: torch.dtype) -> Tensor:
    """Return random factors between 0.6 and 1.6, or random well-conditioned matrices.

    Factors near 1 are left out, and powers of two do not occur: products with them would not round.
    """
    generator = torch.Generator().manual_seed(seed)
    if symmetry.block == 1:
        drawn = torch.rand(symmetry.size, generator=generator, dtype=torch.float64) - 0.5
        return (drawn + 0.05 * drawn.sign()).exp().to(dtype)
    width = symmetry.block
    drawn = torch.randn(symmetry.size // width, width, width, generator=generator, dtype=torch.float64)
    return (torch.eye(width, dtype=torch.float64) + 0.3 * drawn / width**0.5).to(dtype)


@contextmanager
def _moved(model: nn.Module, symmetries: Sequence[Symmetry], seed: int) -> Generator[None]:
    """Move the parameters along the orbits of these symmetries, each by its own transformation, inside the context."""
    params = trainable(model)
    original = {name: params[name].detach().clone() for symmetry in symmetries for name in symmetry.parameters}
    values: dict[str, Tensor] = dict(original)
    for number, symmetry in enumerate(symmetries):
        dtype = params[symmetry.parameters[0]].dtype
        values |= move(values, symmetry, random_transform(symmetry, seed + number, dtype))
    try:
        for name, value in values.items():
            params[name].copy_(value)
        del values
        yield
    finally:
        for name, value in original.items():
            params[name].copy_(value)


class OrbitTrial:
    """Changes of the outputs of a network along orbits, in one draw of dropout."""

    def __init__(self, twin: nn.Module, batch: Batch, loss: Loss, dropout_seed: int = 0):
        self.twin, self.batch, self.loss, self.dropout_seed = twin, batch, loss, dropout_seed
        self._original: dict[float | None, Tensor] = {}

    @torch.no_grad()
    def _outputs(self, eps: float | None) -> Tensor:
        with norm_epsilon(self.twin, eps):
            return forward(self.twin, self.batch, self.loss, self.dropout_seed)[1].clone()

    @torch.no_grad()
    def change(self, symmetry: Symmetry, seed: int = 0, eps: float | None = None) -> float:
        """Return the change of the outputs along the orbit, relative to their norm."""
        if eps not in self._original:
            self._original[eps] = self._outputs(eps)
        with _moved(self.twin, [symmetry], seed):
            return _relative_change(self._outputs(eps), self._original[eps])


def _relative_change(after: Tensor, before: Tensor) -> float:
    return float((after - before).norm() / before.norm().clamp_min(1e-300))


class Situation(NamedTuple):
    """Weights and random numbers with which symmetries are tested."""

    description: str
    scale: float
    """Power of two by which all weights are multiplied."""
    own_weights: bool
    """Whether the weights are those of the user's model; otherwise they are random."""
    dropout_seed: int


def situations(seed: int, stochastic: bool) -> list[Situation]:
    """Return the situations in which symmetries are tested, each with other random numbers for dropout."""
    first = "in another draw of dropout" if stochastic else "at random weights"
    return [
        *(Situation(first, 1.0, False, seed + k) for k in range(DROPOUT_DRAWS if stochastic else 1)),
        *(
            Situation(f"at random weights times {scale:g}", scale, False, seed + 100 + k)
            for k, scale in enumerate(LARGE_SCALES)
        ),
        Situation("at the weights of the model", 1.0, True, seed + 200),
    ]


class Refuted(NamedTuple):
    """A candidate that turned out not to be a symmetry of the loss."""

    symmetry: Symmetry
    situation: str
    """The situation in which it failed."""
    change: float
    """Relative change there: of the loss if the outputs did not change, else of the outputs."""
    by_loss: bool
    """Whether the loss changed and the outputs did not."""


@torch.no_grad()
def verify_symmetries(
    twin: nn.Module,
    batch: Batch,
    loss: Loss,
    symmetries: Sequence[Symmetry],
    tried: Sequence[Situation],
    *,
    own_weights: Sequence[Tensor],
    eps: float | None,
) -> tuple[list[Symmetry], list[Refuted]]:
    """Return the symmetries that hold in all situations (with smaller blocks where only these hold), and the others.

    `twin` is in double precision at random weights; afterwards it has the user's weights, `own_weights`. A situation
    is left out where numbers are not finite, or where the network amplifies rounding too far (large weights in a deep
    network that is chaotic there).
    """
    left, refuted = list(symmetries), []
    for situation in tried if symmetries else ():
        if situation.own_weights:
            for parameter, value in zip(twin.parameters(), own_weights, strict=True):
                parameter.copy_(value)
        with _scaled(twin, situation.scale), norm_epsilon(twin, eps):
            trial = _Trial(twin, batch, loss, situation.dropout_seed)
            if trial.conclusive:
                left, failures = trial.partition(left)
                refuted += [Refuted(symmetry, situation.description, *change) for symmetry, change in failures]
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
    """Test of symmetries in one situation. The weights are perturbed once to measure the effect of rounding."""

    def __init__(self, twin: nn.Module, batch: Batch, loss: Loss, dropout_seed: int):
        self._run = lambda: forward(twin, batch, loss, dropout_seed)
        self.twin, self.dropout_seed = twin, dropout_seed
        value, outputs = self._run()
        generator = torch.Generator().manual_seed(dropout_seed)
        for parameter in trainable(twin).values():
            drawn = torch.randn((*parameter.shape[:1], *[1] * (parameter.ndim - 1)), generator=generator)
            parameter.mul_((1 + PERTURBATION * drawn.double()).to(parameter))
        self.value, self.outputs = self._run()
        self.loss_rounding = float((self.value - value).abs()) / PERTURBATION * 1e-10
        finite = bool(torch.isfinite(self.outputs).all()) and bool(torch.isfinite(self.value))
        self.conclusive = finite and _relative_change(self.outputs, outputs) <= OUTPUT_RTOL / 10

    def partition(self, symmetries: list[Symmetry]) -> tuple[list[Symmetry], list[tuple[Symmetry, tuple[float, bool]]]]:
        """Return the symmetries that hold, and the others with the change and whether only the loss changed."""
        change = self._change(symmetries)
        if change is None:
            return symmetries, []
        if len(symmetries) > 1:
            halves = symmetries[: len(symmetries) // 2], symmetries[len(symmetries) // 2 :]
            (one, out), (two, more) = map(self.partition, halves)
            return one + two, out + more
        (symmetry,) = symmetries
        for block in symmetry.block_sizes(symmetry.block - 1):
            smaller = replace(symmetry, block=block)
            if self._change([smaller]) is None:
                return [smaller], []
        return [], [(symmetry, change)]

    def _change(self, symmetries: list[Symmetry]) -> tuple[float, bool] | None:
        """Return the change along the orbits and whether only the loss changed; None if rounding explains it."""
        if not symmetries:
            return None
        with _moved(self.twin, symmetries, self.dropout_seed):
            value, outputs = self._run()
        change = _relative_change(outputs, self.outputs)
        if not change <= OUTPUT_RTOL:
            return change, False
        size = float(self.value.abs())
        difference = float((value - self.value).abs())
        if difference <= (LOSS_RTOL + 10 * change) * size + self.loss_rounding:
            return None
        return difference / size if size else math.inf, True
