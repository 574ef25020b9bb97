"""The kind of motion of the limit (flow, diffusion or none), and the point at which it ends."""

import warnings

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from undertow import _trees as trees
from undertow.manifold.geometry import Frame
from undertow.manifold.label import label_amount
from undertow.noise.base import AbstractNoise

__all__ = ["blank_after", "check_tangent_noise", "motion_of", "report_lost_rank", "warn_null_drift"]


def warn_null_drift(noise: AbstractNoise) -> None:
    """Warn that nothing moves on the slow clock."""
    warnings.warn(
        f"`Limit.solve`: {type(noise).__name__} noise vanishes on the manifold of minimisers, so nothing moves at this "
        "time scale: a null drift.",
        UserWarning,
        stacklevel=4,
    )


def report_lost_rank(lost: np.ndarray, rank: int, motion: str) -> None:
    """Raise where a flow loses rank before its end, warn where runs of a diffusion do."""
    first = lost.min()
    reason = (
        f"the rank of the Hessian falls below its {rank} (a curvature across the manifold vanishes, or the solution "
        "leaves the manifold, or it is not finite)"
    )
    if motion != "diffusion":
        raise ValueError(
            f"`Limit.solve`: {reason} by slow time {first:.3g}, where the limit ends; solve for a shorter time, or use "
            "`ut.average(noise, params, step_size=..., time=...)`, which needs no rank."
        )
    warnings.warn(
        f"`Limit.solve`: {np.isfinite(lost).sum()} of {lost.size} runs stop where {reason}, the first at slow time "
        f"{first:.3g}; see `diverged` and `diverged_at`.",
        UserWarning,
        stacklevel=4,
    )


def check_tangent_noise(noise: AbstractNoise, start: Frame, end: Frame, motion: str) -> None:
    """Raise where the noise along the manifold is zero at the start of a flow but not at its end."""
    label = _is_label_noise(noise, start)
    finite = bool(np.all(np.isfinite(end.point)))
    if motion == "flow" and not label and finite and motion_of(noise, end) == "diffusion":
        raise ValueError(
            "`Limit.solve`: the noise has no part along the manifold at the start, but one at the end, so the limit "
            "is not a flow; start from a point where the noise has such a part, and give `key=`."
        )


def blank_after(values: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return values with NaN where `after` (seeds, times); integers and booleans are converted to floats."""
    values = values.astype(np.result_type(values, np.float32)) if values.dtype.kind not in "fc" else values.copy()
    values[after] = np.nan
    return values


@eqx.filter_jit
def _powers(noise: AbstractNoise, frame: Frame) -> tuple[Array, Array]:
    """Return Tr Sigma and Tr P Sigma at the frame's point."""
    covariance = noise.covariance(frame.unravel(frame.point))
    project = lambda v: frame.unravel(frame.project(trees.ravel(v)))
    return covariance.trace(), covariance.trace(project)


def _is_label_noise(noise: AbstractNoise, frame: Frame) -> bool:
    """Return whether the noise is a multiple of the Hessian of a regression that fits its data."""
    amount = lambda: label_amount(noise.covariance(frame.unravel(frame.point)), noise.problem)
    return frame.least_squares and eqx.filter_eval_shape(amount) is not None


def motion_of(noise: AbstractNoise, frame: Frame) -> str:
    """Return "flow" without tangent noise, "diffusion" with it, "none" without noise."""
    total, along = (float(x) for x in _powers(noise, frame))
    scale = float(jnp.finfo(frame.point.dtype).eps) ** 0.5
    if _is_label_noise(noise, frame):
        along = 0.0  # in the image of J': what is left along directions that count as flat is no tangent noise
    if total <= scale**2 * (1 + float(np.sum(np.square(frame.point)))):
        return "none"
    return "diffusion" if along > scale * total else "flow"
