"""The problem that is trained: a loss and its data.

`Problem` is any loss with samples, `Regression` a least-squares loss (for which the manifold of minimisers has a
closed-form geometry), `Population` a loss with fresh data at every step.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree
from numpy.typing import ArrayLike

from undertow import _calls as calls
from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow import _validate as validate
from undertow._arrays import check_indices, data_arrays, probabilities, real_vector, regression_arrays, sample_axis
from undertow._validate import KeyLike
from undertow.estimate import Estimate

__all__ = ["AbstractProblem", "AbstractSampled", "Population", "Problem", "Regression", "batch_gradient"]

Scalar = Float[Array, ""]


class AbstractProblem(eqx.Module):
    """A loss L(params) with a gradient: enough for a noise that has its own randomness.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> class Wells(ut.AbstractProblem):
    ...     def loss(self, params):
    ...         return jnp.sum((params**2 - 1) ** 2)
    ...     def gradient(self, params):
    ...         return jax.grad(self.loss)(params)
    >>> print(ut.Isotropic(Wells(), scale=0.1).mean(jnp.array([1.0, 2.0])))
    [ 0. 24.]
    """

    @abstractmethod
    def loss(self, params: PyTree) -> Scalar:
        """Return L(params)."""

    @abstractmethod
    def gradient(self, params: PyTree) -> PyTree:
        """Return grad L(params), shaped like params."""

    def check(self, params: PyTree) -> None:
        """Raise for params that are not floats, and for a loss that is not a finite scalar at them."""
        validate.params_of_floats(type(self).__name__, params)


class AbstractSampled(AbstractProblem):
    """L(params) = sum_i p_i l(params, sample_i) over a finite set of samples; p_i = 1/n unless reweighted.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.problem import AbstractSampled
    >>> class Robust(AbstractSampled):
    ...     data: jax.Array
    ...     weights: jax.Array | None = None
    ...     def sample_loss(self, params, sample):
    ...         return jnp.sqrt(1 + (params - sample) ** 2)
    >>> print(ut.Minibatch(Robust(jnp.array([0.0, 2.0])), batch_size=1).covariance(jnp.array(1.0)).trace().round(3))
    0.5
    """

    data: eqx.AbstractVar[PyTree]
    weights: eqx.AbstractVar[Float[Array, " samples"] | None]

    @abstractmethod
    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """Return l(params, sample), the loss of one sample."""

    @property
    def size(self) -> int:
        """The number of samples n."""
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def probabilities(self) -> Float[Array, " samples"]:
        """The weights p of the samples in the loss; they sum to 1."""
        return jnp.full((self.size,), 1 / self.size) if self.weights is None else self.weights

    def reweight(self, weights: ArrayLike) -> "AbstractSampled":
        """Return the same problem with the loss sum_i weights_i l_i.

        The weights are probabilities, one for each sample: finite, at least 0, with the sum 1. They replace those of an
        earlier call. `Minibatch` and `LabelNoise` draw the samples with these probabilities.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> problem = ut.Problem(lambda w, x: (w - x) ** 2, jnp.array([0.0, 2.0]))
        >>> print(problem.reweight(jnp.array([0.75, 0.25])).loss(jnp.array(0.0)))
        1.0
        """
        weights = probabilities(f"{type(self).__name__}.reweight", "weights", weights, self.size)
        return eqx.tree_at(lambda p: p.weights, self, weights, is_leaf=lambda leaf: leaf is None)

    def chunk(self, params: PyTree) -> int:
        """Return the number of samples whose per-sample gradients fit into `chunks.BUDGET_BYTES`."""
        per_sample = trees.floats_bytes(params) + trees.floats_bytes(self.data) // self.size
        return chunks.chunk_length(per_sample)

    def losses(self, params: PyTree) -> Float[Array, " samples"]:
        """Return l(params, sample_i) for every sample."""
        self._check_shapes(params)
        return chunks.map_samples(lambda s: self.sample_loss(params, s), self.data, self.chunk(params))

    @eqx.filter_jit
    def loss(self, params: PyTree) -> Scalar:
        """Return L(params), the (weighted) mean over all samples."""
        losses = self.losses(params)
        return jnp.mean(losses) if self.weights is None else jnp.vdot(self.weights.astype(losses.dtype), losses)

    def sample_gradient(self, params: PyTree, sample: PyTree) -> PyTree:
        """Return grad l(params, sample), shaped like params."""
        return jax.grad(self.sample_loss)(params, sample)

    def sample_gradients(self, params: PyTree) -> PyTree:
        """Return the gradient of every sample on a leading axis; this takes n times the memory of params."""
        self._check_shapes(params)
        return chunks.map_samples(lambda s: self.sample_gradient(params, s), self.data, self.chunk(params))

    def combine(self, params: PyTree, coefficients: Float[Array, " samples"]) -> PyTree:
        """Return sum_i coefficients_i grad l_i, in bounded memory and without per-sample gradients."""
        self._check_shapes(params)
        if validate.concrete(coefficients):
            real_vector(f"{type(self).__name__}.combine", "coefficients", coefficients, self.size)

        def block(rows: tuple[PyTree, Array]) -> PyTree:
            data, weights = rows

            def weighted(p: PyTree) -> Scalar:
                losses = jax.vmap(lambda s: self.sample_loss(p, s))(data)
                return jnp.vdot(weights.astype(losses.dtype), losses)

            return jax.grad(weighted)(params)

        return chunks.sum_samples(block, (self.data, coefficients), self.chunk(params))

    def along(self, params: PyTree, direction: PyTree) -> Float[Array, " samples"]:
        """Return <grad l_i, direction> for every sample, by forward differentiation."""
        self._check_shapes(params)
        trees.check_alike(direction, params, f"{type(self).__name__}.along(direction=...)")

        def one(sample: PyTree) -> Scalar:
            return jax.jvp(lambda p: self.sample_loss(p, sample), (params,), (direction,))[1]

        return chunks.map_samples(one, self.data, self.chunk(params))

    def quadratic(self, params: PyTree, form: Callable[[PyTree], PyTree]) -> PyTree:
        """Return sum_i p_i form(grad l_i), for a scalar (or array) function of one gradient, in bounded memory."""
        calls.check_function(f"{type(self).__name__}.quadratic", "form(gradient)", form)
        self._check_shapes(params)

        def block(rows: tuple[PyTree, Array]) -> PyTree:
            data, weights = rows
            values = jax.vmap(lambda s: form(self.sample_gradient(params, s)))(data)
            return trees.weigh(weights, values)

        return chunks.sum_samples(block, (self.data, self.probabilities), self.chunk(params))

    @eqx.filter_jit
    def gradient(self, params: PyTree) -> PyTree:
        """Return grad L(params), shaped like params."""
        return self.combine(params, self.probabilities)

    def batch_gradient(self, params: PyTree, indices: Int[Array, ""] | Int[Array, " batch"]) -> PyTree:
        """Return the mean gradient over the samples at `indices`; a single index has no batch axis."""
        if validate.concrete(indices):
            check_indices(f"{type(self).__name__}.batch_gradient", indices, self.size)
        return batch_gradient(self.sample_loss, params, trees.take(self.data, indices), single=np.ndim(indices) == 0)

    def check(self, params: PyTree) -> None:
        """Raise for params that are not floats, and for a loss that is random or not a finite scalar at them."""
        self._check_shapes(params)
        if all(validate.concrete(leaf) for leaf in jax.tree.leaves((params, self.data))):
            name, (called, function, shapes) = type(self).__name__, self._user_function()
            calls.check_repeats(name, called, function, params, shapes)
            calls.check_finite(name, self.loss(params))

    def _check_shapes(self, params: PyTree) -> None:
        name, (called, function, shapes) = type(self).__name__, self._user_function()
        validate.params_of_floats(name, params)
        calls.check_scalar(name, calls.output_of(name, called, function, params, shapes))

    def _user_function(self) -> tuple[str, Callable, PyTree]:
        """Return how the user's function is called, the function, and the shapes of its second argument."""
        return "loss(params, sample)", self.sample_loss, trees.one_of(self.data)


