"""One step of SGD as a map of the mean, the covariance and the third cumulant of its parameters.

Let x be the parameters minus their mean m, C their covariance, K their third cumulant, G(x) the gradient of the loss,
g = G(m) averaged over x, and S(x), k(x) the covariance and the third cumulant of the noise. Exactly

    m+ = m - eta g
    C+ = C - eta (E xG' + transposed) + eta^2 (cov G + E S)
    K+ = K - eta (E x x G~ + 2 more) + eta^2 (E x (G~ G~ + S) + 2 more) - eta^3 (E G~ G~ G~ + (E G~ S + 2 more) + E k)

with G~ = G - g. Here the fourth cumulant of x is zero, and the expectations are expanded to the second order in C and
the first in K. "2 more" are the terms with the indices exchanged.

For the samples of a least-squares problem the gradient s (J + F x), s = r + J x + x F x/2 minus a disturbance of the
label, is averaged over x sample by sample. The terms grow with eta |J_i|^2, the step size times the curvature of single
samples, which is larger than eta times the curvatures of the loss.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow.manifold.skewness import skewness
from undertow.noise.base import AbstractNoise
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.problem import Regression

__all__ = ["Cumulants", "MomentMap", "Unravel"]

Unravel = Callable[[Array], PyTree]
Vector = Float[Array, " D"]
Matrix = Float[Array, "D D"]
Cube = Float[Array, "D D D"]


class Cumulants(NamedTuple):
    """The first three cumulants of the parameters."""

    mean: Float[Array, "*times D"]
    covariance: Float[Array, "*times D D"]
    cumulant: Float[Array, "*times D D D"]


class _Gradient(NamedTuple):
    """The averages of the gradient of the loss over x."""

    mean: Vector
    hessian: Matrix
    with_x: Matrix
    """E x G'."""
    with_two: Cube
    """E x_a x_b G~_c."""
    square: Matrix
    """cov G."""
    x_square: Cube
    """E x_a G~_b G~_c."""
    cube: Cube


class _Noise(NamedTuple):
    """The averages of the noise over x."""

    covariance: Matrix
    x_covariance: Cube
    """E x_a S_bc."""
    cumulant: Cube
    """E k, plus E G~ S and 2 more."""


class MomentMap(eqx.Module):
    """The map of the moments in one step of SGD."""

    noise: AbstractNoise
    unravel: Unravel = eqx.field(static=True)
    eta: Float[Array, ""]

    def __call__(self, moments: Cumulants) -> tuple[Cumulants, Matrix]:
        """Return the moments after a step, and the Hessian at the mean."""
        gradient = _average_gradient(lambda x: self.noise.problem.loss(self.unravel(x)), moments)
        average = _average_samples if _has_samples(self.noise) else _average_factor
        noise = average(self.noise, self.unravel, moments, gradient)
        mean, covariance, cumulant = moments
        eta = self.eta
        covariance = covariance - eta * (gradient.with_x + gradient.with_x.T)
        covariance = covariance + eta**2 * (gradient.square + noise.covariance)
        change = -eta * _three(gradient.with_two.transpose(2, 0, 1))
        change = change + eta**2 * _three(gradient.x_square + noise.x_covariance)
        cumulant = cumulant + change - eta**3 * (gradient.cube + noise.cumulant)
        # data in double precision would promote params in single precision
        after = Cumulants(mean - eta * gradient.mean, covariance, cumulant)
        return jax.tree.map(lambda x: x.astype(mean.dtype), (after, gradient.hessian))


def _three(cube: Cube) -> Cube:
    """Return the sum over the three places of the first index, for a cube that is symmetric in the other two."""
    return cube + cube.transpose(1, 0, 2) + cube.transpose(1, 2, 0)


def _pair(cube: Cube) -> Cube:
    return cube + cube.transpose(0, 2, 1)


_product = partial(jnp.einsum, optimize=True)


def _average_gradient(loss: Callable[[Array], Array], moments: Cumulants) -> _Gradient:
    """Return the averages, with differences of d3L over the width of SGD for its derivatives."""
    point, c, k = moments
    hessian = jax.hessian(loss)(point)
    third = jax.jacfwd(jax.hessian(loss))(point)
    weights, v = jnp.linalg.eigh(c)
    width = jnp.sqrt(jnp.max(jnp.abs(weights)))
    width = jnp.maximum(width, jnp.finfo(width.dtype).eps ** 0.25)

    def along(direction: Array) -> Array:
        """Return d3L[C] and d3L[K d] ahead and behind."""
        matrices = jnp.stack([c, k @ direction])
        bend = lambda x: jax.vmap(lambda m: jax.grad(lambda y: jnp.sum(jax.hessian(loss)(y) * m))(x))(matrices)
        return jax.vmap(bend)(jnp.stack([point + width * direction, point - width * direction]))

    ahead, behind = jnp.moveaxis(jax.lax.map(along, v.T), 1, 0)
    slopes = (ahead - behind) / (2 * width)  # directions, matrices, D
    bend = _product("iab,ab->i", third, c)
    curves = (ahead[:, 0] + behind[:, 0] - 2 * bend[None]) / width**2
    fourth = v @ slopes[:, 0]
    averaged = hessian + (fourth + fourth.T) / 4
    skew = _product("abc,dbc->ad", k, third) / 2
    tilted = c @ hessian
    bent = _product("cij,ia,jb->abc", third, c, c)
    once = _product("cij,ia,jb->abc", third, c, tilted)
    twice = _product("cij,ia,jb->abc", third, tilted, tilted)
    decayed = k @ averaged
    both = _product("abc,bi,cj->aij", k, hessian, hessian)
    return _Gradient(
        jax.grad(loss)(point) + bend / 2 + jnp.sum(slopes[:, 1], axis=0) / 6 + weights @ curves / 8,
        hessian,
        c @ averaged + skew,
        bent + decayed,
        averaged @ c @ averaged + hessian @ skew + skew.T @ hessian,
        both + _pair(once),
        _product("abc,ai->ibc", both, hessian) + _three(twice.transpose(2, 0, 1)),
    )


