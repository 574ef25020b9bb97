"""Label noise: the labels are perturbed independently at every step."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow._calls import RenamedAttribute, checked_call
from undertow._validate import Number, finite_number, instance, one_of
from undertow.covariance import LabelCovariance, SampleCovariance, Sum
from undertow.noise import sampling
from undertow.noise.base import AbstractNoise
from undertow.problem import Regression, batch_gradient

__all__ = ["LabelNoise"]


class LabelNoise(AbstractNoise):
    """SGD on labels y_i + strength * e, e = +-1 (or N(0, 1) with kind="gaussian"), fresh and independent at every step.

    Batches of `batch_size` samples are drawn as by `Minibatch`, with replacement unless `replace=False`. Each sample of
    the batch and each output coordinate has its own e. Covariance of one draw: the minibatch part plus
    strength^2/batch_size * (1/n) sum_i J_i'J_i, which at zero loss is strength^2/batch_size * H alone (zero_loss,
    section 6).

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> line = ut.Regression(lambda w, x: w * x, inputs=jnp.array([1.0, 1.0]), targets=jnp.array([2.0, 2.0]))
    >>> noise = ut.LabelNoise(line, strength=0.5)
    >>> print(abs(noise.draw(jax.random.key(0), jnp.array(2.0))), noise.covariance(jnp.array(2.0)).trace())
    0.5 0.25
    """

    problem: Regression
    strength: Float[Array, ""]
    batch_size: int = eqx.field(static=True)
    replace: bool = eqx.field(static=True)
    kind: Literal["sign", "gaussian"] = eqx.field(static=True)
    size = RenamedAttribute("batch_size")

    @checked_call("LabelNoise", size="batch_size")
    def __init__(
        self,
        problem: Regression,
        strength: Number = 1.0,
        batch_size: int = 1,
        replace: bool = True,
        kind: Literal["sign", "gaussian"] = "sign",
    ):
        instance("LabelNoise", "problem", problem, Regression, "a `Regression`, which has labels to disturb")
        finite_number("LabelNoise", "strength", strength)
        one_of("LabelNoise", "kind", kind, ("sign", "gaussian"))
        self.batch_size = sampling.check_batch_size("LabelNoise", problem, batch_size, replace)
        self.problem = problem
        self.strength = jnp.asarray(strength, problem.targets.dtype)
        self.replace = bool(replace)
        self.kind = kind

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        which, how = jax.random.split(key)
        batches = sampling.indices(which, self.problem, count, self.batch_size, self.replace)
        shape = (*batches.shape, *self.problem.targets.shape[1:])
        draw = sampling.signs if self.kind == "sign" else jax.random.normal
        return batches, draw(how, shape, self.problem.targets.dtype)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        index, disturbance = slice
        x, y = trees.take(self.problem.data, index)
        y = y + self.strength * disturbance
        return batch_gradient(self.problem.sample_loss, params, (x, y), single=index.ndim == 0)

    def covariance(self, params: PyTree) -> Sum:
        factor = sampling.factor_of_size(self.problem, self.batch_size, self.replace)
        labels = LabelCovariance(self.problem, params, self.strength**2 / self.batch_size)
        batch = SampleCovariance(self.problem, params, factor)
        return Sum((labels, batch))
