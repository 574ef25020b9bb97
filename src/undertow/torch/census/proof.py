"""Proofs of symmetries: outputs and loss do not change along the orbit, for several weights and draws of dropout.

A network can seem to have a symmetry that it does not have: a branch was dropped, ReLU6 or clipped queries did not
reach their limits, or the loss has a term that does not depend on the outputs. `verify_symmetries` therefore tests
symmetries in several situations. All symmetries are moved at once, each by its own random transformation. Only where
this changes something they are tested separately.
"""

import functools
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon, trainable
from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.candidates import with_biases
from undertow.torch.census.inplace import move_in_place

__all__ = [
    "LARGE_SCALES",
    "OUTPUT_RTOL",
    "OrbitTrial",
    "Refuted",
    "Situation",
    "hold_with_eps",
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
LARGE_SCALES = (8.0, 64.0)
"""Factors on random weights, whose activations are near 1. At 8 times the weights ReLU6 and Hardtanh saturate. So do
queries and keys that are clipped at 8 or 30, because the gain of the norm before them is larger too."""
SPLITS = (0.2, 0.4, 0.6, 0.8)
"""Shares of the parameters, in their order, that are multiplied by 8 while the others are divided by 8: a layer that
saturates can hide one that saturates before it."""
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


_Parts = list[tuple[Symmetry, Tensor, Tensor]]
"""Symmetries with a transformation of each and its inverse."""


def _random_parts(symmetries: Sequence[Symmetry], seed: int) -> _Parts:
    """Return symmetries with random transformations, each its own."""
    parts = []
    for number, symmetry in enumerate(symmetries):
        transform = random_transform(symmetry, seed + number, torch.float64)
        parts.append((symmetry, transform, 1 / transform if transform.ndim == 1 else torch.linalg.inv(transform)))
    return parts


def _inverse(parts: _Parts) -> _Parts:
    return [(symmetry, inverse, transform) for symmetry, transform, inverse in reversed(parts)]


@contextmanager
def _moved(model: nn.Module, symmetries: Sequence[Symmetry], seed: int) -> Generator[None]:
    """Move the parameters along the orbits of these symmetries, each by its own transformation, inside the context.

    They are moved in place and back by the inverse transformation: a second copy of a large network would take too much
    memory.
    """
    params, parts = trainable(model), _random_parts(symmetries, seed)
    try:
        move_in_place(params, parts)
        yield
    finally:
        move_in_place(params, _inverse(parts))


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
        return self.joint_change([symmetry], seed, eps)

    @torch.no_grad()
    def joint_change(self, symmetries: Sequence[Symmetry], seed: int = 0, eps: float | None = None) -> float:
        """Return the change of the outputs where all symmetries move at once."""
        if eps not in self._original:
            self._original[eps] = self._outputs(eps)
        with _moved(self.twin, symmetries, seed):
            return _relative_change(self._outputs(eps), self._original[eps])

    def changes(self, symmetries: Sequence[Symmetry], seed: int = 0) -> list[float]:
        """Return for each symmetry the change of the outputs, where all move at once unless that changes too much."""
        if not symmetries:
            return []
        change = self.joint_change(symmetries, seed)
        if change <= OUTPUT_RTOL or len(symmetries) == 1:
            return [change] * len(symmetries)
        half = len(symmetries) // 2
        return self.changes(symmetries[:half], seed) + self.changes(symmetries[half:], seed)


def _relative_change(after: Tensor, before: Tensor) -> float:
    return float((after - before).norm() / before.norm().clamp_min(1e-300))


class Situation(NamedTuple):
    """Weights and random numbers with which symmetries are tested."""

    description: str
    scale: float
    """Power of two by which weights are multiplied."""
    own_weights: bool
    """Whether the weights are those of the user's model; otherwise they are random."""
    dropout_seed: int
    split: float = 1.0
    """Share of the parameters that are multiplied by the scale; the others are divided by it."""
    evaluation: bool = False
    """Whether the network is in evaluation mode: batch norms then use the statistics that they have stored."""


def situations(seed: int, stochastic: bool) -> list[Situation]:
    """Return the situations in which symmetries are tested, each with other random numbers for dropout.

    The first is in evaluation mode: a bias before a batch norm has no gradient in training, but must move all the same.
    """
    first = "in another draw of dropout" if stochastic else "at random weights"
    return [
        Situation("in evaluation mode", 1.0, False, seed + 300, evaluation=True),
        *(Situation(first, 1.0, False, seed + k) for k in range(DROPOUT_DRAWS if stochastic else 1)),
        *(
            Situation(f"at random weights times {scale:g}", scale, False, seed + 100 + k)
            for k, scale in enumerate(LARGE_SCALES)
        ),
        *(
            Situation("at random weights, large and then small", 8.0, False, seed + 150 + k, split=split)
            for k, split in enumerate(SPLITS)
        ),
        Situation("at the weights of the model", 1.0, True, seed + 200),
    ]


def hold_with_eps(
    twin: nn.Module, batch: Batch, loss: Loss, symmetries: Sequence[Symmetry], dropout_seeds: Sequence[int], eps: float
) -> list[Symmetry]:
    """Return the symmetries that hold with this eps in the norms, in all these draws of dropout."""
    left = list(symmetries)
    for dropout_seed in dropout_seeds if left else ():
        with torch.no_grad(), norm_epsilon(twin, eps):
            left = _Trial(twin, batch, loss, dropout_seed).partition(left)[0]
    return left


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
    eps: float | None = None,
) -> tuple[list[Symmetry], list[Refuted]]:
    """Return the symmetries that hold in all situations (with smaller blocks where only these hold), and the others.

    `twin` is in double precision at random weights; afterwards it has the user's weights, `own_weights`. A situation
    is left out where numbers are not finite, or where the network amplifies rounding too far (large weights in a deep
    network that is chaotic there).
    """
    left, refuted = list(symmetries), []
    params, scaled = trainable(twin), _Scaled(twin)
    moved: _Parts = []
    evaluated: Tensor | None = None
    for situation in tried:
        if not left:
            break
        if situation.own_weights:
            for parameter, value in zip(twin.parameters(), own_weights, strict=True):
                parameter.copy_(value)
            moved, scaled = [], _Scaled(twin)
        scaled.set(situation)
        with norm_epsilon(twin, eps), _mode(twin, situation.evaluation):
            trial = _Trial(twin, batch, loss, situation.dropout_seed)
            same, evaluated = evaluated is not None and torch.equal(trial.outputs, evaluated), None
            if same:  # evaluation mode computed the same function at the same weights
                continue
            # moved there in one situation and back in the next, which halves the number of moves
            parts = _inverse(moved) if moved else _random_parts(left, situation.dropout_seed)
            move_in_place(params, parts)
            value, outputs = trial.run()
            if trial.unchanged(value, outputs):
                moved = [] if moved else parts
                evaluated = outputs if situation.evaluation else None
                continue
            move_in_place(params, _inverse(parts))
            moved = []
            left, failures = trial.partition(left)
            refuted += [Refuted(symmetry, situation.description, *change) for symmetry, change in failures]
    scaled.set(None)
    return left, refuted


