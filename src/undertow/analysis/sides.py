"""Noise and weights on both sides of a symmetry, as arrays in the shape of the charge and as numbers per generator."""

from functools import singledispatch
from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.analysis.result import Sides
from undertow.noise.base import AbstractNoise
from undertow.symmetry.generators import AbstractSymmetry, Exponential, Pair
from undertow.symmetry.powers import powers

__all__ = ["SideMoments", "flow_vectors", "measure", "sides_of"]


class SideMoments(NamedTuple):
    """Noise and squared weights of both sides: numbers, or symmetric matrices (..., d, d) of a GL(d)."""

    noise_plus: np.ndarray
    noise_minus: np.ndarray
    weight_plus: np.ndarray
    weight_minus: np.ndarray


def measure(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry) -> tuple[SideMoments, np.ndarray]:
    """Return the moments of a symmetry at params, and the standard error of noise_plus - noise_minus."""
    *moments, error = (np.asarray(x, np.float64) for x in _measure(noise, params, symmetry))
    return SideMoments(*moments), error


@eqx.filter_jit
def _measure(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry) -> tuple[Array, ...]:
    power = powers(noise, params, symmetry)
    return *_halves(symmetry, noise, params, (power.plus, power.minus)), power.error


@singledispatch
def _halves(symmetry: AbstractSymmetry, noise: AbstractNoise, params: PyTree, power: Pair) -> tuple[Array, ...]:
    """Return noise and weights of both sides, given the noise that `powers` computed."""
    return *power, *symmetry.pair(params, params)


@_halves.register(Exponential)
def _exponential_halves(symmetry: Exponential, noise: AbstractNoise, params: PyTree, power: Pair) -> tuple[Array, ...]:
    """Separate the two sides by the eigenvectors of A. The search finds such generators in small models only."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    matrix = jax.vmap(lambda v: trees.ravel(symmetry.apply(unravel(v))))(jnp.eye(flat.size, dtype=flat.dtype))
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)

    def pair(vector: PyTree) -> Pair:
        along = (vectors.T @ trees.ravel(vector)) ** 2
        return jnp.sum(jnp.maximum(values, 0) * along), jnp.sum(jnp.maximum(-values, 0) * along)

    return *noise.covariance(params).moment(pair), *pair(params)


def flow_vectors(moments: SideMoments, step_size: float, weight_decay: float) -> np.ndarray | None:
    """Return the eigenvectors of the flow of a matrix of charges, or of a stack of them; None for numbers."""
    if moments.noise_plus.ndim < 2:
        return None
    decay_ratio = 2 * weight_decay / step_size
    weight = moments.weight_minus - moments.weight_plus
    flow = moments.noise_plus - moments.noise_minus + decay_ratio * weight
    return np.linalg.eigh(flow)[1]


def sides_of(moments: SideMoments, vectors: np.ndarray | None) -> Sides:
    """Return the moments as numbers per generator: those of a matrix along the given vectors."""
    if vectors is None:
        return Sides(*(tuple(np.ravel(x).tolist()) for x in moments))
    along = lambda x: np.einsum("...ij,...ik,...kj->...j", vectors, x, vectors)
    return Sides(*(tuple(along(x).ravel().tolist()) for x in moments))
