"""HeteroSGD: every batch is drawn from one environment."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree
from numpy.typing import ArrayLike

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow._arrays import group_labels, group_shares
from undertow._calls import RenamedAttribute, checked_call
from undertow._validate import concrete, instance, kind_of, positive_integer, quote, shown
from undertow.covariance import AbstractCovariance, Factored, SampleCovariance, Sum
from undertow.noise import sampling
from undertow.noise.base import AbstractNoise
from undertow.noise.minibatch import Minibatch
from undertow.problem import AbstractSampled

__all__ = ["Environments"]


class Environments(AbstractNoise):
    """HeteroSGD: each step draws an environment e ~ weights and uses the mean gradient over e or over a batch from e.

    **Arguments:** `groups` gives every sample's environment, whole numbers 0..k-1; `weights` the probability of each
    environment (None: in proportion to its samples, so that the mean gradient is the gradient of `problem`);
    `batch_size` the number of samples drawn with replacement inside the environment (None: the whole environment).

    `.problem` is the loss whose gradient the draws have on average, sum_e w_e L_e. `.pooled()` is the same problem
    with batches that mix the environments. The covariance is the covariance between environments plus that within them.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([0.0, 0.0, 4.0, 4.0]))
    >>> hetero = ut.Environments(problem, groups=jnp.array([0, 0, 1, 1]))
    >>> print(abs(hetero.draw(jax.random.key(0), jnp.array(2.0))), hetero.covariance(jnp.array(2.0)).trace().round(3))
    2.0 4.0
    """

    problem: AbstractSampled
    groups: Int[Array, " samples"]
    weights: Float[Array, " environments"]
    members: Int[Array, "environments largest"]
    sizes: Int[Array, " environments"]
    batch_size: int | None = eqx.field(static=True)
    size = RenamedAttribute("batch_size")

    @checked_call("Environments", size="batch_size")
    def __init__(
        self,
        problem: AbstractSampled,
        groups: ArrayLike,
        weights: ArrayLike | None = None,
        batch_size: int | None = None,
    ):
        instance("Environments", "problem", problem, AbstractSampled, "a Problem or a Regression, which have samples")
        if problem.weights is not None:
            raise ValueError("`Environments`: the problem is reweighted already; give the plain one and `weights=`.")
        labels, counts = group_labels("Environments", groups, problem.size)
        if batch_size is not None:
            batch_size = positive_integer("Environments", "batch_size", batch_size)
        self.batch_size = batch_size
        self.groups = jnp.asarray(labels, jnp.int32)
        self.sizes = jnp.asarray(counts, jnp.int32)
        self.members = jnp.asarray(_padded_members(labels, counts), jnp.int32)
        dtype = jnp.result_type(float)
        if weights is None:
            self.weights = jnp.asarray(counts / counts.sum(), dtype)
            self.problem = problem
        else:
            shares = group_shares("Environments", weights, len(counts))
            self.weights = jnp.asarray(shares, dtype)
            self.problem = problem.reweight(jnp.asarray((shares / counts)[labels], dtype))

    @staticmethod
    @checked_call("Environments.of", size="batch_size")
    def of(
        problems: Sequence[AbstractSampled], weights: ArrayLike | None = None, batch_size: int | None = None
    ) -> "Environments":
        """Return environments made of one problem each; all must have the same loss and samples of the same shapes.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> loss = lambda w, x: (w - x) ** 2 / 2
        >>> hetero = ut.Environments.of([ut.Problem(loss, jnp.zeros(2)), ut.Problem(loss, 4 * jnp.ones(3))])
        >>> print(hetero.groups)
        [0 0 1 1 1]
        """
        if not isinstance(problems, Sequence) or not problems:
            raise ValueError(
                f"{quote('Environments.of', problems=shown(problems))}: `problems` is {kind_of(problems)}; give a list "
                "of problems, at least one."
            )
        first = problems[0]
        for index, other in enumerate(problems):
            if not isinstance(other, AbstractSampled) or _rest(other) != _rest(first):
                raise ValueError(
                    f"`Environments.of(problems)`: problem {index} has another type or loss than problem 0; "
                    "build them all from the same function."
                )
            if other.weights is not None:
                raise ValueError(f"`Environments.of(problems)`: problem {index} is reweighted; give plain problems.")
        shapes = [jax.tree.map(lambda x: f"{x.shape[1:]} {x.dtype}", p.data) for p in problems]
        for index, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ValueError(
                    f"`Environments.of(problems)`: the samples of problem {index} have shapes and types {shape}, "
                    "those of "
                    f"problem 0 {shapes[0]}; make them equal."
                )
        data = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *[p.data for p in problems])
        joined = eqx.tree_at(lambda p: p.data, first, data)
        groups = np.repeat(np.arange(len(problems)), [p.size for p in problems])
        return Environments(joined, groups, weights, batch_size)

    @property
    def count(self) -> int:
        """The number of environments k."""
        return self.sizes.shape[0]

    @checked_call("Environments.pooled", size="batch_size")
    def pooled(self, batch_size: int | None = None) -> Minibatch:
        """Return PooledSGD on the same problem: every sample of a batch draws its own environment.

        The default batch size is that of this noise; where batches are whole environments, their mean size.
        """
        if batch_size is None:
            batch_size = self.batch_size
        else:
            batch_size = positive_integer("Environments.pooled", "batch_size", batch_size)
        if batch_size is None:
            if not concrete(self.weights):
                raise ValueError(
                    "`Environments.pooled()`: the mean size of the environments is not known inside `jax.jit`; give "
                    "`batch_size=`, or call it outside."
                )
            batch_size = max(1, round(float(jnp.vdot(self.weights, self.sizes.astype(self.weights.dtype)))))
        return Minibatch(self.problem, batch_size)

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        which, who = jax.random.split(key)
        environment = sampling.weighted(which, self.weights, (count,))
        if self.batch_size is None:
            return environment
        sizes = self.sizes[environment].reshape(-1, *[1] * (self.batch_size > 1))
        shape = (count,) if self.batch_size == 1 else (count, self.batch_size)
        position = jax.random.randint(who, shape, 0, sizes, jnp.int32)
        return self.members[environment.reshape(sizes.shape), position]

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        if self.batch_size is None:
            return self.environment_gradient(params, slice)
        return self.problem.batch_gradient(params, slice)

    def environment_gradient(self, params: PyTree, environment: Int[Array, ""]) -> PyTree:
        """Return grad L_e, the mean over all samples of one environment."""
        rows, size = self.members[environment], self.sizes[environment]
        # padding repeats a sample of the environment, so that its loss is finite before it is masked
        inside = jnp.arange(rows.shape[0]) < size

        def block(part: tuple[Array, Array]) -> PyTree:
            batch = trees.take(self.problem.data, part[0])

            def total(p: PyTree) -> Float[Array, ""]:
                losses = jax.vmap(lambda s: self.problem.sample_loss(p, s))(batch)
                return jnp.sum(jnp.where(part[1], losses, 0)) / size.astype(losses.dtype)

            return jax.grad(total)(params)

        return chunks.sum_samples(block, (rows, inside), self.problem.chunk(params))

    def covariance(self, params: PyTree) -> AbstractCovariance:
        """Return the covariance between environments plus, unless batches are whole environments, that within them."""
        return self.between(params) if self.batch_size is None else Sum((self.between(params), self.within(params)))

    def between(self, params: PyTree) -> Factored:
        """Return sum_e w_e (g_e - g)(g_e - g)', g_e the gradient of environment e."""
        gradients = jax.lax.map(lambda e: self.environment_gradient(params, e), jnp.arange(self.count))
        centred = trees.centre(gradients, self.weights)
        half = jnp.sqrt(self.weights)
        return Factored(jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1) * _trailing(half, x), centred))

    def within(self, params: PyTree) -> SampleCovariance:
        """Return sum_e w_e Cov_e / batch_size, Cov_e the covariance of one sample's gradient inside environment e."""
        if self.batch_size is None:
            raise ValueError("`Environments.within`: whole environments have no noise within; give `batch_size=`.")
        return SampleCovariance(self.problem, params, 1 / self.batch_size, self.groups, self.count)


def _trailing(half: Array, stacked: Array) -> Array:
    return half.astype(stacked.dtype).reshape(*[1] * (stacked.ndim - 1), -1)


def _rest(problem: AbstractSampled) -> tuple:
    """Return all of a problem that is not data: its type and its callables."""
    fields = {name: value for name, value in vars(problem).items() if name not in ("data", "weights")}
    return type(problem), tuple(fields.items())


def _padded_members(labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return one row per environment with its samples; short rows are padded with their first sample."""
    order = np.argsort(labels, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    position = np.arange(counts.max())[None]
    inside = position < counts[:, None]
    return order[starts[:, None] + np.where(inside, position, 0)]