def batch_gradient(loss: Callable[[PyTree, PyTree], Scalar], params: PyTree, batch: PyTree, *, single: bool) -> PyTree:
    """Return the gradient of the mean loss over a batch; `single`: the batch is one sample without a batch axis."""
    if single:
        return jax.grad(loss)(params, batch)
    return jax.grad(lambda p: jnp.mean(jax.vmap(lambda s: loss(p, s))(batch)))(params)


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

    @calls.checked_call("Problem")
    def __init__(self, loss: Callable[[PyTree, PyTree], Scalar], data: PyTree):
        calls.check_function("Problem", "loss(params, sample)", loss)
        self.function = loss
        self.data = data_arrays("Problem", "data", data)
        sample_axis("Problem", data=self.data)
        self.weights = None

    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """Return loss(params, sample), as given."""
        return self.function(params, sample)

    def _user_function(self) -> tuple[str, Callable, PyTree]:
        return "loss(params, sample)", self.function, trees.one_of(self.data)


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

    @calls.checked_call("Regression")
    def __init__(self, predict: Callable[[PyTree, PyTree], Array], inputs: PyTree, targets: Array | np.ndarray):
        calls.check_function("Regression", "predict(params, x)", predict)
        self.predict = predict
        self.data = regression_arrays("Regression", inputs, targets)
        self.weights = None

    @property
    def inputs(self) -> PyTree:
        """The inputs x, with a leading sample axis."""
        return self.data[0]

    @property
    def targets(self) -> Float[Array, " samples"] | Float[Array, "samples outputs"]:
        """The targets y, of shape (n,) or (n, q)."""
        return self.data[1]

    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """Return 1/2 |predict(params, x) - y|^2."""
        x, y = sample
        return jnp.sum((self.predict(params, x) - y) ** 2) / 2

    def predictions(self, params: PyTree) -> Float[Array, " samples"] | Float[Array, "samples outputs"]:
        """Return predict(params, x_i) for every sample."""
        self._check_shapes(params)
        return chunks.map_samples(lambda x: self.predict(params, x), self.inputs, self.chunk(params))

    def rows(self, params: PyTree, x: PyTree) -> PyTree:
        """Return the Jacobian of one prediction: a vector like params per output, stacked on a leading axis."""
        output, pull = jax.vjp(lambda p: self.predict(p, x), params)
        basis = jnp.eye(max(1, output.size), dtype=output.dtype).reshape(-1, *output.shape)
        return jax.vmap(lambda c: pull(c)[0])(basis)

    def residuals(self, params: PyTree) -> Float[Array, " samples"] | Float[Array, "samples outputs"]:
        """Return predict(params, x_i) - y_i for every sample."""
        return self.predictions(params) - self.targets

    def _check_shapes(self, params: PyTree) -> None:
        validate.params_of_floats("Regression", params)
        output = calls.output_of("Regression", "predict(params, x)", self.predict, params, trees.one_of(self.inputs))
        calls.check_prediction(output, self.targets.shape[1:])

    def _user_function(self) -> tuple[str, Callable, PyTree]:
        return "predict(params, x)", self.predict, trees.one_of(self.inputs)


