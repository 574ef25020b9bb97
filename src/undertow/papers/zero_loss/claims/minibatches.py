"""Plain minibatches: no noise if every sample is fitted, label noise if labels contradict each other."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.manifold.limit import Limit
from undertow.noise.minibatch import Minibatch
from undertow.papers.zero_loss.models.linear import LinearModel, predict
from undertow.problem import Regression
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Labels:
    """SGD with batches of one on the overparametrised linear model, with one label per input and with two."""

    seeds: int
    """Number of runs at each step size."""
    d: int = 12
    """Number of unknowns."""
    n: int = 6
    """Number of different inputs."""
    gap: float = 1.0
    """Half the difference between the two labels of an input."""
    step_size: float = 1e-3
    """Smaller of two step sizes; the other is twice as large."""
    slow_time: float = 0.1
    """Length of each run in slow time, steps * step_size^2."""


def _log_products(params: PyTree) -> Array:
    return jnp.log(params[0] * params[1])


def _measure(parameters: Labels, key: Key[Array, ""]) -> Measurement:
    """Compare the decay rate of u_j v_j with gap^2 s_j, the exact rate under label noise of that size.

    The first observation is late enough for runs that start off the manifold to have reached it.
    """
    p = parameters
    model = LinearModel.draw(key, d=p.d, n=p.n, sparsity=2, dtype=jnp.float64)
    z, y = map(np.asarray, model.problem.data)
    twice = Regression(predict, *jax.device_put((np.concatenate([z, z]), np.concatenate([y - p.gap, y + p.gap]))))
    settled, rates = model.settle(model.start(1.0)), p.gap**2 * np.asarray(model.rates())
    decay_rates, diverged = {}, 0
    runs = {"one": (model.problem, model.start(1.0), (1,)), "two": (twice, settled, (1, 2))}
    for index, (name, (problem, start, factors)) in enumerate(runs.items()):
        for factor in factors:
            eta = factor * p.step_size
            half = round(p.slow_time / eta**2 / 2)
            run = descend(
                Minibatch(problem, 1), start, step_size=eta, steps=2 * half, every=half, seeds=p.seeds, progress=False,
                key=jax.random.fold_in(key, 2 * index + factor), observe={"log": _log_products},
            )  # fmt: skip
            logs = run.observed["log"][~run.diverged]
            since = 1 if name == "one" else 0
            fallen = (logs[:, since] - logs[:, -1]) / (run.slow_time[-1] - run.slow_time[since])
            decay_rates[name, factor] = (fallen / rates).mean(axis=1)
            diverged += int(run.diverged.sum())
    limit = Limit(Minibatch(twice, 1)).drift(settled)
    # d/dt log(u v) of the drift that `Limit` gives for minibatch noise, without reference to label noise
    speed = -np.sum(np.divide(limit, settled), axis=0) / rates
    (small, e1), (large, e2) = (statistics.mean(decay_rates["two", factor]) for factor in (1, 2))
    still, spread = statistics.mean(decay_rates["one", 1])
    checks = (
        Check("two labels per input: decay rate of u_j v_j / gap² s_j, extrapolated to small steps", 2 * small - large,
              1.0, float(np.hypot(2 * e1, e2)), Within(0.02, 0.1), alternative=0.0),
        Check("two labels per input: decay rate of u_j v_j / gap² s_j from the drift of `Limit`",
              max(speed, key=lambda v: abs(v - 1)), 1.0, 0.0, Within(1e-6, 1e-3), alternative=0.0),
        Check("one label per input: decay rate of u_j v_j / gap² s_j on the manifold", still, 0.0, spread,
              Within(1e-6, 0.1), alternative=1.0),
    )  # fmt: skip
    data = xarray.Dataset({f"{name}_{factor}": ("seed", values) for (name, factor), values in decay_rates.items()})
    return Measurement(checks, data, p.seeds, diverged)


def _draw(measurement: Measurement, parameters: Labels) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    ends = [0, 2.2 * parameters.step_size]
    style.theory(axes, ends, [1, 1], "two labels per input, small steps", "blue")
    style.theory(axes, ends, [0, 0], "one label per input", "green")
    kinds = (("two", "blue", (1, 2), "SGD, two labels"), ("one", "green", (1,), "SGD, one label"))
    for name, colour, factors, label in kinds:
        values, errors = zip(*(statistics.mean(data[f"{name}_{factor}"].values) for factor in factors), strict=True)
        style.points(axes, parameters.step_size * np.array(factors), values, errors, label, colour)
    axes.set(xlabel="step size η", ylabel="decay rate of u_j v_j / gap² s_j", ylim=(-0.1, 1.3))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="minibatch-null",
        paper="zero_loss",
        place="beyond the paper: minibatches with and without interpolation",
        statement="Minibatch noise vanishes where every sample is fitted, so that plain SGD stops there. If labels "
        "contradict each other it does not vanish: with two labels y ± a for every input, batches of one act as label "
        "noise of size a.",
        equation="Σ = 0 where all residuals are 0;  Σ = a² H for labels y ± a",
        alternative="Minibatch noise never moves a regression model on this time scale, whatever its residuals.",
        scales={"smoke": Labels(16), "default": Labels(128), "full": Labels(1024)},
        measure=_measure,
        draw=_draw,
    ),
)
