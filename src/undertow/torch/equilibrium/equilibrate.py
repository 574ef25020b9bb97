"""Move a network to its noise equilibrium: the same function, with the two sides of every symmetry equally noisy."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, trainable, unwrap
from undertow.torch._isolation import isolated
from undertow.torch.census.axes import Symmetry
from undertow.torch.census.census import Census, check_census
from undertow.torch.equilibrium.components import Component, components, memory_groups
from undertow.torch.equilibrium.curvature import largest_curvature
from undertow.torch.equilibrium.gradients import batch_gradients, format_estimate
from undertow.torch.equilibrium.measurement import measure_noise
from undertow.torch.equilibrium.result import Equilibrium, MovedSymmetry, restore
from undertow.torch.equilibrium.solve import SolvedComponent, solve

__all__ = ["equilibrate"]

CURVATURE_BATCHES = 4
"""Number of batches on which the largest curvature is measured."""
CHANGE_RTOL = 1e-4
"""Relative changes of outputs or cost above this exceed rounding: the move is undone."""


class _Training(NamedTuple):
    """The network and how SGD trains it."""

    model: nn.Module
    batches: Sequence[Batch]
    loss: Loss
    step_size: float
    weight_decay: float
    seed: int


def equilibrate(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss,
    census: Census,
    *,
    step_size: float,
    weight_decay: float = 0.0,
    optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
) -> Equilibrium:
    """Move a network along its exact symmetries, in place, to the point where minibatch noise pushes no charge.

    This is the point of the orbit that minimises F = step_size/4 Tr Sigma + weight_decay/2 |params|^2, with Sigma the
    covariance of a minibatch gradient. It is computed by the closed forms of `undertow.symmetry`, swept over linked
    symmetries. F never rises. Without weight decay F is the noise power up to a factor; with weight decay the noise
    may rise in exchange for a smaller penalty. Outputs and F are measured before and after. If the outputs change, or F
    rises, by more than rounding, the move is undone and an error is raised.

    **Arguments:**

    - `batches`: minibatches as in training, at least two; their gradients measure the noise.
    - `loss`: `loss(model, batch)` returns a scalar tensor.
    - `census`: the census of this model. Approximate symmetries are not used.
    - `step_size`, `weight_decay`: those of `torch.optim.SGD` (gradient + weight_decay * params). Without weight decay
      the step size does not matter. With momentum beta give step_size/(1 - beta).
    - `optimizer`: a `torch.optim.SGD` whose momentum is moved too. Other optimisers such as Adam rescale every entry
      separately: the symmetries of the loss are not symmetries of their steps.

    >>> import torch
    >>> from undertow.torch import census, equilibrate
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> _ = net[0].weight.data.mul_(5)
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> batches = [torch.randn(8, 5) for _ in range(20)]
    >>> result = equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1)
    >>> print(result.noise[1].value < result.noise[0].value, result.imbalance < 1e-3, result.change < 1e-5)
    True True True
    """
    _check_order(batches)
    model = unwrap(model)
    training = _Training(model, list(batches), loss, step_size, weight_decay, seed)
    _validate(training, census)
    params = trainable(model)
    momentum = _momentum_buffers(optimizer, params)
    chosen, skipped = [], []
    for symmetry in census.symmetries:
        if symmetry.shifted and weight_decay > 0:
            skipped.append((symmetry, "weight decay acts on the parameter, but the layer uses 1 + parameter"))
        else:
            chosen.append(symmetry)
    names = sorted({name for symmetry in chosen for name in symmetry.parameters})
    tensors = [params[name] for name in names] + [momentum[name] for name in names if name in momentum]
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        return _move_and_measure(training, chosen, skipped, momentum, saved)
    except BaseException:  # KeyboardInterrupt too
        restore(saved)
        raise


def _check_order(batches: Iterable[Batch]) -> None:
    if isinstance(batches, Census):
        raise TypeError(
            "`equilibrate(model, census, batches, loss)`: the arguments have a new order: "
            "`equilibrate(model, batches, loss, census, step_size=...)`."
        )


def _move_and_measure(
    training: _Training,
    chosen: list[Symmetry],
    skipped: list[tuple[Symmetry, str]],
    momentum: dict[str, Tensor],
    saved: list[tuple[Tensor, Tensor]],
) -> Equilibrium:
    """Move the chosen symmetries and measure before and after; raise if the outputs or the cost got worse."""
    model, batches, loss, step_size, weight_decay, seed = training
    parts = components(chosen, list(trainable(model)))
    measure = lambda: measure_noise(
        model, batches, loss, parts, step_size=step_size, weight_decay=weight_decay, seed=seed
    )
    curvature = lambda: largest_curvature(model, batches[:CURVATURE_BATCHES], loss, seed)
    outputs, curvature_before, before = _outputs(training), curvature(), measure()
    solved = _move(training, parts, momentum)
    after, outputs_after = measure(), _outputs(training)
    change = float((outputs_after - outputs).norm() / outputs.norm().clamp_min(1e-300))
    moved = []
    for symmetry in chosen:
        part, place = solved[id(symmetry)]
        imbalance = before.imbalance[id(symmetry)], after.imbalance[id(symmetry)]
        moved.append(MovedSymmetry(symmetry, imbalance, part.amounts[place], part.infinite[place], part.dead[place]))
    result = Equilibrium(
        moved=tuple(moved),
        skipped=tuple(skipped),
        noise=(before.noise, after.noise),
        cost=(before.cost, after.cost),
        curvature=(curvature_before, curvature()),
        change=change,
        sweeps=max((part.sweeps for part, _ in solved.values()), default=1),
        _undo=saved,
    )
    if not change <= CHANGE_RTOL:
        raise RuntimeError(
            f"`equilibrate`: the outputs changed by {change:.1e}, more than rounding explains; the model was restored. "
            "Check that the census is that of this model. `model.double()` gives more digits."
        )
    if not after.cost.value <= before.cost.value * (1 + CHANGE_RTOL):
        costs = f"from {format_estimate(before.cost)} to {format_estimate(after.cost)}"
        raise RuntimeError(
            f"`equilibrate`: noise plus weight penalty rose {costs}; the model was restored. Does the loss draw random "
            "numbers that `torch.manual_seed` does not fix?"
        )
    return result


def _move(
    training: _Training, parts: list[Component], momentum: dict[str, Tensor]
) -> dict[int, tuple[SolvedComponent, int]]:
    """Move all components in place. Return the solution and the place in it, by the id of the symmetry."""
    model, batches, loss, step_size, weight_decay, seed = training
    params = trainable(model)
    solved = {}
    for group in memory_groups(parts, params, len(batches)):
        moving = [part for part in group if part.symmetries]
        names = [name for part in moving for name in part.parameters]
        stacks = batch_gradients(model, batches, loss, names, seed) if names else {}
        for part in moving:
            values = {name: params[name].detach().reshape(params[name].shape or (1,)) for name in part.parameters}
            buffers = {name: momentum[name].reshape(values[name].shape) for name in part.parameters if name in momentum}
            own = {name: stacks.pop(name) for name in part.parameters}
            solution = solve(part, values, own, buffers, step_size, weight_decay)
            with torch.no_grad():
                for name in part.parameters:
                    params[name].data.copy_(solution.values[name].reshape(params[name].shape))
                for name, value in solution.momentum.items():
                    momentum[name].copy_(value.reshape(momentum[name].shape))
            solved |= {id(symmetry): (solution, place) for place, symmetry in enumerate(part.symmetries)}
    return solved


@torch.no_grad()
def _outputs(training: _Training) -> Tensor:
    with isolated(training.model, training.seed):
        return forward(training.model, training.batches[0], training.loss)[1].double()


def _validate(training: _Training, census: Census) -> None:
    model, batches, _, step_size, weight_decay, _ = training
    params = trainable(model)
    if not isinstance(census, Census):
        raise TypeError(
            f"`equilibrate(model, batches, loss, census)`: `census` is a {type(census).__name__}; give "
            "`census(model, ...)`."
        )
    if not params:
        raise ValueError("`equilibrate`: no parameter of the model trains.")
    if len(batches) < 2:
        raise ValueError(
            f"`equilibrate`: noise cannot be measured on {len(batches)} batches; give at least 2, better 32."
        )
    if not (math.isfinite(step_size) and step_size > 0):
        raise ValueError(f"`equilibrate(step_size={step_size})`: give a number above 0.")
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise ValueError(f"`equilibrate(weight_decay={weight_decay})`: give 0 or more.")
    check_census("equilibrate", census, params)
    bad = [name for name, p in params.items() if not bool(torch.isfinite(p).all())]
    if bad:
        raise ValueError(f"`equilibrate`: {bad[0]} has entries that are not finite; the model diverged.")
    half = [name for name, p in params.items() if p.dtype not in (torch.float32, torch.float64)]
    if half and census.symmetries:
        raise ValueError(
            f"`equilibrate`: {half[0]} is {str(params[half[0]].dtype).removeprefix('torch.')}, in which a move changes "
            "the outputs by a percent through rounding; call `model.float()` first and convert back afterwards."
        )


def _momentum_buffers(optimizer: torch.optim.Optimizer | None, params: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return the momentum of each parameter by name; raise for optimisers whose state cannot be moved."""
    if optimizer is None:
        return {}
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(
            f"`equilibrate(optimizer=...)`: a {type(optimizer).__name__} rescales every entry separately, so that the "
            "symmetries of the loss are not symmetries of training and its state cannot be moved; this is for SGD."
        )
    buffers = {name: optimizer.state.get(p, {}).get("momentum_buffer") for name, p in params.items()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}
