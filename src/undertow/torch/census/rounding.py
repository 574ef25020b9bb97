"""Proof of symmetries on a large network in its own precision: along the orbit outputs change as by rounding alone.

In bfloat16 a network and the same network elsewhere on an orbit differ by about a percent, because other weights are
rounded. The change along the orbit is compared with the change that rounding of the weights causes by itself: each
weight is multiplied by a random factor, rounded, divided by it, and rounded again. Weights move in place, one tensor
at a time, and the original tensors are restored.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon
from undertow.torch._isolation import isolated
from undertow.torch._random_weights import convolution_kernels, fill_random, norm_gains
from undertow.torch.census.axes import Symmetry, move
from undertow.torch.census.proof import random_transform

__all__ = ["Failure", "RoundingProof", "Verdict", "prove"]

ROUNDING_DRAWS = 3
"""Draws of rounding errors; the largest change that they cause is compared."""
TOLERANCE = 3.0
"""Largest change along an orbit of a true symmetry, in units of the change by rounding. For four language models in
three precisions it is between 0.8 and 1.6."""
LARGEST_ROUNDING = 0.2
"""Relative change of outputs by rounding above which nothing can be proved."""


class Failure(NamedTuple):
    """A symmetry that does not hold."""

    symmetry: Symmetry
    change: float
    """Relative change of the outputs along its orbit; of the loss if the outputs did not change."""
    rounding: float
    """The same change by rounding alone."""


@dataclass(frozen=True)
class Verdict:
    """The joint test of all symmetries."""

    change: float
    """Relative change of the outputs when all symmetries move at once."""
    rounding: float
    """Relative change of the outputs by rounding of the weights."""
    control: float
    """Relative change of the outputs when only one side of each symmetry moves."""
    failures: tuple[Failure, ...]


class _Weights:
    """The weights of a network, moved in place; all of them are restored at the end."""

    def __init__(self, model: nn.Module):
        self.params = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
        self._places = {name: place for place, name in enumerate(self.params)}
        self._saved: dict[str, Tensor] = {}
        self._gains, self._kernels = norm_gains(model), convolution_kernels(model)
        self.random_seed: int | None = None
        """Seed of random weights, None for the weights of the user."""

    def restore(self) -> None:
        """Give every parameter its original values."""
        for name, value in self._saved.items():
            self.params[name].copy_(value)

    def base(self, name: str) -> Tensor:
        """Return the value that a parameter has before anything moves."""
        parameter = self.params[name]
        if self.random_seed is None:
            return self._saved[name].to(parameter.device) if name in self._saved else parameter.detach()
        generator = torch.Generator(parameter.device).manual_seed(self.random_seed + self._places[name])
        gain, kernel = id(parameter) in self._gains, id(parameter) in self._kernels
        values = torch.empty_like(parameter)
        fill_random(values, generator, gain=gain, kernel=kernel)
        return values

    def set(self, name: str, value: Tensor) -> None:
        """Replace the values of a parameter; its original ones are kept, on its device if there is room."""
        parameter = self.params[name]
        if name not in self._saved:
            self._saved[name] = parameter.detach().clone() if _has_room(parameter) else parameter.detach().cpu()
        parameter.copy_(value)

    def reset(self, names: Sequence[str] | None = None) -> None:
        """Set parameters to their base values."""
        for name in self.params if names is None else names:
            if self.random_seed is not None or name in self._saved:
                self.set(name, self.base(name))


def _has_room(parameter: Tensor) -> bool:
    if not parameter.is_cuda:
        return True
    free, total = torch.cuda.mem_get_info(parameter.device)
    return free - parameter.numel() * parameter.element_size() > total / 4


class RoundingProof:
    """A test of symmetries at one choice of weights. Make it inside a context that restores the weights."""

    def __init__(self, weights: _Weights, run: Callable[[], tuple[Tensor, Tensor]], names: Sequence[str], seed: int):
        self._weights, self._run, self._names, self._seed = weights, run, list(names), seed
        weights.reset()
        self._value, self._outputs = self._run()
        self.conclusive = bool(torch.isfinite(self._outputs).all()) and bool(torch.isfinite(self._value))
        changes = [self._changes(lambda name, k=k: self._rounded(name, seed + k)) for k in range(ROUNDING_DRAWS)]
        self.rounding, self._loss_rounding = (max(pair[i] for pair in changes) for i in (0, 1))
        self.conclusive = self.conclusive and self.rounding <= LARGEST_ROUNDING

    def _changes(self, value: Callable[[str], Tensor]) -> tuple[float, float]:
        """Return the relative changes of outputs and loss if each parameter has another value."""
        for name in self._names:
            self._weights.set(name, value(name))
        loss, outputs = self._run()
        difference = lambda a, b: float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30))
        return difference(outputs, self._outputs), difference(loss, self._value)

    def _rounded(self, name: str, seed: int) -> Tensor:
        """Return the values multiplied by random factors, rounded, divided by them and rounded."""
        base = self._weights.base(name)
        generator = torch.Generator(base.device).manual_seed(seed + 1000 * self._names.index(name))
        factors = torch.rand(base.shape, generator=generator, device=base.device, dtype=_wide(base.dtype)) + 0.6
        there = (base.to(factors.dtype) * factors).to(base.dtype)
        return (there.to(factors.dtype) / factors).to(base.dtype)

    def _moved(self, parts: Sequence[tuple[Symmetry, Tensor]], name: str) -> Tensor:
        """Return one parameter after all symmetries moved, rounded once."""
        base = self._weights.base(name)
        value = base.to(_wide(base.dtype))
        for symmetry, transform in parts:
            value = move({name: value}, symmetry, transform.to(value)).get(name, value)
        return value.to(base.dtype)

    def changes(self, symmetries: Sequence[Symmetry]) -> tuple[float, float]:
        """Return the relative changes of outputs and loss when all these symmetries move at once."""
        parts: dict[str, list[tuple[Symmetry, Tensor]]] = {name: [] for name in self._names}
        for number, symmetry in enumerate(symmetries):
            transform = _large_transform(symmetry, self._seed + 17 * number)
            for name in symmetry.parameters:
                plus, minus = (
                    tuple(a for a in side if a.parameter == name) for side in (symmetry.plus, symmetry.minus)
                )
                parts[name].append((replace(symmetry, plus=plus, minus=minus), transform))
        changes = self._changes(lambda name: self._moved(parts[name], name))
        self._weights.reset(self._names)
        return changes

    def control(self, symmetries: Sequence[Symmetry]) -> float:
        """Return the change of the outputs when only one side of each symmetry moves."""
        return self.changes([replace(symmetry, minus=()) for symmetry in symmetries if symmetry.minus])[0]

    def failures(self, symmetries: Sequence[Symmetry], by_loss: bool) -> tuple[tuple[float, float], list[Failure]]:
        """Return the joint changes, and the symmetries that fail, by bisection."""
        if not symmetries:
            return (0.0, 0.0), []
        outputs, loss = changes = self.changes(symmetries)
        slack = 4 * torch.finfo(self._outputs.dtype).eps
        in_outputs = not outputs <= TOLERANCE * self.rounding + slack
        in_loss = by_loss and not loss <= TOLERANCE * max(self._loss_rounding, self.rounding) + slack
        if not in_outputs and not in_loss:
            return changes, []
        if len(symmetries) > 1:
            half = len(symmetries) // 2
            one, two = (self.failures(part, by_loss)[1] for part in (symmetries[:half], symmetries[half:]))
            return changes, one + two
        return changes, [self._failure(symmetries[0], changes, in_outputs)]

    def _failure(self, symmetry: Symmetry, changes: tuple[float, float], in_outputs: bool) -> Failure:
        return Failure(symmetry, changes[not in_outputs], self.rounding if in_outputs else self._loss_rounding)


def _large_transform(symmetry: Symmetry, seed: int) -> Tensor:
    """Return random factors between 0.2 and 5, or well-conditioned matrices times such factors.

    Rounding is relative, so that it does not grow with the factors; the change along a broken symmetry does.
    """
    transform = random_transform(symmetry, seed, torch.float64)
    if symmetry.block == 1:
        return transform**3
    factors = random_transform(replace(symmetry, block=1), seed + 1, torch.float64) ** 3
    return transform * factors[: len(transform), None, None]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32


@torch.no_grad()
def prove(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    symmetries: Sequence[Symmetry],
    *,
    eps: float | None = None,
    by_loss: bool = True,
    seed: int = 0,
) -> Verdict:
    """Test symmetries on a network in its own precision, at random weights and at its own; restore its weights.

    All symmetries move at once, each by its own random transformation. They are tested separately only where this
    changes more than rounding does. `eps`: the eps of the norms during the test; None for that of the model.
    """
    names = list(dict.fromkeys(name for symmetry in symmetries for name in symmetry.parameters))
    training = [(module, module.training) for module in model.modules()]
    with ExitStack() as stack:
        stack.enter_context(isolated(model, seed))
        stack.enter_context(norm_epsilon(model, eps))
        weights = _Weights(model)
        stack.callback(weights.restore)
        stack.callback(lambda: [setattr(module, "training", flag) for module, flag in training])
        model.train()
        run = lambda: forward(model, batch, loss, seed)
        weights.random_seed = seed + 10_000
        proof = RoundingProof(weights, run, names, seed)
        control = proof.control(symmetries)
        blind = control <= 2 * TOLERANCE * proof.rounding and any(s.minus for s in symmetries)
        if blind or not proof.conclusive:
            kind = str(next(iter(weights.params.values())).dtype).removeprefix("torch.")
            raise ValueError(
                f"rounding of the weights to {kind} changes the outputs by {proof.rounding:.0%} at random weights: too "
                "much to prove anything; convert the model with `model.float()` first."
            )
        (change, _), failures = proof.failures(symmetries, by_loss)
        rounding = proof.rounding
        if not failures:
            weights.random_seed = None
            own = RoundingProof(weights, run, names, seed)
            failures = own.failures(symmetries, by_loss)[1] if own.conclusive else []
    return Verdict(change, rounding, control, tuple(failures))
