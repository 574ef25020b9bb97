"""A model of one's own, looked at: its symmetries, where noise will take their charges, and what to do about it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.manifold.limit import Limit
from undertow.noise.base import AbstractNoise
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.problem import AbstractProblem, AbstractSampled, Population, Regression
from undertow.symmetry import precision
from undertow.symmetry.equilibrium import NoFiniteEquilibrium
from undertow.symmetry.flow import noether_flow
from undertow.symmetry.forecast import Forecast, forecast, largest_curvature, relaxation_times, trace_of_hessian
from undertow.symmetry.generators import Scaling
from undertow.symmetry.powers import powers_now
from undertow.symmetry.search import find_symmetries

__all__ = ["Analysis", "Network", "Row", "analyze"]


class Network(NamedTuple):
    """A torch model with its loss(model, batch) and data: a `Dataset`, or batches."""

    model: Any
    loss: Callable[[Any, Any], Any]
    data: Any


@dataclass(frozen=True)
class Row:
    """One symmetry, in numbers a person can read."""

    name: str
    generators: int
    charge: float
    """The size of the charges now: the root of the sum of their squares."""
    charge_at_equilibrium: float
    imbalance: float
    """|noise up - noise down| over their sum: 0 is balanced, 1 one-sided."""
    moved: float
    """The largest factor by which a weight changes on the way to equilibrium; infinite without one."""
    relaxation: float
    """Steps in which half of the charges have come nearer to equilibrium by a factor e."""
    slowest: float
    """The same for the slowest of them."""
    error: float
    """The largest standard error of the flow, relative to the flow; 0 where the data set is finite."""
    dead: int
    infinite: int
    route: str


@dataclass(frozen=True)
class Analysis:
    """What `analyze` found; `sentences` say what to do with it."""

    parameters: int
    loss: float
    step_size: float
    weight_decay: float
    rows: tuple[Row, ...]
    symmetries: tuple[Any, ...]
    forecast: Forecast | None
    sharpness: tuple[float, float]
    """Tr H and its standard error, now."""
    sharpness_then: tuple[float, float] | None
    """The same at equilibrium."""
    largest_step: float
    largest_step_then: float | None
    drift: float | None
    """|dY/dt| under unit label noise, where the model is a regression at zero loss; else None."""
    sentences: tuple[str, ...] = field(default=())


def analyze(
    noise: AbstractNoise | AbstractProblem | Network,
    params: PyTree,
    *,
    step_size: Number = 0.01,
    weight_decay: Number = 0.0,
    batch_size: int = 32,
    key: KeyLike = 0,
    tell: Callable[[str], Any] = lambda what: None,
) -> Analysis:
    """Looks for symmetries of a loss, and says where SGD will take their charges. A problem is given minibatches.

    A `Network` of torch carries its own params (give None) and its own batches.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.analysis.jax import analyze
    >>> x = jax.random.normal(jax.random.key(0), (40, 2))
    >>> task = ut.Problem(lambda p, s: (p["out"] @ jax.nn.relu(p["in"] @ s) - s[0]) ** 2, x)
    >>> found = analyze(task, {"in": jnp.ones((3, 2)), "out": jnp.full(3, 0.1)}, batch_size=4)
    >>> print(found.rows[0].name, "|", found.rows[0].generators)
    rescaling of 3 neurons, in against out | 3
    """
    if isinstance(noise, Network):
        return _network(noise, step_size, weight_decay, batch_size, key, tell)
    if not isinstance(noise, AbstractNoise | AbstractProblem):
        raise TypeError(f"`analyze`: got a {type(noise).__name__}; give a problem or a noise, and params.")
    if not isinstance(noise, AbstractNoise):
        if not isinstance(noise, AbstractSampled | Population):
            raise TypeError(f"`analyze`: a {type(noise).__name__} has no samples; give a noise on it.")
        size = batch_size if isinstance(noise, Population) else min(batch_size, noise.size)
        noise = Minibatch(noise, size)
    validate.params_of_floats("analyze", params)
    noise.check(params)
    noise, params = precision.widened((noise, params))
    key = validate.as_key("analyze", key)
    problem = noise.problem
    looked = problem.sample(key, 1024) if isinstance(problem, Population) else problem
    tell("looking for symmetries")
    found = find_symmetries(problem, params, key=key) if isinstance(problem, AbstractSampled | Population) else ()
    seen, rows = None, ()
    if found:
        tell("computing noise and equilibrium")
        seen = _forecast(noise, found, params, step_size, weight_decay, key)
    if seen is not None:
        rows = tuple(_row(noise, found, k, params, seen, step_size, weight_decay) for k in range(len(found)))
    tell("measuring sharpness")
    if seen is not None:
        now, then = seen.sharpness
        largest, largest_then = seen.largest_step
    else:
        now, then = trace_of_hessian(looked, params, key), None
        largest, largest_then = 2 / max(largest_curvature(looked, params, key), 1e-300), None
    pair = lambda estimate: (float(estimate.value), float(estimate.standard_error))
    analysis = Analysis(
        parameters=trees.count(params),
        loss=float(looked.loss(params)),
        step_size=float(step_size),
        weight_decay=float(weight_decay),
        rows=rows,
        symmetries=found,
        forecast=seen,
        sharpness=pair(now),
        sharpness_then=None if then is None else pair(then),
        largest_step=float(largest),
        largest_step_then=None if largest_then is None else float(largest_then),
        drift=_label_drift(problem, params),
    )
    return replace(analysis, sentences=tuple(_sentences(analysis)))


def _network(
    given: Network, step_size: Number, weight_decay: Number, batch_size: int, key: KeyLike, tell: Callable
) -> Analysis:
    from undertow.analysis import torch as bridge

    seed = int(jax.random.key_data(validate.as_key("analyze", key))[-1])
    return bridge.analyze(
        given.model,
        given.data,
        given.loss,
        step_size=float(step_size),
        weight_decay=float(weight_decay),
        batch_size=batch_size,
        seed=seed,
        tell=tell,
    )


def _forecast(
    noise: AbstractNoise, found: tuple, params: PyTree, step_size: Any, weight_decay: Any, key: Array
) -> Forecast | None:
    """None where the noise vanishes, so that there is no equilibrium to speak of."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoFiniteEquilibrium)  # the sentences say so
            return forecast(noise, params, found, step_size=step_size, weight_decay=weight_decay, key=key)
    except ValueError as error:
        if "vanishes along the symmetry" in str(error):
            return None
        raise


