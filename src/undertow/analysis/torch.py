"""A torch model looked at as `undertow analyze` looks at any: the same rows, the same page."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from undertow.analysis.result import Analysis, Row
from undertow.estimate import Estimate
from undertow.symmetry.equilibrium import Equilibrium
from undertow.symmetry.forecast import Forecast, times_of_sums
from undertow.torch._copies import Loss, forward, trainable, unwrap
from undertow.torch._decay import gamma_of
from undertow.torch.census.census import census
from undertow.torch.equilibrium.curvature import trace_of_hessian
from undertow.torch.equilibrium.equilibrate import Equilibrated, Moved, equilibrate
from undertow.torch.equilibrium.gather import components, gathered, groups, shown, undisturbed
from undertow.torch.equilibrium.solve import Sides, noise_of, sides

__all__ = ["analyze", "batches_of"]

MOST_BATCHES = 32
"""Batches that the noise is measured on."""


def batches_of(data: Any, batch_size: int, seed: int) -> list[Any]:
    """At most 32 batches: of a `Dataset` drawn at random, of anything else (a `DataLoader`, a list) as they come.

    Of an `IterableDataset` they are made in its own order.
    """
    if isinstance(data, torch.utils.data.IterableDataset):
        data = torch.utils.data.DataLoader(data, batch_size, drop_last=True)
    elif isinstance(data, torch.utils.data.Dataset):
        if not hasattr(data, "__len__"):
            raise TypeError(f"the {type(data).__name__} has no `__len__`; add it, or give a list of batches.")
        generator = torch.Generator().manual_seed(seed)
        data = torch.utils.data.DataLoader(data, batch_size, shuffle=True, drop_last=True, generator=generator)
    elif not isinstance(data, Iterable):
        raise TypeError(f"the data is a {type(data).__name__}; give a `Dataset`, a `DataLoader` or a list of batches.")
    found = list(itertools.islice(data, MOST_BATCHES))
    if len(found) < 2:
        raise ValueError(f"the data makes {len(found)} batches; at least 2 are needed to see noise.")
    return found


def analyze(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    step_size: float = 0.01,
    weight_decay: float = 0.0,
    batch_size: int = 32,
    seed: int = 0,
    tell: Callable[[str], Any] = lambda what: None,
) -> Analysis:
    """The symmetries of a torch model, where SGD will take their charges, and what to do about it.

    `data`: a `Dataset`, or batches as `loss(model, batch)` takes them. `weight_decay` is PyTorch's. The model is not
    touched: a copy goes to equilibrium.

    >>> import torch
    >>> from undertow.torch import analyze
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> found = analyze(net, loss, [torch.randn(8, 5) for _ in range(20)])
    >>> print(found.rows[0].name, "|", found.rows[0].generators)
    rescaling, 7 scales: 0.weight[i, :], 0.bias against 2.weight[:, i] | 7
    """
    model = unwrap(model)
    batches = batches_of(data, batch_size, seed)
    tell("looking for symmetries")
    found = census(model, batches[0], loss, seed=seed)
    tell("computing noise and equilibrium")
    twin = copy.deepcopy(model)
    done = equilibrate(twin, found, batches, loss, step_size=step_size, weight_decay=weight_decay, seed=seed)
    now, then = (_all_sides(net, loss, batches, done, seed) for net in (model, twin))
    tell("measuring how fast")
    gamma = gamma_of(weight_decay)
    rows = tuple(_row(*given, step_size, gamma) for given in zip(done.moved, now, then, strict=True))
    tell("measuring sharpness")
    sharpness = [trace_of_hessian(net, loss, batches, seed) for net in ((model, twin) if rows else (model,))]
    value, slope = _mean_loss(model, loss, batches, seed)
    steps = [step.value for step in done.largest_step]
    pair = lambda estimate: (float(estimate.value), float(estimate.standard_error))
    seen = None
    if rows:
        slowest = max((row.slowest for row in rows if np.isfinite(row.slowest)), default=np.inf) * step_size
        seen = Forecast(
            equilibrium=_equilibrium(twin, done, then),
            relaxation=tuple(row.slowest for row in rows),
            phase="fast" if slowest < value / max(slope, 1e-300) else "slow",
            sharpness=(sharpness[0], sharpness[1]),
            largest_step=(steps[0], steps[1]),
        )
    return Analysis(
        parameters=sum(p.numel() for p in trainable(model).values()),
        loss=value,
        step_size=float(step_size),
        weight_decay=gamma,
        rows=rows,
        symmetries=found.relations,
        forecast=seen,
        sharpness=pair(sharpness[0]),
        sharpness_then=pair(sharpness[1]) if rows else None,
        largest_step=steps[0],
        largest_step_then=steps[1] if rows else None,
        drift=None,
        sentences=tuple(_sentences(rows, done, sharpness, len(batches), float(step_size))),
    )


def _all_sides(model: nn.Module, loss: Loss, batches: list, done: Equilibrated, seed: int) -> list[Sides]:
    params = trainable(model)
    relations = [moved.relation for moved in done.moved]
    found: dict[int, Sides] = {}
    parts = [part for part in components(relations, list(params)) if part.relations]
    for group in groups(parts, params, len(batches)) if parts else []:
        stacks = gathered(model, loss, batches, [name for part in group for name in part.parameters], seed)
        for part in group:
            noise = noise_of({name: stacks.pop(name) for name in part.parameters}, part.relations)
            values = {n: params[n].detach().double().reshape(params[n].shape or (1,)) for n in part.parameters}
            found |= {id(relation): sides(relation, values, noise) for relation in part.relations}
    return [found[id(relation)] for relation in relations]


def _mean_loss(model: nn.Module, loss: Loss, batches: list, seed: int) -> tuple[float, float]:
    """The loss over all batches, and |gradient|^2 of it."""
    params = list(trainable(model).values())
    total = [torch.zeros_like(p) for p in params]
    values = []
    with undisturbed(model, seed):
        for batch in batches:
            value, _ = forward(model, loss, batch)
            values.append(float(value.detach()))
            for sum_, gradient in zip(total, torch.autograd.grad(value, params, allow_unused=True), strict=True):
                if gradient is not None:
                    sum_ += gradient
    return float(np.mean(values)), sum(float(t.double().square().sum()) for t in total) / len(batches) ** 2


def _equilibrium(twin: nn.Module, done: Equilibrated, then: list[Sides]) -> Equilibrium:
    """The point as JAX's `equilibrium` gives it; params are the trainable ones by their names."""
    silent = lambda s: np.flatnonzero(s.noise_plus + s.noise_minus == 0).tolist()
    return Equilibrium(
        params={name: p.detach().numpy(force=True) for name, p in trainable(twin).items()},
        amount=tuple(moved.amount for moved in done.moved),
        charge=tuple((s.weight_plus - s.weight_minus) / 2 for s in then),
        residual=done.imbalance,
        excluded=tuple(
            tuple(silent(s)) if m.dead and m.relation.block == 1 else () for m, s in zip(done.moved, then, strict=True)
        ),
        infinite=tuple(moved.infinite for moved in done.moved),
        sweeps=done.sweeps,
    )


