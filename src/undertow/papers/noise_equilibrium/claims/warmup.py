"""Warm-up of the step size: noise moves an unbalanced start to a flatter point before the step size is large."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jax.typing import DTypeLike
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, hessian_trace, kaiming, two_layer_loss
from undertow.symmetry.closed_forms import rotation
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = 0.001
"""First step size of the paper's warm-up in two stages."""
STARTS = 96
"""Number of starts over which Tr H is averaged."""


@dataclass(frozen=True)
class Warmup:
    """A two-layer linear network on fresh data y = x + eps, from a start with variance 1 in U and 1/n in W."""

    seeds: int
    """Number of runs for each schedule, each with its own start."""
    steps: int
    """Number of steps of SGD."""
    inputs: int = 20
    """Number n of inputs and of outputs."""
    hidden: int = 100
    """Number of hidden units."""
    batch: int = 10
    """Samples per step."""
    step_size: float = 0.008
    """Largest step size."""


def _law(inputs: int, dtype: DTypeLike) -> GaussianPairs:
    return GaussianPairs(jnp.ones(inputs, dtype), jnp.ones(inputs, dtype))


class _Start(eqx.Module):
    """The start, computed in double precision and optionally moved to its noise equilibrium."""

    inputs: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)
    teleported: bool = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""]) -> dict[str, Array]:
        params = kaiming(key, inputs=self.inputs, hidden=self.hidden, dtype=jnp.float64)
        if self.teleported:
            u, w = params["U"], params["W"]
            of_inputs, of_residuals = _law(self.inputs, jnp.float64).gammas(u @ w)
            # without weight decay the step size does not matter
            moved = rotation(u, w, w @ of_inputs @ w.T, u.T @ of_residuals @ u, 1.0, 0.0)
            params = {"U": moved.left, "W": moved.right}
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)


class _Sharpness(eqx.Module):
    """The observable Tr H."""

    input_variance: Array

    def __call__(self, params: PyTree) -> Array:
        return hessian_trace(params, self.input_variance)


class _Schedule(eqx.Module):
    """Step size SMALL up to the share `hold` of the run, then a linear ramp to `largest` at the share `ramp`."""

    largest: Array
    steps: Array
    hold: Array
    ramp: Array

    def __call__(self, step: Array) -> Array:
        share = (step + 1) / self.steps
        return jnp.where(share <= self.hold, SMALL, self.largest * jnp.minimum(share / self.ramp, 1.0))


@eqx.filter_jit
def _starts(start: _Start, sharpness: _Sharpness, key: Key[Array, ""]) -> Array:
    """Return Tr H at STARTS random starts."""
    return jax.lax.map(lambda k: sharpness(start(k)), jax.random.split(key, STARTS))