def _row(
    noise: AbstractNoise, found: tuple, index: int, params: PyTree, seen: Forecast, step_size: Any, weight_decay: Any
) -> Row:
    symmetry = found[index]
    flow = noether_flow(noise, params, symmetry, step_size=step_size, weight_decay=weight_decay, approximate=True)
    powered = powers_now(noise, params, symmetry)
    total = float(jnp.sum(jnp.abs(powered.plus)) + jnp.sum(jnp.abs(powered.minus)))
    size = lambda x: float(jnp.sqrt(jnp.sum(jnp.square(x))))
    amount = np.asarray(seen.equilibrium.amount[index])
    if amount.ndim == 2 and np.isfinite(amount).all():
        amount = np.linalg.eigvalsh(amount)
    finite = np.abs(amount[np.isfinite(amount)])
    everywhere = seen.equilibrium.infinite[index] and not finite.size
    rate = size(flow.rate)
    at = seen.equilibrium.params
    times = relaxation_times(noise, at, symmetry, step_size=step_size, weight_decay=weight_decay)
    return Row(
        name=symmetry.describe(params),
        generators=symmetry.dimension(params),
        charge=size(flow.charge),
        charge_at_equilibrium=np.inf if everywhere else size(seen.equilibrium.charge[index]),
        imbalance=float(jnp.sum(jnp.abs(powered.plus - powered.minus))) / total if total > 0 else 0.0,
        moved=np.inf if everywhere else float(np.exp(finite.max())) if finite.size else 1.0,
        relaxation=float(np.median(times)) if times.size else np.inf,
        slowest=seen.relaxation[index],
        error=size(flow.standard_error) / rate if rate > 0 else 0.0,
        dead=len(seen.equilibrium.excluded[index]),
        infinite=seen.equilibrium.infinite[index],
        route=flow.route,
    )