def _row(moved: Moved, now: Sides, then: Sides, step_size: float, gamma: float) -> Row:
    relation = moved.relation
    size = lambda x: float(np.sqrt(np.sum(np.square(x))))
    charge = lambda s: size(s.weight_plus - s.weight_minus) / 2
    total = float(np.abs(now.noise_plus).sum() + np.abs(now.noise_minus).sum())
    noise, weight = then.noise_plus + then.noise_minus, then.weight_plus + then.weight_minus
    times = times_of_sums(noise, weight, step_size, gamma)
    everywhere = moved.infinite >= relation.size
    return Row(
        name=relation.name,
        generators=relation.generators,
        charge=charge(now),
        charge_at_equilibrium=math.inf if everywhere else charge(then),
        imbalance=float(np.abs(now.noise_plus - now.noise_minus).sum()) / total if total > 0 else 0.0,
        moved=math.inf if everywhere else moved.factor,
        relaxation=float(np.median(times)) if times.size and not everywhere else math.inf,
        slowest=float(times.max()) if times.size and not everywhere else math.inf,
        error=0.0,
        dead=moved.dead,
        infinite=moved.infinite,
        route="gradients of batches",
    )


def _sentences(
    rows: tuple[Row, ...], done: Equilibrated, sharpness: list[Estimate], batches: int, step_size: float
) -> list[str]:
    """What a person can do with the numbers."""
    noise, steps, curvature = done.noise, done.largest_step, done.curvature
    said = []
    if not rows:
        said.append(
            "No exact symmetry was found among the trainable parameters: noise moves no conserved charge here. "
            f"The noise power of a batch is {shown(noise[0])}, Tr H {shown(sharpness[0])}, lambda_max "
            f"{shown(curvature[0])} (measured on {batches} batches)."
        )
    for row in rows:
        if row.infinite:
            said.append(
                f"{row.name}: {row.infinite} directions have no finite equilibrium (one side is zero or silent)."
            )
        if row.dead:
            said.append(f"{row.name}: {row.dead} generators have no gradient on these batches (dead); left out.")
    slow = [row for row in rows if np.isfinite(row.relaxation) and row.moved > 1.05]
    if slow:
        worst = max(slow, key=lambda row: row.moved)
        said.append(
            f"The farthest from equilibrium is {worst.name}: a weight changes by up to a factor {worst.moved:.2g}; "
            f"SGD at step size {step_size:g} relaxes in about {worst.relaxation:,.0f} steps (the median)."
        )
    if math.isnan(curvature[0].value):
        said.append("The loss cannot be differentiated twice: nothing is known of curvature and largest steps.")
    elif rows:
        change = "falls" if sharpness[1].value < sharpness[0].value else "rises"
        said.append(
            f"At equilibrium Tr H {change} from {shown(sharpness[0])} to {shown(sharpness[1])}, lambda_max goes from "
            f"{shown(curvature[0])} to {shown(curvature[1])}, the noise power of a batch from {shown(noise[0])} to "
            f"{shown(noise[1])} (measured on {batches} batches); the largest step gradient descent survives goes from "
            f"{steps[0].value:.3g} to {steps[1].value:.3g}."
        )
    if rows and noise[1].value < 0.8 * noise[0].value:
        said.append(
            "`undertow.torch.equilibrate` goes there at once, with the same outputs; it is for SGD, not for Adam."
        )
    if step_size > steps[0].value:
        said.append(f"The step size {step_size:g} is above {steps[0].value:.3g}: gradient descent diverges from here.")
    return said
