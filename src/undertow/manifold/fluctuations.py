"""The fluctuations of SGD around its mean path at a finite step size.

SGD with the step size eta fluctuates around a slowly moving mean theta with the covariance eta X, where

    H X + X H - eta H X H = Sigma + (eta/2) Sigma''[X]

H is the Hessian and Sigma the covariance of the noise at theta. The term with H X H comes from the finite step. The
last term comes from the noise, which changes over the width of the fluctuations; for batches it contains the different
curvatures of different batches, sum_i p_i H_i X H_i - H X H. Both terms vanish for small steps.

A direction with little curvature needs a long time to reach this stationary state. Nothing here needs a sharp rank of
H: the entry X_ab is the right-hand side times (1 - exp(-s t))/s after the time t, with s = h_a + h_b - eta h_a h_b,
which is t for directions without curvature. Directions of negative curvature, in which nearby runs move apart, count
as flat. The last term is kept for the entries that have relaxed, with the weight (1 - exp(-s t))^2.
"""

from collections.abc import Callable
from functools import partial, reduce, singledispatch
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow._validate import Number
from undertow.covariance import AbstractCovariance, LabelCovariance, SampleCovariance, ScaledIdentity, Sum
from undertow.manifold.geometry import Frame, jacobian
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractProblem, Regression

__all__ = [
    "CLOSURES",
    "Closure",
    "Fluctuations",
    "NoiseTerms",
    "delays",
    "directions",
    "fluctuations",
    "image_route",
    "noise_terms",
    "relaxed",
    "stationary",
]

Closure = Literal["small_step", "finite_step", "averaged_noise"]
"""The equation for X: without both terms of the finite step, with H X H only, or with both."""

CLOSURES: tuple[Closure, ...] = ("small_step", "finite_step", "averaged_noise")

ITERATIONS = 100
"""The largest number of iterations of the equation for X. They converge where the second moments of SGD are stable."""

CONVERGED = 1e-7
"""The relative change of X in one iteration at which it is accepted."""

COLUMNS = 64
"""The number of directions along which derivatives are taken together."""

Unravel = Callable[[Array], PyTree]
Bilinear = Callable[[Array, Array], PyTree]


