"""Matrix sensing with explicit measurements: a user's own X and y, and fresh ones drawn in bounded memory."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._arrays import real_array
from undertow._calls import checked_call
from undertow.covariance import Operator
from undertow.noise.base import AbstractNoise
from undertow.problem import Problem
from undertow.sensing.laws import Numbers
from undertow.sensing.loss import SensingLoss, product, pull
from undertow.sensing.matrix_sensing import MatrixSensing

__all__ = ["FreshMeasurements", "sensing_problem"]


def _matrix_loss(params: PyTree, sample: tuple[Array, Array]) -> Float[Array, ""]:
    x, y = sample
    return (jnp.vdot(x, product(params)) - y) ** 2 / 4


def _rank_one_loss(params: PyTree, sample: tuple[Array, Array]) -> Float[Array, ""]:
    x, y = sample
    square = lambda u: jnp.sum((x @ u) ** 2)
    predicted = square(params["U"]) - square(params["V"]) if isinstance(params, dict) else square(params)
    return (predicted - y) ** 2 / 4


@checked_call("sensing_problem")
def sensing_problem(measurements: Numbers, targets: Numbers) -> Problem:
    """Return the problem of given measurements of a matrix: L(U) = 1/(4n) sum_i (<X_i, UU'> - y_i)^2.

    **Arguments:** `measurements` of shape (n, d, d), or (n, d) for the rank-one X_i = x_i x_i'; `targets` y of shape
    (n,). Params are U with d rows, or {"U": U, "V": V} for UU' - VV'. With labels of the environments,
    `Environments(problem, groups)` draws one environment per step. Loss and gradients are computed in chunks of data.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> x = jax.random.normal(jax.random.key(0), (500, 3, 3))
    >>> problem = ut.sensing_problem(x, x[:, 0, 0])
    >>> print(problem.loss(jnp.diag(jnp.array([1.0, 0.0, 0.0]))))
    0.0
    """
    x, y = (
        _as_given(value, real_array("sensing_problem", name, value))
        for name, value in (("measurements", measurements), ("targets", targets))
    )
    if x.ndim not in (2, 3) or x.shape[-1] != x.shape[-2 if x.ndim == 3 else -1] or 0 in x.shape:
        raise ValueError(
            f"`sensing_problem(measurements={validate.shown(measurements)})`: `measurements` has shape {x.shape}; give "
            "(n, d, d), or (n, d) for rank-one ones."
        )
    if y.shape != x.shape[:1]:
        raise ValueError(
            f"`sensing_problem(targets={validate.shown(targets)})`: `targets` has shape {y.shape} for {x.shape[0]} "
            "measurements; give one target per measurement."
        )
    for name, value in (("measurements", x), ("targets", y)):
        wrong = np.asarray(value)[~np.isfinite(np.asarray(value))]
        if wrong.size:
            raise ValueError(
                f"`sensing_problem`: `{name}` has missing or infinite values, such as {wrong[0]}; remove them."
            )
    loss: Callable = _matrix_loss if x.ndim == 3 else _rank_one_loss
    return Problem(loss, (x, y))


def _as_given(value: Numbers, array: np.ndarray) -> Array:
    """Return checked numbers in the precision in which they were given."""
    return jnp.asarray(value if isinstance(value, jax.Array) else np.asarray(array, getattr(value, "dtype", float)))


class FreshMeasurements(AbstractNoise):
    """The noise of a `MatrixSensing` from drawn measurements, `chunk` at a time: a slow reference implementation.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.sensing.measurements import FreshMeasurements
    >>> sensing = ut.MatrixSensing(3, m=100, law=[1.0, -2.0])
    >>> print(FreshMeasurements(sensing, chunk=10).draw(jax.random.key(0), jnp.eye(3)).shape)
    (3, 3)
    """

    problem: SensingLoss
    sensing: MatrixSensing
    chunk: int = eqx.field(static=True)

    def __init__(self, sensing: MatrixSensing, chunk: int = 64):
        self.sensing = sensing
        self.problem = sensing.problem
        self.chunk = min(validate.positive_integer("FreshMeasurements", "chunk", chunk), sensing.m)

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        return jax.random.split(key, count)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        noise, task = self.sensing, self.problem
        base = task.residual(params)
        d, dtype = base.shape[0], base.dtype
        which, rest = jax.random.split(slice)
        common = noise.law.draw(which, 1)

        def add(index: Array, total: Array) -> Array:
            first, second = jax.random.split(jax.random.fold_in(rest, index))
            x = noise.ensemble.draw(first, self.chunk, d, dtype)
            sizes = noise.law.draw(second, self.chunk) if noise.pooled else common
            spurious = jnp.sum(jax.vmap(task.along)(x) * jnp.broadcast_to(sizes, (self.chunk, noise.law.size)), axis=1)
            residual = jnp.tensordot(x, base, axes=2) - spurious.astype(dtype)
            inside = index * self.chunk + jnp.arange(self.chunk) < noise.m
            return total + jnp.tensordot(jnp.where(inside, residual, 0), x, axes=1)

        total = jax.lax.fori_loop(0, -(-noise.m // self.chunk), add, jnp.zeros_like(base))
        return trees.scale(1 / noise.m, pull(total, params))

    def covariance(self, params: PyTree) -> Operator:
        return self.sensing.covariance(params)

    def check(self, params: PyTree) -> None:
        self.sensing.check(params)

    def check_step_size(self, step_size: float) -> None:
        self.sensing.check_step_size(step_size)
