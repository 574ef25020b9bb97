"""The protocol of a noise: randomness drawn in blocks, the gradient for one slice of it, and a covariance."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow._validate import KeyLike, as_key, params_of_floats
from undertow.covariance import AbstractCovariance
from undertow.problem import AbstractProblem

__all__ = ["AbstractNoise", "normals", "normals_now", "second_moment"]


class AbstractNoise(eqx.Module):
    """A stochastic gradient of `problem`.

    A new noise defines three methods: `randomness`, `gradient` and `covariance`. The simulation, the SDE, the limit,
    the Noether flow and the equilibrium then work for it. `check_noise` tests it.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.covariance import ScaledIdentity
    >>> class SignNoise(ut.AbstractNoise):  # 1 or -1 is added to each coordinate of the gradient
    ...     problem: ut.AbstractProblem
    ...     def randomness(self, key, count, like=None):
    ...         return jax.random.split(key, count)
    ...     def gradient(self, params, slice):
    ...         return self.problem.gradient(params) + jax.random.rademacher(slice, params.shape, params.dtype)
    ...     def covariance(self, params):
    ...         return ScaledIdentity(jnp.array(1.0), params)
    >>> noise = SignNoise(ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1)))
    >>> print(abs(noise.draw(0, jnp.zeros(2))), noise.covariance(jnp.zeros(2)).trace())
    [1. 1.] 2.0
    """

    problem: eqx.AbstractVar[AbstractProblem]

    @abstractmethod
    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        """Return the randomness of `count` draws, independent of params, on a leading axis: one call per block.

        `like` has the shapes of params. A noise that needs one number per parameter returns keys when `like` is None,
        and otherwise the numbers that `gradient` would draw from those keys.
        """

    @abstractmethod
    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        """Return the stochastic gradient at params for one slice of the randomness."""

    @abstractmethod
    def covariance(self, params: PyTree) -> AbstractCovariance:
        """Return the covariance of one draw at params, batch size included."""

    def mean(self, params: PyTree) -> PyTree:
        """Return the expected draw: the gradient of the problem."""
        return self.problem.gradient(params)

    @property
    def mean_samples(self) -> int | None:
        """The number of independent draws that `mean` averages; None where `mean` is exact."""
        return None

    def draw(self, key: KeyLike, params: PyTree) -> PyTree:
        """Return one stochastic gradient at params."""
        key = as_key(f"{type(self).__name__}.draw", key)
        params_of_floats(f"{type(self).__name__}.draw", params)
        return self.gradient(params, trees.take(self.randomness(key, 1, params), 0))

    def check(self, params: PyTree) -> None:
        """Raise for params that the noise or its problem cannot use."""
        self.problem.check(params)

    def check_step_size(self, step_size: float) -> None:
        """Warn where a step size is known to be too large for this noise."""


@eqx.filter_jit
def second_moment(noise: AbstractNoise, params: PyTree) -> PyTree:
    """Return E g_i^2 for each parameter, like params: the diagonal of the covariance plus the squared mean."""
    variance = noise.covariance(params).moment(lambda x: jax.tree.map(jnp.square, x))
    # data in double precision would promote params in single precision
    return jax.tree.map(lambda s, g, p: (s + g**2).astype(jnp.result_type(p)), variance, noise.mean(params), params)


def normals(key: Key[Array, ""], count: int, like: PyTree) -> PyTree:
    """Return `count` draws of standard normals shaped like `like`; without it, the keys to draw them from."""
    keys = jax.random.split(key, count)
    return keys if like is None else jax.vmap(lambda k: trees.standard_normal(k, like))(keys)


def normals_now(slice: PyTree, like: PyTree) -> PyTree:
    """Return one slice of `normals`, drawn now if it is a key."""
    return trees.standard_normal(slice, like) if _is_key(slice) else slice


def _is_key(value: object) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
