"""The slow motion of a least-squares problem after zero loss: the predicted path of Tr H, or why there is none."""

import warnings
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import spectral
from undertow.analysis.result import Path
from undertow.covariance import LabelCovariance
from undertow.dynamics.settle import settle
from undertow.manifold.limit import Limit
from undertow.manifold.smoothness import kinks
from undertow.noise.base import AbstractNoise
from undertow.noise.label import LabelNoise
from undertow.problem import Regression

__all__ = ["Prediction", "predict_path"]

LARGEST = 1000
"""The largest number of parameters for which the path is computed."""
SETTLE_STEPS = 3000
"""Steps of the solver of gradient flow: enough for most small problems, and at most a few seconds."""
NUM_SAVES = 40
FIRST_MOVE, DOUBLINGS = 0.05, 14
"""The first path moves about this share of |params|; its time is doubled at most so many times."""
SATURATED = 0.2
"""The path ends where its second half brings at most this share of the whole fall of Tr H."""


@dataclass(frozen=True)
class Prediction:
    """The predicted path, and a sentence on it; without a path the sentence says why."""

    path: Path | None
    sentence: str


def predict_path(noise: AbstractNoise, params: PyTree, step_size: float) -> Prediction:
    """Return the predicted path of label noise: that of `noise` if it is label noise, else of strength 1.

    The path starts where gradient flow from params ends. It is computed in double precision.
    """
    problem = noise.problem
    if not isinstance(problem, Regression):
        return _none(
            f"the problem is a {type(problem).__name__}, and the limit is computed for least squares: write the loss "
            "as `Regression(predict, x, y)` if it is one"
        )
    if problem.targets.size >= trees.count(params):
        return _none(
            f"there are {problem.targets.size:,} equations for {trees.count(params):,} parameters, so that zero loss "
            "and the manifold along which noise moves a model are out of reach in general"
        )
    if trees.count(params) > LARGEST:
        return _none(
            f"the model has more than {LARGEST:,} parameters, for which this may take long: "
            "`Limit(LabelNoise(problem)).solve(settle(problem, params).params, slow_time=...)` computes it"
        )
    names = kinks(problem, params)
    if names:
        return _none(f"the loss has kinks ({', '.join(names)}), and the limit needs smooth derivatives")
    label = noise if isinstance(noise, LabelNoise) else None
    with jax.enable_x64(True):
        problem, params = _double((problem, params))
        own = LabelNoise(problem, 1.0) if label is None else eqx.tree_at(lambda n: n.problem, _double(label), problem)
        try:
            problem.loss(params)
        except TypeError as error:  # types that the user's code fixes
            return _none(f"the loss cannot be computed in double precision: {str(error).splitlines()[0]}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # an end that is not resolved is said below
                end = settle(problem, params, max_steps=SETTLE_STEPS)
        except (ValueError, RuntimeError):
            return _none(
                f"gradient flow from here does not settle within {SETTLE_STEPS:,} steps of its solver; train further "
                "and analyse those params, or predict SGD from here with `ut.average`"
            )
        if not end.resolved:
            return _none(
                "the problem is ill-conditioned: gradient flow from here has no end along directions of curvature "
                f"{float(end.resolution):.2g} and below; `ut.average` predicts SGD without an end"
            )
        start = end.params
        if float(problem.loss(start)) > 1e-8 * float(jnp.mean(problem.targets**2)):
            return _none(
                f"gradient flow from here ends at the loss {float(problem.loss(start)):.3g}, not at zero, and the "
                "residuals left over have noise of their own"
            )
        try:
            return _solve(own, start, step_size, "the label noise given" if label else "label noise of strength 1")
        except ValueError as error:
            return _none(f"the limit does not exist there: {error}")


def _none(reason: str) -> Prediction:
    return Prediction(None, f"The slow motion after zero loss is not predicted: {reason}.")


def _double(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.astype(jnp.float64) if eqx.is_inexact_array(x) else x, tree)


def _solve(noise: LabelNoise, start: PyTree, step_size: float, name: str) -> Prediction:
    """Solve the limiting flow for longer and longer times, until Tr H falls no more."""
    limit = Limit(noise)
    trace = lambda p: _trace(noise.problem, p)
    speed = float(spectral.norm(limit.drift(start)))
    size = float(spectral.norm(start))
    if speed <= 1e-9 * size:
        return _none("Tr H is stationary along the manifold of minimisers here, so label noise does not move the model")
    path, time = None, FIRST_MOVE * size / speed
    for _ in range(DOUBLINGS):
        try:
            run = limit.solve(start, slow_time=time, observe={"trace": trace}, num_saves=NUM_SAVES)
        except ValueError:
            if path is None:
                raise
            break  # the Hessian loses rank later on: the path up to there stands
        values = np.asarray(run.observed["trace"])
        path = Path(name, tuple(run.slow_time.tolist()), tuple(values.tolist()))
        if values[NUM_SAVES // 2] - values[-1] <= SATURATED * (values[0] - values[-1]):
            break
        time *= 2
    assert path is not None
    steps = path.steps(step_size)[-1]
    return Prediction(
        path,
        f"After zero loss, {name} moves the model along the manifold of minimisers: Tr H falls from "
        f"{path.trace[0]:.3g} to {path.trace[-1]:.3g} within slow time {path.slow_time[-1]:.3g} (steps * step_size^2), "
        f"{steps:,.0f} steps at step size {step_size:g}. `Limit(LabelNoise(...)).solve` follows it.",
    )


def _trace(problem: Regression, params: PyTree) -> Array:
    """Return Tr H at zero loss: the mean over samples of the squared norms of the rows of the Jacobian."""
    return LabelCovariance(problem, params, jnp.asarray(1.0)).trace()