class Population(AbstractProblem):
    """A loss over a distribution of data: L(params) = E loss(params, sample), with fresh samples at every step.

    `draw(key)` returns one sample, a pytree of arrays. The loss and its gradient are not known exactly: `estimate_loss`
    and `estimate_gradient` give Monte Carlo estimates with standard errors, from `samples` samples drawn with `key`,
    or with a fixed key if it is None. `sample` gives a finite `Problem`.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> population = ut.Population(lambda w, x: (w - x) ** 2, draw=lambda key: 3.0 + jax.random.normal(key))
    >>> estimate = population.estimate_loss(jnp.array(3.0), key=1, samples=10_000)
    >>> bool(abs(estimate.value - 1) < 5 * estimate.standard_error)
    True
    """

    function: Callable[[PyTree, PyTree], Scalar]
    drawer: Callable[[Key[Array, ""]], PyTree]

    @calls.checked_call("Population")
    def __init__(self, loss: Callable[[PyTree, PyTree], Scalar], draw: Callable[[Key[Array, ""]], PyTree]):
        calls.check_function("Population", "loss(params, sample)", loss)
        calls.check_function("Population", "draw(key)", draw)
        self.function = loss
        self.drawer = draw

    def sample_loss(self, params: PyTree, sample: PyTree) -> Scalar:
        """Return loss(params, sample), as given."""
        return self.function(params, sample)

    def draw(self, key: KeyLike) -> PyTree:
        """Return one fresh sample."""
        return self.drawer(validate.as_key("Population.draw", key))

    def sample(self, key: KeyLike, count: int) -> Problem:
        """Return a finite `Problem` of `count` fresh samples."""
        count = validate.positive_integer("Population.sample", "count", count)
        return Problem(self.function, self._draws(validate.as_key("Population.sample", key), count))

    @eqx.filter_jit
    def _draws(self, key: Key[Array, ""], count: int) -> PyTree:
        return jax.vmap(self.drawer)(jax.random.split(key, count))

    def reference(
        self, key: KeyLike | None = None, samples: int = 4096, *, function: str = "Population.reference"
    ) -> Problem:
        """Return the finite problem from which estimates are computed; `key=None` stands for a fixed key.

        A standard error needs two samples. `function` is the function that error messages quote.
        """
        samples = validate.positive_integer(function, "samples", samples, least=2)
        return self.sample(validate.as_key(function, 0 if key is None else key), samples)

    def estimate_loss(self, params: PyTree, *, key: KeyLike | None = None, samples: int = 4096) -> Estimate:
        """Return an estimate of E loss with its standard error."""
        validate.params_of_floats("Population.estimate_loss", params)
        return Estimate.of(self.reference(key, samples, function="Population.estimate_loss").losses(params))

    def estimate_gradient(self, params: PyTree, *, key: KeyLike | None = None, samples: int = 4096) -> Estimate:
        """Return an estimate of E grad loss with a standard error for every coordinate, in bounded memory."""
        validate.params_of_floats("Population.estimate_gradient", params)
        problem = self.reference(key, samples, function="Population.estimate_gradient")
        mean = problem.gradient(params)
        second = problem.quadratic(params, lambda g: jax.tree.map(lambda x, m: (x - m) ** 2, g, mean))
        error = jax.tree.map(lambda x: jnp.sqrt(x / jnp.asarray(samples - 1, x.dtype)), second)
        return Estimate(mean, error, samples)

    def loss(self, params: PyTree, **_: object) -> NoReturn:
        """Raise: the loss is an expectation. See `estimate_loss`."""
        raise TypeError(_unknown("loss", "estimate_loss(params, key=..., samples=...)"))

    def gradient(self, params: PyTree, **_: object) -> NoReturn:
        """Raise: the gradient is an expectation. See `estimate_gradient`."""
        raise TypeError(_unknown("gradient", "estimate_gradient(params, key=..., samples=...)"))

    def covariance(self, params: PyTree, **_: object) -> NoReturn:
        """Raise: a covariance belongs to a noise. See `Minibatch.covariance`."""
        raise TypeError(
            "`Population.covariance`: a covariance belongs to a noise; write "
            "`Minibatch(population, 1).covariance(params, key=..., samples=...)`."
        )

    def check(self, params: PyTree) -> None:
        """Raise for params that are not floats, and for a loss that is not a finite scalar on 32 samples."""
        validate.params_of_floats("Population", params)
        name, called, key = "Population", "loss(params, sample)", jax.random.key(0)
        sample = calls.output_of(name, "draw(key)", self.drawer, key)
        if not jax.tree.leaves(sample):
            raise TypeError("`Population`: `draw(key)` returns None; return one sample, a pytree of arrays.")
        calls.check_scalar(name, calls.output_of(name, called, self.function, params, sample))
        if all(validate.concrete(leaf) for leaf in jax.tree.leaves(params)):
            calls.check_repeats(name, "draw(key)", self.drawer, key)
            calls.check_repeats(name, called, self.function, params, sample)
            calls.check_finite("Population", self.reference(None, 32).loss(params))


def _unknown(name: str, instead: str) -> str:
    return (
        f"`Population.{name}`: the {name} of a `Population` is only known by Monte Carlo; `population.{instead}` "
        "estimates it, and `population.sample(key, count)` fixes a data set."
    )
