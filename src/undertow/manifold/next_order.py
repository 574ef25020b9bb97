"""The error of the averaged flow, from the next order in the step size.

Let C be the covariance of SGD around its mean m, K its third cumulant, kappa that of the noise, and A = I - eta H.
To the next order in eta the moments of SGD obey

    m' = F = -grad L - d3L[C]/2 - d4L[K]/6 - d5L[C, C]/8
    C' = -(H C + C H - eta H C H) + eta (Sigma + Sigma''[C]/2) - sym(A C d4L[C] + A K:d3L)/2
    K' = -(its decay) - sym d3L[C A, C A] + eta sym Sigma'[C A] - eta^2 kappa

The averaged flow keeps the first two terms of F and the stationary state of the first two terms of C'. Here the mean is
the path of the flow plus delta, in which the equations are linearised. K relaxes within the time 1/(3h) and has its
stationary value; entries that have not relaxed are left out, because they do not move the mean at this order. In the
same way C' is split: C0 has the terms that the flow keeps, with the Hessian averaged over its fluctuations, and C1 the
others, linearised around C0. Each interval of time starts with C1 = 0.

The equations are solved on a few intervals of time in the eigenbasis of H at their ends, by an exponential method of
second order. The first intervals are short: they follow the descent to the minima and the growth of C from zero.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow.manifold.averaged import velocity
from undertow.manifold.fluctuations import Closure, fluctuations, relaxed
from undertow.manifold.skewness import skewness
from undertow.noise.base import AbstractNoise

__all__ = ["NextOrder", "PathMoments", "displacement", "intervals", "next_moments", "next_order", "too_large"]

PARAMETERS = 100
"""The largest number D of parameters: the third derivatives are D^3 numbers."""

COLUMNS = 1000
"""The largest number of columns of a factor of the noise: the samples of a minibatch."""

SHORT, EQUAL = 10, 10
"""The number of intervals that grow from one step to a tenth of the time, and of equal intervals after them."""

FIRST_SWEEPS, SWEEPS = 6, 3
"""The numbers of iterations for C0 at the end of an interval, and for the other moments."""

Unravel = Callable[[Array], PyTree]
Loss = Callable[[Array], Array]
Matrix = Float[Array, "D D"]


def intervals(step_size: float, time: float) -> np.ndarray:
    """Return the times at which `displacement` evaluates the next order."""
    short = np.geomspace(min(step_size, time / EQUAL / 2), time / EQUAL, SHORT, endpoint=False)
    return np.concatenate([[0.0], short, np.linspace(0, time, EQUAL + 1)[1:]])


class NextOrder(NamedTuple):
    """The distance of the mean of SGD to the end of the averaged flow, from the next order in the step size."""

    distance: float | None
    """None where the predicted fluctuations grow beyond the size of the parameters."""
    spread: float
    """The largest predicted root mean square distance of SGD to its mean, over the norm of the parameters."""


def too_large(noise: AbstractNoise, params: PyTree) -> str | None:
    """Return why the next order is too expensive; None where it is not."""
    size = trees.count(params)
    if size > PARAMETERS:
        return f"it needs at most {PARAMETERS} parameters, and these are {size}"
    columns = jax.eval_shape(lambda p: noise.covariance(p).factor(), params)
    count = jax.tree.leaves(columns)[0].shape[-1]
    return f"it needs at most {COLUMNS} samples, and these are {count}" if count > COLUMNS else None


def next_order(
    noise: AbstractNoise, params: PyTree, times: np.ndarray, points: Array, step_size: float, closure: Closure
) -> NextOrder:
    """Return the error of the averaged flow with these `points` at `times`, which are `intervals`."""
    unravel = jax.flatten_util.ravel_pytree(params)[1]
    cast = lambda x: jnp.asarray(x, points.dtype)
    moments = displacement(noise, unravel, cast(times), points, cast(step_size), closure)
    delta, covariance = (np.asarray(x, np.float64) for x in moments)
    with np.errstate(all="ignore"):
        spreads = np.sqrt(np.trace(covariance, axis1=1, axis2=2)) / np.linalg.norm(np.asarray(points), axis=1)
        spread, distance = float(np.max(spreads)), float(np.linalg.norm(delta[-1]))
    return NextOrder(distance if spread < 1 and np.isfinite(distance) else None, spread)


class PathMoments(NamedTuple):
    """The moments of SGD along the path of the averaged flow."""

    delta: Float[Array, "*times D"]
    """The mean of SGD minus the averaged flow."""
    covariance: Float[Array, "*times D D"]


class _Parts(NamedTuple):
    """The moments at the end of an interval, or their time derivatives."""

    delta: Float[Array, " D"]
    first: Matrix
    """C0, the covariance at the start of the interval, continued with the terms that the averaged flow keeps."""
    second: Matrix
    """C1, the rest."""


@eqx.filter_jit
def displacement(
    noise: AbstractNoise,
    unravel: Unravel,
    times: Float[Array, " times"],
    points: Float[Array, "times D"],
    step_size: Float[Array, ""],
    closure: Closure,
) -> PathMoments:
    """Return the moments at all times; `points` is the averaged flow at times[0] = 0 and later."""
    eta = step_size.astype(points.dtype)
    flow = jax.lax.map(lambda at: velocity(noise, at[0], unravel, at[1], eta, closure), (points, times))
    zero = jnp.zeros((points.shape[1],) * 2, points.dtype)
    start = _Parts(jnp.zeros_like(points[0]), zero, zero)

    def advance(state: tuple[_Parts, _Parts], to: tuple[Array, ...]) -> tuple[tuple[_Parts, _Parts], PathMoments]:
        point, pace, age, length = to
        parts, slope = _advance(_Local.at(noise, unravel, point, age, eta, closure), *state, pace, length)
        merge = lambda p: _Parts(p.delta, p.first + p.second, zero)
        return (merge(parts), merge(slope)), PathMoments(*merge(parts)[:2])

    here = _Local.at(noise, unravel, points[0], times[0], eta, closure)
    slope = here.slopes(start, here.first_slope(zero), flow[0])
    ends = (points[1:], flow[1:], times[1:], jnp.diff(times))
    rest = jax.lax.scan(advance, (start, slope._replace(second=zero)), ends)[1]
    return jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), PathMoments(*start[:2]), rest)


def next_moments(
    noise: AbstractNoise, unravel: Unravel, point: Float[Array, " D"], step_size: Float[Array, ""]
) -> tuple[Float[Array, " D"], Matrix, Float[Array, "D D D"]]:
    """Return the mean step F, C and K of the stationary state around a point with positive curvatures."""
    age = jnp.asarray(jnp.inf, point.dtype)
    here = _Local.at(noise, unravel, point, age, step_size, "averaged_noise")
    zero = jnp.zeros_like(here.hessian)
    settle = lambda source: here.from_basis(here.in_basis(source) / here.pair_rates)
    repeat = lambda source: jax.lax.fori_loop(0, 100, lambda _, c: settle(source + here.respond(c)), zero)
    first = repeat(here.eta * here.sigma)
    corrections = here.corrections(first, zero)
    second = repeat(corrections.covariance)
    step = -here.gradient - _contract(here.third, first + second) / 2 - corrections.mean
    return step, first + second, corrections.cumulant


class _Corrections(NamedTuple):
    """The terms of the next order at C0."""

    mean: Float[Array, " D"]
    """d4L[K]/6 + d5L[C, C]/8."""
    covariance: Matrix
    """The last term of C'."""
    fourth: Matrix
    """d4L[C]."""
    cumulant: Float[Array, "D D D"]


