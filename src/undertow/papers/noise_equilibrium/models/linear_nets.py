"""Linear networks on Gaussian data (noise_equilibrium, section 5): two layers, many layers, and a rank-one product.

The losses are |.|^2 without 1/2. The parameters of two layers are {"U": (outputs, hidden), "W": (hidden, inputs)},
those of a deep network (W_1, ..., W_D).
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from undertow import _validate as validate
from undertow._validate import Number
from undertow.problem import Population, Problem

__all__ = [
    "GaussianPairs",
    "balance",
    "condensed",
    "cosine",
    "deep_loss",
    "deep_start",
    "fan_in",
    "hessian_trace",
    "kaiming",
    "loud_first",
    "rank_one_loss",
    "split_variance",
    "squared_norms",
    "two_layer_loss",
    "xavier",
]

Loss = Callable[[PyTree, PyTree], Array]


def two_layer_loss(params: dict[str, Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
    """Return |UWx - y|^2."""
    x, y = sample
    return jnp.sum((params["U"] @ (params["W"] @ x) - y) ** 2)


def deep_loss(params: Sequence[Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
    """Return |W_D ... W_1 x - y|^2."""
    x, y = sample
    return jnp.sum((functools.reduce(lambda hidden, layer: layer @ hidden, params, x) - y) ** 2)


def rank_one_loss(params: dict[str, Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
    """Return (u.w x - y)^2 for vectors u and w of the same length; x and y are scalars or arrays of one entry."""
    x, y = sample
    return jnp.sum((jnp.dot(params["u"], params["w"]) * x - y) ** 2)


class GaussianPairs(eqx.Module):
    """Gaussian data: x ~ N(0, diag(input_variance)), y = x + eps, eps ~ N(0, diag(noise_variance)) independent of x.

    An instance is the `draw` of a `Population`. One coordinate and `rank_one_loss` give a rank-one factorisation.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, split_variance
    >>> from undertow.papers.noise_equilibrium.models.linear_nets import two_layer_loss, xavier
    >>> law = GaussianPairs(split_variance(4, 0.25), jnp.ones(4))
    >>> params = xavier(jax.random.key(0), inputs=4, hidden=6)
    >>> estimate = law.population(two_layer_loss).estimate_loss(params)
    >>> exact = law.mean_problem(two_layer_loss).loss(params)
    >>> print(law.input_variance, bool(abs(estimate.value - exact) < 5 * estimate.standard_error))
    [0.25 0.25 1.75 1.75] True
    """

    input_variance: Float[Array, " d"]
    noise_variance: Float[Array, " d"]

    def __call__(self, key: Key[Array, ""]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return one sample (x, y)."""
        normals = jax.random.normal(key, (2, *self.input_variance.shape), self.input_variance.dtype)
        x = jnp.sqrt(self.input_variance) * normals[0]
        return x, x + jnp.sqrt(self.noise_variance) * normals[1]

    def population(self, loss: Loss) -> Population:
        """Return the population problem, with fresh data at every step."""
        return Population(loss, self)

    def mean_problem(self, loss: Loss) -> Problem:
        """Return a finite problem whose loss is exactly the expected loss of a linear network, for gradient descent."""
        inputs, noise = jnp.diag(self.input_variance), jnp.diag(self.noise_variance)
        return _of_moment(loss, jnp.block([[inputs, inputs], [inputs, inputs + noise]]), inputs.shape[0])

    @eqx.filter_jit
    def gammas(self, product: Float[Array, "d d"]) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
        """Return Gamma_W = E[|r|^2 xx'] and Gamma_U = E[|x|^2 rr'], r = product x - y, by Gaussian fourth moments."""
        inputs, noise = jnp.diag(self.input_variance), jnp.diag(self.noise_variance)
        away = product - jnp.eye(product.shape[0], dtype=product.dtype)
        missed = away @ inputs @ away.T
        of_inputs = (jnp.trace(missed) + jnp.trace(noise)) * inputs + 2 * inputs @ away.T @ away @ inputs
        of_residuals = jnp.trace(inputs) * (missed + noise) + 2 * away @ inputs @ inputs @ away.T
        return of_inputs, of_residuals


