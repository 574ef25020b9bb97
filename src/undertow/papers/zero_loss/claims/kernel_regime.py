"""The kernel regime: gradient descent on the linearised model errs by 1 - n/d at least, whenever it stops."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.additive import noiseless
from undertow.papers.zero_loss.models.linear import LinearModel, predict, weights
from undertow.problem import Regression
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULES = {"constant": (1.0, 0.0), "decaying": (1.0, 0.5), "too large at first": (4.0, 0.5)}
"""Peak c and power p of the step sizes c (1 + t)^-p, in units of one over the largest curvature."""
LOOKS = 24
DEPARTURES = 10
"""Data sets on which the model itself is compared with its linearisation."""


@dataclass(frozen=True)
class Linearised:
    """Data sets for the linear model, linearised at u = v = alpha, and gradient descent on it."""

    draws: int
    """Data sets of each size n."""
    steps: int
    """Steps of gradient descent."""
    d: int = 30
    """Number of unknowns."""
    sparsity: int = 3
    """Nonzero entries of the true vector."""
    alpha: float = 1.0
    """Scale of the start."""


class Model(eqx.Module):
    """f(x_0) + <grad f(x_0), x - x_0> for many data sets at once: one output for each."""

    start: PyTree

    def __call__(self, params: PyTree, z: Float[Array, "sets d"]) -> Float[Array, " sets"]:
        moved = jax.tree.map(jnp.subtract, params, self.start)
        value, slope = jax.jvp(lambda p: jax.vmap(predict)(p, z), (self.start,), (moved,))
        return value + slope

    def learnt(self, params: PyTree) -> Float[Array, "sets d"]:
        """The vector w of the function z.w that the linearised model is."""
        moved = jax.tree.map(jnp.subtract, params, self.start)
        value, slope = jax.jvp(weights, (self.start,), (moved,))
        return value + slope


class Schedule(eqx.Module):
    """c (1 + t)^-p."""

    peak: Array
    power: Array

    def __call__(self, step: Array) -> Array:
        return self.peak * (1.0 + step) ** -self.power


def _law(curvatures: np.ndarray, etas: np.ndarray, d: int) -> np.ndarray:
    """The mean of |w(T) - w*|^2/|w*|^2 over rotations of w*, for T = 0, 1, ...: (1/d) Tr prod_t (I - eta_t H)^2."""
    left = np.cumprod(1 - etas[:, None] * curvatures[None], axis=0) ** 2
    return np.concatenate([[d], left.sum(axis=1) + d - len(curvatures)]) / d


def _measure(parameters: Linearised, key: Key[Array, ""]) -> Measurement:
    p = parameters
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    sizes = np.array([1, 2, 3]) * p.d // 5
    most, counts = int(sizes[-1]), np.repeat(sizes, p.draws)
    # the data sets side by side; an equation of zeros says nothing, so that all have as many rows
    z = rng.standard_normal((most, len(counts), p.d)) * (np.arange(most)[:, None] < counts[None])[..., None]
    truth = np.zeros((len(counts), p.d))
    truth[:, : p.sparsity] = rng.choice([-1.0, 1.0], (len(counts), p.sparsity))
    flat = jnp.full(truth.shape, p.alpha, jnp.float64)
    model = Model((flat, flat))
    problem = Regression(model, jnp.asarray(z), jnp.asarray((z * truth).sum(axis=2)))
    size = (truth**2).sum(axis=1)
    spectra = [np.linalg.svd(z[:n, s], full_matrices=False) for s, n in enumerate(counts)]
    off = np.array([1 - ((v @ w) ** 2).sum() / (w @ w) for (_, _, v), w in zip(spectra, truth, strict=True)])
    curvatures = [8 * p.alpha**2 * values**2 / most for _, values, _ in spectra]
    unit = 1 / max(c.max() for c in curvatures)
    errors, laws = [], []
    for index, (peak, power) in enumerate(SCHEDULES.values()):
        schedule = Schedule(jnp.asarray(peak * unit), jnp.asarray(power))
        run = descend(
            noiseless(problem), (flat, flat), step_size=schedule, steps=p.steps, key=jax.random.fold_in(key, index),
            observe={"learnt": model.learnt}, every=p.steps // LOOKS, progress=False,
        )  # fmt: skip
        errors.append(((run.observed["learnt"] - truth[None]) ** 2).sum(axis=2) / size[None])
        etas = peak * unit * (1.0 + np.arange(p.steps)) ** -power
        laws.append(np.stack([_law(c, etas, p.d)[run.step] for c in curvatures], axis=1))
    seen, told = np.array(errors), np.array(laws)  # (schedule, time, data set)
    bound = 1 - sizes / p.d
    by_size = lambda values: values.reshape(*values.shape[:-1], len(sizes), p.draws)
    checks = []
    for k, n in enumerate(sizes):
        means = by_size(seen)[..., k, :].mean(axis=-1)
        least = np.unravel_index(means.argmin(), means.shape)
        value, spread = statistics.mean(by_size(seen)[(*least, k)])
        checks.append(
            Check(f"n = {n}: least mean error over times and step sizes, over 1 - n/d", value / bound[k], 1.0,
                  spread / bound[k], Within(0.01, 0.15), alternative=(1 - n / (2 * p.d)) / bound[k] if k else None)
        )  # fmt: skip
    checks.append(
        Check("error less the part of w* off the equations: least of all runs and times", float((seen - off).min()),
              0.0, 0.0, Above(-1e-9))
    )  # fmt: skip
    for name, found, exact in zip(SCHEDULES, seen[:, 1], told[:, 1], strict=True):
        value, spread = statistics.mean(found - exact)
        middle = float(exact.mean())
        checks.append(
            Check(f"steps {name}, stopped at {run.step[1]}: mean error over its exact law",
                  1 + value / middle, 1.0, spread / middle, Within(0.005, 0.15))
        )  # fmt: skip
    checks.append(_departure(z[:, -DEPARTURES:], truth[-DEPARTURES:]))
    mean = lambda values: values.mean(axis=-1)
    data = xarray.Dataset(
        {
            "error": (("schedule", "step", "n"), mean(by_size(seen))),
            "spread": (("schedule", "step", "n"), standard_error(by_size(seen), axis=-1)),
            "law": (("schedule", "step", "n"), mean(by_size(told))),
        },
        coords={"step": run.step, "n": sizes},
        attrs={"schedules": list(SCHEDULES)},
    )
    return Measurement(tuple(checks), data, p.draws)


def _departure(z: Float[np.ndarray, "n sets d"], truth: Float[np.ndarray, "sets d"]) -> Check:
    """How much nearer the model itself ends to its linearisation when alpha doubles."""
    inputs = jnp.asarray(np.swapaxes(z, 0, 1))
    small, large = (np.asarray(_gaps(inputs, jnp.asarray(truth), jnp.asarray(alpha))) for alpha in (2.0, 4.0))
    value, spread = statistics.mean(small / large)
    what = f"n = {len(z)}: distance of the nonlinear end from the linearised one, over that at twice α"
    return Check(what, value, 16.0, spread, Within(0.5, 2.0), alternative=4.0, samples=len(truth))


@jax.jit
def _gaps(
    inputs: Float[Array, "sets n d"], truths: Float[Array, "sets d"], alpha: Float[Array, ""]
) -> Float[Array, " sets"]:
    """|w - Z^+ y| at the end of gradient flow: the linearised model ends at the solution of least l2 norm."""

    def gap(pair: tuple[Array, Array]) -> Array:
        z, truth = pair
        model = LinearModel(Regression(predict, z, z @ truth), truth)
        nearest = z.T @ jnp.linalg.solve(z @ z.T, z @ truth)
        return jnp.linalg.norm(weights(model.settle((alpha * jnp.ones_like(truth),) * 2)) - nearest)

    return jax.lax.map(gap, (inputs, truths))


def _draw(measurement: Measurement, parameters: Linearised) -> "Figure":
    figure, panels = style.new_figure(len(SCHEDULES), width=3.8)
    data = measurement.data
    for index, (axes, name) in enumerate(zip(panels, data.attrs["schedules"], strict=True)):
        for k, colour in zip(range(data.sizes["n"]), ("blue", "green", "purple"), strict=True):
            part = data.isel(schedule=index, n=k)
            n = int(data.n[k])
            style.theory(axes, data.step, part.law, "_", colour)
            style.points(axes, data.step, part.error, part.spread, f"n = {n}", colour)
            axes.axhline(1 - n / parameters.d, color=style.COLOURS[colour], lw=1, ls="--")
        axes.set(xlabel="steps T", ylabel="mean |w(T) − w*|²/|w*|²", ylim=(0.3, 1.05), title=f"steps {name}")
    panels[0].legend(loc="upper right")
    return figure


CLAIMS = (
    Claim(
        id="kernel-regime-bound",
        paper="zero_loss",
        place="Theorem 6.7",
        statement="Gradient descent on the linearised model errs by 1 - n/d or more on average, whatever its step "
        "sizes and whenever it stops. Its mean error is known at every step, and the bound is reached. The model "
        "itself ends within O(α⁻⁴) of its linearisation.",
        equation="E |w(T) - w*|²/|w*|² = (1/d) E Tr prod_t (I - η_t H)² ≥ 1 - n/d",
        alternative="The error is that of a model with 2d free parameters, 1 - n/(2d), and the model ends within "
        "O(α⁻²) of its linearisation.",
        scales={"smoke": Linearised(120, 240), "default": Linearised(400, 480), "full": Linearised(1000, 960, d=100)},
        measure=_measure,
        draw=_draw,
        long=True,
    ),
)