def _label_drift(problem: Any, params: PyTree) -> float | None:
    """How fast unit label noise moves a regression at zero loss; None elsewhere."""
    if not isinstance(problem, Regression) or problem.targets.size >= trees.count(params):
        return None
    if float(problem.loss(params)) > 1e-4 * float(jnp.sum(problem.targets**2)) / (2 * problem.size):
        return None  # not at zero loss: a minibatch moves it as well, and the general route costs a Hessian
    try:
        drift = Limit(LabelNoise(problem, 1.0)).drift(params)
    except ValueError:  # off the manifold, or no manifold there
        return None
    return float(jnp.sqrt(trees.dot(drift, drift)))


def _sentences(a: Analysis) -> list[str]:
    """What a person can do with the numbers."""
    said = []
    if not a.symmetries:
        said.append(
            "No exponential symmetry was found: noise moves no conserved charge here (tanh, GELU, tied weights and "
            "dropout between factors break the usual ones)."
        )
    elif a.forecast is None:
        said.append(
            "The noise vanishes along the symmetries (zero loss?) and there is no weight decay, so the charges stay "
            "where they are."
        )
    for symmetry, row in zip(a.symmetries, a.rows, strict=False):
        if row.infinite and isinstance(symmetry, Scaling) and a.weight_decay == 0:
            said.append(
                f"{row.name}: the norm only grows, without bound; the effective step size falls with it. A weight "
                "decay gives it an equilibrium."
            )
        elif row.infinite:
            said.append(
                f"{row.name}: {row.infinite} directions have no finite equilibrium: noise and weight decay push them "
                "one way only."
            )
        if row.dead:
            said.append(f"{row.name}: {row.dead} of {row.generators} have no gradient on this data (dead); left out.")
        if np.isfinite(row.relaxation) and row.moved > 1.05:
            said.append(
                f"{row.name}: noise is unbalanced by {row.imbalance:.0%}; SGD at step size {a.step_size:g} relaxes in "
                f"about {row.relaxation:,.0f} steps (the median; {row.slowest:,.0f} for the slowest), changing weights "
                f"by up to a factor {row.moved:.2g}."
            )
    if a.forecast is not None and a.sharpness_then and a.largest_step_then is not None:
        before, after = a.sharpness, a.sharpness_then
        gain = a.largest_step_then / a.largest_step
        change = "falls" if after[0] < before[0] else "rises"
        said.append(
            f"At equilibrium Tr H {change} from {before[0]:.3g} ± {before[1]:.1g} to {after[0]:.3g} ± {after[1]:.1g}; "
            f"the largest step gradient descent survives goes from {a.largest_step:.3g} to {a.largest_step_then:.3g}."
        )
        if gain > 1.2:
            said.append(
                f"Start from the equilibrium (`equilibrium(...).params`: same function, same loss): it allows steps "
                f"{gain:.1f} times as large, which is what a warm-up would have to wait for."
            )
        elif gain < 1 / 1.2:
            said.append(
                "Noise sharpens this model: a step size that is stable now may not be after some "
                f"{max((r.relaxation for r in a.rows if np.isfinite(r.relaxation)), default=0):,.0f} steps."
            )
    if a.step_size > a.largest_step:
        said.append(
            f"The step size {a.step_size:g} is above {a.largest_step:.3g}: gradient descent diverges from here."
        )
    if a.drift is not None:
        said.append(
            f"The loss is zero: unit label noise would move the model at speed {a.drift:.3g} in slow time (steps * "
            f"step_size^2), lowering Tr H at the rate {4 * a.drift**2:.3g}; `Limit(LabelNoise(...)).solve` follows it."
        )
    return said
