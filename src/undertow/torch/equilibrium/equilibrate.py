"""Move a network to its noise equilibrium: the same function, with the two sides of every symmetry equally noisy."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._progress import StageProgress
from undertow.estimate import Estimate
from undertow.torch._copies import Batch, Loss, forward, trainable, unwrap
from undertow.torch._inputs import check_batch, check_loss, check_model, check_seed, try_loss
from undertow.torch._isolation import isolated
from undertow.torch.census.axes import Symmetry
from undertow.torch.census.census import Census, check_census
from undertow.torch.equilibrium.components import Component, components, memory_groups
from undertow.torch.equilibrium.curvature import largest_curvature
from undertow.torch.equilibrium.gradients import batch_gradients, format_estimate
from undertow.torch.equilibrium.measurement import NoiseMeasurement, measure_noise
from undertow.torch.equilibrium.objectives import AdamWObjective, Objective, SGDObjective
from undertow.torch.equilibrium.optimizer_state import OptimizerState, adamw_state, sgd_state
from undertow.torch.equilibrium.result import COSTS, Equilibrium, MovedSymmetry, restore
from undertow.torch.equilibrium.solve import SolvedComponent, solve

__all__ = ["equilibrate"]

CURVATURE_BATCHES = 64
"""Largest number of batches on which the curvature is measured, unless `curvature_batches` is given."""
STAGES = 5
"""Stages that are shown with their progress."""
CHANGE_RTOL = 1e-4
"""Relative changes of outputs or cost above this exceed rounding: the move is undone."""


class _Training(NamedTuple):
    """The network and how it is trained."""

    model: nn.Module
    batches: Sequence[Batch]
    loss: Loss
    objective: Objective
    state: OptimizerState
    seed: int
    curvature_batches: int
    progress: StageProgress


@checked_call("equilibrate")
def equilibrate(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss,
    census: Census,
    *,
    step_size: float,
    weight_decay: float = 0.0,
    optimiser: str = "sgd",
    optimizer: torch.optim.Optimizer | None = None,
    dry_run: bool = False,
    curvature_batches: int = CURVATURE_BATCHES,
    progress: Callable[[str, int, int | None], object] | bool | None = None,
    seed: int = 0,
) -> Equilibrium:
    """Move a network along its exact symmetries, in place, to the point where minibatch noise changes no charge.

    This is the point of the orbit that minimises F = step_size/4 Tr Sigma + weight_decay/2 |params|^2, with Sigma the
    covariance of a minibatch gradient. It is computed by the closed forms of `undertow.symmetry`, swept over linked
    symmetries; where weights scale at different powers (a squared ReLU) by Newton's method. F never rises. Without
    weight decay F is the noise power up to a factor; with weight decay the noise may rise in exchange for a smaller
    penalty. Outputs and F are measured before and after. If the outputs change, or F rises, by more than rounding, the
    move is undone and an error is raised.

    With `optimiser="adamw"` it is the point to which AdamW goes: the least F = sum_i sqrt(v_i) (step_size/2 +
    weight_decay params_i^2), with v_i the mean square of gradient entry i. Adam's metric conserves charges of scales
    only, so that a GL(d) is moved by the d scales of its diagonal.

    **Arguments:**

    - `model`: the network, which is changed in place unless `dry_run` is set.
    - `batches`: minibatches as in training, at least two; their gradients measure the noise.
    - `loss`: `loss(model, batch)` returns a scalar tensor.
    - `census`: the census of this model. Approximate symmetries are not used.
    - `step_size`, `weight_decay`: those of `torch.optim.SGD` (gradient + weight_decay * params) or `torch.optim.AdamW`.
      Without weight decay the step size does not matter. For SGD with momentum beta give step_size/(1 - beta).
    - `optimiser`: the optimiser of the training, "sgd" or "adamw". Adam is "adamw" without weight decay.
    - `optimizer`: the `torch.optim.SGD` whose momentum is moved too, or the `torch.optim.AdamW` whose state is moved
      and whose v is used. Its m moves like a gradient, by exp(-s) where a parameter moves by exp(s), its v by
      exp(-2 s). Without it v is the mean square of the gradients of the batches.
    - `dry_run`: measure what would be moved and the noise, F and curvature after the move, and leave the model and the
      state of the optimiser bitwise unchanged.
    - `curvature_batches`: the most batches for the largest curvature. Eight are used at first, more only where they
      would resolve it; 0 measures none.
    - `progress`: None shows a bar on stderr after two seconds if that is a terminal, True shows it always, False
      never. A function is called with (stage, passes, total or None) after every pass.
    - `seed`: seed of dropout and of the vectors with which the curvature is measured.

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
    batches = _check_arguments(model, batches, loss)
    model = unwrap(model)
    seed, dry_run = check_seed("equilibrate", seed), validate.flag("equilibrate", "dry_run", dry_run)
    curvature_batches = validate.positive_integer("equilibrate", "curvature_batches", curvature_batches, least=0)
    params = trainable(model)
    _validate(params, batches, step_size, weight_decay, optimiser, census)
    step_size, weight_decay = float(step_size), float(weight_decay)
    with isolated(model, seed):
        try_loss("equilibrate", model, batches[0], loss, seed, converted=False)
    objective: Objective
    if optimiser == "adamw":
        state = adamw_state(optimizer, params)
        objective = AdamWObjective(step_size, weight_decay, state.second_moment)
    else:
        state, objective = sgd_state(optimizer, params), SGDObjective(step_size, weight_decay)
    chosen, skipped = _choose(census, weight_decay > 0, optimiser == "adamw")
    names = sorted({name for symmetry in chosen for name in symmetry.parameters})
    tensors = [*(params[name] for name in names), *state.tensors(names)]
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
    with StageProgress("equilibrate", STAGES, progress) as stages:
        counted = lambda model, batch: (stages.advance(), loss(model, batch))[1]
        training = _Training(model, batches, counted, objective, state, seed, curvature_batches, stages)
        try:
            result = _move_and_measure(training, chosen, skipped)
        except BaseException:  # KeyboardInterrupt too
            restore(saved)
            raise
    if not dry_run:
        return replace(result, _undo=saved)
    restore(saved)
    return replace(result, dry_run=True)