class Fluctuations(eqx.Module):
    """The covariance X at a point, in the basis of a frame, and its parts outside the span of that basis."""

    frame: Frame
    inner: Float[Array, "k k"]
    """V' X V."""
    outside: Float[Array, "D k"] | None
    """P X V for the projector P on the complement of the span; None where it is zero."""
    beside: tuple[AbstractCovariance, ...]
    """Covariances whose part P Sigma P is not zero: there X = relaxed_age P Sigma P."""
    age: Float[Array, ""]
    """The time since the start."""
    decay: Float[Array, ""]
    """The rate at which weight decay shrinks all params."""
    growth: Float[Array, ""]
    """The factor by which an iteration of the equation for X changes it; the second moments of SGD diverge above 1."""

    @property
    def relaxed_age(self) -> Float[Array, ""]:
        """The ratio of X to Sigma in flat directions: the age, or less with weight decay."""
        return relaxed(2 * self.decay, self.age)

    @property
    def partners(self) -> Float[Array, "D k"]:
        """The columns w_k with E form(x, x) = sum_k form(v_k, w_k) over the basis, but for `beside`."""
        partners = self.frame.normal @ self.inner
        return partners if self.outside is None else partners + 2 * self.outside

    def expect(self, form: Bilinear) -> PyTree:
        """Return E form(x, x) for x ~ N(0, X) and a symmetric bilinear form on flat vectors."""
        total = _sum_pairs(form, self.frame.normal, self.partners)
        return trees.add(total, self.expect_beside(form)) if self.beside else total

    def expect_beside(self, form: Bilinear) -> PyTree:
        """Return the part of `expect` outside the span of the basis."""
        across = lambda x: self.frame.project(trees.ravel(x))
        moments = [covariance.moment(lambda x: form(across(x), across(x))) for covariance in self.beside]
        return trees.scale(self.relaxed_age, reduce(trees.add, moments))

    def spread(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return tr X over all directions, and over those that have not relaxed (curvature times age below one)."""
        diagonal, still = jnp.diag(self.inner), (self.frame.curvature + self.decay) * self.age < 1
        slow, beside = jnp.sum(jnp.where(still, diagonal, 0)), jnp.zeros((), diagonal.dtype)
        project = lambda v: self.frame.unravel(self.frame.project(trees.ravel(v)))
        for covariance in self.beside:
            beside = beside + self.relaxed_age * covariance.trace(project)
        fast = jnp.sum(jnp.where(still, 0, diagonal))
        return fast + slow + beside, slow + jnp.where(self.decay * self.age < 1, beside, 0)


def image_route(problem: AbstractProblem, size: int) -> bool:
    """Return whether H is approximated by J'J in the image of J': least squares, fewer equations than parameters."""
    return isinstance(problem, Regression) and problem.targets.size < size


def directions(problem: AbstractProblem, point: Float[Array, " D"], unravel: Unravel) -> Frame:
    """Return all eigenvectors of H = sum_i p_i J_i'J_i in the image of J' for least squares, else those of the Hessian.

    No rank is decided: the curvatures may be arbitrarily small and, in the dense case, negative.
    """
    if image_route(problem, point.size) and isinstance(problem, Regression):
        rows = jacobian(problem, unravel(point)) * jnp.sqrt(_row_weights(problem, point.dtype))[:, None]
        basis, triangle = jnp.linalg.qr(rows.T)
        left, singular, _ = jnp.linalg.svd(triangle)
        return Frame(point, basis @ left, singular**2, unravel, jnp.zeros((), point.dtype), True)
    hessian = jax.hessian(lambda x: problem.loss(unravel(x)))(point)
    curvature, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    return Frame(point, vectors, curvature, unravel, curvature[0], False)


def fluctuations(
    noise: AbstractNoise,
    point: Float[Array, " D"],
    unravel: Unravel,
    age: Float[Array, ""],
    step_size: Float[Array, ""],
    closure: Closure,
    memory: Number = 0.0,
    decay: Float[Array, ""] | float = 0.0,
) -> Fluctuations:
    """Return the fluctuations of SGD around its mean at `point`, the time `age` after a start at one point.

    `memory` is the weight b1 of the past in the momentum m = b1 m + (1 - b1) g. `decay` is the rate at which weight
    decay shrinks all params: fluctuations relax as if it were added to every curvature.
    """
    frame = directions(noise.problem, point, unravel)
    terms = noise_terms(noise, frame)
    eta = jnp.zeros_like(step_size) if closure == "small_step" else step_size
    rates = _rates(frame, eta, memory, decay)
    delay = relaxed(rates, age)
    inner, growth = delay * terms.inner, jnp.zeros((), point.dtype)
    if closure == "averaged_noise" and terms.respond is not None:
        share = jnp.expm1(-jnp.maximum(rates, 0) * age) ** 2
        inner, growth = _respond_repeatedly(inner, eta * delay * share, terms.respond)
    outside = None if terms.outside is None else terms.outside * relaxed(frame.curvature + 2 * decay, age)[None]
    return Fluctuations(frame, inner, outside, terms.beside, age, jnp.asarray(decay, age.dtype), growth)


def stationary(noise: AbstractNoise, frame: Frame, step_size: Float[Array, ""], memory: Number = 0.0) -> Fluctuations:
    """Return the fluctuations after a long time in the normal directions of a frame of the manifold."""
    terms = noise_terms(noise, frame)
    both = frame.active[:, None] & frame.active[None]
    delay = jnp.where(both, 1 / jnp.where(both, _rates(frame, step_size, memory), 1), 0)
    inner, zero = delay * terms.inner, jnp.zeros((), frame.point.dtype)
    growth = zero
    if terms.respond is not None:
        inner, growth = _respond_repeatedly(inner, step_size * delay, terms.respond)
    return Fluctuations(frame, inner, None, (), zero, zero, growth)


def noise_terms(noise: AbstractNoise, frame: Frame) -> "NoiseTerms":
    """Return the covariance of a noise at the point of a frame, in its basis."""
    at = lambda x: noise.covariance(frame.unravel(x))
    return _noise_terms(at(frame.point), _Local(noise.problem, frame, _image_rows(noise.problem, frame), at))


def delays(frame: Frame, age: Array, eta: Array, memory: Number = 0.0) -> Float[Array, "k k"]:
    """Return (1 - exp(-s t))/s for the rates s of the entries of X: X is this times its source."""
    return relaxed(_rates(frame, eta, memory), age)


def _rates(frame: Frame, eta: Array, memory: Number, decay: Float[Array, ""] | float = 0.0) -> Float[Array, "k k"]:
    """Return s = h_a + h_b - eta h_a h_b, and with momentum the rate of the stationary state of its second moments:

    s = h_a + h_b - eta h_a h_b (1 - b1)/(1 + b1) + eta (h_a - h_b)^2 b1/(1 - b1^2)
    """
    curvature = frame.curvature + decay
    left, right = curvature[:, None], curvature[None]
    plain = left + right
    if isinstance(memory, float) and memory == 0.0:
        return plain - eta * left * right
    b1 = jnp.asarray(memory, plain.dtype)
    return plain - eta * (left * right * (1 - b1) / (1 + b1) - (left - right) ** 2 * b1 / (1 - b1**2))


def relaxed(rate: Array, age: Array) -> Array:
    """Return (1 - exp(-rate t))/rate; t at the rate zero and for negative rates."""
    positive = rate * age > jnp.finfo(rate.dtype).eps
    return jnp.where(positive, -jnp.expm1(-rate * age) / jnp.where(positive, rate, 1), age)


def _respond_repeatedly(
    first: Float[Array, "k k"], gain: Float[Array, "k k"], respond: Callable[[Array], Array]
) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
    """Return X = first + gain respond(X) by iteration, and the factor of the last iteration.

    The iteration ends where it does not converge: the second moments of SGD are not stable there.
    """
    tiny = jnp.finfo(first.dtype).tiny

    def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
        x, change, growth, count = state
        small = jnp.linalg.norm(change) <= CONVERGED * jnp.linalg.norm(x)
        return (count < ITERATIONS) & (growth < 1) & ~small

    def iterate(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, change, _, count = state
        new = gain * respond(change)  # the response is linear in X
        return x + new, new, jnp.linalg.norm(new) / jnp.maximum(jnp.linalg.norm(change), tiny), count + 1

    state = (first, first + tiny, jnp.zeros((), first.dtype), jnp.asarray(0))
    x, _, growth, _ = jax.lax.while_loop(unfinished, iterate, state)
    return x, growth


class _Local(NamedTuple):
    """What the terms of a covariance are computed from."""

    problem: AbstractProblem
    frame: Frame
    rows: Float[Array, "n q k"] | None
    """J V, for least squares in the image of J'."""
    at: Callable[[Array], AbstractCovariance]
    """The covariance as a function of the flat point."""


class NoiseTerms(NamedTuple):
    """The covariance of a noise in the basis V of a frame."""

    inner: Float[Array, "k k"]
    """V' Sigma V."""
    outside: Float[Array, "D k"] | None
    """P Sigma V."""
    beside: tuple[AbstractCovariance, ...]
    respond: Callable[[Array], Array] | None
    """X -> V' (1/2 Sigma''[X]) V; None for zero."""


def _row_weights(problem: Regression, dtype: jnp.dtype) -> Float[Array, " rows"]:
    """Return the probability of the sample of each row of J."""
    return jnp.repeat(problem.probabilities.astype(dtype), max(1, problem.targets[0].size))


def _image_rows(problem: AbstractProblem, frame: Frame) -> Float[Array, "n q k"] | None:
    if not (frame.least_squares and isinstance(problem, Regression)):
        return None
    images = jacobian(problem, frame.unravel(frame.point)) @ frame.normal
    return images.reshape(problem.size, -1, images.shape[-1])


@singledispatch
def _noise_terms(covariance: AbstractCovariance, local: _Local) -> NoiseTerms:
    """Return the terms of a covariance without structure."""
    frame = local.frame
    product = lambda v: trees.ravel(covariance.mv(frame.unravel(v)))
    images = jax.lax.map(product, frame.normal.T, batch_size=COLUMNS).T
    inner = frame.normal.T @ images
    respond = partial(_respond_by_factor, local)
    if not frame.least_squares:  # the basis spans the whole space
        return NoiseTerms(inner, None, (), respond)
    return NoiseTerms(inner, frame.project(images), (covariance,), respond)


_general_terms = _noise_terms.dispatch(object)


@_noise_terms.register(Sum)
def _sum_terms(covariance: Sum, local: _Local) -> NoiseTerms:
    def part_at(i: int, x: Array) -> AbstractCovariance:
        whole = local.at(x)
        assert isinstance(whole, Sum)
        return whole.parts[i]

    parts = [_noise_terms(part, local._replace(at=partial(part_at, i))) for i, part in enumerate(covariance.parts)]
    outside = [part.outside for part in parts if part.outside is not None]
    responses = [part.respond for part in parts if part.respond is not None]
    return NoiseTerms(
        _total([part.inner for part in parts]),
        _total(outside) if outside else None,
        tuple(beside for part in parts for beside in part.beside),
        (lambda x: _total([respond(x) for respond in responses])) if responses else None,
    )


def _total(arrays: list[Array]) -> Array:
    return sum(arrays[1:], arrays[0])


@_noise_terms.register(ScaledIdentity)
def _identity_terms(covariance: ScaledIdentity, local: _Local) -> NoiseTerms:
    size = local.frame.curvature.size
    beside = (covariance,) if local.frame.least_squares else ()
    return NoiseTerms(covariance.variance * jnp.eye(size, dtype=local.frame.point.dtype), None, beside, None)


@_noise_terms.register(LabelCovariance)
def _label_terms(covariance: LabelCovariance, local: _Local) -> NoiseTerms:
    """Return amount * sum_i p_i J_i'J_i; the change of J over the fluctuations is neglected in the image of J'."""
    if local.rows is None or covariance.problem is not local.problem:
        return _general_terms(covariance, local)
    p = local.problem.probabilities.astype(local.rows.dtype) if isinstance(local.problem, Regression) else None
    inner = jnp.einsum("n,nqk,nql->kl", p, local.rows, local.rows)
    return NoiseTerms(covariance.amount * inner, None, (), None)


@_noise_terms.register(SampleCovariance)
def _sample_terms(covariance: SampleCovariance, local: _Local) -> NoiseTerms:
    """Return the terms for g_i = J_i'r_i and H_i = J_i'J_i, by products with J V."""
    if local.rows is None or covariance.problem is not local.problem or not isinstance(local.problem, Regression):
        return _general_terms(covariance, local)
    rows, problem = local.rows, local.problem
    p = problem.probabilities.astype(rows.dtype)
    groups = jnp.zeros(problem.size, jnp.int32) if covariance.groups is None else covariance.groups
    sums = partial(jax.ops.segment_sum, segment_ids=groups, num_segments=covariance.group_count)
    shares = sums(p)
    residuals = problem.residuals(local.frame.unravel(local.frame.point)).reshape(problem.size, -1)
    gradients = jnp.einsum("nqk,nq->nk", rows, residuals)
    means = sums(p[:, None] * gradients) / shares[:, None]
    inner = (gradients.T * p[None]) @ gradients - (means.T * shares[None]) @ means
    weighted = p[:, None, None] * rows
    curvatures, mean_curvature = None, jnp.einsum("nqk,nql->kl", weighted, rows)
    if covariance.groups is not None:
        curvatures = sums(jnp.einsum("nqk,nql->nkl", weighted, rows)) / shares[:, None, None]

    def respond(x: Array) -> Array:
        each = jnp.einsum("nqk,kl,nrl->nqr", rows, x, rows)
        total = jnp.einsum("nqk,nqr,nrl->kl", weighted, each, rows)
        if curvatures is None:
            return covariance.amount * (total - mean_curvature @ x @ mean_curvature)
        return covariance.amount * (total - jnp.einsum("e,eij,jk,ekl->il", shares, curvatures, x, curvatures))

    return NoiseTerms(covariance.amount * inner, None, (), respond)


def _respond_by_factor(local: _Local, x: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Return V' (1/2 Sigma''[X]) V from derivatives of a factor B, Sigma = B B', along pairs of columns."""
    frame = local.frame

    def factor(point: Array) -> Float[Array, "k m"]:
        columns = [leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(local.at(point).factor())]
        return frame.normal.T @ jnp.concatenate(columns)

    here = factor(frame.point)

    def one(v: Array, w: Array) -> Array:
        along = lambda direction: lambda point: jax.jvp(factor, (point,), (direction,))[1]
        first, second = jax.jvp(along(v), (frame.point,), (w,))
        product = first @ along(w)(frame.point).T + second @ here.T
        return (product + product.T) / 2

    return _sum_pairs(one, frame.normal, frame.normal @ x)


def _sum_pairs(form: Bilinear, left: Float[Array, "D k"], right: Float[Array, "D k"]) -> PyTree:
    """Return sum_k form(left_k, right_k) over the columns, at most `COLUMNS` of them at a time."""

    def block(pairs: tuple[Array, Array]) -> PyTree:
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(form)(*pairs))

    return chunks.sum_samples(block, (left.T, right.T), COLUMNS)
