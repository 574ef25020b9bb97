"""Analyse a problem in JAX: its symmetries, the equilibrium of their charges, its sharpness, and advice."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.analysis.advice import advice
from undertow.analysis.result import Analysis, Row
from undertow.estimate import Estimate
from undertow.manifold.limit import Limit
from undertow.noise.base import AbstractNoise
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.problem import AbstractProblem, AbstractSampled, Population, Regression
from undertow.symmetry import precision
from undertow.symmetry.equilibrium import NoFiniteEquilibrium, VanishingNoiseError
from undertow.symmetry.flow import noether_flow
from undertow.symmetry.forecast import Forecast, forecast, largest_curvature, relaxation_times, trace_of_hessian
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.powers import powers_now
from undertow.symmetry.search import find_symmetries

__all__ = ["analyze"]


def analyze(
    noise: AbstractNoise | AbstractProblem,
    params: PyTree,
    *,
    step_size: Number = 0.01,
    weight_decay: Number = 0.0,
    batch_size: int = 32,
    key: KeyLike = 0,
    report: Callable[[str], object] = lambda stage: None,
) -> Analysis:
    """Find the symmetries of a loss and predict the equilibrium of their charges under SGD.

    A problem is trained with minibatches of `batch_size`. `report` is called with the name of each stage.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.analysis.jax import analyze
    >>> x = jax.random.normal(jax.random.key(0), (40, 2))
    >>> task = ut.Problem(lambda p, s: (p["out"] @ jax.nn.relu(p["in"] @ s) - s[0]) ** 2, x)
    >>> analysis = analyze(task, {"in": jnp.ones((3, 2)), "out": jnp.full(3, 0.1)}, batch_size=4)
    >>> print(analysis.rows[0].name, "|", analysis.rows[0].generators)
    rescaling of 3 neurons, in against out | 3
    """
    noise = _as_noise(noise, batch_size)
    validate.params_of_floats("analyze", params)
    noise.check(params)
    noise, params = precision.widened((noise, params))
    key = validate.as_key("analyze", key)
    problem = noise.problem
    measured = problem.sample(key, 1024) if isinstance(problem, Population) else problem
    report("searching symmetries")
    symmetries = find_symmetries(problem, params, key=key) if isinstance(problem, AbstractSampled | Population) else ()
    predicted, rows = None, ()
    if symmetries:
        report("computing noise and equilibrium")
        predicted = _forecast(noise, params, symmetries, step_size, weight_decay, key)
    if predicted is not None:
        rows = tuple(
            _row(noise, symmetries, k, params, predicted, step_size, weight_decay) for k in range(len(symmetries))
        )
    report("measuring sharpness")
    if predicted is None:
        (now, then), (largest, largest_then) = _sharpness_now(measured, params, key)
    else:
        (now, then), (largest, largest_then) = predicted.sharpness, predicted.largest_step
    pair = lambda estimate: (float(estimate.value), float(estimate.standard_error))
    analysis = Analysis(
        parameters=trees.count(params),
        loss=float(measured.loss(params)),
        step_size=float(step_size),
        weight_decay=float(weight_decay),
        rows=rows,
        symmetries=symmetries,
        forecast=predicted,
        sharpness=pair(now),
        sharpness_then=None if then is None else pair(then),
        largest_step=float(largest),
        largest_step_then=None if largest_then is None else float(largest_then),
        drift=_label_drift(problem, params),
    )
    return replace(analysis, sentences=tuple(advice(analysis)))


def _as_noise(noise: AbstractNoise | AbstractProblem, batch_size: int) -> AbstractNoise:
    """Return the noise, or minibatches of a problem."""
    if isinstance(noise, AbstractNoise):
        return noise
    if not isinstance(noise, AbstractProblem):
        raise TypeError(f"`analyze`: got a {type(noise).__name__}; give a problem or a noise, and params.")
    if not isinstance(noise, AbstractSampled | Population):
        raise TypeError(f"`analyze`: a {type(noise).__name__} has no samples; give a noise on it.")
    return Minibatch(noise, batch_size if isinstance(noise, Population) else min(batch_size, noise.size))


def _sharpness_now(
    problem: AbstractProblem, params: PyTree, key: Array
) -> tuple[tuple[Estimate, None], tuple[float, None]]:
    """Return Tr H and the largest stable step where there is no equilibrium to compare with."""
    largest = 2 / max(largest_curvature(problem, params, key), 1e-300)
    return (trace_of_hessian(problem, params, key), None), (largest, None)


def _forecast(
    noise: AbstractNoise,
    params: PyTree,
    symmetries: tuple[AbstractSymmetry, ...],
    step_size: Number,
    weight_decay: Number,
    key: Array,
) -> Forecast | None:
    """Return the forecast; None where the noise vanishes along the symmetries, so that there is no equilibrium."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoFiniteEquilibrium)  # the advice covers it
            return forecast(noise, params, symmetries, step_size=step_size, weight_decay=weight_decay, key=key)
    except VanishingNoiseError:
        return None


def _row(
    noise: AbstractNoise,
    symmetries: tuple[AbstractSymmetry, ...],
    index: int,
    params: PyTree,
    predicted: Forecast,
    step_size: Number,
    weight_decay: Number,
) -> Row:
    symmetry = symmetries[index]
    flow = noether_flow(noise, params, symmetry, step_size=step_size, weight_decay=weight_decay, approximate=True)
    sides = powers_now(noise, params, symmetry)
    total = float(jnp.sum(jnp.abs(sides.plus)) + jnp.sum(jnp.abs(sides.minus)))
    size = lambda x: float(jnp.sqrt(jnp.sum(jnp.square(x))))
    amount = np.asarray(predicted.equilibrium.amount[index])
    if amount.ndim == 2 and np.isfinite(amount).all():
        amount = np.linalg.eigvalsh(amount)
    finite = np.abs(amount[np.isfinite(amount)])
    everywhere = predicted.equilibrium.infinite[index] and not finite.size
    rate = size(flow.rate)
    end = predicted.equilibrium.params
    times = relaxation_times(noise, end, symmetry, step_size=step_size, weight_decay=weight_decay)
    return Row(
        name=symmetry.describe(params),
        generators=symmetry.dimension(params),
        charge=size(flow.charge),
        charge_at_equilibrium=np.inf if everywhere else size(predicted.equilibrium.charge[index]),
        imbalance=float(jnp.sum(jnp.abs(sides.plus - sides.minus))) / total if total > 0 else 0.0,
        moved=np.inf if everywhere else float(np.exp(finite.max())) if finite.size else 1.0,
        relaxation=float(np.median(times)) if times.size else np.inf,
        slowest=predicted.relaxation[index],
        error=size(flow.standard_error) / rate if rate > 0 else 0.0,
        dead=len(predicted.equilibrium.excluded[index]),
        infinite=predicted.equilibrium.infinite[index],
        route=flow.route,
    )


def _label_drift(problem: AbstractProblem, params: PyTree) -> float | None:
    """Return the speed at which unit label noise moves a regression at zero loss; None for other problems."""
    if not isinstance(problem, Regression) or problem.targets.size >= trees.count(params):
        return None
    if float(problem.loss(params)) > 1e-4 * float(jnp.sum(problem.targets**2)) / (2 * problem.size):
        return None  # not at zero loss: a minibatch moves it as well, and the general route costs a Hessian
    try:
        drift = Limit(LabelNoise(problem, 1.0)).drift(params)
    except ValueError:  # off the manifold, or no manifold there
        return None
    return float(jnp.sqrt(trees.dot(drift, drift)))
