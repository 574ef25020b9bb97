"""Fluctuations of Adam and related optimisers across the manifold of minimisers, and their effect on the charges C_S.

Around a point of the manifold let x be the fluctuation of theta, v that of the optimiser's memory, V_i = E g_i^2 as a
function of theta, S = 1/(sqrt(v) + eps), k = 1 - b2, D = eta S H, and in the eigenbasis of S^(1/2) H S^(1/2)
(curvatures h, normal directions only):

    X_ab = eta (S^(1/2) Sigma S^(1/2))_ab/(h_a + h_b - eta h_a h_b (1 - b1)/(1 + b1))    the covariance of x
    e_i  = X grad V_i,    T_i = E[(g - E g) g_i^2]
    c_i  = E[x v_i] = k (k + b2 D)^-1 ((1 - D) e_i - eta S T_i)                          v follows x in part
    H mu = -1/2 d3L[X] - (S'/S)_i ((H c_i)_i + k T_ii) - lambda theta/S                  the mean of x

To first order in eta and in k/(eta h) the terms of the expected change of C_S in one step are then

    noise   eta^2/2 sum_i A_i E[g_i^2 S_i],    E v = V + V' mu + 1/2 V''[X],  Var v_i = V_i' c_i + k/2 Var g_i^2
    decay   -eta lambda sum_i A_i E[theta_i^2/S_i]
    metric  k sum_i A_i theta_i/(2 sqrt(v_i)) (e_i - c_i)_i
"""

from functools import singledispatch
from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.noise.additive import Additive
from undertow.noise.base import AbstractNoise
from undertow.noise.isotropic import Isotropic
from undertow.noise.minibatch import Minibatch
from undertow.optimisers.adaptive import AbstractAdaptive
from undertow.symmetry.powers import mean_gradient

__all__ = ["LIMIT", "Fluctuations", "fluctuations", "higher_cumulants", "leading_entries"]

LIMIT = 500
"""The largest number of parameters: one derivative of all per-sample gradients is computed for each of them."""
DRAWS = 16_384
"""Draws for the third and fourth moments of a noise for which they are not known."""


class Entries(NamedTuple):
    """The terms of the change of C_S for each entry of params, flat; for a generator A, the sum of A_i times them."""

    noise: Float[Array, " D"]
    """E[(g_i - E g_i)^2 S_i]: the change is eta^2/2 times this."""
    weight: Float[Array, " D"]
    """E[theta_i^2/S_i]: the change is -eta lambda times this."""
    metric: Float[Array, " D"]
    """E[theta_i^2 Delta(1/S_i)]/2, the change itself."""


class Fluctuations(NamedTuple):
    """The terms of the change of C_S with fluctuations, and the fluctuations themselves, flat."""

    entries: Entries
    offset: Float[Array, " D"]
    """The mean of theta minus the point of the manifold."""
    factor: Float[Array, "D D"]
    """B with X = B B'."""
    slowest: Float[Array, ""]
    """The least curvature of S^(1/2) H S^(1/2) in directions that have noise."""
    downward: Float[Array, ""]
    """The number of directions of negative curvature, which are left out."""


def leading_entries(noise: AbstractNoise, params: PyTree, optimiser: AbstractAdaptive, v: PyTree) -> Entries:
    """Return the terms without fluctuations, for the state v."""
    variance = trees.ravel(noise.covariance(params).moment(lambda g: jax.tree.map(jnp.square, g)))
    inverse = jnp.sqrt(trees.ravel(v)) + jnp.asarray(optimiser.eps, variance.dtype)
    moving = inverse > 0
    power = jnp.where(moving, jnp.maximum(variance, 0) / jnp.where(moving, inverse, 1), 0)
    return Entries(power, inverse * trees.ravel(params) ** 2, jnp.zeros_like(variance))


@singledispatch
def higher_cumulants(noise: AbstractNoise, params: PyTree) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
    """Return E[x_i^2 x_j] (row i) and the fourth cumulants of x_i for x = g - E g: here from draws of a fixed key."""
    slices = noise.randomness(jax.random.key(0), DRAWS, params)
    chunk = chunks.chunk_length(trees.floats_bytes(params))
    drawn = chunks.map_samples(lambda one: trees.ravel(noise.gradient(params, one)), slices, chunk)
    return _cumulants(drawn, jnp.full((DRAWS,), 1 / DRAWS, drawn.dtype))


