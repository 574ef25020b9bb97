"""Phase diagram of the recovery of a sparse vector by label noise, by number of equations and sparsity.

The limiting flow of label noise on the overparametrised linear model ends at the minimiser of a weighted l1 norm
(zero_loss, section 6.1), whose weights are nearly equal. Theory: l1 recovers a vector with k of d entries from n
Gaussian equations when n passes the statistical dimension min_t k (1 + t^2) + (d - k) E(|g| - t)_+^2 (Amelunxen, Lotz,
McCoy and Tropp 2014).
"""

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from undertow._validate import Number
from undertow.execution.sweeps.diagram import Diagram, Grid, fixed, means
from undertow.figures import heatmap, style
from undertow.papers.zero_loss.models.linear import LinearModel, predict
from undertow.problem import Regression

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DIAGRAM", "run", "statistical_dimension"]

D, MOST = 100, 60
RECOVERED = 1e-2
"""Relative squared error below which a vector counts as recovered."""


def statistical_dimension(sparsity: float | int, d: float | int) -> float:
    """Return the number of Gaussian equations at which l1 typically begins to recover a vector with `sparsity` entries.

    >>> from undertow.papers.zero_loss.phase_diagram import statistical_dimension
    >>> print(round(statistical_dimension(3, 100), 1), round(statistical_dimension(100, 100), 1))
    14.1 100.0
    """
    from scipy.optimize import minimize_scalar

    def bound(t: float) -> float:
        density, tail = math.exp(-t * t / 2) / math.sqrt(2 * math.pi), math.erfc(t / math.sqrt(2)) / 2
        return sparsity * (1 + t * t) + (d - sparsity) * 2 * ((1 + t * t) * tail - t * density)

    return float(minimize_scalar(bound, bounds=(0.0, 20.0), method="bounded", options={"xatol": 1e-10}).fun)


def run(
    key: Key[Array, ""], *, n: Number, sparsity: Number, d: int = D, most: int = MOST, slow_time: Number = 8.0
) -> dict[str, Array]:
    """Return the relative squared error of the limiting flow from u = v = 1 on one data set, and if it recovers w*.

    n and the sparsity are whole numbers but traced, so that one program serves the whole diagram. It has `most`
    equations. Each equation after the first n sets an additional unknown to zero, which it already is.

    >>> import jax
    >>> from undertow.papers.zero_loss import phase_diagram as recovery
    >>> run = jax.jit(recovery.run, static_argnames=("d", "most"))
    >>> with jax.enable_x64(True):
    ...     print(run(jax.random.key(0), n=20.0, sparsity=2.0, d=30, most=20)["recovered"])
    1.0
    """
    inputs, signs = jax.random.split(key)
    dtype = jnp.result_type(float)
    n = jnp.round(jnp.asarray(n, dtype))
    real = (jnp.arange(most) < n)[:, None]
    z = jnp.where(real, jax.random.normal(inputs, (most, d), dtype), 0)
    idle = jnp.where(real, 0, jnp.eye(most, dtype=dtype))
    chosen = jnp.arange(d) < jnp.round(jnp.asarray(sparsity, dtype))
    truth = jnp.where(chosen, jax.random.rademacher(signs, (d,), dtype=dtype), 0)
    z, truth = jnp.concatenate([z, idle], axis=1), jnp.concatenate([truth, jnp.zeros(most, dtype)])
    model = LinearModel(Regression(predict, z, z @ truth), truth)
    # the decay rates are means over all equations here, but over the first n in the problem of interest
    end = model.settle(model.decayed(model.start(1.0), jnp.asarray(slow_time) * most / n, 1.0))
    error = jnp.where(n <= most, model.error(end) ** 2 / jnp.sum(truth**2), jnp.nan)
    recovered = jnp.where(jnp.isnan(error), jnp.nan, (error < RECOVERED).astype(dtype))
    return {"recovered": recovered, "error": error}


def _axes(points: int) -> Grid:
    equations = sorted({round(float(n)) for n in np.linspace(6, MOST, points)})
    sparsities = sorted({round(float(k)) for k in np.linspace(1, min(points, 19), points)})
    return {"n": equations, "sparsity": sparsities}


def _draw(data: "xarray.Dataset") -> "Figure":
    figure, (axes,) = style.new_figure(width=6.4, height=4.4)
    shown = means(data, "recovered", "n", "sparsity")
    heatmap.heat_map(axes, shown.n, shown.sparsity, shown, "share of data sets recovered", limits=(0.0, 1.0))
    d = fixed(data, "d", D)
    sparsities = np.linspace(0.3, float(data.sparsity.max()) * 1.1, 100)
    heatmap.boundary(
        axes, [statistical_dimension(k, d) for k in sparsities], sparsities, "predicted: statistical dimension of l1"
    )
    axes.set(xlabel="equations n", ylabel="sparsity k")
    axes.legend(loc="upper left", frameon=True, framealpha=0.85)
    return figure


DIAGRAM = Diagram("recovery", run, _axes, points=10, seeds=50, shown=("n", "sparsity"), draw=_draw)