def _check_arguments(model: object, batches: object, loss: object) -> list[Batch]:
    """Check the model, the batches and the loss, and return the batches as a list."""
    _check_order(batches)
    check_model("equilibrate", model)
    check_loss("equilibrate", loss)
    if not isinstance(batches, Iterable) or isinstance(batches, str | torch.Tensor | dict):
        kind, value = validate.kind_of(batches), validate.shown(batches)
        raise TypeError(
            f"`equilibrate(batches={value})`: `batches` is {kind}; give a list of batches or a `DataLoader`."
        )
    taken = list(batches)
    for batch in taken:
        check_batch("equilibrate", batch, "batches")
    return taken


def _check_order(batches: object) -> None:
    if isinstance(batches, Census):
        raise TypeError(
            "`equilibrate(model, census, batches, loss)`: the arguments have a new order: "
            "`equilibrate(model, batches, loss, census, step_size=...)`."
        )


def _choose(census: Census, decays: bool, diagonal: bool) -> tuple[list[Symmetry], list[tuple[Symmetry, str]]]:
    """Return the symmetries to move and those that are not moved, or not as a whole, with the reason."""
    chosen, skipped = [], []
    for symmetry in census.symmetries:
        if symmetry.shifted and decays:
            skipped.append((symmetry, "weight decay acts on the parameter, but the layer uses 1 + parameter"))
        elif diagonal and symmetry.block > 1:
            reason = f"only its {symmetry.size} scales were moved; AdamW conserves no charge of the other generators"
            skipped.append((symmetry, reason))
            chosen.append(replace(symmetry, block=1))
        else:
            chosen.append(symmetry)
    return chosen, skipped


