"""Two linear layers: SGD aligns W Gamma_W W' with U'Gamma_U U, not WW' with U'U; gradient descent aligns neither."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.additive import noiseless
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.models.linear_nets import (  # fmt: skip
    GaussianPairs,
    balance,
    condensed,
    cosine,
    split_variance,
    two_layer_loss,
    xavier,
)
from undertow.problem import Problem
from undertow.symmetry.closed_forms import balanced_factors
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHI = 0.5
"""Variance of half of the inputs; the others have 2 - PHI, so that balanced noise and equal norms differ."""
LOOKS = 20
"""Number of observations of each run."""


@dataclass(frozen=True)
class Alignment:
    """A two-layer linear network on a fixed data set y = x + eps; SGD and gradient descent from the same starts."""

    seeds: int
    """Number of runs of SGD, each with its own start, and of gradient descent."""
    steps: int
    """Number of steps of SGD; averages are over the last quarter."""
    inputs: int = 30
    """Number of inputs and of outputs."""
    hidden: int = 40
    """Number of hidden units."""
    samples: int = 1000
    """Number of samples of the data set."""
    batch: int = 10
    """Samples per step of SGD."""
    step_size: float = 0.01
    """Step size of SGD and of gradient descent."""
    descent_steps: int = 3000
    """Number of steps of gradient descent."""


def _relative_distance(a: Array, b: Array) -> Array:
    return jnp.sqrt(jnp.sum((a - b) ** 2) / jnp.sum(a**2))


def _observables(problem: Problem) -> dict[str, Callable[[PyTree], Array]]:
    """Return the observables: distance and cosine of the noise of the two layers, and distance of WW' and U'U."""
    return {
        "noise": lambda p: _relative_distance(*balance(p, problem)),
        "cosine": lambda p: cosine(*balance(p, problem)),
        "norms": lambda p: _relative_distance(p["W"] @ p["W"].T, p["U"].T @ p["U"]),
    }


def _closed_forms(problem: Problem, hidden: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the observables at the least-squares solution with balanced noise, and at that with equal norms."""
    x, y = (np.asarray(part, np.float64) for part in problem.data)
    product = np.linalg.solve(x.T @ x, x.T @ y).T
    r = x @ product.T - y
    second = lambda weights, rows: (rows * weights[:, None]).T @ rows / len(rows)
    of_residuals, of_inputs = second(np.sum(x**2, axis=1), r), second(np.sum(r**2, axis=1), x)
    functions = _observables(problem)
    observables = jax.jit(lambda params: {name: function(params) for name, function in functions.items()})
    values = []
    for gammas in ((of_residuals, of_inputs), (np.eye(y.shape[1]), np.eye(x.shape[1]))):
        u, w = balanced_factors(jnp.asarray(product), *map(jnp.asarray, gammas), hidden)
        values.append({name: float(value) for name, value in observables({"U": u, "W": w}).items()})
    return values[0], values[1]


def _measure(parameters: Alignment, key: Key[Array, ""]) -> Measurement:
    p = parameters
    draw, run_key = jax.random.split(key)
    law = GaussianPairs(split_variance(p.inputs, PHI), jnp.ones(p.inputs, jnp.float32))
    problem = law.population(two_layer_loss).sample(draw, p.samples)
    init = lambda k: xavier(k, inputs=p.inputs, hidden=p.hidden)
    simulate = functools.partial(
        descend, params=init, step_size=p.step_size, key=run_key, seeds=p.seeds, lane_width=p.seeds, progress=False,
        observe=_observables(problem),
    )  # fmt: skip
    # the loss of a linear network depends on second moments only, so fewer samples give the same gradient descent
    runs = {
        "SGD": simulate(Minibatch(problem, p.batch), steps=p.steps, every=p.steps // LOOKS),
        "GD": simulate(noiseless(condensed(problem)), steps=p.descent_steps, every=p.descent_steps // LOOKS),
    }
    balanced, equal = _closed_forms(problem, p.hidden)
    late = {
        name: {what: statistics.mean(values[:, -LOOKS // 4 :].mean(axis=1)) for what, values in run.observed.items()}
        for name, run in runs.items()
    }
    sgd, gd = late["SGD"], late["GD"]
    checks = (
        Check("SGD: |WW' - U'U|/|WW'|", sgd["norms"][0], balanced["norms"], sgd["norms"][1], Within(0.04, 0.05),
              alternative=equal["norms"]),
        Check("SGD: |a - b|/|a|", sgd["noise"][0], balanced["noise"], sgd["noise"][1], Below(0.2),
              alternative=equal["noise"]),
        Check("SGD: cosine of a and b", sgd["cosine"][0], balanced["cosine"], sgd["cosine"][1], Above(0.98),
              alternative=equal["cosine"]),
        Check("gradient descent: |a - b|/|a|", gd["noise"][0], balanced["noise"], gd["noise"][1], Above(0.5),
              alternative=balanced["noise"]),
        Check("gradient descent: cosine of a and b", gd["cosine"][0], balanced["cosine"], gd["cosine"][1], Below(0.6),
              alternative=balanced["cosine"]),
    )  # fmt: skip
    data = {
        f"{name}_{what}": (("seed", f"{name}_step"), values)
        for name, run in runs.items()
        for what, values in run.observed.items()
    }
    closed_forms = {"balanced": [balanced["noise"], balanced["norms"]], "equal": [equal["noise"], equal["norms"]]}
    coordinates = {f"{name}_step": run.step for name, run in runs.items()}
    diverged = int(sum(run.diverged.sum() for run in runs.values()))
    return Measurement(checks, xarray.Dataset(data, coords=coordinates, attrs=closed_forms), p.seeds, diverged)


def _draw(measurement: Measurement, parameters: Alignment) -> "Figure":
    figure, panels = style.new_figure(2, width=4.2)
    data = measurement.data
    for index, (axes, what) in enumerate(zip(panels, ("noise", "norms"), strict=True)):
        for name, colour in (("SGD", "blue"), ("GD", "red")):
            values = data[f"{name}_{what}"].values
            spread = standard_error(values)
            style.points(axes, data[f"{name}_step"], values.mean(axis=0), spread, name, colour)
        ends = [0, float(data.SGD_step[-1])]
        for name, words, colour in (("balanced", "balanced noise", "green"), ("equal", "equal norms", "grey")):
            style.theory(axes, ends, [data.attrs[name][index]] * 2, words, colour)
        axes.set(xlabel="steps", ylabel={"noise": "|a − b|/|a|", "norms": "|WW′ − U′U|/|WW′|"}[what])
        axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="two-layer-alignment",
        paper="noise_equilibrium",
        place="Figure 2 and Theorem 5.2",
        statement="SGD on a two-layer linear network aligns a = W Γ_W W' with b = U'Γ_U U up to fluctuations. On "
        "anisotropic data this differs from WW' = U'U: the difference of WW' and U'U agrees with the closed form. "
        "Gradient descent from the same starts (Xavier) does not align a and b.",
        equation="W E[|r|² xx'] W' = U' E[|x|² rr'] U,  r = UWx - y",
        alternative="SGD balances the norms of the layers, WW' = U'U, for all data.",
        rests_on=("stationary-condition",),
        scales={
            "smoke": Alignment(16, 7000, inputs=12, hidden=16, samples=400, step_size=0.02, descent_steps=2000),
            "default": Alignment(16, 12_000),
            "full": Alignment(128, 12_000),
        },
        measure=_measure,
        draw=_draw,
    ),
)