class _Local(eqx.Module):
    """The derivatives of the loss and of the noise at a point."""

    point: Float[Array, " D"]
    gradient: Float[Array, " D"]
    hessian: Matrix
    third: Float[Array, "D D D"]
    factor: Float[Array, "D m"]
    """B with Sigma = B B'."""
    factor_slope: Float[Array, "D m D"]
    skewness: Float[Array, "D D D"]
    averaged: Matrix
    """H + d4L[eta X]/2, the Hessian averaged over the fluctuations of the averaged flow."""
    curvature: Float[Array, " D"]
    """The positive parts of its eigenvalues."""
    vectors: Matrix
    age: Float[Array, ""]
    eta: Float[Array, ""]
    loss: Loss
    factor_at: Callable[[Array], Array]

    @staticmethod
    def at(noise: AbstractNoise, unravel: Unravel, point: Array, age: Array, eta: Array, closure: Closure) -> "_Local":
        loss = lambda x: noise.problem.loss(unravel(x))
        factor = partial(_factor, noise, unravel)
        hessian = jax.hessian(loss)(point)
        around = fluctuations(noise, point, unravel, age, eta, closure)
        spread = eta * around.frame.normal @ around.inner @ around.frame.normal.T
        third = jax.jacfwd(jax.hessian(loss))(point)
        axes = jnp.eye(point.size, dtype=point.dtype)
        fourth = _differences(loss, point, third, axes, _width(spread), spread)[0].T
        averaged = hessian + (fourth + fourth.T) / 4
        curvature, vectors = jnp.linalg.eigh(averaged)
        return _Local(
            point,
            jax.grad(loss)(point),
            hessian,
            third,
            factor(point),
            jax.jacfwd(factor)(point),
            skewness(noise.covariance(unravel(point)), point.size),
            averaged,
            jnp.maximum(curvature, 0),
            vectors,
            age,
            eta,
            loss,
            factor,
        )

    @property
    def sigma(self) -> Matrix:
        return self.factor @ self.factor.T

    @property
    def sigma_slope(self) -> Float[Array, "D D D"]:
        half = jnp.einsum("iml,jm->ijl", self.factor_slope, self.factor)
        return half + half.transpose(1, 0, 2)

    @property
    def pair_rates(self) -> Matrix:
        h = self.curvature
        return h[:, None] + h[None] - self.eta * h[:, None] * h[None]

    @property
    def mean_rates(self) -> Float[Array, " D"]:
        return self.curvature * (1 + self.eta / 2 * self.curvature)

    def in_basis(self, matrix: Matrix) -> Matrix:
        return self.vectors.T @ matrix @ self.vectors

    def from_basis(self, matrix: Matrix) -> Matrix:
        return self.vectors @ matrix @ self.vectors.T

    def respond(self, covariance: Matrix) -> Matrix:
        """Return (eta/2) Sigma''[C]."""

        def second(u: Array, v: Array) -> Array:
            along = lambda x: jax.jvp(self.factor_at, (x,), (u,))[1]
            return jax.jvp(along, (self.point,), (v,))[1]

        pairs = jax.vmap(second)(jnp.eye(self.point.size, dtype=self.point.dtype), covariance)
        bent = jnp.sum(pairs, axis=0) @ self.factor.T
        slopes = jnp.einsum("imk,kl,jml->ij", self.factor_slope, covariance, self.factor_slope, optimize=True)
        return self.eta * (slopes + (bent + bent.T) / 2)

    def corrections(self, first: Matrix, second: Matrix) -> _Corrections:
        """Return the terms of the next order at C0 + C1, without the squares of C1.

        A form Q(C, C) is Q(C0, C0 + 2 C1) without them. Derivatives of d3L are differences over the width of SGD.
        """
        both, twice = first + second, first + 2 * second
        cumulant = self.third_cumulant(first, both, twice)
        weights, v = jnp.linalg.eigh(twice)
        width = _width(first)
        differences = partial(_differences, self.loss, self.point, self.third, v, width)
        slopes, curves = differences(first)
        fourth = slopes.T @ v.T
        more = differences(twice)[0].T @ v.T
        along = lambda d: jnp.subtract(*_ends(self.loss, self.point, d, width, cumulant @ d)) / (2 * width)
        mean = jnp.sum(jax.lax.map(along, v.T), axis=0) / 6 + weights @ curves / 8
        step = jnp.eye(self.point.size, dtype=self.point.dtype) - self.eta * self.hessian
        products = (twice @ fourth + first @ more) / 2 - 2 * both @ (self.averaged - self.hessian)
        one_sided = step @ (products + jnp.einsum("iab,jab->ij", cumulant, self.third)) / 2
        return _Corrections(mean, -(one_sided + one_sided.T), fourth, cumulant)

    def third_cumulant(self, first: Matrix, both: Matrix, twice: Matrix) -> Float[Array, "D D D"]:
        """Return the stationary third cumulant; zero for entries that have not relaxed."""
        step = jnp.eye(self.point.size, dtype=self.point.dtype) - self.eta * self.hessian
        bend = jnp.einsum("iab,aj,bk->ijk", self.third, first @ step, twice @ step, optimize=True)
        bend = (bend + bend.transpose(0, 2, 1)) / 2
        source = self.eta * jnp.einsum("jkl,li->ijk", self.sigma_slope, both @ step) - bend
        source = source + source.transpose(1, 0, 2) + source.transpose(1, 2, 0) - self.eta**2 * self.skewness
        kept = 1 - self.eta * self.curvature
        rate = (1 - kept[:, None, None] * kept[None, :, None] * kept[None, None]) / self.eta
        delay = relaxed(rate, self.age) * jnp.where(rate > 0, jnp.expm1(-rate * self.age), 0) ** 2
        v = self.vectors
        inside = delay * jnp.einsum("ijk,ia,jb,kc->abc", source, v, v, v, optimize=True)
        return jnp.einsum("abc,ia,jb,kc->ijk", inside, v, v, v, optimize=True)

    def decay(self, covariance: Matrix) -> Matrix:
        h, rest = self.averaged, self.averaged - self.hessian
        decayed = h @ covariance + covariance @ h - self.eta * h @ covariance @ h
        # the product with the correction of the Hessian has one factor A in the equation for C
        return decayed + self.eta * rest @ covariance @ rest

    def first_slope(self, first: Matrix) -> Matrix:
        return self.eta * self.sigma + self.respond(first) - self.decay(first)

    def slopes(self, parts: _Parts, first_slope: Matrix, flow: Float[Array, " D"]) -> _Parts:
        """Return the time derivatives of the moments; `flow` is the velocity of the averaged flow."""
        delta, first, second = parts
        h, eta = self.hessian, self.eta
        corrections = self.corrections(first, second)
        bent = jnp.einsum("iab,b->ia", self.third, delta)
        tilt = (first - eta * h @ first) @ bent
        change = corrections.covariance - tilt - tilt.T + eta * jnp.einsum("ijl,l->ij", self.sigma_slope, delta)
        second_slope = change + self.respond(second) - self.decay(second)
        step = -self.gradient - _contract(self.third, first + second) / 2 - corrections.mean
        step = step - h @ delta - corrections.fourth @ delta / 2
        # a flow through the discrete steps m, m + eta F, ..., to the third order in eta
        pace = step + eta / 2 * h @ step + eta / 4 * _contract(self.third, first_slope)
        pace = pace + eta**2 * (h @ (h @ step) / 3 - _contract(self.third, jnp.outer(step, step)) / 12)
        return _Parts(pace - flow, first_slope, second_slope)


