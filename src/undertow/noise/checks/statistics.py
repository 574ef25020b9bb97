"""Statistics of draws: their mean against the gradient, their variance against the covariance, their independence."""

from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.covariance import AbstractCovariance, EstimatedCovariance, SampleCovariance, Sum
from undertow.noise.base import AbstractNoise
from undertow.noise.checks.algebra import LARGEST_TRACE, size_along
from undertow.noise.checks.scores import Cumulants, autocorrelation_scores, cumulants_of_mean, scores
from undertow.problem import Population, Problem

__all__ = ["Projections", "Statistic", "directions", "mean_gradient", "project", "statistics"]

PROBES = 16
"""The number of random directions on all params, and the most leaves that have a direction of their own."""

LARGEST_CHUNK = 256
"""The most draws that are computed together."""


class Statistic(NamedTuple):
    """One comparison of the draws with a prediction: an entry of each array per direction."""

    name: str
    value: np.ndarray
    expected: np.ndarray
    z: np.ndarray
    advice: str
    """What to do if a |z| is too large."""
    required: bool = True
    """Whether the protocol requires that the values agree."""


class Projections(NamedTuple):
    """Numbers computed from the centred draws c = g - m, with one row per draw."""

    along: np.ndarray
    """v'c for every direction v."""
    square: np.ndarray
    """|c|^2."""
    signed: np.ndarray
    """c'D c for the diagonal matrix D of random signs."""
    mean: tuple[float, float]
    """The last two fields for the mean of c over all draws."""
    blocks: int
    """The number of blocks, each from a key of its own."""