def _measure(parameters: Warmup, key: Key[Array, ""]) -> Measurement:
    n = parameters.inputs
    law = _law(n, jnp.float32)
    noise = Minibatch(law.population(two_layer_loss), parameters.batch)
    schedule = lambda hold, ramp: _Schedule(
        *(jnp.asarray(x, jnp.float64) for x in (parameters.step_size, parameters.steps, hold, ramp))
    )
    schedules = {
        "no warm-up": (False, schedule(0.0, 1e-9)),
        "linear ramp": (False, schedule(0.0, 0.75)),
        "two stages": (False, schedule(0.5, 1e-9)),
        "teleport": (True, schedule(0.0, 1e-9)),
    }
    traces, finite = {}, {}
    for name, (teleported, step_size) in schedules.items():
        run = descend(
            noise, _Start(n, parameters.hidden, teleported), step_size=step_size, steps=parameters.steps, key=key,
            observe={"trace": _Sharpness(law.input_variance)}, every=parameters.steps // 40, seeds=parameters.seeds,
            lane_width=parameters.seeds, progress=False,
        )  # fmt: skip
        traces[name] = run.observed["trace"]
        finite[name] = ~run.diverged
    share = {name: statistics.share(flags) for name, flags in finite.items()}
    before, after = traces["no warm-up"][:, 0], traces["teleport"][:, 0]
    drawn = np.asarray(_starts(_Start(n, parameters.hidden, False), _Sharpness(law.input_variance), key))
    late = traces["teleport"][finite["teleport"], -10:].mean(axis=1) / (4 * n**2)
    # E Tr H of the start: |U|^2 = n d, |W|^2 = d on average
    expected = 2 * parameters.hidden * n * (1 + n)
    # with variance 1/d in U: |U|^2 = n and |W|^2 = d
    usual = 2 * n * (n + parameters.hidden) / expected
    few = lambda name: (share[name][0], 0.0, share[name][1], Below(0.5))
    many = lambda name: (share[name][0], 1.0, share[name][1], Above(0.5))
    checks = (
        Check("share of runs that stay finite without warm-up", *few("no warm-up"), alternative=1.0,
              samples=math.inf),
        Check("share of runs that stay finite with a linear ramp of the step size", *many("linear ramp"),
              alternative=0.0, samples=math.inf),
        Check("share of runs that stay finite after a teleport to the noise equilibrium", *many("teleport"),
              alternative=0.0, samples=math.inf),
        Check(f"share of runs that stay finite with step size {SMALL:g}, then the largest", *few("two stages"),
              alternative=1.0, samples=math.inf),
        Check("Tr H of the start / (2 n d (n + 1))", *_mean(drawn / expected, 1.0), Within(0.01, 0.05),
              alternative=usual, samples=STARTS),
        Check("Tr H after the teleport / before", *_mean(after / before, 0.0), Below(0.5), alternative=1.0),
        Check("Tr H at the end of runs after a teleport / (4 n²)", *_mean(late, 1.0), Within(0.04, 0.04),
              samples=len(late)),
    )  # fmt: skip
    data = xarray.Dataset(
        {name.replace(" ", "_").replace("-", "_"): (("seed", "step"), values) for name, values in traces.items()},
        coords={"step": run.step},
    )
    diverged = int(sum((~flags).sum() for flags in finite.values()))
    return Measurement(checks, data, parameters.seeds, diverged, "This claim measures divergence.")


def _mean(values: np.ndarray, predicted: float) -> tuple[float, float, float]:
    """Return mean, prediction and standard error."""
    return float(values.mean()), predicted, float(standard_error(values))


def _draw(measurement: Measurement, parameters: Warmup) -> "Figure":
    figure, (axes,) = style.new_figure(width=6.4)
    data = measurement.data
    style.theory(
        axes, [0, float(data.step[-1])], [4 * parameters.inputs**2] * 2, "noise equilibrium at the minimum, 4n²"
    )
    curves = (("linear_ramp", "linear ramp", "blue"), ("teleport", "teleport", "green"),
             ("two_stages", "two stages", "purple"), ("no_warm_up", "no warm-up", "red"))  # fmt: skip
    for name, label, colour in curves:
        values = data[name].values
        here = np.isfinite(values).sum(axis=0) >= 2
        kept = [column[np.isfinite(column)] for column in values.T[here]]
        spread = [standard_error(column) for column in kept]
        finite = int(np.isfinite(values[:, -1]).sum())
        means = [column.mean() for column in kept]
        style.points(axes, data.step[here], means, spread, f"{label}: {finite} of {len(values)} finite", colour)
    axes.set(xlabel="steps", ylabel="Tr H", yscale="log")
    axes.legend(loc="center right")
    return figure


CLAIMS = (
    Claim(
        id="warmup",
        paper="noise_equilibrium",
        place="Figure 4",
        statement="From a start with variance 1 in U and 1/n in W, SGD at a large step size diverges at once. A "
        "linear ramp of the step size lets noise reduce Tr H first; moving the start along its symmetry to the noise "
        "equilibrium reduces Tr H at once. With either, the runs stay finite. Two stages, as in the paper's rank-one "
        "example, do not help here.",
        equation="Tr H = 2 (n |W Σ_x^1/2|² + |U|² Tr Σ_x)",
        alternative="A start with variance 1 in U stays finite at a large step size, like one with variance 1/d; or "
        "neither a ramp nor a teleport prevents its divergence.",
        rests_on=("hessian-trace",),
        controls=True,
        scales={
            "smoke": Warmup(18, 2500, inputs=10, hidden=50, step_size=0.02),
            "default": Warmup(24, 10_000),
            "full": Warmup(96, 10_000),
        },
        measure=_measure,
        draw=_draw,
    ),
)
