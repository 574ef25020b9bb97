"""The limiting diffusion: what SGD does after zero loss, on the clock slow_time = steps * step_size^2.

    dY = P sigma dW + 1/2 d2Phi[Sigma] dt,   Y(0) = Phi(x(0))     (zero_loss, Theorem 4.6)

Where the noise has no tangent part (label noise), this is a flow.
"""

import warnings
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from undertow import trees, validate
from undertow.manifold.drift import Parts, covariance_parts
from undertow.manifold.geometry import (
    Frame,
    frame_at,
    off_manifold,
    refuse_distance,
    refuse_off_manifold,
    refuse_square,
)
from undertow.manifold.label import label_amount, label_drift, label_return
from undertow.manifold.smoothness import kinks
from undertow.noise.base import AbstractNoise
from undertow.problem import Population, Regression
from undertow.trajectory import Trajectory
from undertow.validate import Number

__all__ = ["Limit"]

TABLEAU = diffrax.Tsit5.tableau


class Limit(eqx.Module):
    """The limiting diffusion of SGD with a noise, on the manifold of minimisers of its problem.

    **Arguments:** any noise whose problem is a `Regression` (matrix-free) or any small `Problem` (dense Hessian).
    A loss with kinks (ReLU, absolute values) is refused unless `piecewise=True`: between its kinks the formulas hold,
    at them nothing is known. It covers SGD; heavy-ball momentum has the same limit on the clock of its effective
    step size `step_size/(1 - momentum)`. It does not cover Adam.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> # u v = 1: label noise moves along the hyperbola to where the Hessian's trace u^2 + v^2 is least, u = v = 1
    >>> task = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0]), jnp.array([1.0]))
    >>> limit = ut.Limit(ut.LabelNoise(task, strength=1.0))
    >>> path = limit.solve(jnp.array([2.0, 0.5]), time=20.0, observe={"p": lambda p: p})
    >>> print(path.observed["p"][-1].round(3), path.slow_time[-1])
    [1. 1.] 20.0
    """

    noise: AbstractNoise
    piecewise: bool = eqx.field(static=True)

    def __init__(self, noise: AbstractNoise, piecewise: bool = False):
        if not isinstance(noise, AbstractNoise):
            raise TypeError(f"`Limit(noise)`: got a {type(noise).__name__}; give a noise, such as `LabelNoise(task)`.")
        if isinstance(noise.problem, Population):
            raise TypeError(
                "`Limit(noise)`: a `Population` has no manifold of exact minimisers; fix a data set with "
                "`population.sample(key, count)`."
            )
        self.noise = noise
        self.piecewise = piecewise

    def drift(self, params: PyTree, *, finite_step: Number | None = None) -> PyTree:
        """1/2 d2Phi[Sigma(params)], like params. Label noise takes a shorter way than `parts`."""
        validate.params_of_floats("Limit.drift", params)
        drift, far, size = _drift(self, params, _finite_step(finite_step))
        refuse_distance("Limit.drift", far, size)
        return drift

    def parts(self, params: PyTree, *, finite_step: Number | None = None) -> Parts:
        """The drift as its three parts: tangent compensation, normal regularisation, mixed.

        `finite_step=eta` takes the covariance across the manifold from HX + XH - eta HXH = Sigma instead of
        HX + XH = Sigma. That is nearly all of what a finite step changes to first order on the motor (claim
        `motor-speed`); it leaves out how curvature and noise change over the width of the fluctuations.
        """
        validate.params_of_floats("Limit.parts", params)
        eta = _finite_step(finite_step)
        frame = _frame(self, params)
        refuse_off_manifold("Limit", self.noise.problem, frame)
        flat = _parts(self.noise, frame, eta)
        return Parts(*(frame.unravel(part) for part in flat))

    def solve(
        self,
        params: PyTree,
        *,
        time: Number,
        key: Key[Array, ""] | None = None,
        observe: dict[str, Callable[[PyTree], PyTree]] | None = None,
        seeds: int | None = None,
        finite_step: Number | None = None,
        looks: int = 20,
        steps: int = 2000,
        tolerance: float = 1e-6,
    ) -> Trajectory:
        """Solves the limiting diffusion from a point of the manifold up to slow time `time`.

        A flow (no tangent noise) takes adaptive Runge-Kutta steps of relative and absolute error `tolerance`, a
        diffusion `steps` Euler steps; each step ends with a Gauss-Newton step back to the manifold. `observe` is
        recorded at 0 and at `looks` equal intervals, and so is "distance", how far off the manifold the solution is.
        A diffusion needs a `key`, and `seeds` makes an ensemble of it.
        """
        problem = self.noise.problem
        validate.params_of_floats("Limit.solve", params)
        validate.finite_number("Limit.solve", "time", time)
        looks = validate.positive_integer("Limit.solve", "looks", looks)
        steps = validate.positive_integer("Limit.solve", "steps", steps)
        eta = _finite_step(finite_step)
        frame = _frame(self, params)
        refuse_off_manifold("Limit.solve", problem, frame)
        observe = dict(observe or {})
        motion = _motion(self.noise, frame)
        if motion == "none":
            warnings.warn(
                f"`Limit.solve`: {type(self.noise).__name__} noise vanishes on the manifold of minimisers, so nothing "
                "moves at this time scale: a null drift.",
                UserWarning,
                stacklevel=2,
            )
        times = np.linspace(0.0, float(time), looks + 1)
        gaps = jnp.asarray(np.diff(times))
        rank = int(frame.rank)
        look = _Look(observe, problem, jnp.max(frame.curvature), rank, frame.unravel)
        if motion == "diffusion":
            ends, seen = self._diffusion(frame, rank, gaps, key, seeds, eta, look, steps)
        else:
            ends, seen = _flow(self.noise, frame, rank, gaps, eta, look, jnp.asarray(tolerance))
            if seeds is not None:
                repeat = lambda x: jnp.broadcast_to(x[None], (seeds, *x.shape))
                ends, seen = jax.tree.map(repeat, (ends, seen))
        _refuse_rank_change(seen.pop("flattest"), times, rank)
        alive = np.isfinite(np.asarray(ends)).all(axis=-1)
        unravel = jax.vmap(frame.unravel) if seeds is not None else frame.unravel
        return Trajectory(
            params=unravel(ends),
            observed=jax.tree.map(np.asarray, seen),
            step=np.full(len(times), np.nan),
            time=np.full(len(times), np.nan),
            slow_time=times,
            diverged=np.asarray(~alive),
            diverged_at=np.asarray(np.where(alive, -1, 0)),
            seeds=seeds,
            clock="slow_time",
            facts={"made_by": "Limit.solve", "noise": type(self.noise).__name__, "motion": motion},
        )

    def _diffusion(
        self, frame: Frame, rank: int, gaps: Array, key: Any, seeds: int | None, eta: Any, look: Any, steps: int
    ) -> tuple[Array, PyTree]:
        if key is None:
            raise ValueError("`Limit.solve`: the noise has a tangent part, so the limit is a diffusion; give `key=`.")
        if seeds is None:
            return _diffuse(self.noise, frame, rank, key, gaps, eta, look, steps)
        seeds = validate.positive_integer("Limit.solve", "seeds", seeds)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(seeds))
        return _diffuse_many(self.noise, frame, rank, keys, gaps, eta, look, steps)