@higher_cumulants.register(Isotropic)
@higher_cumulants.register(Additive)
def _gaussian_cumulants(noise: AbstractNoise, params: PyTree) -> tuple[Array, Array]:
    size, dtype = trees.count(params), jnp.result_type(*jax.tree.leaves(params))
    return jnp.zeros((size, size), dtype), jnp.zeros(size, dtype)


@higher_cumulants.register(Minibatch)
def _minibatch_cumulants(noise: Minibatch, params: PyTree) -> tuple[Array, Array]:
    """Return the cumulants of the mean of a batch: those of a sample over batch_size^2 and batch_size^3."""
    problem, size = noise.covariance(params).problem, noise.batch_size
    third, fourth = _cumulants(jax.vmap(trees.ravel)(problem.sample_gradients(params)), problem.probabilities)
    kept = 1.0
    if not noise.replace and problem.size > 2:  # of a subset without replacement, third cumulant only
        kept = (problem.size - size) * (problem.size - 2 * size) / ((problem.size - 1) * (problem.size - 2))
    return third * kept / size**2, fourth / size**3


def _cumulants(gradients: Array, shares: Array) -> tuple[Array, Array]:
    shares = shares.astype(gradients.dtype)
    x = gradients - (shares @ gradients)[None]
    second = shares @ x**2
    return jnp.einsum("n,ni,nj->ij", shares, x**2, x), shares @ x**4 - 3 * second**2


class _Local(NamedTuple):
    """Derivatives and moments at a point, flat."""

    theta: Array
    gradient: Array
    covariance: Array
    second: Array
    """V_i = E g_i^2."""
    slope: Array
    """grad V_i in row i."""
    hessian: Array
    third: Array
    """T_i = E[(g - E g) g_i^2] in row i."""
    spread: Array
    """Var g_i^2."""


def _moments(noise: AbstractNoise, params: PyTree) -> tuple[Array, Array]:
    """Return E g_i^2 and E g, flat."""
    mean = trees.ravel(mean_gradient(noise, params))
    return trees.ravel(noise.covariance(params).moment(lambda g: jax.tree.map(jnp.square, g))) + mean**2, mean


def _local(noise: AbstractNoise, params: PyTree) -> _Local:
    theta, unravel = jax.flatten_util.ravel_pytree(params)
    both = lambda flat: _moments(noise, unravel(flat))
    second, gradient = both(theta)
    columns = jax.lax.map(lambda e: jax.jvp(both, (theta,), (e,))[1], jnp.eye(theta.size, dtype=theta.dtype))
    slope, hessian = columns[0].T, (columns[1] + columns[1].T) / 2
    factor = [leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(noise.covariance(params).factor())]
    stacked = jnp.concatenate(factor)
    covariance = stacked @ stacked.T
    third, fourth = higher_cumulants(noise, params)
    own, variance = jnp.diagonal(third), jnp.diagonal(covariance)
    return _Local(
        theta,
        gradient,
        covariance,
        second,
        slope,
        hessian,
        third + 2 * gradient[:, None] * covariance,
        fourth + 2 * variance**2 + 4 * gradient * own + 4 * gradient**2 * variance,
    )


class _Metric(NamedTuple):
    """S(v) = 1/(sqrt(v) + eps) and its inverse with derivatives in v; all zero where v vanishes, without eps."""

    value: Array
    first: Array
    second: Array
    inverse: Array
    inverse_first: Array
    inverse_second: Array


def _metric(v: Array, eps: Array) -> _Metric:
    live = v > 0
    root = jnp.sqrt(jnp.where(live, v, 1))
    inverse = jnp.where(live, root, 0) + eps
    value = jnp.where(live, 1 / (root + eps), 0)
    only = lambda x: jnp.where(live, x, 0)
    return _Metric(
        value,
        only(-(value**2) / (2 * root)),
        only(value**3 / (2 * root**2) + value**2 / (4 * root**3)),
        inverse,
        only(1 / (2 * root)),
        only(-1 / (4 * root**3)),
    )


