"""The regime of the limiting diffusion: the gap of the Hessian, the step size, and the error at that step size."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.manifold.averaged import DENSE_LIMIT, TOLERANCE, solve_average
from undertow.manifold.fluctuations import image_route
from undertow.manifold.geometry import Frame, known_rank
from undertow.noise.base import AbstractNoise
from undertow.regime import Regime, SmallParameter

__all__ = ["limit_regime", "relative_error"]

WANTED = 0.05
"""The error for which a note gives the step size."""


def limit_regime(frame: Frame, flat: float, step_size: float | None, slow_time: float, error: float | None) -> Regime:
    """Return the regime of a solution that starts at a frame; `flat` is the largest curvature along the manifold."""
    curvature = np.asarray(frame.curvature)
    across, largest = float(curvature[curvature > 0].min()), float(curvature.max())
    parameters = [
        SmallParameter(
            "flat / across",
            flat / across,
            0.1,
            f"curvatures along the manifold over those across it (rank {known_rank(frame)})",
        )
    ]
    notes = []
    if step_size is not None and slow_time > 0:
        time = slow_time / step_size
        parameters += [
            SmallParameter("eta * lambda_max", step_size * largest, 2.0, "gradient descent diverges above 2"),
            SmallParameter(
                "1 / (lambda_min * time)", 1 / (across * time), 0.1, "relaxation across the manifold over the time"
            ),
        ]
        if error is not None and error > WANTED:
            wanted = step_size * WANTED / error
            notes.append(f"The error is of first order: {WANTED:.0%} needs a step size of about {wanted:.2g}.")
    elif step_size is None:
        notes.append("Give `step_size=` for an estimate of the error at that step size.")
    return Regime(tuple(parameters), error, tuple(notes))


def relative_error(
    noise: AbstractNoise, params: PyTree, end: Array, step_size: float, slow_time: float
) -> float | None:
    """Return the distance of the limit's end to that of the averaged flow at a step size, over the distance moved.

    None where the averaged flow cannot be solved.
    """
    size = trees.count(params)
    if not image_route(noise.problem, size) and size > DENSE_LIMIT:
        return None
    floats = jnp.result_type(float)
    times = jnp.asarray([0.0, slow_time / step_size], floats)
    path = solve_average(
        noise,
        params,
        times,
        jnp.asarray(step_size, floats),
        {},
        "averaged_noise",
        jnp.asarray(TOLERANCE, floats),
        10_000,
    )
    moved = float(jnp.linalg.norm(end - path.points[0]))
    error = float(jnp.linalg.norm(path.points[-1] - end))
    return error / moved if np.isfinite(error) and moved > 0 else None
