"""The kernel regime: the error of gradient descent on the linearised model is at least 1 - n/d at every step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Int, Key, PyTree

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
"""Number of observations of each run."""
DEPARTURES = 10
"""Number of data sets on which the model is compared with its linearisation."""


@dataclass(frozen=True)
class Linearised:
    """Gradient descent on the linear model, linearised at u = v = α, for many data sets."""

    draws: int
    """Number of data sets of each size n."""
    steps: int
    """Number of steps of gradient descent."""
    d: int = 30
    """Number of unknowns."""
    sparsity: int = 3
    """Number of nonzero entries of the true vector."""
    alpha: float = 1.0
    """Scale α of the start."""


class Model(eqx.Module):
    """The model f(x_0) + <grad f(x_0), x - x_0> for many data sets at once, with one output for each."""

    start: PyTree

    def __call__(self, params: PyTree, z: Float[Array, "sets d"]) -> Float[Array, " sets"]:
        moved = jax.tree.map(jnp.subtract, params, self.start)
        value, slope = jax.jvp(lambda p: jax.vmap(predict)(p, z), (self.start,), (moved,))
        return value + slope

    def learnt(self, params: PyTree) -> Float[Array, "sets d"]:
        """Return the vector w of the linearised model z.w."""
        moved = jax.tree.map(jnp.subtract, params, self.start)
        value, slope = jax.jvp(weights, (self.start,), (moved,))
        return value + slope


class Schedule(eqx.Module):
    """The step size c (1 + t)^-p."""

    peak: Array
    power: Array

    def __call__(self, step: Array) -> Array:
        return self.peak * (1.0 + step) ** -self.power


def _law(curvatures: np.ndarray, etas: np.ndarray, d: int) -> np.ndarray:
    """Return the mean of |w(T) - w*|^2/|w*|^2 over rotations of w*, for all T: (1/d) Tr prod_t (I - eta_t H)^2."""
    left = np.cumprod(1 - etas[:, None] * curvatures[None], axis=0) ** 2
    return np.concatenate([[d], left.sum(axis=1) + d - len(curvatures)]) / d


class _DataSets(NamedTuple):
    """Data sets of all sizes n, side by side, with one column per data set."""

    sizes: np.ndarray
    """The sizes n."""
    z: Float[np.ndarray, "n sets d"]
    """Inputs. A row of zeros is an equation without information, so that all data sets have the same number of rows."""
    truth: Float[np.ndarray, "sets d"]
    """The sparse vectors w*."""
    curvatures: list[np.ndarray]
    """Nonzero eigenvalues of the Hessian of the linearised model."""
    outside: Float[np.ndarray, " sets"]
    """Share of |w*|^2 outside the span of the inputs."""

    def by_size(self, values: np.ndarray) -> np.ndarray:
        """Split the last axis, over data sets, into (sizes, draws)."""
        return values.reshape(*values.shape[:-1], len(self.sizes), -1)


def _data_sets(p: Linearised, rng: np.random.Generator) -> _DataSets:
    sizes = np.array([1, 2, 3]) * p.d // 5
    most, counts = int(sizes[-1]), np.repeat(sizes, p.draws)
    z = rng.standard_normal((most, len(counts), p.d)) * (np.arange(most)[:, None] < counts[None])[..., None]
    truth = np.zeros((len(counts), p.d))
    truth[:, : p.sparsity] = rng.choice([-1.0, 1.0], (len(counts), p.sparsity))
    spectra = [np.linalg.svd(z[:n, s], full_matrices=False) for s, n in enumerate(counts)]
    outside = np.array([1 - ((v @ w) ** 2).sum() / (w @ w) for (_, _, v), w in zip(spectra, truth, strict=True)])
    curvatures = [8 * p.alpha**2 * values**2 / most for _, values, _ in spectra]
    return _DataSets(sizes, z, truth, curvatures, outside)


def _descents(
    p: Linearised, sets: _DataSets, key: Key[Array, ""]
) -> tuple[np.ndarray, np.ndarray, Int[np.ndarray, " times"]]:
    """Return the relative squared errors (schedule, time, data set), their exact law, and the observed steps."""
    flat = jnp.full(sets.truth.shape, p.alpha, jnp.float64)
    model = Model((flat, flat))
    problem = Regression(model, jnp.asarray(sets.z), jnp.asarray((sets.z * sets.truth).sum(axis=2)))
    size = (sets.truth**2).sum(axis=1)
    unit = 1 / max(c.max() for c in sets.curvatures)
    errors, laws = [], []
    for index, (peak, power) in enumerate(SCHEDULES.values()):
        schedule = Schedule(jnp.asarray(peak * unit), jnp.asarray(power))
        run = descend(
            noiseless(problem), (flat, flat), step_size=schedule, steps=p.steps, key=jax.random.fold_in(key, index),
            observe={"learnt": model.learnt}, every=p.steps // LOOKS, progress=False,
        )  # fmt: skip
        errors.append(((run.observed["learnt"] - sets.truth[None]) ** 2).sum(axis=2) / size[None])
        etas = peak * unit * (1.0 + np.arange(p.steps)) ** -power
        laws.append(np.stack([_law(c, etas, p.d)[run.step] for c in sets.curvatures], axis=1))
    return np.array(errors), np.array(laws), run.step


def _bound_checks(p: Linearised, sets: _DataSets, errors: np.ndarray) -> list[Check]:
    """Check that 1 - n/d is a lower bound of the error, and that it is reached."""
    checks = []
    for k, n in enumerate(sets.sizes):
        bound = 1 - n / p.d
        means = sets.by_size(errors)[..., k, :].mean(axis=-1)
        least = np.unravel_index(means.argmin(), means.shape)
        value, spread = statistics.mean(sets.by_size(errors)[(*least, k)])
        checks.append(
            Check(f"n = {n}: least mean squared error over times and step sizes / (1 - n/d)", value / bound, 1.0,
                  spread / bound, Within(0.01, 0.15), alternative=(1 - n / (2 * p.d)) / bound if k else None)
        )  # fmt: skip
    what = "least of error minus share of w* outside the span of the inputs, over all runs and times"
    checks.append(Check(what, float((errors - sets.outside).min()), 0.0, 0.0, Above(-1e-9)))
    return checks


def _measure(parameters: Linearised, key: Key[Array, ""]) -> Measurement:
    p = parameters
    sets = _data_sets(p, np.random.default_rng(np.asarray(jax.random.key_data(key))))
    errors, laws, steps = _descents(p, sets, key)
    checks = _bound_checks(p, sets, errors)
    for name, early, exact in zip(SCHEDULES, errors[:, 1], laws[:, 1], strict=True):
        value, spread = statistics.mean(early - exact)
        middle = float(exact.mean())
        checks.append(
            Check(f"{name} step sizes, stopped at step {steps[1]}: mean squared error / exact law",
                  1 + value / middle, 1.0, spread / middle, Within(0.005, 0.15))
        )  # fmt: skip
    checks.append(_departure(sets.z[:, -DEPARTURES:], sets.truth[-DEPARTURES:]))
    dimensions = ("schedule", "step", "n")
    data = xarray.Dataset(
        {
            "error": (dimensions, sets.by_size(errors).mean(axis=-1)),
            "spread": (dimensions, standard_error(sets.by_size(errors), axis=-1)),
            "law": (dimensions, sets.by_size(laws).mean(axis=-1)),
        },
        coords={"step": steps, "n": sets.sizes},
        attrs={"schedules": list(SCHEDULES)},
    )
    return Measurement(tuple(checks), data, p.draws)


def _departure(z: Float[np.ndarray, "n sets d"], truth: Float[np.ndarray, "sets d"]) -> Check:
    """Check how fast the distance of the model to its linearisation falls when alpha doubles."""
    inputs = jnp.asarray(np.swapaxes(z, 0, 1))
    small, large = (np.asarray(_gaps(inputs, jnp.asarray(truth), jnp.asarray(alpha))) for alpha in (2.0, 4.0))
    value, spread = statistics.mean(small / large)
    what = f"n = {len(z)}: distance of the end of the model to that of its linearisation at α / at 2α"
    return Check(what, value, 16.0, spread, Within(0.5, 2.0), alternative=4.0, samples=len(truth))


@jax.jit
def _gaps(
    inputs: Float[Array, "sets n d"], truths: Float[Array, "sets d"], alpha: Float[Array, ""]
) -> Float[Array, " sets"]:
    """Return |w - Z^+ y| at the end of gradient flow. The linearised model ends at the least-norm solution Z^+ y."""

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
        axes.set(xlabel="steps T", ylabel="mean |w(T) − w*|²/|w*|²", ylim=(0.3, 1.05), title=f"{name} step sizes")
    panels[0].legend(loc="upper right")
    return figure


CLAIMS = (
    Claim(
        id="kernel-regime-bound",
        paper="zero_loss",
        place="Theorem 6.7",
        statement="The mean error of gradient descent on the linearised model is at least 1 - n/d for all step sizes "
        "and at every step. This mean has an exact law at every step, and the bound is attained. The model itself ends "
        "within O(α⁻⁴) of its linearisation.",
        equation="E |w(T) - w*|²/|w*|² = (1/d) E Tr prod_t (I - η_t H)² ≥ 1 - n/d",
        alternative="The error is that of a model with 2d free parameters, 1 - n/(2d), and the model ends within "
        "O(α⁻²) of its linearisation.",
        rests_on=("kernel-gradient",),
        controls=True,
        scales={"smoke": Linearised(120, 240), "default": Linearised(400, 480), "full": Linearised(1000, 960, d=100)},
        measure=_measure,
        draw=_draw,
        long=True,
    ),
)
