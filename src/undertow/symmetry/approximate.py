"""Broken symmetries: the stationary charge of SGD where one term of the loss does not have the symmetry.

Write the loss as l(params, z) + b(params), l with the symmetry and b without noise, and expand the stationary law of
SGD around a minimum theta*. With H the Hessian of the whole loss, delta = params - theta* and Sigma the covariance of
one stochastic gradient, to first order in the step size eta:

    H X + X H = eta Sigma,            X = Cov[delta]
    H E[delta] = -1/2 d3L[X],         because the curvature changes over the width of the fluctuations
    E[C] - C* = E[delta]'A theta* + 1/2 Tr[A X].
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import Number
from undertow.noise.base import AbstractNoise
from undertow.problem import Population
from undertow.symmetry import precision
from undertow.symmetry.flow import check_order
from undertow.symmetry.generators import AbstractSymmetry

__all__ = ["Deviation", "deviation"]

NEWTON_STEPS = 50


class Deviation(eqx.Module):
    """The stationary mean of a charge whose symmetry is broken. All fields but `params` have the charge's shape."""

    params: PyTree
    """The minimum of the whole loss."""
    charge: Float[Array, "..."]
    """C* = 1/2 params'A params, at the minimum."""
    shift: Float[Array, "..."]
    """E[C] - C* in the stationary state, to first order in the step size: `drift` + `spread`."""
    drift: Float[Array, "..."]
    """E[delta]'A params, from the difference between the mean of SGD and the minimum."""
    spread: Float[Array, "..."]
    """1/2 Tr[A X], from the variance of params, because the charge is quadratic."""
    balance: Float[Array, "..."]
    """E[delta]'H A params, H the Hessian of the whole loss: the mean force of the breaking term along A params."""
    push: Float[Array, "..."]
    """eta/2 Tr[Sigma A], which the paper's Eq. (21) equates with `balance`."""
    printed: Float[Array, "..."]
    """The paper's Eq. (23): `push` over the curvature of the breaking term along A params."""


def deviation(
    noise: AbstractNoise,
    params: PyTree,
    symmetry: AbstractSymmetry,
    breaking: Callable[[PyTree], Array],
    *,
    step_size: Number,
) -> Deviation:
    """Return the mean charge of SGD near a minimum, where all but one term of the loss has a symmetry.

    The formulas are those of noise_equilibrium, section 5.4, corrected: Eq. (21) and (23) omit the fluctuations. For
    one noisy direction n and a breaking term of curvature h in every direction, `shift` is `printed` times
    1 - h/(2 n'Hn).

    **Arguments:**

    - `noise`: the noise of training, on the whole loss.
    - `params`: a point near the minimum; Newton's method finds the minimum.
    - `symmetry`: the symmetry of the other terms.
    - `breaking(params)`: the term without the symmetry, a part of that loss.
    - `step_size`: eta of SGD, without momentum.

    The function is for small models: it forms D x D Hessians and takes third derivatives.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.approximate import deviation
    >>> pull = lambda p: 4 * jnp.sum((p - jnp.array([2.0, 0.5])) ** 2)
    >>> product = ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2 + pull(p), jnp.array([0.0, 2.0]))
    >>> balance = ut.Exponential(jnp.array([1.0, -1.0]))
    >>> result = deviation(ut.Minibatch(product, 1), jnp.array([2.0, 0.5]), balance, pull, step_size=0.01)
    >>> print(f"C* = {result.charge:.3f}, E[C] - C* = {result.shift:.4f}, printed {result.printed:.4f}")
    C* = 1.875, E[C] - C* = -0.0071, printed -0.0094
    """
    if not isinstance(noise, AbstractNoise):
        raise TypeError(f"`deviation(noise, ...)`: got a {type(noise).__name__}; give a noise, such as `Minibatch`.")
    if isinstance(noise.problem, Population):
        raise TypeError("`deviation`: a `Population` has no exact minimum; fix a data set with `.sample(key, count)`.")
    if not callable(breaking):
        raise TypeError(f"`deviation(breaking=...)`: got a {type(breaking).__name__}; give a function of params.")
    validate.finite_number("deviation", "step_size", step_size)
    check_order("deviation", params, "symmetry")
    symmetry.check_params(params)
    noise, params = precision.widened((noise, params))
    point, gradient, least = _minimum(noise, params)
    scale = float(jnp.finfo(jax.tree.leaves(params)[0].dtype).eps) ** 0.5
    if not float(gradient) <= scale:
        raise ValueError(
            f"`deviation`: Newton's method found no minimum near params (relative gradient {float(gradient):.1e}); "
            "start nearer, with `settle` or `descend`."
        )
    if not float(least) > scale:
        raise ValueError(
            f"`deviation`: the smallest curvature at the minimum is {float(least):.1e} of the largest; the breaking "
            "term must make the minimum isolated (the loss may have another symmetry, which is not broken)."
        )
    return _deviation(noise, breaking, symmetry, point, jnp.asarray(step_size, jax.tree.leaves(params)[0].dtype))


