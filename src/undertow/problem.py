"""What is trained: a loss and its data.

`Problem` is any loss with samples, `Regression` a least-squares loss (it opens the geometry of the manifold of
minimisers), `Population` a loss with fresh data at every step. They share two questions, the loss and its gradient.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike
from undertow.estimate import Estimate

__all__ = ["AbstractProblem", "AbstractSampled", "Population", "Problem", "Regression", "batch_gradient"]

Scalar = Float[Array, ""]


class AbstractProblem(eqx.Module):
    """A loss L(params) with a gradient: all that a noise which brings its own randomness needs."""

    @abstractmethod
    def loss(self, params: PyTree) -> Any:
        """L(params)."""

    @abstractmethod
    def gradient(self, params: PyTree) -> Any:
        """grad L(params), shaped like params."""

    def check(self, params: PyTree) -> None:
        """Refuses params that are not floats, and a loss that is not a finite scalar there."""
        validate.params_of_floats(type(self).__name__, params)


class AbstractSampled(AbstractProblem):
    """L(params) = sum_i p_i l(params, sample_i) over a finite set of samples; p_i = 1/n unless reweighted."""

    data: eqx.AbstractVar[PyTree]
    weights: eqx.AbstractVar[Float[Array, " samples"] | None]

    @abstractmethod
    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """l(params, sample), the loss of one sample."""

    @property
    def size(self) -> int:
        """n, the number of samples."""
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def probabilities(self) -> Float[Array, " samples"]:
        """p, the weight of each sample in the loss; sums to 1."""
        if self.weights is not None:
            return self.weights
        return jnp.full((self.size,), 1 / self.size)

    def reweight(self, weights: Any) -> "AbstractSampled":
        """The same problem with loss sum_i weights_i l_i.

        The weights are probabilities, one for each sample: finite, at least 0, with the sum 1. They replace those of an
        earlier call. `Minibatch` and `LabelNoise` draw the samples with these probabilities.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> problem = ut.Problem(lambda w, x: (w - x) ** 2, jnp.array([0.0, 2.0]))
        >>> print(problem.reweight(jnp.array([0.75, 0.25])).loss(jnp.array(0.0)))
        1.0
        """
        weights = validate.probabilities(f"{type(self).__name__}.reweight", "weights", weights, self.size)
        return eqx.tree_at(lambda p: p.weights, self, weights, is_leaf=lambda leaf: leaf is None)

    def chunk(self, params: PyTree) -> int:
        """How many samples at a time keep per-sample gradients within `chunks.BUDGET_BYTES`."""
        per_sample = trees.floats_bytes(params) + trees.floats_bytes(self.data) // self.size
        return chunks.chunk_length(per_sample)

    def losses(self, params: PyTree) -> Float[Array, " samples"]:
        """l(params, sample_i) for every sample."""
        self._check_shapes(params)
        return chunks.map_samples(lambda s: self.sample_loss(params, s), self.data, self.chunk(params))

    def loss(self, params: PyTree) -> Scalar:
        """L(params), the (weighted) mean over all samples."""
        losses = self.losses(params)
        return jnp.mean(losses) if self.weights is None else jnp.vdot(self.weights.astype(losses.dtype), losses)

    def sample_gradient(self, params: PyTree, sample: PyTree) -> PyTree:
        """grad l(params, sample), shaped like params."""
        return jax.grad(self.sample_loss)(params, sample)

    def sample_gradients(self, params: PyTree) -> PyTree:
        """Every sample's gradient, stacked on a leading axis: n times the size of params, so mind the memory."""
        self._check_shapes(params)
        return chunks.map_samples(lambda s: self.sample_gradient(params, s), self.data, self.chunk(params))

    def combine(self, params: PyTree, coefficients: Float[Array, " samples"]) -> PyTree:
        """sum_i coefficients_i grad l_i, in bounded memory and without per-sample gradients."""
        self._check_shapes(params)

        def block(rows: tuple[PyTree, Array]) -> PyTree:
            data, weights = rows

            def weighted(p: PyTree) -> Scalar:
                losses = jax.vmap(lambda s: self.sample_loss(p, s))(data)
                return jnp.vdot(weights.astype(losses.dtype), losses)

            return jax.grad(weighted)(params)

        return chunks.sum_samples(block, (self.data, coefficients), self.chunk(params))

    def along(self, params: PyTree, direction: PyTree) -> Float[Array, " samples"]:
        """<grad l_i, direction> for every sample, by forward differentiation."""
        self._check_shapes(params)

        def one(sample: PyTree) -> Scalar:
            return jax.jvp(lambda p: self.sample_loss(p, sample), (params,), (direction,))[1]

        return chunks.map_samples(one, self.data, self.chunk(params))

    def quadratic(self, params: PyTree, form: Callable[[PyTree], Any]) -> Any:
        """sum_i p_i form(grad l_i), for a scalar (or array) function of one gradient, in bounded memory."""
        self._check_shapes(params)

        def block(rows: tuple[PyTree, Array]) -> Any:
            data, weights = rows
            values = jax.vmap(lambda s: form(self.sample_gradient(params, s)))(data)
            return trees.weigh(weights, values)

        return chunks.sum_samples(block, (self.data, self.probabilities), self.chunk(params))

    def gradient(self, params: PyTree) -> PyTree:
        """grad L(params), shaped like params."""
        return self.combine(params, self.probabilities)

    def batch_gradient(self, params: PyTree, indices: Int[Array, ""] | Int[Array, " batch"]) -> PyTree:
        """The mean gradient over the samples at `indices`; a single index carries no batch axis."""
        return batch_gradient(self.sample_loss, params, trees.take(self.data, indices), single=indices.ndim == 0)

    def check(self, params: PyTree) -> None:
        """Refuses params that are not floats, and a loss that is not a finite scalar at them."""
        self._check_shapes(params)
        if all(validate.concrete(leaf) for leaf in jax.tree.leaves((params, self.data))):
            _refuse_infinite(type(self).__name__, _loss_of(self, params))

    def _check_shapes(self, params: PyTree) -> None:
        name = type(self).__name__
        validate.params_of_floats(name, params)
        _refuse_vector(name, jax.eval_shape(self.sample_loss, params, _one_of(self.data)))


