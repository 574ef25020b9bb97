"""Phase diagram of HeteroSGD: the share of runs that filter out the spurious signal, by step size and spread.

Matrix sensing with the two-point law mean ± spread, from U = alpha I. Theory: alpha exp(T Lambda) = 1 with the
Lyapunov exponent Lambda = E log|1 + eta s| (`undertow.sensing.growth.transition_spread`).
"""

import functools
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from undertow._validate import Number
from undertow.dynamics.traced import run_traced
from undertow.execution.sweeps.diagram import Diagram, Grid, fixed, means
from undertow.figures import heatmap, style
from undertow.sensing.growth import transition_spread
from undertow.sensing.laws import two_point
from undertow.sensing.matrix_sensing import MatrixSensing

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DIAGRAM", "run"]

MEAN, ALPHA, STEPS = 1.0, 1e-3, 200
FILTERED = 0.1
"""A spurious signal below this share of the invariant one is filtered out."""


@functools.cache
def _sensing(d: int, m: int) -> MatrixSensing:
    """Return the problem, built once and outside of any trace, because its constructor validates concrete numbers."""
    with jax.ensure_compile_time_eval():
        return MatrixSensing(d, m, two_point(MEAN, 1.0), dtype=jnp.float32)


def run(
    key: Key[Array, ""],
    *,
    step_size: Number,
    spread: Number,
    mean: Number = MEAN,
    alpha: Number = ALPHA,
    steps: int | Int[Array, ""] = STEPS,
    d: int = 40,
    m: int = 8000,
) -> dict[str, Array]:
    """Return the learnt sizes of both signals in one run of HeteroSGD, and whether the spurious one was filtered out.

    >>> import jax
    >>> from undertow.papers.heterogeneity import phase_diagram as hetero
    >>> run = jax.jit(hetero.run, static_argnames="d")
    >>> end = run(jax.random.key(0), step_size=0.05, spread=8.0, d=10)
    >>> print(bool(end["filtered"]), bool(end["true"] > 0.9))
    True True
    """
    sensing = _sensing(d, m)
    centre, width = jnp.asarray(mean, jnp.float32), jnp.asarray(spread, jnp.float32)
    values = jnp.stack([centre - width, centre + width])[:, None]
    sensing = eqx.tree_at(lambda noise: noise.problem.law.values, sensing, values)
    start = jnp.asarray(alpha, jnp.float32) * jnp.eye(d, dtype=jnp.float32)
    end = run_traced(sensing, start, step_size=step_size, steps=steps, key=key)
    measured = sensing.measure(end.params)
    kept = {name: jnp.where(end.diverged, jnp.nan, measured[name]) for name in ("true", "spurious", "to_invariant")}
    filtered = jnp.where(end.diverged, jnp.nan, (measured["spurious"] < FILTERED).astype(jnp.float32))
    return {"filtered": filtered, **kept}


def _axes(points: int) -> Grid:
    return {
        "step_size": {"log": [0.01, 0.1, points]},
        "spread": {"linear": [0.5, 9.0, points]},
    }


def _draw(data: "xarray.Dataset") -> "Figure":
    figure, (axes,) = style.new_figure(width=6.4, height=4.4)
    shown = means(data, "filtered", "step_size", "spread")
    words = "share of runs without the spurious signal"
    heatmap.heat_map(axes, shown.step_size, shown.spread, shown, words, limits=(0.0, 1.0))
    steps, alpha, mean = fixed(data, "steps", STEPS), fixed(data, "alpha", ALPHA), fixed(data, "mean", MEAN)
    sizes = np.geomspace(float(data.step_size.min()) / 1.2, float(data.step_size.max()) * 1.2, 200)
    predicted = [transition_spread(mean, float(eta), steps=steps, alpha=alpha) for eta in sizes]
    heatmap.boundary(axes, sizes, predicted, f"predicted: α exp(TΛ) = 1, T = {steps:g}")
    axes.set(xlabel="step size η", ylabel="heterogeneity M")
    axes.legend(loc="upper right", frameon=True, framealpha=0.85)
    return figure


DIAGRAM = Diagram("hetero", run, _axes, points=20, seeds=50, shown=("step_size", "spread"), draw=_draw)
