"""Analyse a problem in JAX: its symmetries, the equilibrium of their charges, its sharpness, and advice."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.analysis.advice import advice
from undertow.analysis.limit import predict_path
from undertow.analysis.result import Analysis, Row
from undertow.analysis.sides import flow_vectors, measure, sides_of
from undertow.noise.base import AbstractNoise
from undertow.noise.minibatch import Minibatch
from undertow.problem import AbstractProblem, AbstractSampled, Population
from undertow.symmetry import precision
from undertow.symmetry.curvature import measure_curvature
from undertow.symmetry.equilibrium import NoFiniteEquilibrium, VanishingNoiseError
from undertow.symmetry.forecast import Forecast, forecast
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.powers import route
from undertow.symmetry.relaxation import median_time
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
    """Return the symmetries of a loss, the equilibrium of their charges under SGD, and advice.

    **Arguments:**

    - `noise`: the noise of training, or a problem, which is trained with minibatches of `batch_size`.
    - `params`: the point at which the problem is analysed.
    - `step_size`, `weight_decay`: those of SGD.
    - `key`: the key of the random points and probes.
    - `report`: a callback that receives the name of each stage when it starts.

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
        report("computing noise, equilibrium and curvature")
        predicted = _forecast(noise, params, symmetries, step_size, weight_decay, key)
    if predicted is not None:
        rows = tuple(
            _row(noise, symmetry, index, params, predicted, float(step_size), float(weight_decay))
            for index, symmetry in enumerate(symmetries)
        )
        sharpness, largest, spectra = predicted.sharpness, predicted.largest_step, predicted.spectrum
    else:
        report("computing curvature")
        now = measure_curvature(measured, params, key)
        sharpness, largest, spectra = (now.sharpness, None), (now.largest_step, None), (now.spectrum, None)
    pair = lambda estimate: (float(estimate.value), float(estimate.standard_error))
    report("predicting the path after zero loss")
    prediction = predict_path(noise, params, float(step_size))
    analysis = Analysis(
        parameters=trees.count(params),
        loss=float(measured.loss(params)),
        step_size=float(step_size),
        weight_decay=float(weight_decay),
        rows=rows,
        symmetries=symmetries,
        forecast=predicted,
        sharpness=pair(sharpness[0]),
        sharpness_then=None if sharpness[1] is None else pair(sharpness[1]),
        largest_step=largest[0],
        largest_step_then=largest[1],
        spectrum=spectra[0],
        spectrum_then=spectra[1],
        path=prediction.path,
        limit=prediction.sentence,
    )
    return replace(analysis, sentences=tuple(advice(analysis)))


def _as_noise(noise: AbstractNoise | AbstractProblem, batch_size: int) -> AbstractNoise:
    """Return the noise, or minibatches of a problem."""
    if isinstance(noise, AbstractNoise):
        return noise
    if not isinstance(noise, AbstractProblem):
        raise TypeError(
            f"`analyze(noise={validate.shown(noise)})`: `noise` is {validate.kind_of(noise)}; give a problem or a "
            "noise, and "
            "params."
        )
    if not isinstance(noise, AbstractSampled | Population):
        raise TypeError(f"`analyze`: a {type(noise).__name__} has no samples; give a noise on it.")
    return Minibatch(noise, batch_size if isinstance(noise, Population) else min(batch_size, noise.size))


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
    symmetry: AbstractSymmetry,
    index: int,
    params: PyTree,
    predicted: Forecast,
    step_size: float,
    weight_decay: float,
) -> Row:
    end = predicted.equilibrium
    (now, error), (then, _) = (measure(noise, point, symmetry) for point in (params, end.params))
    size = lambda x: float(np.sqrt(np.sum(np.square(x))))
    charge = (now.weight_plus - now.weight_minus) / 2
    gap = now.noise_plus - now.noise_minus
    total = np.abs(now.noise_plus).sum() + np.abs(now.noise_minus).sum()
    flow = size(step_size / 2 * gap - 2 * weight_decay * charge)
    amount = np.asarray(end.amount[index])
    if amount.ndim == 2 and np.isfinite(amount).all():
        amount = np.linalg.eigvalsh(amount)
    finite = np.abs(amount[np.isfinite(amount)])
    everywhere = end.infinite[index] and not finite.size
    times = np.ravel(end.relaxation_steps[index])
    vectors = flow_vectors(now, step_size, weight_decay)
    return Row(
        name=symmetry.describe(params),
        generators=symmetry.dimension(params),
        charge=size(charge),
        charge_at_equilibrium=np.inf if everywhere else size(end.charge[index]),
        imbalance=float(np.abs(gap).sum() / total) if total > 0 else 0.0,
        moved=np.inf if everywhere else float(np.exp(finite.max())) if finite.size else 1.0,
        relaxation=median_time(times),
        slowest=predicted.relaxation[index],
        error=step_size / 2 * size(error) / flow if flow > 0 else 0.0,
        dead=len(end.excluded[index]),
        infinite=end.infinite[index],
        route=route(noise, params, symmetry),
        now=sides_of(now, vectors),
        then=sides_of(then, vectors),
    )