@eqx.filter_jit
def directions(key: Key[Array, ""], params: PyTree) -> PyTree:
    """Return random unit vectors on a leading axis: on all params, and on single leaves where there are several."""
    leaves, structure = jax.tree.flatten(params)
    size = trees.count(params)
    dense = min(PROBES, size * (size + 1) // 2)
    picked = np.unique(np.linspace(0, len(leaves) - 1, PROBES).astype(int)) if len(leaves) > 1 else np.zeros(0, int)
    keys = jax.random.split(key, dense + len(picked))
    drawn = jax.tree.leaves(jax.vmap(lambda k: trees.standard_normal(k, params))(keys))
    for index, leaf in enumerate(drawn):
        kept = np.concatenate([np.ones(dense), picked == index]).reshape(-1, *[1] * (leaf.ndim - 1))
        drawn[index] = leaf * jnp.asarray(kept, leaf.dtype)
    unit = lambda v: trees.scale(1 / jnp.sqrt(trees.dot(v, v)), v)
    return jax.vmap(unit)(jax.tree.unflatten(structure, drawn))


def mean_gradient(
    noise: AbstractNoise, params: PyTree, key: Key[Array, ""], draws: int
) -> tuple[PyTree, Problem | None]:
    """Return the mean that the draws should have, and the sampled problem behind it for a `Population`."""
    if not isinstance(noise.problem, Population):
        return eqx.filter_jit(lambda n, p: n.mean(p))(noise, params), None
    sampled = noise.problem.reference(key, draws)
    return eqx.filter_jit(lambda problem, p: problem.gradient(p))(sampled, params), sampled


def project(
    noise: AbstractNoise, params: PyTree, mean: PyTree, vectors: PyTree, signs: PyTree, key: Key[Array, ""], draws: int
) -> Projections:
    """Return the projections of at least `draws` draws, in blocks with bounded memory."""
    most = min(LARGEST_CHUNK, chunks.chunk_length(8 * trees.floats_bytes(params)), -(-draws // 2))
    blocks = -(-draws // most)
    chunk = -(-draws // blocks)
    keys = jax.random.split(key, blocks)
    along, square, signed, total = _project(noise, params, mean, vectors, signs, keys, chunk)
    count = blocks * chunk
    average = trees.scale(1 / count, total)
    of_mean = (trees.dot(average, average), trees.dot(average, jax.tree.map(jnp.multiply, signs, average)))
    wide = lambda x: np.asarray(x, np.float64).reshape(count, *x.shape[2:])
    return Projections(wide(along), wide(square), wide(signed), (float(of_mean[0]), float(of_mean[1])), blocks)


@eqx.filter_jit
def _project(
    noise: AbstractNoise, params: PyTree, mean: PyTree, vectors: PyTree, signs: PyTree, keys: Array, chunk: int
) -> tuple[Array, Array, Array, PyTree]:
    def one(slice: PyTree) -> tuple[PyTree, tuple[Array, Array, Array]]:
        c = trees.subtract(noise.gradient(params, slice), mean)
        along = jax.vmap(lambda v: trees.dot(v, c))(vectors)
        return c, (along, trees.dot(c, c), trees.dot(c, jax.tree.map(jnp.multiply, signs, c)))

    def block(total: PyTree, key: Array) -> tuple[PyTree, tuple[Array, Array, Array]]:
        centred, numbers = jax.vmap(one)(noise.randomness(key, chunk, params))
        return jax.tree.map(lambda t, c: t + jnp.sum(c, axis=0), total, centred), numbers

    total, numbers = jax.lax.scan(block, trees.zeros_like(params), keys)
    return *numbers, total


def statistics(
    noise: AbstractNoise,
    params: PyTree,
    sigma: AbstractCovariance,
    mean: PyTree,
    sampled: Problem | None,
    key: Key[Array, ""],
    draws: int,
) -> list[Statistic]:
    """Return the comparisons of the draws at params with the `mean_gradient` and with the covariance `sigma`."""
    keys = jax.random.split(key, 3)
    vectors = directions(keys[0], params)
    signs = jax.tree.map(jnp.sign, trees.standard_normal(keys[1], params))
    drawn = project(noise, params, mean, vectors, signs, keys[2], draws)
    sizes, along = (np.asarray(x, np.float64) for x in _mean_along(vectors, mean))
    eps = trees.machine_epsilon(params)
    result = [_mean_statistic(noise, params, drawn, vectors, along, eps * sizes, sampled)]
    if sampled is None and type(noise).mean is not AbstractNoise.mean:
        result += _gradient_statistic(noise, params, drawn, vectors, along, eps * sizes)
    result.append(_independence(drawn, eps * sizes))
    result.append(_variances(drawn, sigma, vectors, eps * sizes**2, sampled is not None))
    if trees.count(params) <= LARGEST_TRACE:
        result += _traces(drawn, sigma, signs, eps * float(trees.dot(mean, mean)), sampled is not None)
    return result


@eqx.filter_jit
def _mean_along(vectors: PyTree, mean: PyTree) -> tuple[Array, Array]:
    sizes = jax.vmap(lambda v: size_along(v, mean))(vectors)
    return sizes, jax.vmap(lambda v: trees.dot(v, mean))(vectors)


def _mean_statistic(
    noise: AbstractNoise,
    params: PyTree,
    drawn: Projections,
    vectors: PyTree,
    along: np.ndarray,
    error: np.ndarray,
    sampled: Problem | None,
) -> Statistic:
    """Return the mean of the draws against `mean(params)`, whose values are `along`, with the rounding error."""
    reference = Cumulants.exact()
    if sampled is not None:
        values = eqx.filter_jit(lambda p, x, v: jax.lax.map(lambda u: p.along(x, u), v))(sampled, params, vectors)
        reference = cumulants_of_mean(np.asarray(values, np.float64).T)
    elif noise.mean_samples is not None:
        reference = cumulants_of_mean(drawn.along, noise.mean_samples)
    z = scores(drawn.along, np.zeros_like(along), reference, rounding=16 * error)
    advice = (
        "the mean of the draws is not `mean(params)`, which is the gradient of `problem` unless it is overridden; "
        "usual causes are a missing factor in `gradient` and another `problem` than the one that is trained"
    )
    return Statistic("mean of the draws: mean(params)", along + drawn.along.mean(axis=0), along, z, advice)


def _gradient_statistic(
    noise: AbstractNoise, params: PyTree, drawn: Projections, vectors: PyTree, along: np.ndarray, error: np.ndarray
) -> list[Statistic]:
    """Return the mean of the draws against the gradient of the problem, where `mean` is another vector."""
    gradient = eqx.filter_jit(lambda n, p: n.problem.gradient(p))(noise, params)
    expected = np.asarray(_mean_along(vectors, gradient)[1], np.float64)
    if np.all(np.abs(expected - along) <= 16 * error):
        return []
    z = scores(drawn.along, expected - along, Cumulants.exact(), rounding=16 * error)
    name, value = "mean of the draws: problem.gradient", along + drawn.along.mean(axis=0)
    advice = "`mean` is overridden, and `Limit` uses the loss of `problem`"
    return [Statistic(name, value, expected, z, advice, required=False)]


def _independence(drawn: Projections, error: np.ndarray) -> Statistic:
    """Return the correlation of consecutive draws; its z-score is infinite where all blocks have the same draws."""
    z = autocorrelation_scores(drawn.along, error)
    spread = drawn.along.std(axis=0)
    blocks = drawn.along.reshape(drawn.blocks, -1, drawn.along.shape[1])
    repeated = np.all(blocks == blocks[:1], axis=(0, 1)) & (spread > 16 * error)
    centred = drawn.along - drawn.along.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(spread > 0, (centred[1:] * centred[:-1]).mean(axis=0) / spread**2, 0.0)
    advice = (
        "the draws depend on each other; `randomness` must use the key that it is given, and a new key or new numbers "
        "for every slice"
    )
    value, z = np.where(repeated, 1.0, value), np.where(repeated, np.inf, z)
    return Statistic("consecutive draws: correlation", value, np.zeros_like(value), z, advice)


def _variances(
    drawn: Projections, sigma: AbstractCovariance, vectors: PyTree, floor: np.ndarray, sampled: bool
) -> Statistic:
    expected = np.asarray(_quadratic(sigma, vectors), np.float64)
    count = len(drawn.along)
    values = (drawn.along - drawn.along.mean(axis=0)) ** 2 * count / (count - 1)
    reference = _reference(sigma, _Squares(vectors), values, sampled)
    # the variance of squares of Gaussians is a lower bound: squares of bounded draws may be constant
    z = scores(values, expected, reference, 2 * expected**2 / count, 16 * floor)
    ratio = values.mean(axis=0).sum() / max(expected.sum(), 1e-300)
    advice = (
        f"the variance of the draws is {ratio:.3g} times that of `covariance(params)`, summed over the directions; a "
        "factor such as a forgotten 1/batch_size is a usual cause"
    )
    return Statistic("variance of the draws: v'mv(v)", values.mean(axis=0), expected, z, advice)


@eqx.filter_jit
def _quadratic(sigma: AbstractCovariance, vectors: PyTree) -> Float[Array, " directions"]:
    return jax.lax.map(lambda v: trees.dot(v, sigma.mv(v)), vectors)


def _traces(
    drawn: Projections, sigma: AbstractCovariance, signs: PyTree, floor: float, sampled: bool
) -> list[Statistic]:
    """Return Tr Sigma and Tr[Sigma D] against the draws, D a diagonal matrix of random signs."""
    result = []
    ones = jax.tree.map(jnp.ones_like, signs)
    for name, values, of_mean, diagonal in (
        ("|draw - mean|^2: trace()", drawn.square, drawn.mean[0], ones),
        ("(draw - mean)'D(draw - mean): trace(D)", drawn.signed, drawn.mean[1], signs),
    ):
        count = len(values)
        form = _Diagonal(diagonal)
        expected = np.asarray(_trace(sigma, None if diagonal is ones else form), np.float64).reshape(1)
        values = (values - of_mean)[:, None] * count / (count - 1)
        # Gaussian draws have 2 Tr[(Sigma D)^2], which is at least 2 Tr[Sigma D]^2 / size
        least = 2 * expected**2 / trees.count(signs) / count
        z = scores(values, expected, _reference(sigma, form, values, sampled), least, 16 * floor)
        advice = "`trace` does not agree with the draws; where v'mv(v) does, the method `trace` is wrong"
        result.append(Statistic(name, values.mean(axis=0), expected, z, advice))
    return result


@eqx.filter_jit
def _trace(sigma: AbstractCovariance, form: "_Diagonal | None") -> Array:
    return sigma.trace(None if form is None else form.matrix)


class _Squares(eqx.Module):
    """The squares (v'x)^2 along all directions v, as a function of x."""

    vectors: PyTree

    def __call__(self, x: PyTree) -> Array:
        return jax.vmap(lambda v: trees.dot(v, x) ** 2)(self.vectors)


class _Diagonal(eqx.Module):
    """The quadratic form x'D x of a diagonal matrix D, as one number on an axis."""

    diagonal: PyTree

    def matrix(self, x: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, self.diagonal, x)

    def __call__(self, x: PyTree) -> Array:
        return trees.dot(x, self.matrix(x)).reshape(1)


Form = Callable[[PyTree], Array]


@singledispatch
def _reference(sigma: AbstractCovariance, form: Form, values: np.ndarray, sampled: bool) -> Cumulants:
    """Return the cumulants of `sigma.moment(form)`; they are not zero for a covariance that is itself an estimate.

    `values` are the form at the centred draws. `sampled` states that the samples of a `SampleCovariance` are drawn from
    a population.
    """
    return Cumulants.exact()


@_reference.register
def _(sigma: EstimatedCovariance, form: Form, values: np.ndarray, sampled: bool) -> Cumulants:
    """Return the cumulants from the draws behind `sigma` or from the draws that are checked, whichever vary more."""
    terms = eqx.filter_jit(lambda s, f: s.terms(f))(sigma, form)
    own = cumulants_of_mean(np.asarray(terms, np.float64) * sigma.samples)
    law = cumulants_of_mean(values, sigma.samples)
    larger = law.variance > own.variance
    return Cumulants(np.where(larger, law.variance, own.variance), np.where(larger, law.third, own.third))


@_reference.register
def _(sigma: SampleCovariance, form: Form, values: np.ndarray, sampled: bool) -> Cumulants:
    if not sampled:
        return Cumulants.exact()
    return cumulants_of_mean(np.asarray(_sample_terms(sigma, form), np.float64))


@_reference.register
def _(sigma: Sum, form: Form, values: np.ndarray, sampled: bool) -> Cumulants:
    total = Cumulants.exact()
    for part in sigma.parts:
        total = total.plus(_reference(part, form, values, sampled))
    return total


@eqx.filter_jit
def _sample_terms(sigma: SampleCovariance, form: Form) -> Array:
    """Return the terms whose mean is `sigma.moment(form)`, one for each sample."""
    problem, params = sigma.problem, sigma.params
    mean = problem.gradient(params)
    one = lambda sample: sigma.amount * form(trees.subtract(problem.sample_gradient(params, sample), mean))
    return chunks.map_samples(one, problem.data, problem.chunk(params))
