"""How much noise pushes a charge up and how much down: Tr[Sigma A] in two halves, by the structure of the loss.

Sigma is the covariance of one stochastic gradient, batch size included. Minibatch noise of a loss with dense layers
takes the `taps`; any other noise answers by its covariance's `moment`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.covariance import AbstractCovariance, SampleCovariance, Sum
from undertow.noise.base import AbstractNoise
from undertow.problem import Population
from undertow.symmetry import selection, taps
from undertow.symmetry.generators import AbstractSymmetry, DoubleRotation, Pair, Rescaling, Scaling

__all__ = ["Powers", "entry_powers", "mean_gradient", "powers", "route"]


class Powers(NamedTuple):
    """The noise along A > 0 and along A < 0, in the shape of the charge, and the standard error of their difference."""

    plus: Array
    minus: Array
    error: Array
    """Zero where the noise is known exactly (a finite data set, an explicit covariance)."""


class _Recipe(NamedTuple):
    """What to ask of the taps, and how to make the two halves of a charge's noise of the answers."""

    requests: list[taps.Request]
    combine: Callable[[list[Array]], Pair]


def powers(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry) -> Powers:
    """Tr[Sigma A] at params, as its positive and negative half."""
    sampled = isinstance(noise.problem, Population)
    total: Powers | None = None
    for part in _parts(noise.covariance(params)):
        found = _powers_of(part, symmetry, params, sampled)
        total = found if total is None else Powers(*(a + b for a, b in zip(total, found, strict=True)))
    assert total is not None
    return total


def _parts(covariance: AbstractCovariance) -> tuple[AbstractCovariance, ...]:
    return covariance.parts if isinstance(covariance, Sum) else (covariance,)


def _powers_of(part: AbstractCovariance, symmetry: AbstractSymmetry, params: PyTree, sampled: bool) -> Powers:
    form = lambda g: symmetry.pair(g, g)
    recipe = _recipe(symmetry, params)
    if not isinstance(part, SampleCovariance):
        plus, minus = part.moment(form)
        return Powers(plus, minus, jnp.zeros_like(plus))
    if recipe is None:
        plus, minus = part.moment(form)
    else:
        found = taps.moments(part.problem, params, recipe.requests, recipe.combine)
        away = form(found.gradient) if part.groups is None else part.between(form)
        plus, minus = (part.amount * (second - first) for second, first in zip(found.value, away, strict=True))
    # by per-sample gradients: the spread is that of centred gradients, which are not outer products
    error = part.moment_error(lambda g: jnp.subtract(*form(g))) if sampled else jnp.zeros_like(plus)
    return Powers(plus, minus, error)


def entry_powers(noise: AbstractNoise, params: PyTree) -> PyTree:
    """The noise of every entry of params: the diagonal of Sigma, like params."""
    square = lambda g: jax.tree.map(jnp.square, g)
    structure = jax.tree.structure(params)
    total = trees.zeros_like(params)
    for part in _parts(noise.covariance(params)):
        if isinstance(part, SampleCovariance):
            requests = [taps.Entries(k) for k in range(structure.num_leaves)]
            found = taps.moments(part.problem, params, requests)
            away = square(found.gradient) if part.groups is None else part.between(square)
            second = jax.tree.unflatten(structure, found.value)
            mine = trees.scale(part.amount, trees.subtract(second, away))
        else:
            mine = part.moment(square)
        total = trees.add(total, mine)
    return jax.tree.map(lambda x: jnp.maximum(x, 0), total)


def mean_gradient(noise: AbstractNoise, params: PyTree) -> PyTree:
    """The expected draw; of a `Population`, over the samples its covariance is estimated from."""
    if isinstance(noise.problem, Population):
        (part,) = _parts(noise.covariance(params))
        assert isinstance(part, SampleCovariance)
        return part.problem.gradient(params)
    return noise.mean(params)


def route(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry) -> str:
    """How `powers` goes, in words: the routes of the leaves that the symmetry acts on."""
    named = []
    for part in _parts(noise.covariance(params)):
        recipe = _recipe(symmetry, params)
        if not isinstance(part, SampleCovariance):
            named.append("covariance")
        elif recipe is None:
            named.append("per-sample gradients")
        else:
            ways = list(taps.routes(part.problem, params).items())
            used = sorted({request.leaf for request in recipe.requests})
            named.append(", ".join(f"{ways[leaf][0]} by {ways[leaf][1]}" for leaf in used))
    return "; ".join(dict.fromkeys(named))


def _recipe(symmetry: AbstractSymmetry, params: PyTree) -> _Recipe | None:
    """How to get the two halves from the taps; None where the symmetry has no structure they know."""
    if isinstance(symmetry, Rescaling):
        plus = _sums(symmetry.outgoing, params, -1, symmetry.neurons)
        minus = _sums(symmetry.incoming, params, 0, symmetry.neurons)
    elif isinstance(symmetry, Scaling):
        plus, minus = _sums(symmetry.where, params, 0, False), ([], lambda values: jnp.zeros(()))
    elif isinstance(symmetry, DoubleRotation):
        plus, minus = _gram(symmetry.left, params, -1), _gram(symmetry.right, params, 0)
    else:
        return None
    if plus is None or minus is None:
        return None
    count = len(plus[0])
    return _Recipe(plus[0] + minus[0], lambda values: (plus[1](values[:count]), minus[1](values[count:])))


Half = tuple[list[taps.Request], Callable[[list[Array]], Array]]


def _sums(pick: selection.Pick, params: PyTree, axis: int, neurons: bool) -> Half | None:
    """Sums of squares over picked entries, for each neuron or in all."""
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
def powers_now(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry) -> Powers:
    """`powers`, compiled."""
    return powers(noise, params, symmetry)


@eqx.filter_jit
def entry_powers_now(noise: AbstractNoise, params: PyTree) -> Any:
    """`entry_powers`, compiled."""
    return entry_powers(noise, params)
