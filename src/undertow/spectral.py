"""Matrix-free spectral methods: power iteration, Lanczos iteration, and stochastic traces.

An operator is a function of vectors; vectors are pytrees of arrays unless a function asks for flat ones.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees

__all__ = ["lanczos", "norm", "power_iteration", "quadratic_forms", "random_signs", "spectral_norm", "unit"]

Operator = Callable[[PyTree], PyTree]


def norm(vector: PyTree) -> Float[Array, ""]:
    """Return the Euclidean norm of a vector."""
    return jnp.sqrt(trees.dot(vector, vector))


def unit(vector: PyTree) -> PyTree:
    """Return a vector scaled to length one; a vector of zeros stays zero."""
    return trees.scale(1 / jnp.maximum(norm(vector), 1e-30), vector)


def power_iteration(apply: Operator, start: PyTree, steps: int, normalise: Operator = unit) -> PyTree:
    """Return v after `steps` iterations of v <- normalise(apply(v)) from `start`.

    With the default normalisation v converges to the eigenvector of the largest absolute eigenvalue, and
    |apply(v)| approaches that value from below. Another normalisation, such as a projection, gives a projected power
    iteration.

    >>> import jax.numpy as jnp
    >>> from undertow.spectral import norm, power_iteration
    >>> apply = lambda v: jnp.array([3.0, 1.0]) * v
    >>> print(f"{norm(apply(power_iteration(apply, jnp.ones(2), 20))):.4f}")
    3.0000
    """
    return jax.lax.fori_loop(0, steps, lambda _, v: normalise(apply(v)), start)


def lanczos(
    product: Callable[[Float[Array, " n"]], Float[Array, " n"]], start: Float[Array, " n"], steps: int
) -> tuple[Float[Array, " steps"], Float[Array, " steps"]]:
    """Return the Ritz values of a symmetric operator on flat vectors in ascending order, and their weights.

    The largest value approaches the largest eigenvalue from below. The weights are the squared parts of `start` along
    the Ritz vectors and sum to 1: for a random start, n times the weight estimates the number of eigenvalues near a
    value. The basis is orthogonalised in full at every step, so the memory is `steps` vectors. `steps` is at most the
    dimension. An iteration that ends early, at an invariant subspace, repeats a value with weight 0.

    >>> import jax.numpy as jnp
    >>> from undertow.spectral import lanczos
    >>> diagonal = jnp.array([-5.0, 1.0, 2.0])
    >>> values, weights = lanczos(lambda v: diagonal * v, jnp.array([2.0, 1.0, 2.0]), 3)
    >>> print(values.round(4), (9 * weights).round(4))
    [-5.  1.  2.] [4. 1. 4.]
    """

    def step(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        basis, v = carry
        basis = basis.at[k].set(v)
        image = product(v)
        diagonal = jnp.vdot(v, image)
        rest = image - basis.T @ (basis @ image)
        rest = rest - basis.T @ (basis @ rest)  # the second pass removes the rounding errors of the first
        size = jnp.linalg.norm(rest)
        return (basis, rest / jnp.maximum(size, 1e-30)), (diagonal, size)

    carry = (jnp.zeros((steps, start.size), start.dtype), start / jnp.linalg.norm(start))
    _, (diagonal, beside) = jax.lax.scan(step, carry, jnp.arange(steps))
    # the iteration ends at an invariant subspace: later entries are not coupled to the earlier ones
    linked = jnp.cumprod(beside[:-1] > 1e-5 * jnp.max(jnp.abs(diagonal)))
    off = jnp.where(linked, beside[:-1], 0)
    reached = jnp.concatenate([jnp.ones(1, bool), linked.astype(bool)])
    matrix = jnp.diag(jnp.where(reached, diagonal, jnp.min(diagonal))) + jnp.diag(off, 1) + jnp.diag(off, -1)
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors[0] ** 2


def spectral_norm(matrix: Float[Array, "n n"], squarings: int) -> Float[Array, ""]:
    """Return |A| of a symmetric matrix A as |A^(2^k)|^(1/2^k), k the number of squarings.

    It uses matrix products only, because LAPACK can deadlock inside parallel lanes. The logarithm of the result is too
    large by at most log(n)/2^k.
    """
    log, weight = jnp.zeros((), matrix.dtype), 1.0
    for _ in range(squarings):
        length = jnp.maximum(jnp.linalg.norm(matrix), jnp.finfo(matrix.dtype).tiny)
        log, weight = log + weight * jnp.log(length), weight / 2
        matrix = matrix / length
        matrix = matrix @ matrix
    return jnp.exp(log)


def random_signs(key: Key[Array, ""], like: PyTree) -> PyTree:
    """Return independent random signs, like a pytree."""
    return jax.tree.map(jnp.sign, trees.standard_normal(key, like))


def quadratic_forms(
    draw: Callable[[Key[Array, ""]], PyTree], product: Operator, keys: Key[Array, " probes"]
) -> Float[Array, " probes"]:
    """Return x'A x for one draw x per key; their mean estimates Tr[A E xx'].

    With `random_signs` this is Hutchinson's estimator of Tr A.
    """

    def one(key: Key[Array, ""]) -> Float[Array, ""]:
        x = draw(key)
        return trees.dot(x, product(x))

    return jax.lax.map(one, keys)
