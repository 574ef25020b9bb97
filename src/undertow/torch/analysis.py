"""A torch model looked at as `undertow analyze` looks at any: the same rows, the same page."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from undertow.analysis import Analysis, Row
from undertow.noise.minibatch import Minibatch
from undertow.problem import Problem
from undertow.symmetry.forecast import relaxation_times
from undertow.symmetry.generators import DoubleRotation, Rescaling
from undertow.torch.axes import Relation
from undertow.torch.census import census
from undertow.torch.copies import Loss, forward, trainable, unwrap
from undertow.torch.decay import gamma_of
from undertow.torch.equilibrate import Equilibrated, Moved, equilibrate
from undertow.torch.gather import gathered, shown, undisturbed
from undertow.torch.solve import Sides, sides

__all__ = ["analyze", "batches_of"]

MOST_BATCHES = 32
"""Batches that the noise is measured on."""


def batches_of(data: Any, batch_size: int, seed: int) -> list[Any]:
    """At most 32 batches: of a `Dataset` drawn at random, of anything else (a `DataLoader`, a list) as they come."""
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        generator = torch.Generator().manual_seed(seed)
        data = torch.utils.data.DataLoader(data, batch_size, shuffle=True, drop_last=True, generator=generator)
    if not isinstance(data, Iterable):
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
    used = sorted({name for moved in done.moved for name in moved.relation.parameters})
    now, then = (_all_sides(net, loss, batches, used, done, seed) for net in (model, twin))
    tell("measuring how fast")
    gamma = gamma_of(weight_decay)
    with jax.enable_x64(True):
        rows = tuple(_row(*given, step_size, gamma) for given in zip(done.moved, now, then, strict=True))
    before, after = done.largest_step
    with undisturbed(model, seed), torch.no_grad():
        value = float(np.mean([float(forward(model, loss, batch)[0]) for batch in batches]))
    return Analysis(
        parameters=sum(p.numel() for p in trainable(model).values()),
        loss=value,
        step_size=float(step_size),
        weight_decay=gamma,
        rows=rows,
        symmetries=found.relations,
        forecast=None,
        sharpness=None,
        sharpness_then=None,
        largest_step=before.value,
        largest_step_then=after.value,
        drift=None,
        sentences=tuple(_sentences(rows, done, len(batches), float(step_size))),
    )


def _all_sides(
    model: nn.Module, loss: Loss, batches: list, names: list[str], done: Equilibrated, seed: int
) -> list[Sides]:
    if not names:
        return []
    stacks = {name: stack.double() for name, stack in gathered(model, loss, batches, names, seed).items()}
    stacks = {name: stack - stack.mean(0, keepdim=True) for name, stack in stacks.items()}
    params = trainable(model)
    values = {name: params[name].detach().double().reshape(params[name].shape or (1,)) for name in names}
    return [sides(moved.relation, values, stacks) for moved in done.moved]


def _row(moved: Moved, now: Sides, then: Sides, step_size: float, gamma: float) -> Row:
    relation = moved.relation
    size = lambda x: float(np.sqrt(np.sum(np.square(x))))
    charge = lambda s: size(s.weight_plus - s.weight_minus) / 2
    total = float(np.abs(now.noise_plus).sum() + np.abs(now.noise_minus).sum())
    times = _relaxation(relation, then, step_size, gamma)
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


def _inner(params: Any, sample: Any) -> Any:
    """A loss that is linear: its gradient is the sample."""
    return sum(jnp.vdot(s, p) for s, p in zip(jax.tree.leaves(sample), jax.tree.leaves(params), strict=True))


def _root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def _relaxation(relation: Relation, found: Sides, step_size: float, gamma: float) -> np.ndarray:
    """`relaxation_times` of the smallest problem with these moments: two samples, plus and minus a root of them."""
    if relation.block == 1:
        symmetry = Rescaling(lambda p: p["plus"], lambda p: p["minus"], neurons=True)
        shaped = lambda plus, minus: {"plus": np.sqrt(plus)[None], "minus": np.sqrt(minus)[:, None]}
        cases = [(shaped(found.weight_plus, found.weight_minus), shaped(found.noise_plus, found.noise_minus))]
    else:
        symmetry = DoubleRotation(lambda p: p["plus"], lambda p: p["minus"])
        cases = []
        for u, w, s, t in zip(found.weight_plus, found.weight_minus, found.noise_plus, found.noise_minus, strict=True):
            cases.append(({"plus": _root(u), "minus": _root(w)}, {"plus": _root(s), "minus": _root(t)}))
    times = []
    for weights, noise in cases:
        samples = jax.tree.map(lambda g: jnp.stack([jnp.asarray(g), -jnp.asarray(g)]), noise)
        small = Minibatch(Problem(_inner, samples), 1)
        params = jax.tree.map(jnp.asarray, weights)
        times.append(relaxation_times(small, symmetry, params, step_size=step_size, weight_decay=gamma))
    return np.concatenate(times)


def _sentences(rows: tuple[Row, ...], done: Equilibrated, batches: int, step_size: float) -> list[str]:
    """What a person can do with the numbers."""
    if not rows:
        return ["No exact symmetry was found among the trainable parameters: noise moves no conserved charge here."]
    said = []
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
            f"SGD at step size {step_size:g} takes about {worst.relaxation:,.0f} steps to balance half of it."
        )
    noise, steps = done.noise, done.largest_step
    said.append(
        f"At equilibrium the noise power of a batch goes from {shown(noise[0])} to {shown(noise[1])}, lambda_max from "
        f"{shown(done.curvature[0])} to {shown(done.curvature[1])}, the largest stable step from "
        f"{steps[0].value:.3g} to {steps[1].value:.3g} (measured on {batches} batches)."
    )
    if noise[1].value < 0.8 * noise[0].value:
        said.append(
            "`undertow.torch.equilibrate` goes there at once, with the same outputs; it is for SGD, not for Adam."
        )
    if step_size > steps[0].value:
        said.append(f"The step size {step_size:g} is above {steps[0].value:.3g}: gradient descent diverges from here.")
    return said
