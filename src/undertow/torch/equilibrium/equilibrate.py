"""A network moved to its noise equilibrium: the same function, the two sides of every symmetry equally noisy."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undertow.estimate import Estimate
from undertow.torch._copies import Loss, forward, trainable, unwrap
from undertow.torch._decay import gamma_of
from undertow.torch.census.axes import Relation
from undertow.torch.census.census import Census, refuse_foreign
from undertow.torch.equilibrium.curvature import largest_curvature
from undertow.torch.equilibrium.gather import Component, components, gathered, groups, noise_power, shown, undisturbed
from undertow.torch.equilibrium.solve import amounts, noise_of, sides, solve

__all__ = ["Equilibrated", "Moved", "equilibrate"]

CURVATURE_BATCHES = 4
"""Batches that the largest curvature is taken over."""
REFUSED = 1e-4
"""A relative change of the outputs above this is no rounding: the move is taken back."""


@dataclass(frozen=True)
class Moved:
    """What became of one symmetry."""

    relation: Relation
    imbalance: tuple[float, float]
    """max |log(s+/s-)| before and after, measured on the batches; of the generators that have an equilibrium."""
    amount: np.ndarray
    """The log of what it was moved by: (generators,), or symmetric (blocks, block, block)."""
    infinite: int
    """Generators (directions of a GL) whose equilibrium is at infinity: one side has no noise, or is zero."""
    dead: int
    """Generators without any noise."""

    @property
    def factor(self) -> float:
        """The largest factor by which a weight was scaled."""
        values = self.amount if self.amount.ndim == 1 else np.linalg.eigvalsh(self.amount)
        return float(np.exp(np.abs(values).max(initial=0.0)))


@dataclass(frozen=True)
class Equilibrated:
    """What `equilibrate` did. `undo()` takes it back, to the bit."""

    moved: tuple[Moved, ...]
    skipped: tuple[tuple[Relation, str], ...]
    """Relations that were left as they are, and why."""
    noise: tuple[Estimate, Estimate]
    """Tr Sigma of a minibatch gradient over all trainable parameters, before and after. Without weight decay it never
    rises; with it `cost` never does, and the noise alone may."""
    cost: tuple[Estimate, Estimate]
    """What the move makes least, before and after: F = step_size/4 Tr Sigma + weight_decay/2 |params|^2."""
    curvature: tuple[Estimate, Estimate]
    """lambda_max of the Hessian, before and after; NaN where the loss cannot be differentiated twice."""
    change: float
    """The relative change of the outputs on the first batch."""
    sweeps: int
    _undo: list[tuple[Tensor, Tensor]] = field(repr=False, default_factory=list)

    @property
    def largest_step(self) -> tuple[Estimate, Estimate]:
        """2/lambda_max before and after: above it even gradient descent diverges; noise needs a smaller step."""
        one, two = (_inverse(power) for power in self.curvature)
        return one, two

    @property
    def imbalance(self) -> float:
        """max |log(s+/s-)| left over all symmetries."""
        return max((m.imbalance[1] for m in self.moved), default=0.0)

    @property
    def dead(self) -> int:
        """Directions without any noise on the batches: not moved."""
        return sum(m.dead for m in self.moved)

    @property
    def infinite(self) -> int:
        """Directions whose equilibrium is at infinity (LoRA at B = 0): not moved."""
        return sum(m.infinite for m in self.moved)

    def undo(self) -> None:
        """The parameters and momentum as they were."""
        _restore(self._undo)

    def __str__(self) -> str:
        rows = [
            ("noise power", self.noise),
            ("noise plus weight penalty", self.cost),
            ("largest curvature", self.curvature),
            ("largest stable step", self.largest_step),
        ]
        lines = [f"{name}: {shown(before)} -> {shown(after)}" for name, (before, after) in rows]
        lines.append(f"max |log(s+/s-)|: {max((m.imbalance[0] for m in self.moved), default=0):.2g} -> "
                     f"{self.imbalance:.1g}; outputs changed by {self.change:.0e}")  # fmt: skip
        if self.infinite:
            lines.append(f"{self.infinite} directions have no finite equilibrium and were not moved")
        if self.dead:
            lines.append(f"{self.dead} directions have no noise and were not moved")
        if math.isnan(self.curvature[0].value):
            lines.append(
                "curvature is not known: the loss cannot be differentiated twice, or the iteration did not end"
            )
        lines += [f"left as it is, {relation.kind}: {why}" for relation, why in self.skipped]
        return "\n".join(lines)


def _inverse(power: Estimate) -> Estimate:
    if not power.value > 0:
        return Estimate(math.inf if power.value <= 0 else math.nan, math.nan, power.samples)
    return Estimate(2 / power.value, 2 * power.standard_error / power.value**2, power.samples)


def equilibrate(
    model: nn.Module,
    census: Census,
    batches: Iterable[Any],
    loss: Loss,
    *,
    step_size: float,
    weight_decay: float = 0.0,
    optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
) -> Equilibrated:
    """Moves a network along its exact symmetries, in place, to where minibatch noise pushes no charge.

    That is the point of the orbit where F = step_size/4 Tr Sigma + weight_decay/2 |params|^2 is least, Sigma the
    covariance of a minibatch's gradient: undertow.symmetry's closed forms, swept over linked symmetries. F never rises.
    Without weight decay F is the noise power, so that never rises; with it the noise may rise for a smaller penalty.
    Outputs and F are measured before and after: should either break its promise, the move is taken back and an error
    raised. **Arguments:**

    - `census`: of this model. Approximate symmetries are not used.
    - `batches`: minibatches as in training, at least two; their gradients measure the noise.
    - `step_size`, `weight_decay`: of SGD, in PyTorch's convention (gradient + weight_decay * params). Without weight
      decay the step size does not matter. With momentum beta it is step_size/(1 - beta) that counts.
    - `optimizer`: its momentum moves along. Only `torch.optim.SGD`: Adam rescales every entry for itself, so that the
      symmetries are none of its own.

    >>> import torch
    >>> from undertow.torch import census, equilibrate
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> _ = net[0].weight.data.mul_(5)
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> batches = [torch.randn(8, 5) for _ in range(20)]
    >>> done = equilibrate(net, census(net, batches[0], loss), batches, loss, step_size=0.1)
    >>> print(done.noise[1].value < done.noise[0].value, done.imbalance < 1e-3, done.change < 1e-5)
    True True True
    """
    model = unwrap(model)
    batches = list(batches)
    gamma = gamma_of(weight_decay)
    params = trainable(model)
    _refuse(model, census, batches, step_size, weight_decay)
    buffers = _momentum(optimizer, params)
    chosen, skipped = [], []
    for relation in census.relations:
        if relation.shifted and gamma > 0:
            skipped.append((relation, "weight decay pulls the parameter, the layer uses 1 + it"))
        else:
            chosen.append(relation)
    used = sorted({name for relation in chosen for name in relation.parameters})
    held = [params[name] for name in used] + [buffers[name] for name in used if name in buffers]
    kept = [(tensor, tensor.detach().clone()) for tensor in held]
    try:
        return _moved(model, loss, batches, chosen, skipped, buffers, kept, step_size, gamma, seed)
    except BaseException:  # Ctrl-C too
        _restore(kept)
        raise


@torch.no_grad()
def _restore(kept: list[tuple[Tensor, Tensor]]) -> None:
    for tensor, before in kept:
        tensor.copy_(before)


def _moved(
    model: nn.Module,
    loss: Loss,
    batches: list,
    chosen: list[Relation],
    skipped: list[tuple[Relation, str]],
    buffers: dict[str, Tensor],
    kept: list[tuple[Tensor, Tensor]],
    step_size: float,
    gamma: float,
    seed: int,
) -> Equilibrated:
    """The move, measured before and after; refuses one that breaks its promises."""
    params = trainable(model)
    parts = components(chosen, list(params))
    outputs = _outputs(model, loss, batches[0], seed)
    few = batches[:CURVATURE_BATCHES]
    sharp = largest_curvature(model, loss, few, seed)
    before = _Measured(model, loss, batches, parts, step_size, gamma, seed)
    sweeps, by, infinite, dead = 1, {}, {}, {}
    for group in groups(parts, params, len(batches)):
        moving = [part for part in group if part.relations]
        names = [name for part in moving for name in part.parameters]
        stacks = gathered(model, loss, batches, names, seed) if names else {}
        for part in moving:
            values = {name: params[name].detach().reshape(params[name].shape or (1,)) for name in part.parameters}
            inside = {name: buffers[name].reshape(values[name].shape) for name in part.parameters if name in buffers}
            mine = {name: stacks.pop(name) for name in part.parameters}
            found = solve(part, values, mine, inside, step_size, gamma)
            with torch.no_grad():
                for name in part.parameters:
                    params[name].data.copy_(found.values[name].reshape(params[name].shape))
                for name, value in found.momentum.items():
                    buffers[name].copy_(value.reshape(buffers[name].shape))
            sweeps = max(sweeps, found.sweeps)
            for place, relation in enumerate(part.relations):
                by[id(relation)] = found.amounts[place]
                infinite[id(relation)], dead[id(relation)] = found.infinite[place], found.dead[place]
    after = _Measured(model, loss, batches, parts, step_size, gamma, seed)
    changed = _outputs(model, loss, batches[0], seed)
    change = float((changed - outputs).norm() / outputs.norm().clamp_min(1e-300))
    done = Equilibrated(
        moved=tuple(
            Moved(r, (before.imbalance[id(r)], after.imbalance[id(r)]), by[id(r)], infinite[id(r)], dead[id(r)])
            for r in chosen
        ),
        skipped=tuple(skipped),
        noise=(before.noise, after.noise),
        cost=(before.cost, after.cost),
        curvature=(sharp, largest_curvature(model, loss, few, seed)),
        change=change,
        sweeps=sweeps,
        _undo=kept,
    )
    if not change <= REFUSED:
        raise RuntimeError(
            f"`equilibrate`: the outputs changed by {change:.1e}, more than rounding explains; the model is as it was. "
            "Is the census of this very model? `model.double()` gives more digits."
        )
    if not after.cost.value <= before.cost.value * (1 + REFUSED):
        raise RuntimeError(
            f"`equilibrate`: noise plus weight penalty rose from {shown(before.cost)} to {shown(after.cost)}; the "
            "model is as it was. Does the loss draw random numbers that `torch.manual_seed` does not fix?"
        )
    return done


class _Measured:
    """The noise power of all parameters, and how unbalanced each relation is."""

    def __init__(
        self, model: nn.Module, loss: Loss, batches: list, parts: list[Component], step_size: float, gamma: float,
        seed: int,
    ):  # fmt: skip
        params = trainable(model)
        gram = np.zeros((len(batches), len(batches)))
        self.imbalance: dict[int, float] = {}
        for group in groups(parts, params, len(batches)):
            stacks = gathered(model, loss, batches, [name for part in group for name in part.parameters], seed)
            for part in group:
                mine = {name: stacks.pop(name) for name in part.parameters}
                for stack in mine.values():
                    flat = stack.flatten(1).double() - stack[:1].flatten(1).double()  # noise has no mean
                    gram += (flat @ flat.mT).numpy(force=True)
                mine = noise_of(mine, part.relations) if part.relations else mine
                for relation in part.relations:
                    values = {n: params[n].detach().double().reshape(params[n].shape or (1,)) for n in mine}
                    found = sides(relation, values, mine)
                    self.imbalance[id(relation)] = amounts(relation, found, step_size, gamma).imbalance
        self.noise = noise_power(gram)
        penalty = gamma * sum(float(p.detach().double().square().sum()) for p in params.values())
        value, error = self.noise.value * step_size / 4, self.noise.standard_error * step_size / 4
        self.cost = Estimate(value + penalty, error, len(batches))


@torch.no_grad()
def _outputs(model: nn.Module, loss: Loss, batch: Any, seed: int) -> Tensor:
    with undisturbed(model, seed):
        return forward(model, loss, batch)[1].double()


def _refuse(model: nn.Module, census: Census, batches: list, step_size: float, weight_decay: float) -> None:
    params = trainable(model)
    if not isinstance(census, Census):
        raise TypeError(f"`equilibrate(model, census, ...)`: got a {type(census).__name__}; give `census(model, ...)`.")
    if not params:
        raise ValueError("`equilibrate`: no parameter of the model trains.")
    if len(batches) < 2:
        raise ValueError(f"`equilibrate`: {len(batches)} batches say nothing of noise; give at least 2, better 32.")
    if not (math.isfinite(step_size) and step_size > 0):
        raise ValueError(f"`equilibrate(step_size={step_size})`: give a number above 0.")
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise ValueError(f"`equilibrate(weight_decay={weight_decay})`: give 0 or more.")
    refuse_foreign("equilibrate", census, params)
    broken = [name for name, p in params.items() if not bool(torch.isfinite(p).all())]
    if broken:
        raise ValueError(f"`equilibrate`: {broken[0]} has entries that are not finite; the model diverged.")
    half = [name for name, p in params.items() if p.dtype not in (torch.float32, torch.float64)]
    if half and census.relations:
        raise ValueError(
            f"`equilibrate`: {half[0]} is {str(params[half[0]].dtype).removeprefix('torch.')}, in which a move rounds "
            "the outputs by a percent; call `model.float()` first and go back afterwards."
        )


def _momentum(optimizer: torch.optim.Optimizer | None, params: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The momentum of each parameter by name; refuses optimisers whose state does not move along."""
    if optimizer is None:
        return {}
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(
            f"`equilibrate(optimizer=...)`: a {type(optimizer).__name__} adapts every entry for itself, so that the "
            "symmetries of the loss are none of the training and its state cannot move along; this is for SGD."
        )
    found = {name: optimizer.state.get(p, {}).get("momentum_buffer") for name, p in params.items()}
    return {name: buffer for name, buffer in found.items() if buffer is not None}
