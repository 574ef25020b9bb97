"""Regressions for the averaged flow: an ill-conditioned network, and three small models that start at zero loss."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow.problem import Regression

__all__ = ["HessianTrace", "linear", "product", "sine_net", "small_tanh_net", "squares"]


class HessianTrace(eqx.Module):
    """The observable tr H, the trace of the Gauss-Newton matrix (1/n) sum_i J_i'J_i of a regression.

    >>> import jax.numpy as jnp
    >>> from undertow.papers.optimisers.models.networks import HessianTrace, product
    >>> problem, start = product()
    >>> print(start, HessianTrace(problem)(start))  # u^2 + v^2
    [2.  0.5] 4.25
    """

    problem: Regression

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """Return the trace at `params`; every output is a scalar."""
        rows = jax.vmap(jax.grad(self.problem.predict), (None, 0))(params, self.problem.inputs)
        return trees.dot(rows, rows) / self.problem.size


# functions of the module, and no lambdas: a new function for every problem would be compiled again
def _tanh_layer(params: dict[str, Array], x: Float[Array, ""]) -> Float[Array, ""]:
    return params["outer"] @ jnp.tanh(params["inner"] * x + params["bias"])


def _product(params: Float[Array, " 2"], x: Float[Array, ""]) -> Float[Array, ""]:
    return params[0] * params[1] * x


def _squares(params: Float[Array, " 6"], x: Float[Array, " 3"]) -> Float[Array, ""]:
    return x @ (params[:3] ** 2 - params[3:] ** 2)


def _three_units(params: Float[Array, " 6"], x: Float[Array, ""]) -> Float[Array, ""]:
    return params[3:] @ jnp.tanh(params[:3] * x)


def _linear(params: Float[Array, " d"], x: Float[Array, " d"]) -> Float[Array, ""]:
    return x @ params


@eqx.filter_jit
def sine_net(key: Key[Array, ""], *, width: int = 40, n: int = 30) -> tuple[Regression, dict[str, Array]]:
    """Return the regression of sin(2x) on n points of [-2, 2] by one tanh layer, and a random start.

    The eigenvalues of its kernel fall below rounding errors, so that the manifold of minimisers has no sharp rank.
    """
    x = jnp.linspace(-2.0, 2.0, n)
    inner, bias, outer = (jax.random.normal(k, (width,)) for k in jax.random.split(key, 3))
    start = {"inner": 1.5 * inner, "bias": bias, "outer": outer / width**0.5}
    return Regression(_tanh_layer, x, jnp.sin(2 * x)), start


def product() -> tuple[Regression, Float[Array, " 2"]]:
    """Return the regression u v = 1 with one equation, and a start at zero loss."""
    return Regression(_product, jnp.ones(1), jnp.ones(1)), jnp.array([2.0, 0.5])


def squares() -> tuple[Regression, Float[Array, " 6"]]:
    """Return two equations z.(u^2 - v^2) = y in six unknowns, and a start at zero loss."""
    z = jnp.array([[0.6, 0.6, -0.6], [0.5, -0.5, 0.5]])
    return _fitted(_squares, z, jnp.array([1.2, 0.9, 0.8, 0.5, 1.0, 0.7]))


def small_tanh_net() -> tuple[Regression, Float[Array, " 6"]]:
    """Return the regression of two points by three tanh units, and a start at zero loss."""
    return _fitted(_three_units, jnp.array([0.5, 1.3]), jnp.array([0.6, 1.0, 1.6, 1.2, -0.8, 1.5]))


def _fitted(predict: Callable[[Array, Array], Array], inputs: Array, params: Array) -> tuple[Regression, Array]:
    return Regression(predict, inputs, jax.jit(jax.vmap(predict, (None, 0)))(params, inputs)), params


@eqx.filter_jit
def linear(key: Key[Array, ""], *, n: int = 8, d: int = 3) -> tuple[Regression, Float[Array, " d"]]:
    """Return a linear regression of n Gaussian labels on d Gaussian inputs, which does not fit, and its minimiser."""
    k = jax.random.split(key)
    x, y = jax.random.normal(k[0], (n, d)), jax.random.normal(k[1], (n,))
    return Regression(_linear, x, y), jnp.linalg.lstsq(x, y)[0]