class _Look(eqx.Module):
    """What is recorded of a point."""

    observe: dict[str, Callable]
    problem: Any
    steepest: Array
    """The largest curvature at the start, the scale that others are small against."""
    rank: int = eqx.field(static=True)
    unravel: Callable = eqx.field(static=True)

    def __call__(self, point: Array) -> PyTree:
        params = self.unravel(point)
        frame = frame_at(self.problem, params, rank=self.rank)
        kept = jnp.sort(frame.curvature)[-self.rank :]
        seen = {name: f(params) for name, f in self.observe.items()}
        return {**seen, "distance": off_manifold(self.problem, frame), "flattest": kept[0] / self.steepest}


def _refuse_rank_change(flattest: Array, times: np.ndarray, rank: int) -> None:
    """An error where a normal curvature has fallen to nothing beside the largest at the start, or is no number."""
    flat = np.asarray(flattest)
    limit = 1e-13 if flat.dtype == np.float64 else 1e-6
    bad = ~(flat > limit)
    if bad.any():
        when = times[np.argmax(bad.any(axis=0) if bad.ndim > 1 else bad)]
        raise ValueError(
            f"`Limit.solve`: the rank of the Hessian falls below its {rank} by slow time {when:.3g} (a curvature "
            "across the manifold vanishes, or the solution is not finite); it ends there: solve for a shorter time."
        )


