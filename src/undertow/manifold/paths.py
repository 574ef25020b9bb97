"""Solutions of the limiting diffusion: flows by adaptive Runge-Kutta steps, diffusions by Euler steps.

Both use the rank of the Hessian at their start. The limit ends where a curvature across the manifold vanishes.
"""

from abc import abstractmethod
from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike
from undertow.covariance import AbstractCovariance
from undertow.manifold.drift import covariance_parts
from undertow.manifold.geometry import FiniteStep, Frame, frame_at, off_manifold
from undertow.manifold.label import label_amount, label_drift, label_return
from undertow.manifold.minimum import third
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractProblem, Regression

__all__ = [
    "FLATTEST_OF_FLOW",
    "MOST_ATTEMPTS",
    "TOLERANCE",
    "AbstractChart",
    "PlainChart",
    "Recorder",
    "RetractedTsit5",
    "flow",
    "solve_diffusion",
    "with_start",
]

FLATTEST_OF_FLOW = (1e-13, 1e-6)
"""The least curvature of a flow relative to the largest at its start, in double and in single precision."""

FLATTEST = (1e-8, 1e-5)
"""The same for a diffusion, whose Euler steps get shorter in proportion to the curvature."""

RESOLVED = 0.05
"""The largest variance of the logarithm of the smallest curvature in one Euler step, and its largest mean change."""

ASTRAY = 1e-2
"""The largest distance of a solution to the manifold, relative to 1 + |params|."""

MOST_STEPS = 20_000
"""The largest number of Euler steps between two records, in addition to the requested number."""

MOST_ATTEMPTS = 10_000
"""The largest number of Runge-Kutta steps between two records on average, rejected steps included."""

TOLERANCE = 1e-6
"""The default relative and absolute error of a Runge-Kutta step."""

StateAfter = Callable[[Array], Array | None]
"""The state of the optimiser after a step, as a function of its length."""


class Recorder(eqx.Module):
    """Record observations at a point, and check that the limit is valid there."""

    observe: dict[str, Callable]
    problem: AbstractProblem
    steepest: Array
    """The largest curvature at the start, the scale of the other curvatures."""
    rank: int = eqx.field(static=True)
    least_squares: bool = eqx.field(static=True)
    unravel: Callable = eqx.field(static=True)

    def frame(self, point: Array) -> Frame:
        return frame_at(self.problem, self.unravel(point), rank=self.rank, least_squares=self.least_squares)

    @eqx.filter_jit
    def frame_of(self, point: Array) -> Frame:
        """Return `frame`, compiled."""
        return self.frame(point)

    def __call__(self, point: Array, flattest: tuple[float, float]) -> tuple[PyTree, Array]:
        """Return the observations, and whether the limit is valid."""
        frame = self.frame(point)
        values = {name: f(self.unravel(point)) for name, f in self.observe.items()}
        return {**values, "distance": off_manifold(self.problem, frame)}, self.holds(frame, flattest)

    def holds(self, frame: Frame, flattest: tuple[float, float]) -> Array:
        """Return whether the Hessian has its rank at a point on the manifold (with zero residuals where required)."""
        size = 1 + jnp.linalg.norm(frame.point)
        curvature = jnp.sort(frame.curvature)[-self.rank :]
        double, single = flattest
        least = double if frame.point.dtype == jnp.float64 else single
        valid = (curvature[0] > least * self.steepest) & (off_manifold(self.problem, frame) <= ASTRAY * size)
        if not (self.least_squares and isinstance(self.problem, Regression)):
            return valid
        residual = jnp.linalg.norm(self.problem.residuals(self.unravel(frame.point)))
        rows = jnp.sqrt(self.problem.size * jnp.sum(frame.curvature))
        return valid & (residual <= ASTRAY * (jnp.linalg.norm(self.problem.targets) + rows * size))