@eqx.filter_jit
def fluctuations(noise: AbstractNoise, params: PyTree, optimiser: AbstractAdaptive, step_size: Array) -> Fluctuations:
    """Return the terms of the change of C_S at a minimiser, to first order in the fluctuations; v is E g^2 there.

    The terms are those of the leading order plus corrections; a mean gradient that does not vanish adds no noise.
    """
    local = _local(noise, params)
    numbers = (step_size, 0.0 if optimiser.b1 is None else optimiser.b1, optimiser.b2, optimiser.weight_decay)
    eta, b1, b2, decay = (jnp.asarray(x, local.theta.dtype) for x in numbers)
    k, s = 1 - b2, _metric(local.second, jnp.asarray(optimiser.eps, local.theta.dtype))
    half = jnp.sqrt(s.value)
    h, frame, normal, downward = _frame(half[:, None] * local.hessian * half[None])
    to_normal = lambda rows: frame.T @ (half[:, None] * rows)  # columns are vectors
    noisy = to_normal(to_normal(local.covariance).T)
    pairs = normal[:, None] & normal[None]
    sums = h[:, None] + h[None] - eta * (1 - b1) / (1 + b1) * h[:, None] * h[None]
    x = jnp.where(pairs, eta * noisy / jnp.where(pairs, sums, 1), 0)
    e = x @ to_normal(local.slope.T)
    push = to_normal(local.third.T) * normal[:, None]
    c = k * ((1 - eta * h)[:, None] * e - eta * push) / (k + b2 * eta * h)[:, None]
    back = half[:, None] * frame
    own = lambda columns: jnp.einsum("ia,ai->i", back, columns)  # component i of vector i
    inside, cross = own(e - c), back @ c
    values, vectors = jnp.linalg.eigh((x + x.T) / 2)
    factor = back @ (vectors * jnp.sqrt(jnp.maximum(values, 0))[None])
    bent_second, bent_gradient = _bent(noise, params, factor)
    along = jnp.einsum("ij,ji->i", local.hessian, cross) + k * jnp.diagonal(local.third)
    safe = jnp.where(s.value > 0, s.value, 1)
    force = -bent_gradient / 2 - s.first / safe * along - decay * local.theta * s.inverse
    mean = back @ jnp.where(normal, frame.T @ (half * force) / jnp.where(normal, h, 1), 0)
    v = jnp.maximum(local.second + local.slope @ mean + bent_second / 2, 0)
    follow = jnp.einsum("ij,ji->i", local.slope, cross)
    spread = follow + k / 2 * local.spread
    at = _metric(v, jnp.asarray(optimiser.eps, local.theta.dtype))
    pull = jnp.where(pairs, noisy * (h[:, None] * h[None] / jnp.where(pairs, sums, 1)), 0)
    lag = jnp.einsum("ia,ab,ib->i", frame, pull - noisy * (h[:, None] + h[None]) / (2 * (1 + b1)), frame)
    power = v * at.value + s.first * (follow + k * local.spread) + local.second * s.second * spread / 2
    power = power - local.gradient**2 * s.value + 2 * eta * b1 / (1 - b1) * lag
    weight = (local.theta**2 + 2 * local.theta * mean + jnp.sum(factor**2, axis=1)) * at.inverse
    weight += 2 * local.theta * s.inverse_first * jnp.diagonal(cross) + local.theta**2 * s.inverse_second * spread / 2
    entries = Entries(power, weight, k * local.theta * s.inverse_first * inside)
    strong = normal & (jnp.diagonal(noisy) > _clear(h) * jnp.max(jnp.diagonal(noisy)))
    return Fluctuations(entries, mean, factor, jnp.min(jnp.where(strong, h, jnp.inf)), downward)


def _clear(h: Array) -> float:
    return float(jnp.finfo(h.dtype).eps) ** 0.5


def _frame(curvature: Array) -> tuple[Array, Array, Array, Array]:
    """Return curvatures (zero where not normal), eigenvectors, which are normal, and the number of downward ones."""
    h, frame = jnp.linalg.eigh(curvature)
    clear = _clear(h) * jnp.max(jnp.abs(h))
    normal = h > clear
    return jnp.where(normal, h, 0), frame, normal, jnp.sum(h < -clear)


def _bent(noise: AbstractNoise, params: PyTree, factor: Array) -> tuple[Array, Array]:
    """Return V''[X] and d3L[X] for X = B B': second derivatives of E g^2 and E g along the columns of B."""
    theta, unravel = jax.flatten_util.ravel_pytree(params)
    both = lambda flat: _moments(noise, unravel(flat))

    def bend(column: Array) -> tuple[Array, Array]:
        slope = lambda flat: jax.jvp(both, (flat,), (column,))[1]
        return jax.jvp(slope, (theta,), (column,))[1]

    return jax.tree.map(lambda rows: jnp.sum(rows, axis=0), jax.lax.map(bend, factor.T))