def _finite_step(value: Number | None) -> Any:
    """None stays the exact limit, told apart while tracing: 0.0 takes the shorter ways."""
    if value is None:
        return 0.0
    validate.finite_number("Limit", "finite_step", value)
    return jnp.asarray(value, jnp.result_type(float))


def _refuse_kinks(limit: Limit, params: PyTree) -> None:
    """Refuses a loss with kinks unless that is known. Called while tracing, so that it costs nothing later."""
    found = [] if limit.piecewise else kinks(limit.noise.problem, params)
    if found:
        raise ValueError(
            f"`Limit`: the loss has kinks ({', '.join(found)}), and the limit is made of its derivatives; between "
            "them it holds almost everywhere: use a smooth activation, or `Limit(noise, piecewise=True)`."
        )


@eqx.filter_jit
def _frame(limit: Limit, params: PyTree) -> Frame:
    _refuse_kinks(limit, params)
    return frame_at(limit.noise.problem, params)


@eqx.filter_jit
def _drift(limit: Limit, params: PyTree, eta: Any) -> tuple[PyTree, Array, Array]:
    """The drift, how far off the manifold it was taken, and the size of the point."""
    _refuse_kinks(limit, params)
    noise, problem = limit.noise, limit.noise.problem
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    amount = label_amount(noise.covariance(params), problem) if isinstance(eta, float) else None
    if amount is not None and isinstance(problem, Regression):
        refuse_square(problem, params)
        drift, far = label_drift(problem, flat, unravel, amount)
    else:
        frame = frame_at(problem, params)
        drift = sum(covariance_parts(problem, frame, noise.covariance(params), eta), jnp.zeros_like(flat)) / 2
        far = off_manifold(problem, frame)
    return unravel(drift), far, jnp.linalg.norm(flat)


@eqx.filter_jit
def _parts(noise: AbstractNoise, frame: Frame, eta: Any) -> tuple[Array, Array, Array]:
    covariance = noise.covariance(frame.unravel(frame.point))
    tangent, normal, mixed = covariance_parts(noise.problem, frame, covariance, eta)
    return tangent / 2, normal / 2, mixed / 2


@eqx.filter_jit
def _powers(noise: AbstractNoise, frame: Frame) -> tuple[Array, Array]:
    """Tr Sigma and Tr P Sigma at the frame's point."""
    covariance = noise.covariance(frame.unravel(frame.point))
    project = lambda v: frame.unravel(frame.project(trees.ravel(v)))
    return covariance.trace(), covariance.trace(project)


def _motion(noise: AbstractNoise, frame: Frame) -> str:
    """ "flow" without tangent noise, "diffusion" with it, "none" without noise."""
    total, along = (float(x) for x in _powers(noise, frame))
    scale = float(jnp.finfo(frame.point.dtype).eps) ** 0.5
    if total <= scale**2 * (1 + float(jnp.vdot(frame.point, frame.point))):
        return "none"
    return "diffusion" if along > scale * total else "flow"


def _velocity(
    noise: AbstractNoise, like: Frame, rank: int, eta: Any
) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """The tangent drift at a flat point near the manifold, and the step back to the manifold from there."""
    problem = noise.problem
    amount = label_amount(noise.covariance(like.unravel(like.point)), problem)
    if amount is not None and isinstance(eta, float) and isinstance(problem, Regression):
        return (
            lambda x: label_drift(problem, x, like.unravel, amount)[0],
            lambda x: label_return(problem, x, like.unravel),
        )

    def drift(x: Array) -> Array:
        frame = frame_at(problem, like.unravel(x), rank=rank)
        _, normal, mixed = covariance_parts(problem, frame, noise.covariance(like.unravel(x)), eta)
        return (normal + mixed) / 2

    def back(x: Array) -> Array:
        frame = frame_at(problem, like.unravel(x), rank=rank)
        return x - frame.pseudo_inverse(trees.ravel(problem.gradient(like.unravel(x))))

    return drift, back