def _one_of(data: PyTree) -> PyTree:
    """The shapes of one sample."""
    return jax.eval_shape(lambda stacked: trees.take(stacked, 0), data)


def batch_gradient(loss: Callable[[PyTree, PyTree], Scalar], params: PyTree, batch: PyTree, *, single: bool) -> PyTree:
    """The gradient of the mean loss over a batch; `single`: the batch is one sample without a batch axis."""
    if single:
        return jax.grad(loss)(params, batch)
    return jax.grad(lambda p: jnp.mean(jax.vmap(lambda s: loss(p, s))(batch)))(params)


@eqx.filter_jit
def _loss_of(problem: AbstractProblem, params: PyTree) -> Any:
    return problem.loss(params)


def _refuse_vector(name: str, value: Any) -> None:
    shape = getattr(value, "shape", None)
    if shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        found = f"shape {shape}, dtype {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
        raise ValueError(
            f"`{name}`: `loss(params, sample)` must return one real number for one sample, not {found}; "
            "sum or average inside the loss."
        )


def _refuse_infinite(name: str, value: Array) -> None:
    if not np.isfinite(value):
        raise ValueError(
            f"`{name}`: the loss is {float(value)} at the given params; check the data (NaN?), the start and the loss."
        )


def _to_arrays(tree: PyTree) -> PyTree:
    """Numbers, lists of numbers and numpy arrays as jax arrays; keys and arrays as they are."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf), tree)


class Problem(AbstractSampled):
    """A loss with samples: L(params) = (1/n) sum_i loss(params, sample_i).

    **Arguments:** `loss(params, sample)` returns a scalar; `data` is a pytree of arrays with a common leading sample
    axis, and a sample is that pytree at one index.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2, jnp.array([0.0, 2.0]))
    >>> print(problem.loss(jnp.array(1.0)), problem.gradient(jnp.array(2.0)))
    1.0 2.0
    """

    function: Callable[[PyTree, PyTree], Scalar]
    data: PyTree
    weights: Float[Array, " samples"] | None

    def __init__(self, loss: Callable[[PyTree, PyTree], Scalar], data: PyTree):
        if not callable(loss):
            raise TypeError(f"`Problem(loss, data)`: `loss` is a {type(loss).__name__}; give loss(params, sample).")
        validate.sample_axis("Problem", data=data)
        self.function = loss
        self.data = _to_arrays(data)
        self.weights = None

    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """loss(params, sample), as given."""
        return self.function(params, sample)


class Regression(AbstractSampled):
    """Least squares: L(params) = 1/(2n) sum_i |predict(params, x_i) - y_i|^2, outputs of shape () or (q,).

    **Arguments:** `predict(params, x)` for one input; `inputs` a pytree with a leading sample axis; `targets` of shape
    (n,) or (n, q).

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> line = ut.Regression(lambda w, x: w * x, inputs=jnp.array([1.0, 2.0]), targets=jnp.array([1.0, 4.0]))
    >>> print(line.loss(jnp.array(1.0)), line.residuals(jnp.array(1.0)))
    1.0 [ 0. -2.]
    """

    predict: Callable[[PyTree, PyTree], Array]
    data: tuple[PyTree, Array]
    weights: Float[Array, " samples"] | None

    def __init__(self, predict: Callable[[PyTree, PyTree], Array], inputs: PyTree, targets: Any):
        if not callable(predict):
            kind = type(predict).__name__
            raise TypeError(f"`Regression(predict, ...)`: `predict` is a {kind}; give predict(params, x).")
        inputs, targets = _to_arrays(inputs), _to_arrays(targets)
        validate.sample_axis("Regression", inputs=inputs, targets=targets)
        if targets.ndim > 2:
            raise ValueError(f"`Regression`: `targets` has shape {targets.shape}; give (n,) or (n, q).")
        if jnp.issubdtype(targets.dtype, jnp.complexfloating):
            raise TypeError("`Regression`: `targets` is complex; give its real and imaginary parts as two outputs.")
        if not jnp.issubdtype(targets.dtype, jnp.floating):
            targets = targets.astype(jnp.result_type(float))
        self.predict = predict
        self.data = (inputs, targets)
        self.weights = None

    @property
    def inputs(self) -> PyTree:
        """x, with a leading sample axis."""
        return self.data[0]

    @property
    def targets(self) -> Float[Array, " samples"] | Float[Array, "samples outputs"]:
        """y, of shape (n,) or (n, q)."""
        return self.data[1]

    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """1/2 |predict(params, x) - y|^2."""
        x, y = sample
        return jnp.sum((self.predict(params, x) - y) ** 2) / 2

    def predictions(self, params: PyTree) -> Float[Array, " samples"] | Float[Array, "samples outputs"]:
        """predict(params, x_i) for every sample."""
        self._check_shapes(params)
        return chunks.map_samples(lambda x: self.predict(params, x), self.inputs, self.chunk(params))

    def rows(self, params: PyTree, x: PyTree) -> PyTree:
        """The Jacobian of one prediction: a vector like params for every output, stacked on a leading axis."""
        output, pull = jax.vjp(lambda p: self.predict(p, x), params)
        basis = jnp.eye(max(1, output.size), dtype=output.dtype).reshape(-1, *output.shape)
        return jax.vmap(lambda c: pull(c)[0])(basis)

    def residuals(self, params: PyTree) -> Float[Array, " samples"] | Float[Array, "samples outputs"]:
        """predict(params, x_i) - y_i for every sample."""
        return self.predictions(params) - self.targets

    def _check_shapes(self, params: PyTree) -> None:
        validate.params_of_floats("Regression", params)
        x, y = _one_of(self.data)
        output = jax.eval_shape(self.predict, params, x)
        if getattr(output, "shape", None) != y.shape:
            raise ValueError(
                f"`Regression`: `predict(params, x)` returns shape {getattr(output, 'shape', None)} for one input, "
                f"the target of one sample has shape {y.shape}; make them equal."
            )


class Population(AbstractProblem):
    """A loss over a law of data: L(params) = E loss(params, sample), sample = draw(key), fresh at every step.

    Expectations are Monte Carlo and come back as `Estimate`s, with standard errors. They draw `samples` samples from
    `key`; without a key they use a fixed one, so that the same call gives the same number.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> population = ut.Population(lambda w, x: (w - x) ** 2, draw=lambda key: 3.0 + jax.random.normal(key))
    >>> estimate = population.loss(jnp.array(3.0), key=jax.random.key(1), samples=10_000)
    >>> bool(abs(estimate.value - 1) < 5 * estimate.standard_error)
    True
    """

    function: Callable[[PyTree, PyTree], Scalar]
    drawer: Callable[[Key[Array, ""]], PyTree]

    def __init__(self, loss: Callable[[PyTree, PyTree], Scalar], draw: Callable[[Key[Array, ""]], PyTree]):
        if not callable(loss) or not callable(draw):
            raise TypeError("`Population(loss, draw)`: give two functions, loss(params, sample) and draw(key).")
        self.function = loss
        self.drawer = draw

    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """loss(params, sample), as given."""
        return self.function(params, sample)

    def draw(self, key: KeyLike) -> PyTree:
        """Return one fresh sample."""
        return self.drawer(validate.as_key("Population.draw", key))

    def sample(self, key: KeyLike, count: int) -> Problem:
        """A finite `Problem` of `count` fresh samples."""
        count = validate.positive_integer("Population.sample", "count", count)
        key = validate.as_key("Population.sample", key)
        return Problem(self.function, jax.vmap(self.drawer)(jax.random.split(key, count)))

    def loss(self, params: PyTree, *, key: KeyLike | None = None, samples: int = 4096) -> Estimate:
        """E loss, with its standard error."""
        return Estimate.of(self._reference(key, samples).losses(params))

    def gradient(self, params: PyTree, *, key: KeyLike | None = None, samples: int = 4096) -> Estimate:
        """E grad loss, with a standard error for every coordinate, in bounded memory."""
        problem = self._reference(key, samples)
        mean = problem.gradient(params)
        second = problem.quadratic(params, lambda g: jax.tree.map(lambda x, m: (x - m) ** 2, g, mean))
        error = jax.tree.map(lambda x: jnp.sqrt(x / jnp.asarray(samples - 1, x.dtype)), second)
        return Estimate(mean, error, samples)

    def covariance(self, params: PyTree, *, key: KeyLike | None = None, samples: int = 4096) -> Any:
        """The covariance of one sample's gradient, estimated; `.trace_error` says how well."""
        from undertow.covariance import SampleCovariance  # the covariance of a problem is built on problems

        return SampleCovariance(self._reference(key, samples), params, samples / (samples - 1))

    def check(self, params: PyTree) -> None:
        """Refuses params that are not floats, and a loss that is not a finite scalar on 32 samples."""
        validate.params_of_floats("Population", params)
        sample = jax.eval_shape(self.drawer, jax.random.key(0))
        _refuse_vector("Population", jax.eval_shape(self.function, params, sample))
        if all(validate.concrete(leaf) for leaf in jax.tree.leaves(params)):
            _refuse_infinite("Population", _loss_of(self._reference(None, 32), params))

    def _reference(self, key: KeyLike | None, samples: int) -> Problem:
        samples = validate.positive_integer("Population", "samples", samples)
        if samples < 2:
            raise ValueError("`Population(samples=1)`: a standard error needs at least 2 samples.")
        return self.sample(0 if key is None else key, samples)
