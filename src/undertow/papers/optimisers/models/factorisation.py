"""Matrix factorisations: one with noisy labels that does not fit its data, and one that senses a matrix of rank one."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from undertow import _trees as trees
from undertow.problem import Problem, Regression

__all__ = ["Recovery", "charge", "matrix_sensing", "noisy_factorisation", "random_factors"]

Factors = dict[str, Array]


def _loss(params: Factors, sample: tuple[Array, Array]) -> Float[Array, ""]:
    x, y = sample
    return jnp.sum((params["U"] @ (params["W"] @ x) - y) ** 2) / 2


@eqx.filter_jit
def noisy_factorisation(
    key: Key[Array, ""], *, samples: int = 40, outputs: int = 2, inputs: int = 3
) -> tuple[Problem, Factors]:
    """Return the loss (1/2) mean |U W x - y|^2 with y = M x + noise, and its balanced minimiser.

    The layer between has `outputs` units, so that U W is any matrix and minimises the loss at the least-squares matrix
    A. From its singular value decomposition A = P s Q', U = P sqrt(s) and W = sqrt(s) Q', so that U'U = WW'.

    >>> import jax
    >>> from undertow.papers.optimisers.models.factorisation import noisy_factorisation
    >>> problem, start = noisy_factorisation(jax.random.key(0))
    >>> print({name: factor.shape for name, factor in start.items()})
    {'U': (2, 2), 'W': (2, 3)}
    """
    k = jax.random.split(key, 3)
    x = jax.random.normal(k[0], (samples, inputs))
    truth = jax.random.normal(k[1], (inputs, outputs))
    y = x @ truth + jax.random.normal(k[2], (samples, outputs))
    left, sizes, right = jnp.linalg.svd(jnp.linalg.lstsq(x, y)[0].T, full_matrices=False)
    root = jnp.sqrt(sizes)
    return Problem(_loss, (x, y)), {"U": left * root[None], "W": root[:, None] * right}


def charge(params: Factors) -> Float[Array, ""]:
    """Return |U|^2 - |W|^2, which gradient flow conserves."""
    return jnp.sum(params["U"] ** 2) - jnp.sum(params["W"] ** 2)


def _inner_product(params: Factors, x: Float[Array, "d d"]) -> Float[Array, ""]:
    return jnp.vdot(x, params["U"] @ params["V"].T)


def matrix_sensing(key: Key[Array, ""], *, size: int, measurements: int) -> tuple[Regression, Float[Array, "d d"]]:
    """Return the regression <X, U V'> = <X, W> with Gaussian X, and the matrix W, which has rank one and norm three.

    >>> import jax
    >>> from undertow.papers.optimisers.models.factorisation import matrix_sensing
    >>> problem, truth = matrix_sensing(jax.random.key(0), size=4, measurements=10)
    >>> print(problem.size, jax.numpy.linalg.matrix_rank(truth))
    10 1
    """
    k = jax.random.split(key, 3)
    x = jax.random.normal(k[0], (measurements, size, size), jnp.result_type(float))
    left, right = (jax.random.normal(k[i], (size,), jnp.result_type(float)) for i in (1, 2))
    truth = 3 * jnp.outer(left, right) / (jnp.linalg.norm(left) * jnp.linalg.norm(right))
    return Regression(_inner_product, x, jnp.tensordot(x, truth, axes=2)), truth


def random_factors(size: int) -> Callable[[Key[Array, ""]], Factors]:
    """Return the function that draws square factors with entries N(0, 1/4)."""

    def draw(key: Key[Array, ""]) -> Factors:
        k = jax.random.split(key)
        return {name: jax.random.normal(k[i], (size, size), jnp.result_type(float)) / 2 for i, name in enumerate("UV")}

    return draw


class Recovery(eqx.Module):
    """The relative error of U V', and tr H and tr diag(H)^(1/2) of the loss for the factors of `matrix_sensing`."""

    problem: Regression
    truth: Float[Array, "d d"]

    def __call__(self, params: Factors) -> dict[str, Float[Array, ""]]:
        """Return the three numbers at `params`; H is the Gauss-Newton matrix, with the diagonal mean J_i^2."""
        rows = jax.vmap(jax.grad(self.problem.predict), (None, 0))(params, self.problem.inputs)
        diagonal = trees.ravel(jax.tree.map(lambda row: jnp.mean(row**2, axis=0), rows))
        error = jnp.linalg.norm(params["U"] @ params["V"].T - self.truth) / jnp.linalg.norm(self.truth)
        return {"error": error, "trace": jnp.sum(diagonal), "root_trace": jnp.sum(jnp.sqrt(diagonal))}