def _velocity(
    noise: AbstractNoise, start: Frame, eta: FiniteStep, recorder: Recorder
) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return the tangent drift at a flat point near the manifold, and the step back to the manifold from there."""
    problem, unravel = noise.problem, start.unravel
    amount = label_amount(noise.covariance(unravel(start.point)), problem)
    plain = isinstance(problem, Regression) and start.least_squares and recorder.rank == problem.targets.size
    if plain and amount is not None and isinstance(eta, float):  # zero residuals, independent rows of J
        return (
            lambda x: label_drift(problem, x, unravel, amount)[0],
            lambda x: label_return(problem, x, unravel),
        )
    return (
        lambda x: _tangent_drift(noise, recorder.frame(x), eta),
        lambda x: _return(noise, recorder.frame(x)),
    )


def _tangent_drift(noise: AbstractNoise, frame: Frame, eta: FiniteStep) -> Array:
    _, normal, mixed = covariance_parts(noise.problem, frame, noise.covariance(frame.unravel(frame.point)), eta)
    return (normal + mixed) / 2


def _return(noise: AbstractNoise, frame: Frame) -> Array:
    """Return x - H^+ grad L, a Newton step back to the manifold."""
    return frame.point - frame.pseudo_inverse(trees.ravel(noise.problem.gradient(frame.unravel(frame.point))))


class RetractedTsit5(diffrax.Tsit5):
    """Tsit5 with a retraction after each step. A trial step that leaves the domain of the drift is rejected."""

    back: Callable[[PyTree], PyTree] = eqx.field(kw_only=True)

    def step(
        self,
        terms: diffrax.AbstractTerm,
        t0: float | Array | np.ndarray,
        t1: float | Array | np.ndarray,
        y0: PyTree,
        args: PyTree,
        solver_state: PyTree,
        made_jump: bool | Array | np.ndarray,
    ) -> tuple[PyTree, PyTree, PyTree, PyTree, diffrax.RESULTS]:
        # the first slope of a step is that before the last retraction, whose length is of the order of the error
        end, error, dense, state, result = super().step(terms, t0, t1, y0, args, solver_state, made_jump)
        error = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.inf), error)
        return self.back(end), error, dense, state, result


@eqx.filter_jit
def flow(
    noise: AbstractNoise, frame: Frame, gaps: Array, eta: FiniteStep, recorder: Recorder, tolerance: Array
) -> tuple[Array, PyTree, Array]:
    """Take adaptive Tsit5 steps with a retraction after each step, and record after every gap.

    Returns the end, the records, and the time of the first record at which the rank was lost (inf: at none).
    """
    drift, back = _velocity(noise, frame, eta, recorder)
    x = back(frame.point)
    times = jnp.cumsum(gaps).astype(x.dtype)
    first = 0.01 * (1 + jnp.linalg.norm(x)) / (jnp.linalg.norm(drift(x)) + 1e-12)
    path = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: drift(y)),
        RetractedTsit5(back=back),
        jnp.zeros_like(times[-1]),
        times[-1],
        jnp.minimum(first, times[0]),
        x,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.ClipStepSizeController(diffrax.PIDController(tolerance, tolerance), step_ts=times),
        max_steps=MOST_ATTEMPTS * gaps.size,
        adjoint=diffrax.ForwardMode(),
        throw=False,
    )

    def record(saved: Array) -> tuple[Array, tuple[PyTree, Array]]:
        # saved points are those before the retraction; infinite where the flow was too stiff to arrive
        point = jnp.where(jnp.all(jnp.isfinite(saved)), back(saved), jnp.nan)
        return point, recorder(point, FLATTEST_OF_FLOW)

    points, (records, valid) = jax.lax.map(record, path.ys)
    lost = jnp.min(jnp.where(valid, jnp.inf, jnp.cumsum(gaps)))
    return points[-1], with_start(recorder(x, FLATTEST_OF_FLOW)[0], records), lost


class AbstractChart(eqx.Module):
    """The coordinates in which a diffusion takes its steps, and the state v of the optimiser."""

    @abstractmethod
    def at(self, x: Array, v: Array | None) -> tuple[AbstractNoise, Frame]:
        """Return the noise and the frame in the coordinates of the chart, at params x."""

    @abstractmethod
    def frame(self, noise: AbstractNoise, point: Array) -> Frame:
        """Return the frame at a point of the chart, for the noise of `at`."""

    @abstractmethod
    def drift(self, noise: AbstractNoise, frame: Frame, x: Array, v: Array | None) -> tuple[Array, StateAfter]:
        """Return the tangent drift in the chart, and the state v as a function of the length of a step."""

    @abstractmethod
    def params(self, point: Array, x: Array, v: Array | None) -> Array:
        """Return the params at a point of the chart that belongs to x and v."""

    @abstractmethod
    def own_frame(self, x: Array, frame: Frame) -> Frame:
        """Return the frame in the coordinates of the params, for the frame of `at`."""


class PlainChart(AbstractChart):
    """The coordinates of the params, for SGD, which has no state."""

    noise: AbstractNoise
    eta: FiniteStep
    recorder: Recorder

    def at(self, x: Array, v: Array | None) -> tuple[AbstractNoise, Frame]:
        return self.noise, self.recorder.frame(x)

    def frame(self, noise: AbstractNoise, point: Array) -> Frame:
        return self.recorder.frame(point)

    def drift(self, noise: AbstractNoise, frame: Frame, x: Array, v: Array | None) -> tuple[Array, StateAfter]:
        return _tangent_drift(noise, frame, self.eta), lambda dt: None

    def params(self, point: Array, x: Array, v: Array | None) -> Array:
        return point

    def own_frame(self, x: Array, frame: Frame) -> Frame:
        return frame


def _diffuse(
    chart: AbstractChart, x: Array, v: Array | None, key: Array, gaps: Array, recorder: Recorder, steps: int
) -> tuple[Array, PyTree, Array]:
    """Take Euler steps: a tangent increment and the tangent drift, then a retraction, which adds the curvature term.

    The steps are shortened where the smallest curvature h across the manifold would change much in one step: with
    g = P grad ln h, Var ln h grows at the rate g' Sigma g. The length of a step depends only on its start, so it adds
    no bias. As h vanishes, the steps become so short that no run jumps across the point at which the rank is lost.
    Returns the end, the records, and the time at which the rank was lost (inf: never).
    """
    each = max(1, -(-steps // gaps.shape[0]))

    def longest_resolved(noise: AbstractNoise, frame: Frame, covariance: AbstractCovariance, drift: Array) -> Array:
        """Return the longest step in which the smallest curvature is resolved."""
        least = jnp.argmin(jnp.where(frame.active, frame.curvature, jnp.inf))
        q, h = frame.normal[:, least], frame.curvature[least]
        g = frame.project(third(noise.problem, frame, q, q)) / h
        spread = jnp.vdot(g, trees.ravel(covariance.mv(frame.unravel(g))))
        return RESOLVED / jnp.maximum(jnp.maximum(spread, jnp.abs(jnp.vdot(g, drift))), jnp.finfo(g.dtype).tiny)

    def between(carry: tuple, drawn: tuple[Array, Array, Array]) -> tuple:
        gap, before, k = drawn
        longest = gap / each

        def unfinished(state: tuple) -> Array:
            _, _, t, count, lost = state
            return (t < gap * (1 - 1e-6)) & (count < each + MOST_STEPS) & jnp.isinf(lost)

        def step(state: tuple) -> tuple:
            x, v, t, count, lost = state
            noise, frame = chart.at(x, v)
            covariance = noise.covariance(recorder.unravel(frame.point))
            drift, state_after = chart.drift(noise, frame, x, v)
            dt = jnp.minimum(jnp.minimum(longest, gap - t), longest_resolved(noise, frame, covariance, drift))
            increment = frame.project(trees.ravel(covariance.gaussian(jax.random.fold_in(k, count))))
            moved = frame.point + increment * jnp.sqrt(dt) + drift * dt
            for _ in range(2):
                moved = _return(noise, chart.frame(noise, moved))
            good = recorder.holds(chart.own_frame(x, frame), FLATTEST) & jnp.all(jnp.isfinite(moved))
            after = (chart.params(moved, x, v), state_after(dt))
            x, v = jax.tree.map(lambda new, old: jnp.where(good, new, old), after, (x, v))
            return x, v, t + dt, count + 1, jnp.where(good, lost, before + t)

        x, v, lost = carry
        x, v, t, _, lost = jax.lax.while_loop(unfinished, step, (x, v, jnp.zeros_like(gap), 0, lost))
        values, valid = recorder(x, FLATTEST)
        arrived = valid & (t >= gap * (1 - 1e-6))
        return (x, v, jnp.where(arrived, lost, jnp.minimum(lost, before + t))), values

    gaps = gaps.astype(x.dtype)
    before = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(gaps)[:-1]])
    carry = (x, v, jnp.asarray(jnp.inf, x.dtype))
    (end, _, lost), records = jax.lax.scan(between, carry, (gaps, before, jax.random.split(key, gaps.shape[0])))
    return end, with_start(recorder(x, FLATTEST)[0], records), lost


def with_start(first: PyTree, rest: PyTree) -> PyTree:
    """Return records with those of the start in front."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


_diffuse_once = eqx.filter_jit(_diffuse)


@eqx.filter_jit
def _diffuse_many(
    chart: AbstractChart, x: Array, v: Array | None, keys: Array, gaps: Array, recorder: Recorder, steps: int
) -> tuple[Array, PyTree, Array]:
    return jax.vmap(lambda k: _diffuse(chart, x, v, k, gaps, recorder, steps))(keys)


def solve_diffusion(
    chart: AbstractChart,
    x: Array,
    v: Array | None,
    key: KeyLike | None,
    seeds: int | None,
    gaps: Array,
    recorder: Recorder,
    steps: int,
) -> tuple[Array, PyTree, Array]:
    """Return the ends, the records and the times of lost rank of one diffusion, or of one for each seed."""
    if key is None:
        raise ValueError("`Limit.solve`: the noise has a tangent part, so the limit is a diffusion; give `key=`.")
    key = validate.as_key("Limit.solve", key)
    if seeds is None:
        return _diffuse_once(chart, x, v, key, gaps, recorder, steps)
    seeds = validate.positive_integer("Limit.solve", "seeds", seeds)
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(seeds))
    return _diffuse_many(chart, x, v, keys, gaps, recorder, steps)