@eqx.filter_jit
def _flow(
    noise: AbstractNoise, frame: Frame, rank: int, gaps: Array, eta: Any, look: _Look, tolerance: Array
) -> tuple[Array, PyTree]:
    """Adaptive Tsit5 steps with a retraction after each, looked at after every gap."""
    drift, back = _velocity(noise, frame, rank, eta)
    lower = [jnp.asarray(row) for row in TABLEAU.a_lower]
    solution, defect = jnp.asarray(TABLEAU.b_sol), jnp.asarray(TABLEAU.b_error)

    def attempt(x: Array, dt: Array) -> tuple[Array, Array]:
        slopes = [drift(x)]
        for row in lower:
            slopes.append(drift(x + dt * sum(a * k for a, k in zip(row.astype(x.dtype), slopes, strict=True))))
        stacked = jnp.stack(slopes)
        step = dt * jnp.tensordot(solution.astype(x.dtype), stacked, axes=1)
        error = dt * jnp.tensordot(defect.astype(x.dtype), stacked, axes=1)
        scaled = error / (tolerance * (1 + jnp.abs(x)))
        return x + step, jnp.sqrt(jnp.mean(scaled**2))

    def between(carry: tuple[Array, Array], gap: Array) -> tuple[tuple[Array, Array], PyTree]:
        x, dt = carry

        def going(state: tuple) -> Array:
            _, t, _, count = state
            return (t < gap * (1 - 1e-12)) & (count < 10_000)

        def step(state: tuple) -> tuple:
            x, t, dt, count = state
            short = jnp.minimum(dt, gap - t)
            moved, error = attempt(x, short)
            good = error <= 1
            growth = jnp.clip(0.9 * jnp.where(error > 0, error, 1e-8) ** -0.2, 0.2, 5.0)
            growth = jnp.where(jnp.isfinite(error), growth, 0.2)
            x = jnp.where(good, back(moved), x)
            return x, jnp.where(good, t + short, t), jnp.where(good & (short < dt), dt, short * growth), count + 1

        x, t, dt, _ = jax.lax.while_loop(going, step, (x, jnp.zeros_like(gap), dt, 0))
        x = jnp.where(t >= gap * (1 - 1e-12), x, jnp.nan)  # too stiff: NaN rather than a wrong answer
        return (x, dt), look(x)

    x = back(frame.point)
    first = 0.01 * (1 + jnp.linalg.norm(x)) / (jnp.linalg.norm(drift(x)) + 1e-12)
    begin = (x, jnp.minimum(first, gaps[0]).astype(x.dtype))
    (end, _), seen = jax.lax.scan(between, begin, gaps.astype(x.dtype))
    return end, jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), look(x), seen)


def _diffuse_plain(
    noise: AbstractNoise, frame: Frame, rank: int, key: Array, gaps: Array, eta: Any, look: _Look, steps: int
) -> tuple[Array, PyTree]:
    """Euler steps: a tangent increment, the tangent drift, then back; the way back supplies the curvature term."""
    drift, back = _velocity(noise, frame, rank, eta)
    each = max(1, -(-steps // gaps.shape[0]))

    def step(x: Array, k: Array, dt: Array) -> Array:
        here = frame_at(noise.problem, frame.unravel(x), rank=rank)
        jolt = trees.ravel(noise.covariance(frame.unravel(x)).gaussian(k))
        return back(back(x + here.project(jolt) * jnp.sqrt(dt) + drift(x) * dt))

    def between(x: Array, drawn: tuple[Array, Array]) -> tuple[Array, PyTree]:
        gap, k = drawn
        dt = gap / each
        x, _ = jax.lax.scan(lambda y, j: (step(y, j, dt), None), x, jax.random.split(k, each))
        return x, look(x)

    x = frame.point
    end, seen = jax.lax.scan(between, x, (gaps.astype(x.dtype), jax.random.split(key, gaps.shape[0])))
    return end, jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), look(x), seen)


_diffuse = eqx.filter_jit(_diffuse_plain)


@eqx.filter_jit
def _diffuse_many(
    noise: AbstractNoise, frame: Frame, rank: int, keys: Array, gaps: Array, eta: Any, look: _Look, steps: int
) -> tuple[Array, PyTree]:
    return jax.vmap(lambda k: _diffuse_plain(noise, frame, rank, k, gaps, eta, look, steps))(keys)