@eqx.filter_jit
def _minimum(noise: AbstractNoise, params: PyTree) -> tuple[PyTree, Array, Array]:
    """Return a minimum by damped Newton steps, the relative gradient there and the relative least curvature."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    loss = lambda v: noise.problem.loss(unravel(v))

    def step(_: Array, v: Array) -> Array:
        values, vectors = jnp.linalg.eigh(jax.hessian(loss)(v))
        # |curvature|, bounded away from zero, gives a descent direction at every point
        safe = jnp.maximum(jnp.abs(values), 1e-6 * jnp.max(jnp.abs(values)))
        move = -vectors @ ((vectors.T @ jax.grad(loss)(v)) / safe)
        longest = 0.3 * (1 + jnp.linalg.norm(v))
        return v + move * jnp.minimum(1, longest / jnp.maximum(jnp.linalg.norm(move), 1e-30))

    end = jax.lax.fori_loop(0, NEWTON_STEPS, step, flat)
    values = jnp.linalg.eigvalsh(jax.hessian(loss)(end))
    largest = jnp.max(jnp.abs(values))
    gradient = jnp.linalg.norm(jax.grad(loss)(end)) / (largest * jnp.maximum(jnp.linalg.norm(end), 1e-30))
    return unravel(end), gradient, values[0] / largest


@eqx.filter_jit
def _deviation(
    noise: AbstractNoise,
    breaking: Callable[[PyTree], Array],
    symmetry: AbstractSymmetry,
    params: PyTree,
    eta: Array,
) -> Deviation:
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    loss = lambda v: noise.problem.loss(unravel(v))
    covariance = noise.covariance(params)
    sigma = jax.vmap(lambda v: trees.ravel(covariance.mv(unravel(v))))(jnp.eye(flat.size, dtype=flat.dtype))
    hessian = jax.hessian(loss)(flat)
    values, vectors = jnp.linalg.eigh(hessian)
    turned = vectors.T @ sigma @ vectors
    spread = vectors @ (eta * turned / (values[:, None] + values[None])) @ vectors.T
    # d3L[X] is the gradient of Tr[H X] with X held fixed
    bend = jax.grad(lambda v: jnp.sum(jax.hessian(loss)(v) * spread))(flat)
    mean = -vectors @ ((vectors.T @ bend) / values) / 2

    charge = lambda v: symmetry.charge(unravel(v))
    along = jax.jacobian(charge)(flat)  # A params, the last axis
    generators = jax.hessian(charge)(flat)  # A, the last two axes
    trace = lambda matrix: jnp.tensordot(generators, matrix, axes=2)
    soft = jax.hessian(lambda v: breaking(unravel(v)))(flat)
    # the curvature of the breaking term along A params; exact if A params is an eigenvector, as Eq. (22) assumes
    curvature = jnp.sum(along * (along @ soft), axis=-1) / jnp.sum(along**2, axis=-1)
    push = eta / 2 * trace(sigma)
    drift, wide = along @ mean, trace(spread) / 2
    return Deviation(
        params=params,
        charge=charge(flat),
        shift=drift + wide,
        drift=drift,
        spread=wide,
        balance=along @ (hessian @ mean),
        push=push,
        printed=push / curvature,
    )