@contextmanager
def _mode(model: nn.Module, evaluation: bool) -> Generator[None]:
    """Put the model into evaluation mode inside the context, if asked, with random statistics in its batch norms."""
    before = {module: module.training for module in model.modules()} if evaluation else {}
    if evaluation:
        model.eval()
        for module in model.modules():
            mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
            if isinstance(mean, Tensor) and isinstance(variance, Tensor):
                drawn = torch.linspace(-1, 1, mean.numel(), dtype=mean.dtype, device=mean.device).reshape(mean.shape)
                mean.copy_(0.3 * drawn)
                variance.copy_((0.3 * drawn.flip(0)).exp())
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


class _Scaled:
    """Powers of two by which the weights of a model are multiplied, one situation after the other."""

    def __init__(self, model: nn.Module):
        self._floating = [p for p in model.parameters() if p.is_floating_point()]
        self._factors = [1.0] * len(self._floating)

    def set(self, situation: Situation | None) -> None:
        """Multiply the weights by the factors of a situation instead of the present ones; None for no factors."""
        scale, split = (situation.scale, situation.split) if situation else (1.0, 1.0)
        large = round(split * len(self._floating))
        factors = [scale] * large + [1 / scale] * (len(self._floating) - large)
        if factors != self._factors:
            torch._foreach_mul_(self._floating, [new / old for new, old in zip(factors, self._factors, strict=True)])
        self._factors = factors


def _distinct(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes without those that repeat the indices of another."""
    return list({(a.parameter, a.axis, a.by_matrix, a.index.tobytes()): a for a in reversed(axes)}.values())[::-1]


class _Trial:
    """Test of symmetries in one situation. The effect of rounding is measured where a symmetry seems to fail."""

    def __init__(self, twin: nn.Module, batch: Batch, loss: Loss, dropout_seed: int):
        self.run = lambda: forward(twin, batch, loss, dropout_seed)
        self.twin, self.dropout_seed = twin, dropout_seed
        self.value, self.outputs = self.run()

    @functools.cached_property
    def _rounding(self) -> tuple[float, float]:
        """Changes of the outputs, relative, and of the loss where the weights change by `PERTURBATION`."""
        params = list(trainable(self.twin).values())
        generator = torch.Generator().manual_seed(self.dropout_seed)
        shapes = [(*parameter.shape[:1], *[1] * (parameter.ndim - 1)) for parameter in params]
        factors = [1 + PERTURBATION * torch.randn(shape, generator=generator).double() for shape in shapes]
        for parameter, factor in zip(params, factors, strict=True):
            parameter.mul_(factor.to(parameter))
        value, outputs = self.run()
        for parameter, factor in zip(params, factors, strict=True):
            parameter.div_(factor.to(parameter))
        return _relative_change(outputs, self.outputs), float((value - self.value).abs())

    @property
    def conclusive(self) -> bool:
        """Whether outputs are finite, and the network does not amplify rounding too far."""
        finite = bool(torch.isfinite(self.outputs).all()) and bool(torch.isfinite(self.value))
        return finite and self._rounding[0] <= OUTPUT_RTOL / 10

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
        plus, minus = (tuple(_distinct(with_biases(self.twin, side))) for side in (symmetry.plus, symmetry.minus))
        complete = replace(symmetry, plus=plus, minus=minus)  # biases without a gradient in training
        if len(complete.axes) > len(symmetry.axes) and self._change([complete]) is None:
            return [complete], []
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
            value, outputs = self.run()
        if self.unchanged(value, outputs):
            return None
        change = _relative_change(outputs, self.outputs)
        if not self.conclusive:
            return None
        if not change <= OUTPUT_RTOL:
            return change, False
        size = float(self.value.abs())
        difference = float((value - self.value).abs())
        if difference <= (LOSS_RTOL + 10 * change) * size + self._rounding[1] / PERTURBATION * 1e-10:
            return None
        return difference / size if size else math.inf, True

    def unchanged(self, value: Tensor, outputs: Tensor) -> bool:
        """Return whether loss and outputs are those before the move, up to rounding that every network has."""
        change = _relative_change(outputs, self.outputs)
        difference = float((value - self.value).abs())
        return change <= OUTPUT_RTOL and difference <= (LOSS_RTOL + 10 * change) * float(self.value.abs())
