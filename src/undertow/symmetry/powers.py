"""Noise along the generators of a symmetry: Tr[Sigma A] as the difference of a positive and a negative half.

Sigma is the covariance of one stochastic gradient, batch size included. Minibatch noise of a loss with dense layers is
computed with `taps`; any other noise with the `moment` of its covariance.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.covariance import AbstractCovariance, EstimatedCovariance, SampleCovariance, Sum
from undertow.noise.base import AbstractNoise
from undertow.problem import Population
from undertow.symmetry import selection, taps
from undertow.symmetry.generators import AbstractSymmetry, DoubleRotation, Pair, Rescaling, Scaling

__all__ = ["Powers", "entry_powers", "form_error", "mean_gradient", "powers", "route"]


class Powers(NamedTuple):
    """The noise along A > 0 and A < 0, in the shape of the charge, and the standard error of the difference."""

    plus: Array
    minus: Array
    error: Array
    """Zero where the noise is known exactly (a finite data set, an explicit covariance)."""


class _Recipe(NamedTuple):
    """The requests to the taps, and the function that combines their values to the two halves of the noise."""

    requests: list[taps.Request]
    combine: Callable[[list[Array]], Pair]


def powers(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry) -> Powers:
    """Return Tr[Sigma A] at params as its positive and negative half."""
    sampled = isinstance(noise.problem, Population)
    total: Powers | None = None
    for part in _parts(noise.covariance(params)):
        own = _powers_of(part, symmetry, params, sampled)
        total = own if total is None else Powers(*(a + b for a, b in zip(total, own, strict=True)))
    assert total is not None
    return total


def _parts(covariance: AbstractCovariance) -> tuple[AbstractCovariance, ...]:
    return covariance.parts if isinstance(covariance, Sum) else (covariance,)


def _powers_of(part: AbstractCovariance, symmetry: AbstractSymmetry, params: PyTree, sampled: bool) -> Powers:
    form = lambda g: symmetry.pair(g, g)
    recipe = _recipe(symmetry, params)
    if not isinstance(part, SampleCovariance):
        plus, minus = part.moment(form)
        estimated = isinstance(part, EstimatedCovariance)
        error = part.moment_error(lambda g: jnp.subtract(*form(g))) if estimated else jnp.zeros_like(plus)
        return Powers(plus, minus, error)
    if recipe is None:
        plus, minus = part.moment(form)
    else:
        means = taps.moments(part.problem, params, recipe.requests, recipe.combine)
        centre = form(means.gradient) if part.groups is None else part.between(form)
        plus, minus = (part.amount * (second - first) for second, first in zip(means.value, centre, strict=True))
    # per-sample gradients, because centred gradients are not outer products
    error = part.moment_error(lambda g: jnp.subtract(*form(g))) if sampled else jnp.zeros_like(plus)
    return Powers(plus, minus, error)


def entry_powers(noise: AbstractNoise, params: PyTree) -> PyTree:
    """Return the noise of every entry of params: the diagonal of Sigma, like params."""
    square = lambda g: jax.tree.map(jnp.square, g)
    structure = jax.tree.structure(params)
    total = trees.zeros_like(params)
    for part in _parts(noise.covariance(params)):
        if isinstance(part, SampleCovariance):
            requests = [taps.Entries(k) for k in range(structure.num_leaves)]
            means = taps.moments(part.problem, params, requests)
            centre = square(means.gradient) if part.groups is None else part.between(square)
            second = jax.tree.unflatten(structure, means.value)
            own = trees.scale(part.amount, trees.subtract(second, centre))
        else:
            own = part.moment(square)
        total = trees.add(total, own)
    return jax.tree.map(lambda x: jnp.maximum(x, 0), total)


def form_error(noise: AbstractNoise, params: PyTree, form: Callable[[PyTree], Array]) -> Array:
    """Return the standard error of the expectation of a quadratic form of the noise; zero where the noise is known."""
    sampled = isinstance(noise.problem, Population)
    total = jnp.zeros_like(form(params))
    for part in _parts(noise.covariance(params)):
        if isinstance(part, EstimatedCovariance) or (sampled and isinstance(part, SampleCovariance)):
            total = total + part.moment_error(form)
    return total


def mean_gradient(noise: AbstractNoise, params: PyTree) -> PyTree:
    """Return the mean of the draws; a `Population` uses the samples from which its covariance is estimated."""
    if isinstance(noise.problem, Population):
        (part,) = _parts(noise.covariance(params))
        assert isinstance(part, SampleCovariance)
        return part.problem.gradient(params)
    return noise.mean(params)


def route(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry) -> str:
    """Return the names of the routes that `powers` takes for the leaves that the symmetry acts on."""
    names = []
    for part in _parts(noise.covariance(params)):
        recipe = _recipe(symmetry, params)
        if not isinstance(part, SampleCovariance):
            names.append("covariance")
        elif recipe is None:
            names.append("per-sample gradients")
        else:
            routes = list(taps.routes(part.problem, params).items())
            used = sorted({request.leaf for request in recipe.requests})
            names.append(", ".join(f"{routes[leaf][0]} by {routes[leaf][1]}" for leaf in used))
    return "; ".join(dict.fromkeys(names))


Half = tuple[list[taps.Request], Callable[[list[Array]], Array]]


def _recipe(symmetry: AbstractSymmetry, params: PyTree) -> _Recipe | None:
    """Return the taps for the two halves and how to combine them; None for a symmetry without a known structure."""
    plus, minus = _halves(symmetry, params)
    if plus is None or minus is None:
        return None
    count = len(plus[0])
    return _Recipe(plus[0] + minus[0], lambda values: (plus[1](values[:count]), minus[1](values[count:])))


@singledispatch
def _halves(symmetry: AbstractSymmetry, params: PyTree) -> tuple[Half | None, Half | None]:
    """Return the requests of the positive and of the negative half, None where there are none."""
    return None, None


@_halves.register(Rescaling)
def _rescaling_halves(symmetry: Rescaling, params: PyTree) -> tuple[Half | None, Half | None]:
    plus = _sums(symmetry.outgoing, params, -1, symmetry.neurons)
    return plus, _sums(symmetry.incoming, params, 0, symmetry.neurons)


@_halves.register(Scaling)
def _scaling_halves(symmetry: Scaling, params: PyTree) -> tuple[Half | None, Half | None]:
    return _sums(symmetry.where, params, 0, False), ([], lambda values: jnp.zeros(()))


@_halves.register(DoubleRotation)
def _rotation_halves(symmetry: DoubleRotation, params: PyTree) -> tuple[Half | None, Half | None]:
    return _gram(symmetry.left, params, -1), _gram(symmetry.right, params, 0)


def _sums(pick: selection.Pick, params: PyTree, axis: int, neurons: bool) -> Half | None:
    """Return the requests for sums of squares over picked entries, for each neuron or over all."""
    pieces = selection.pieces(pick, params, axis)
    if pieces is None or any(piece.other is not None for piece in pieces):
        return None

    def total(values: list[Array]) -> Array:
        parts = [value[piece.own] for value, piece in zip(values, pieces, strict=True)]
        summed = sum(parts[1:], parts[0]) if neurons else sum((jnp.sum(p) for p in parts[1:]), jnp.sum(parts[0]))
        return jnp.asarray(summed)

    return [taps.Squares(piece.leaf, piece.axis) for piece in pieces], total


def _gram(pick: selection.Pick, params: PyTree, axis: int) -> Half | None:
    pieces = selection.pieces(pick, params, axis)
    if pieces is None:
        return None
    (piece,) = pieces
    return [taps.Gram(piece.leaf, piece.axis, piece.own, piece.other)], lambda values: values[0]


@eqx.filter_jit
def entry_powers_now(noise: AbstractNoise, params: PyTree) -> PyTree:
    """Return `entry_powers`, compiled."""
    return entry_powers(noise, params)
