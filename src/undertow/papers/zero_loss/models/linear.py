"""The overparametrised linear model (zero_loss, section 6): f(u, v; z) = z.(u^2 - v^2), n equations, d unknowns."""

from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from undertow import _validate as validate
from undertow._validate import Number
from undertow.problem import Regression

__all__ = ["LinearModel", "predict", "weights"]


def weights(params: PyTree) -> Float[Array, "... d"]:
    """Return w = u^2 - v^2."""
    u, v = params
    return u**2 - v**2


def predict(params: PyTree, z: Float[Array, " d"]) -> Float[Array, ""]:
    """Return z.(u^2 - v^2)."""
    return z @ weights(params)


class LinearModel(eqx.Module):
    """A sparse ground truth w*, n noiseless equations z_i.w* = y_i, and the model u^2 - v^2 that fits them.

    >>> import jax
    >>> from undertow.papers.zero_loss.models.linear import LinearModel, weights
    >>> model = LinearModel.draw(jax.random.key(0), d=100, n=40, sparsity=5)
    >>> print(float(abs(model.truth).sum()), model.problem.size, weights(model.start(1.0)).shape)
    5.0 40 (100,)
    """

    problem: Regression
    truth: Float[Array, " d"]

    @staticmethod
    def draw(
        key: Key[Array, ""],
        *,
        d: int,
        n: int,
        sparsity: int,
        law: Literal["gaussian", "boolean"] = "gaussian",
        dtype: DTypeLike = jnp.float32,
    ) -> "LinearModel":
        """Draw inputs from N(0, I) or uniform on {-1, 1}^d, and w* with `sparsity` entries ±1 and zeros elsewhere."""
        for name, value in (("d", d), ("n", n), ("sparsity", sparsity)):
            validate.positive_integer("LinearModel.draw", name, value)
        if sparsity > d:
            raise ValueError(f"`LinearModel.draw(sparsity={sparsity})`: the truth has only {d} entries.")
        z, y, truth = _draw(key, d, n, sparsity, law, dtype)
        return LinearModel(Regression(predict, z, y), truth)

    def start(self, alpha: Number) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return u = v = alpha, where w = 0; a large alpha is the kernel regime."""
        flat = jnp.full(self.truth.shape, jnp.asarray(alpha), self.truth.dtype)
        return flat, flat

    @eqx.filter_jit
    def rates(self) -> Float[Array, " d"]:
        """Return s_j = (4/n) sum_i z_ij^2; under label noise of strength delta u_j v_j decays at delta^2 s_j."""
        return 4 * jnp.mean(self.problem.inputs**2, axis=0)

    @eqx.filter_jit
    def settle(self, params: PyTree, steps: int = 200, metric: PyTree = None) -> PyTree:
        """Return Phi(params), the end of gradient flow, from an exact n-dimensional convex problem instead of the flow.

        The flow moves along u = a exp(Z'mu), v = b exp(-Z'mu) and ends at the minimiser mu of
        F(mu) = 1/2 sum_j (u_j^2 + v_j^2) - y.mu, whose gradient is Z(u^2 - v^2) - y. It is solved by damped Newton
        steps, in which no exponent changes by more than 1. Near a sparse end the flow itself is too stiff to integrate.
        The end is NaN if Newton does not converge, because small products u_j v_j make its matrix singular to rounding.
        With a diagonal `metric` S the flow is -S grad L, and the exponents are S Z'mu.
        """
        z, y = self.problem.data
        a, b = params
        first, second = jax.tree.map(jnp.ones_like, params) if metric is None else metric

        def at(mu: Array) -> PyTree:
            lift = mu @ z
            return a * jnp.exp(first * lift), b * jnp.exp(-second * lift)

        def newton(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            mu, _, count = state
            u, v = at(mu)
            gradient = z @ (u**2 - v**2) - y
            hessian = 2 * (z * (first * u**2 + second * v**2)[None]) @ z.T
            # scale to a unit diagonal, because the entries range over exp(-s t)
            half = jnp.sqrt(jnp.diag(hessian))
            scaled = hessian / (half[:, None] * half[None])
            move = -jnp.linalg.solve(scaled, gradient / half) / half
            largest = jnp.max(jnp.abs(2 * jnp.maximum(first, second) * (move @ z)))
            return mu + move / jnp.maximum(largest, 1), largest, count + 1

        def unfinished(state: tuple[Array, Array, Array]) -> Array:
            _, largest, count = state
            return (largest > jnp.sqrt(jnp.finfo(y.dtype).eps) / 10) & (count < steps)

        initial = (jnp.zeros_like(y), jnp.asarray(jnp.inf, y.dtype), jnp.asarray(0))
        mu, largest, _ = jax.lax.while_loop(unfinished, newton, initial)
        return at(jnp.where(largest < 1, mu, jnp.nan))  # NaN if Newton did not converge

    def error(self, params: PyTree) -> Float[Array, ""]:
        """Return |w - w*|."""
        return jnp.linalg.norm(weights(params) - self.truth)

    def decayed(self, params: PyTree, slow_time: float | Array, strength: float) -> PyTree:
        """Return exp(-delta^2 s t/2) * params, from which gradient flow ends at the limiting flow at time t.

        The limiting flow of label noise has the exact solution x(t) = Phi(exp(-delta^2 s t/2) x(0)).
        """
        shrink = jnp.exp(-(strength**2) * self.rates() * slow_time / 2).astype(self.truth.dtype)
        return jax.tree.map(lambda leaf: shrink * leaf, params)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _draw(
    key: Key[Array, ""], d: int, n: int, sparsity: int, law: Literal["gaussian", "boolean"], dtype: DTypeLike
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Float[Array, " d"]]:
    """Return inputs, targets and the truth."""
    inputs, signs = jax.random.split(key)
    draw = jax.random.normal if law == "gaussian" else jax.random.rademacher
    z = draw(inputs, (n, d)).astype(dtype)
    truth = jnp.zeros(d, dtype).at[:sparsity].set(jax.random.rademacher(signs, (sparsity,), dtype=dtype))
    return z, z @ truth, truth