def _advance(
    here: _Local, parts: _Parts, slope: _Parts, flow: Float[Array, " D"], length: Float[Array, ""]
) -> tuple[_Parts, _Parts]:
    """Return the moments and their slopes at the end of an interval, from those at its start."""
    v = here.vectors
    rates = _Parts(here.mean_rates, here.pair_rates, here.pair_rates)
    inside = lambda m: _Parts(v.T @ m.delta, here.in_basis(m.first), here.in_basis(m.second))
    start = inside(parts)
    without_decay = lambda slope, value: jax.tree.map(lambda s, r, x: s + r * x, inside(slope), rates, value)
    left = without_decay(slope, start)

    def end(right: _Parts) -> _Parts:
        ends = jax.tree.map(partial(_interval, length), rates, start, left, right)
        return _Parts(v @ ends.delta, here.from_basis(ends.first), here.from_basis(ends.second))

    def sweep_first(_: Array, first: Matrix) -> Matrix:
        right = here.in_basis(here.first_slope(first)) + here.pair_rates * here.in_basis(first)
        return here.from_basis(_interval(length, here.pair_rates, start.first, left.first, right))

    guess = end(left)
    first = jax.lax.fori_loop(0, FIRST_SWEEPS, sweep_first, guess.first)
    slopes = partial(here.slopes, first_slope=here.first_slope(first), flow=flow)

    def sweep(_: Array, state: _Parts) -> _Parts:
        right = without_decay(slopes(state), inside(state))
        return end(right)._replace(first=first)

    state = jax.lax.fori_loop(0, SWEEPS, sweep, guess._replace(first=first))
    return state, slopes(state)