def _average_factor(noise: AbstractNoise, unravel: Unravel, moments: Cumulants, gradient: _Gradient) -> _Noise:
    """Return the averages for Sigma = B B' to the first order in C, for noises without structure."""
    point, c, _ = moments

    def factor(x: Array) -> Float[Array, "D m"]:
        leaves = jax.tree.leaves(noise.covariance(unravel(x)).factor())
        return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves])

    def second(u: Array, v: Array) -> Array:
        return jax.jvp(lambda x: jax.jvp(factor, (x,), (u,))[1], (point,), (v,))[1]

    here, slope = factor(point), jax.jacfwd(factor)(point)
    pairs = jax.vmap(second)(jnp.eye(point.size, dtype=point.dtype), c)
    bent = jnp.sum(pairs, axis=0) @ here.T
    covariance = here @ here.T + _product("imk,kl,jml->ij", slope, c, slope) + (bent + bent.T) / 2
    half = _product("iml,jm,la->aij", slope, here, c)
    x_covariance = _pair(half)
    along = _product("abc,ai->ibc", x_covariance, gradient.hessian)
    cumulant = skewness(noise.covariance(unravel(point)), point.size) + _three(along)
    return _Noise(covariance, x_covariance, cumulant)


def _has_samples(noise: AbstractNoise) -> bool:
    """Return whether the noise is that of batches with replacement of samples with one target each."""
    problem = noise.problem
    return (
        isinstance(noise, LabelNoise | Minibatch)
        and noise.replace
        and isinstance(problem, Regression)
        and problem.targets.ndim == 1
    )


def _average_samples(noise: AbstractNoise, unravel: Unravel, moments: Cumulants, gradient: _Gradient) -> _Noise:
    """Return the averages over the samples of least squares, without third derivatives of the predictions."""
    assert isinstance(noise, LabelNoise | Minibatch)
    assert isinstance(noise.problem, Regression)
    problem = noise.problem
    point, c, k = moments
    p = problem.probabilities.astype(point.dtype)
    label = noise.strength**2 if isinstance(noise, LabelNoise) else jnp.zeros((), point.dtype)
    residuals = lambda x: problem.residuals(unravel(x))
    rows, bends = jax.jacrev(residuals)(point), jax.hessian(residuals)(point)  # J, F of all samples

    def second_of_rows(u: Array, v: Array) -> Array:
        return jax.jvp(lambda x: jax.jvp(jax.jacrev(residuals), (x,), (u,))[1], (point,), (v,))[1]

    # E J over x
    rows = rows + jnp.sum(jax.vmap(second_of_rows)(jnp.eye(point.size, dtype=point.dtype), c), axis=0) / 2
    cj = rows @ c
    fcj = _product("nab,nb->na", bends, cj)
    fc = bends @ c
    q = jnp.sum(cj * rows, axis=1)
    s = residuals(point) + jnp.trace(fc, axis1=1, axis2=2) / 2
    kj = _product("abc,nc->nab", k, rows)
    kjj = _product("nab,nb->na", kj, rows)
    skew = jnp.sum(kjj * rows, axis=1)
    kf = _product("abc,nbc->na", k, bends)
    square = label + s**2 + q + _product("nab,nba->n", fc, fc) / 2 + jnp.sum(rows * kf, axis=1)
    with_square = 2 * s[:, None] * cj + 2 * fcj @ c + kjj  # E x s^2
    # second moments of the gradients of samples
    cross = _product("n,na,nb->ab", p, rows, _product("nab,nb->na", bends, with_square))
    second = _product("n,na,nb->ab", p * square, rows, rows) + _product("n,nab,ncb->ac", p * square, fc, bends)
    second = second + cross + cross.T + 2 * _product("n,na,nb->ab", p, fcj, fcj)
    x_second = _product("n,na,nb,nc->abc", p, with_square, rows, rows)
    turned = _product("n,nba,nc->abc", p * square, fc, rows) + 2 * _product("n,na,nb,nc->abc", p, cj, fcj, rows)
    x_second = x_second + _pair(turned)
    odd = 3 * (label + q) * s + s**3 + skew + 3 * jnp.sum(cj * fcj, axis=1)
    third = _product("n,na,nb,nc->abc", p * odd, rows, rows, rows)
    third = third + _three(_product("n,na,nb,nc->abc", 3 * p * (label + q + s**2), fcj, rows, rows))
    # the moments around the mean, of one sample and then of a batch
    g, share = gradient.mean, 1 / noise.batch_size
    one = second - jnp.outer(g, g) - gradient.square
    x_one = x_second - _pair(_product("b,ac->abc", g, gradient.with_x)) - gradient.x_square
    third = third - _three(_product("a,bc->abc", g, second)) + 2 * _product("a,b,c->abc", g, g, g) - gradient.cube
    along = _three(_product("abc,ai->ibc", x_one, gradient.hessian))
    return _Noise(share * one, share * x_one, share**2 * third + (share - share**2) * along)
