"""Label-noise SGD leaves the kernel regime and finds the sparse vector; gradient descent does not."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.label import LabelNoise
from undertow.papers._lanes import lanes
from undertow.papers.zero_loss.models.linear import LinearModel
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTROLS = 64
"""Number of data sets for the two flows alone, without SGD."""


@dataclass(frozen=True)
class Escape:
    """Label-noise SGD on the overparametrised linear model, from deep in the kernel regime."""

    data_sets: int
    """Number of independent draws of the data."""
    seeds: int
    """Number of runs of SGD on each data set."""
    d: int = 100
    """Number of unknowns."""
    n: int = 40
    """Number of equations."""
    sparsity: int = 5
    """Number of nonzero entries of the true vector."""
    alpha: float = 1.0
    """Scale α of the start u = v = α; the kernel regime is large α."""
    strength: float = 1.0
    """Size of the label noise."""
    step_size: float = 1.6e-3
    """Step size η of SGD; 8 d α² η must stay below 2."""
    slow_time: float = 4.0
    """Length of each run in slow time, steps * step_size^2."""
    num_saves: int = 8
    """Number of observations of each run."""


def _measure(parameters: Escape, key: Key[Array, ""]) -> Measurement:
    steps = round(parameters.slow_time / parameters.step_size**2)
    every = max(1, steps // parameters.num_saves)
    sgd, flow, plain, diverged = [], [], [], 0
    slow_time = np.zeros(0)
    for data_key in jax.random.split(key, parameters.data_sets):
        draw_key, run_key = jax.random.split(data_key)
        single = LinearModel.draw(draw_key, d=parameters.d, n=parameters.n, sparsity=parameters.sparsity)
        # SGD runs in single precision; the same data in double precision, to settle precisely
        double = jax.tree.map(lambda x: x.astype(jnp.float64) if eqx.is_array(x) else x, single)
        run = descend(
            LabelNoise(single.problem, parameters.strength),
            single.start(parameters.alpha),
            step_size=parameters.step_size,
            steps=steps,
            key=run_key,
            observe={"params": _itself},
            every=every,
            seeds=parameters.seeds,
            lane_width=lanes(min(parameters.seeds, 16)),
            progress=False,
        )
        diverged += int(run.diverged.sum())
        slow_time = run.slow_time
        finite = tuple(leaf[~run.diverged] for leaf in run.observed["params"])
        sgd.append(_settled_errors(double, finite))
        start = double.start(parameters.alpha)
        decayed = [double.decayed(start, t, parameters.strength) for t in slow_time]
        # as many copies as there are runs, to use the program that is already compiled
        runs = len(finite[0])
        path = jax.tree.map(lambda *leaves, k=runs: np.stack([np.stack(leaves)] * k), *decayed)
        flow.append(_settled_errors(double, path)[0])
        plain.append(flow[-1][0])  # at time 0 the flow is at the end of gradient descent
    # the errors range over decades: compare their logarithms on each data set
    last = np.log10([errors[-1] for errors in flow])
    ratio, spread = statistics.mean(np.array([np.log10(errors[:, -1]).mean() for errors in sgd]) - last)
    plain = np.array(plain)
    kernel, limit = _without_noise(parameters, slow_time[-1], jax.random.fold_in(key, 1))
    (stays, stays_spread), (ends, ends_spread) = statistics.mean(kernel), statistics.mean(np.log10(limit))
    checks = (
        Check("label-noise SGD: mean log10 of |Φ(x) - w*| / that of the limiting flow", ratio, 0.0, spread,
              Within(0.3, 1.0), alternative=math.log10(stays) - ends),
        Check(f"limiting flow on {CONTROLS} further data sets: mean log10 |w - w*|", ends, last.mean(), ends_spread,
              Below(math.log10(0.06)), alternative=math.log10(stays), samples=CONTROLS),
        Check(f"gradient descent on {CONTROLS} further data sets: mean |w - w*|", stays, plain.mean(), stays_spread,
              Above(1.3), alternative=10**ends, samples=CONTROLS),
    )  # fmt: skip
    medians = np.stack([np.median(errors, axis=0) for errors in sgd])
    data = xarray.Dataset(
        {
            "sgd": (("data_set", "slow_time"), medians),
            "flow": (("data_set", "slow_time"), np.stack(flow)),
            "gradient_descent": (("data_set",), plain),
        },
        coords={"slow_time": slow_time},
    )
    return Measurement(checks, data, seeds=parameters.data_sets, diverged=diverged)


def _without_noise(parameters: Escape, slow_time: float, key: Key[Array, ""]) -> tuple[np.ndarray, np.ndarray]:
    """Return |w - w*| at the end of gradient flow and of the limiting flow, on `CONTROLS` further data sets."""

    def ends(k: Key[Array, ""]) -> tuple[Array, Array]:
        p = parameters
        model = LinearModel.draw(k, d=p.d, n=p.n, sparsity=p.sparsity, dtype=jnp.float64)
        start = model.start(p.alpha)
        decayed = model.decayed(start, slow_time, p.strength)
        return model.error(model.settle(start)), model.error(model.settle(decayed))

    kernel, limit = eqx.filter_jit(jax.lax.map)(ends, jax.random.split(key, CONTROLS))
    return np.asarray(kernel), np.asarray(limit)


def _itself(params: PyTree) -> PyTree:
    return params


def _settled_errors(model: LinearModel, params: PyTree) -> np.ndarray:
    """Return |Phi(x) - w*| for params with leading axes (runs, times)."""
    return np.asarray(_settled(model, jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)))


@eqx.filter_jit
def _settled(model: LinearModel, params: PyTree) -> Array:
    return jax.vmap(jax.vmap(lambda p: model.error(model.settle(p))))(params)


def _draw(measurement: Measurement, parameters: Escape) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    t = data.slow_time.values
    style.theory(axes, t, data.flow.median("data_set"), "limiting flow, exact")
    middle = data.sgd.median("data_set")
    low, high = data.sgd.min("data_set"), data.sgd.max("data_set")
    style.points(axes, t, middle, np.stack([middle - low, high - middle]), "label-noise SGD (all data sets)")
    plain = float(data.gradient_descent.median())
    style.theory(axes, [t[0], t[-1]], [plain, plain], "gradient descent", "red")
    axes.set(
        yscale="log",
        xlabel="slow time, steps × step size²",
        ylabel="|w − w*| on the manifold",
        title=f"d={parameters.d}, n={parameters.n}, {parameters.sparsity}-sparse, from the kernel regime",
    )
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="label-noise-escapes",
        paper="zero_loss",
        place="Theorem 6.1 against Theorem 6.7",
        statement="From deep in the kernel regime (α = 1) label-noise SGD on the overparametrised linear model "
        "escapes and finds the sparse ground truth. Gradient descent from the same start does not.",
        equation="f_i = z_i.(u² - v²),  x(t) = Φ(exp(-δ² s t/2) x(0)),  s_j = (4/n) ∑_i z_ij²",
        alternative="Label-noise SGD stays in the kernel regime and ends where gradient descent does.",
        rests_on=("recovery",),
        scales={"smoke": Escape(10, 1), "default": Escape(12, 4), "full": Escape(50, 16)},
        measure=_measure,
        draw=_draw,
        long=True,
    ),
)