def _move_and_measure(
    training: _Training,
    chosen: list[Symmetry],
    skipped: list[tuple[Symmetry, str]],
) -> Equilibrium:
    """Move the chosen symmetries and measure before and after; raise if the outputs or the cost got worse."""
    objective = training.objective
    parts = components(chosen, list(trainable(training.model)))
    outputs = _outputs(training)
    curvature_before, before = _curvature(training, "before"), _noise(training, parts, "before")
    solved = _move(training, parts)
    after, outputs_after = _noise(training, parts, "after"), _outputs(training)
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
        curvature=(curvature_before, _curvature(training, "after")),
        change=change,
        sweeps=max((part.sweeps for part, _ in solved.values()), default=1),
        optimiser=objective.optimiser,
    )
    if not change <= CHANGE_RTOL:
        raise RuntimeError(
            f"`equilibrate`: the outputs changed by {change:.1e}, more than rounding explains; the model was restored. "
            "Check that the census is that of this model. `model.double()` gives more digits."
        )
    if not after.cost.value <= before.cost.value * (1 + CHANGE_RTOL):
        costs = f"from {format_estimate(before.cost)} to {format_estimate(after.cost)}"
        raise RuntimeError(
            f"`equilibrate`: {COSTS[objective.optimiser]} rose {costs}; the model was restored. Does the loss draw "
            "random numbers that `torch.manual_seed` does not fix?"
        )
    return result


def _curvature(training: _Training, when: str) -> Estimate:
    training.progress.start(f"curvature {when}", None)
    batches = training.batches[: training.curvature_batches]
    if not batches:
        return Estimate(math.nan, math.nan, 0)
    return largest_curvature(training.model, batches, training.loss, training.seed)


def _noise(training: _Training, parts: list[Component], when: str) -> NoiseMeasurement:
    model, batches = training.model, training.batches
    passes = len(memory_groups(parts, trainable(model), len(batches))) * len(batches)
    training.progress.start(f"noise {when}", passes)
    return measure_noise(model, batches, training.loss, parts, training.objective, seed=training.seed)


def _move(training: _Training, parts: list[Component]) -> dict[int, tuple[SolvedComponent, int]]:
    """Move all components in place. Return the solution and the place in it, by the id of the symmetry."""
    model, batches, loss, objective, state, seed, *_ = training
    params = trainable(model)
    solved = {}
    groups = memory_groups(parts, params, len(batches))
    training.progress.start("moving", len(groups) * len(batches))
    for group in groups:
        moving = [part for part in group if part.symmetries]
        names = [name for part in moving for name in part.parameters]
        stacks = batch_gradients(model, batches, loss, names, seed) if names else {}
        for part in moving:
            values = {name: params[name].detach().reshape(params[name].shape or (1,)) for name in part.parameters}
            buffers = [{n: t.reshape(values[n].shape) for n, t in own.items()} for own in state.of(part.parameters)]
            own = {name: stacks.pop(name) for name in part.parameters}
            solution = solve(part, values, own, buffers, objective)
            with torch.no_grad():
                for name in part.parameters:
                    params[name].data.copy_(solution.values[name].reshape(params[name].shape))
            state.update(solution.states)
            solved |= {id(symmetry): (solution, place) for place, symmetry in enumerate(part.symmetries)}
    return solved


@torch.no_grad()
def _outputs(training: _Training) -> Tensor:
    with isolated(training.model, training.seed):
        return forward(training.model, training.batches[0], training.loss)[1].double()


def _validate(
    params: dict[str, nn.Parameter],
    batches: Sequence[Batch],
    step_size: float,
    weight_decay: float,
    optimiser: str,
    census: Census,
) -> None:
    if not isinstance(census, Census):
        call = validate.quote("equilibrate", census=validate.shown(census))
        raise TypeError(f"{call}: `census` is {validate.kind_of(census)}; give `census(model, ...)`.")
    if not params:
        raise ValueError("`equilibrate`: no parameter of the model trains.")
    if len(batches) < 2:
        raise ValueError(
            f"`equilibrate(batches=...)`: noise cannot be measured on {len(batches)} batches; give at least 2, "
            "better 32."
        )
    validate.finite_number("equilibrate", "step_size", step_size, positive=True)
    validate.finite_number("equilibrate", "weight_decay", weight_decay)
    validate.one_of("equilibrate", "optimiser", optimiser, tuple(COSTS))
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