def split_variance(d: int, phi: float, dtype: DTypeLike = jnp.float32) -> Float[Array, " d"]:
    """Return phi for the first half of the coordinates and 2 - phi for the others (Figure 8)."""
    d = validate.positive_integer("split_variance", "d", d)
    return jax.device_put(np.where(np.arange(d) < d // 2, phi, 2 - phi).astype(dtype))


def loud_first(d: int, variance: Number = 5.0, dtype: DTypeLike = jnp.float32) -> Float[Array, " d"]:
    """Return `variance` for the first coordinate and 1 for the others (Figure 6)."""
    return jnp.ones(validate.positive_integer("loud_first", "d", d), dtype).at[0].set(variance)


def condensed(problem: Problem) -> Problem:
    """Return a problem with few samples that has the second moments of (x, y) of `problem`.

    The loss of a linear network depends only on these moments, so gradient descent is the same and costs less.
    """
    x, y = problem.data
    both = jnp.concatenate([x, y], axis=1)
    return _of_moment(problem.function, both.T @ both / both.shape[0], x.shape[1])


def _of_moment(loss: Loss, moment: Float[Array, "m m"], inputs: int) -> Problem:
    """Return m samples of (x, y) with the given second moment: the rows of its square root."""
    return Problem(loss, _rows_of_root(moment, inputs))


@functools.partial(jax.jit, static_argnums=1)
def _rows_of_root(moment: Float[Array, "m m"], inputs: int) -> tuple[Float[Array, "m x"], Float[Array, "m y"]]:
    values, vectors = jnp.linalg.eigh(moment)
    rows = (jnp.sqrt(jnp.maximum(values, 0) * values.size))[:, None] * vectors.T
    return rows[:, :inputs], rows[:, inputs:]


@functools.partial(jax.jit, static_argnums=(1, 2, 5))
def _two_layers(
    key: Key[Array, ""], inputs: int, hidden: int, variance_out: ArrayLike, variance_in: ArrayLike, dtype: DTypeLike
) -> dict[str, Array]:
    out, into = jax.random.split(key)
    scale = lambda variance: jnp.sqrt(jnp.asarray(variance, dtype))
    return {
        "U": scale(variance_out) * jax.random.normal(out, (inputs, hidden), dtype),
        "W": scale(variance_in) * jax.random.normal(into, (hidden, inputs), dtype),
    }


def xavier(key: Key[Array, ""], *, inputs: int, hidden: int, dtype: DTypeLike = jnp.float32) -> dict[str, Array]:
    """Return two layers with variance 2/(inputs + hidden), with as many outputs as inputs."""
    return _two_layers(key, inputs, hidden, 2 / (inputs + hidden), 2 / (inputs + hidden), dtype)


def fan_in(key: Key[Array, ""], *, inputs: int, hidden: int, dtype: DTypeLike = jnp.float32) -> dict[str, Array]:
    """Return two layers with variance 1/fan-in, with as many outputs as inputs."""
    return _two_layers(key, inputs, hidden, 1 / hidden, 1 / inputs, dtype)


def kaiming(key: Key[Array, ""], *, inputs: int, hidden: int, dtype: DTypeLike = jnp.float32) -> dict[str, Array]:
    """Return the initialisation that Figure 4 calls Kaiming: variance 1 for U and 1/inputs for W."""
    return _two_layers(key, inputs, hidden, 1.0, 1 / inputs, dtype)


@eqx.filter_jit
def deep_start(
    key: Key[Array, ""], widths: Sequence[int], spread: float = 0.0, dtype: DTypeLike = jnp.float32
) -> tuple[Array, ...]:
    """Return parts of random orthogonal matrices times random factors exp(spread N), the product of which is 1.

    `widths` goes from the inputs to the outputs. Orthogonal layers pass every direction to the outputs; a product of
    many Gaussian matrices has singular values near zero, which grow slowly.
    """
    layers = [(max(into, out), out, into) for into, out in itertools.pairwise(widths)]
    # one draw for all layers, because every call of normal takes long to compile
    counts = [len(layers), *(size**2 for size, _, _ in layers)]
    normals = jax.random.normal(key, (sum(counts),), dtype)
    stretch, *squares = jnp.split(normals, list(itertools.accumulate(counts))[:-1])
    factors = jnp.exp(spread * (stretch - jnp.mean(stretch)))
    return tuple(
        factor * _rotation(square.reshape(size, size))[:out, :into]
        for factor, square, (size, out, into) in zip(factors, squares, layers, strict=True)
    )


def _rotation(normals: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return a uniformly random orthogonal matrix from a matrix of normals."""
    q, r = jnp.linalg.qr(normals)
    return q * jnp.sign(jnp.diag(r))[None]


def squared_norms(params: PyTree) -> Float[Array, " layers"]:
    """Return the squared Frobenius norm of every layer."""
    return jnp.stack([jnp.sum(layer**2) for layer in jax.tree.leaves(params)])


@eqx.filter_jit
def hessian_trace(params: dict[str, Array], input_variance: Float[Array, " inputs"]) -> Float[Array, ""]:
    """Return the exact trace of the Hessian of E|UWx - y|^2: 2 (outputs |W Sigma_x^1/2|^2 + |U|^2 Tr Sigma_x).

    The loss is quadratic in each layer, so labels and residuals do not enter. Proposition 5.3 prints half of it.
    """
    u, w = params["U"], params["W"]
    return 2 * (u.shape[0] * jnp.sum(w**2 @ input_variance) + jnp.sum(u**2) * jnp.sum(input_variance))


@eqx.filter_jit
def balance(params: dict[str, Array], problem: Problem) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    """Return W Gamma_W W' and U'Gamma_U U of the samples; Gamma_W = E[|r|^2 xx'], Gamma_U = E[|x|^2 rr'], r = UWx - y.

    They are equal at the noise equilibrium without weight decay (Theorem 5.2).
    """
    x, y = problem.data
    hidden = x @ params["W"].T
    r = hidden @ params["U"].T - y
    pulled = r @ params["U"]
    of_inputs = hidden.T @ (jnp.sum(r**2, axis=1)[:, None] * hidden) / x.shape[0]
    of_residuals = pulled.T @ (jnp.sum(x**2, axis=1)[:, None] * pulled) / x.shape[0]
    return of_inputs, of_residuals


def cosine(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the cosine of the angle between two arrays."""
    return jnp.sum(a * b) / jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2))
