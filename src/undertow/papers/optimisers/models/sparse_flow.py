"""The limiting flows of SGD and of Adam with label noise on the model u^2 - v^2, up to sparse ends.

With a frozen diagonal metric S the limiting flow of label noise of variance c has the exact solution

    theta(t + h) = Phi_S(exp(-2 c r^2 S^2 h) theta(t)),     r_j^2 = (1/n) sum_i z_ij^2

where Phi_S is the end of the flow -S grad L. SGD has S = 1. For Adam S is frozen for each step of length h, at
1/(sqrt(c diag H) + eps), the metric of v in equilibrium. `Limit.solve` ends where the Hessian loses rank, as it does at
an end with fewer than n nonzero entries; these steps go on.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow.papers.zero_loss.models.linear import LinearModel, predict, weights
from undertow.problem import Regression

__all__ = ["EPS", "FLOOR", "VARIANCE", "FlowPath", "Name", "SparseData", "draw_data", "sparse_flow"]

Name = Literal["SGD", "Adam"]

EPS = 0.05
"""eps of Adam; coordinates reach zero in finite time, where the metric is 1/eps."""
VARIANCE = 2.0
"""The variance c of the label noise."""
FLOOR = 3e-4
"""The least value of a coordinate: smaller ones make the matrix of Phi_S singular to rounding."""


class SparseData(NamedTuple):
    """Data sets of n equations for d unknowns, and the vectors that solve them."""

    inputs: Float[Array, "sets n d"]
    targets: Float[Array, "sets n"]
    truths: Float[Array, "sets d"]


class FlowPath(NamedTuple):
    """The end of a flow for each data set, and tr H and tr diag(H)^(1/2) after each step, the start first."""

    params: PyTree
    trace: Float[Array, "sets times"]
    root_trace: Float[Array, "sets times"]
    error: Float[Array, " sets"]
    """The relative error |w - w*|/|w*| at the end."""


def draw_data(key: Key[Array, ""], sets: int, *, d: int, n: int, sparsity: int) -> SparseData:
    """Draw data sets with Gaussian inputs and truths with `sparsity` entries ±1.

    >>> import jax
    >>> from undertow.papers.optimisers.models.sparse_flow import draw_data
    >>> data = draw_data(jax.random.key(0), 5, d=20, n=10, sparsity=3)
    >>> print(data.inputs.shape, abs(data.truths).sum(axis=1))
    (5, 10, 20) [3. 3. 3. 3. 3.]
    """
    dtype = jnp.result_type(float)
    models = [LinearModel.draw(one, d=d, n=n, sparsity=sparsity, dtype=dtype) for one in jax.random.split(key, sets)]
    columns = zip(*((*model.problem.data, model.truth) for model in models), strict=True)
    return SparseData(*(jax.device_put(np.stack(column)) for column in columns))


@eqx.filter_jit
def sparse_flow(name: Name, data: SparseData, slow_time: float, steps: int) -> FlowPath:
    """Solve the limiting flow of SGD or of Adam on each data set, from the end of gradient flow from u = v = 1."""

    def solve(inputs: Array, targets: Array, truth: Array) -> tuple[PyTree, Array, Array, Array]:
        model = LinearModel(Regression(predict, inputs, targets), truth)
        sizes = jnp.sqrt(model.rates())  # the square root of diag(H) is sizes * |params|
        metric_of = lambda x: 1 / (VARIANCE**0.5 * sizes * x + EPS) if name == "Adam" else jnp.ones_like(x)

        def traces(params: PyTree) -> tuple[Array, Array]:
            roots = sizes * (params[0] + params[1])
            return jnp.sum(sizes**2 * (params[0] ** 2 + params[1] ** 2)), jnp.sum(roots)

        def step(params: PyTree, _: None) -> tuple[PyTree, tuple[Array, Array]]:
            metric = jax.tree.map(metric_of, params)
            decay = lambda x, s: x * jnp.exp(-VARIANCE / 2 * (sizes * s) ** 2 * (slow_time / steps))
            decayed = jax.tree.map(lambda x, s: jnp.maximum(decay(x, s), FLOOR), params, metric)
            params = model.settle(decayed, metric=metric)
            return params, traces(params)

        start = model.settle(model.start(1.0))
        end, path = jax.lax.scan(step, start, None, length=steps)
        trace, root = (jnp.concatenate([a[None], b]) for a, b in zip(traces(start), path, strict=True))
        return end, trace, root, jnp.linalg.norm(weights(end) - truth) / jnp.linalg.norm(truth)

    return FlowPath(*jax.vmap(solve)(*data))