def _interval(length: Array, rate: Array, start: Array, left: Array, right: Array) -> Array:
    """Return the end of y' = -rate y + f, where f goes linearly from `left` to `right`."""
    z = rate * length
    mean = relaxed(rate, length) / length
    late = jnp.where(z > 1e-3, (1 - mean) / jnp.where(z > 1e-3, z, 1), 0.5 - z / 6)
    return jnp.exp(-z) * start + length * (mean * left + late * (right - left))


def _width(covariance: Matrix) -> Float[Array, ""]:
    """Return the standard deviation of the widest fluctuations, and not zero."""
    width = jnp.sqrt(jnp.max(jnp.linalg.norm(covariance, axis=1)))
    return jnp.maximum(width, jnp.finfo(width.dtype).eps ** 0.25)


def _ends(loss: Loss, point: Array, direction: Array, width: Array, matrix: Matrix) -> Float[Array, "2 D"]:
    """Return d3L[matrix] at the two points at a distance in a direction."""
    bend = jax.grad(lambda x: jnp.sum(jax.hessian(loss)(x) * matrix))
    return jax.vmap(bend)(jnp.stack([point + width * direction, point - width * direction]))


def _differences(
    loss: Loss, point: Array, third: Array, directions: Matrix, width: Array, matrix: Matrix
) -> tuple[Float[Array, "k D"], Float[Array, "k D"]]:
    """Return the first and second derivatives of d3L[matrix] in the directions of the columns, by differences."""
    ends = jax.lax.map(lambda d: _ends(loss, point, d, width, matrix), directions.T)
    ahead, behind = ends[:, 0], ends[:, 1]
    return (ahead - behind) / (2 * width), (ahead + behind - 2 * _contract(third, matrix)[None]) / width**2


def _contract(third: Float[Array, "D D D"], matrix: Matrix) -> Float[Array, " D"]:
    return jnp.einsum("iab,ab->i", third, matrix)


def _factor(noise: AbstractNoise, unravel: Unravel, point: Float[Array, " D"]) -> Float[Array, "D m"]:
    leaves = jax.tree.leaves(noise.covariance(unravel(point)).factor())
    return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves])
