"""Noise equilibria in closed form, as functions of arrays of noise moments and weights."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = [
    "Balance",
    "balanced_factors",
    "deep_linear",
    "deep_linear_norms",
    "geometric_mean",
    "rescaling_amount",
    "rotation",
]

Scalar = float | int | Array
"""Types of a step size or a weight decay."""


def rescaling_amount(
    noise_out: Array, noise_in: Array, weight_out: Array, weight_in: Array, step_size: Scalar, weight_decay: Scalar
) -> Array:
    """Return the amount that moves neurons to equilibrium.

    exp(4 amount) = (eta p_u + 2 lambda |w|^2)/(eta p_w + 2 lambda |u|^2), with the weight decay lambda and the noise
    powers p of one stochastic gradient on the outgoing and the incoming side. The amount is infinite where the noise is
    one-sided, and NaN where there is neither noise nor weight decay (a dead neuron).
    """
    decay_ratio = 2 * weight_decay / step_size
    up, down = noise_out + decay_ratio * weight_in, noise_in + decay_ratio * weight_out
    return (jnp.log(up) - jnp.log(down)) / 4


def _root(matrix: Array, power: float) -> Array:
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * (jnp.maximum(values, 0) ** power)[None]) @ vectors.T


def geometric_mean(a: Float[Array, "d d"], b: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return the positive definite X with X b X = a, for positive definite a and b."""
    half, back = _root(b, 0.5), _root(b, -0.5)
    x = back @ _root(half @ a @ half, 0.5) @ back
    return (x + x.T) / 2


class Balance(NamedTuple):
    """Factors at equilibrium, the symmetric logarithm of the transformation, and counts of exceptional directions."""

    left: Array
    right: Array
    amount: Array
    lost: Array
    """The number of inner directions whose equilibrium is at infinity. In the kernel of one factor the part of the
    other factor decays to zero. In a direction in which one factor has no noise, both factors stay unchanged."""
    silent: Array
    """The number of directions without noise and weight decay on both sides, which do not move."""
    balanced: Array
    """The projector on the inner directions that have an equilibrium."""


def rotation(
    left: Float[Array, "m d"],
    right: Float[Array, "d n"],
    noise_left: Float[Array, "d d"],
    noise_right: Float[Array, "d d"],
    step_size: Scalar,
    weight_decay: Scalar,
    clear: float | None = None,
) -> Balance:
    """Return the equilibrium of GL(d) between two factors with noise moments E[G_U'G_U] and E[G_W G_W'].

    With the weight decay lambda, a = E[G_U'G_U] + (2 lambda/eta) WW' and b = E[G_W G_W'] + (2 lambda/eta) U'U, the
    equilibrium is P = X^(1/2) with X b X = a, the minimum of Tr[a X^-1] + Tr[b X]. Inner directions that
    do not contribute to the product UW are removed first: their equilibrium is at infinity, where the other factor's
    part has decayed to zero. Directions in which a or b vanishes are not moved: X would go to infinity or zero there,
    and in this limit the other directions depend on their own blocks of a and b only. Noise below `clear`, relative to
    the largest, counts as rounding.
    """
    decay_ratio = 2 * weight_decay / step_size
    d = left.shape[1]
    clear = 8 * d * float(jnp.finfo(left.dtype).eps) if clear is None else clear
    # the row space of U, then the column space of W inside it: both factors have full rank there
    first = _range(left.T @ left)
    reach = _basis(_range(first @ (right @ right.T) @ first))  # d x d, with zero columns for removed directions
    inside = lambda matrix: reach.T @ matrix @ reach
    a, b = noise_left + decay_ratio * (right @ right.T), noise_right + decay_ratio * (left.T @ left)
    reached = jnp.round(reach.T @ reach)
    noisy = _part(_part(reached, inside(b), clear), inside(a), clear)
    silent = _rank(reached) - _rank(_part(reached, inside(a + b), clear))
    basis, beside = reach @ _basis(noisy), reach @ _basis(reached - noisy)
    rest = jnp.eye(d, dtype=left.dtype) - basis.T @ basis  # ones make the padded matrices invertible
    u, w = left @ basis, basis.T @ right
    (a, size_a), (b, size_b) = (_unit(basis.T @ matrix @ basis) for matrix in (a, b))  # comparable to these ones
    x = jnp.sqrt(size_a / size_b) * geometric_mean(a + rest, b + rest)
    values, vectors = jnp.linalg.eigh(x)
    values = jnp.maximum(values, jnp.finfo(x.dtype).tiny)
    forward = (vectors * jnp.sqrt(values)[None]) @ vectors.T
    backward = (vectors / jnp.sqrt(values)[None]) @ vectors.T
    amount = basis @ ((vectors * (jnp.log(values) / 2)[None]) @ vectors.T) @ basis.T
    moved = u @ forward @ basis.T + left @ beside @ beside.T, basis @ (backward @ w) + beside @ (beside.T @ right)
    return Balance(*moved, amount, d - _rank(noisy) - silent, silent, basis @ basis.T)


def _range(matrix: Array, clear: float | None = None) -> Array:
    """Return the projector on the eigenvectors of a semidefinite matrix with eigenvalues above `clear`, relatively."""
    clear = matrix.shape[0] * float(jnp.finfo(matrix.dtype).eps) if clear is None else clear
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * (values > clear * jnp.maximum(values[-1], 0))[None]) @ vectors.T


def _part(space: Array, matrix: Array, clear: float) -> Array:
    """Return the projector on the part of a space in which a matrix is above `clear`; the space itself if all is."""
    part = _range(space @ matrix @ space, clear)
    return jnp.where(_rank(part) == _rank(space), space, part)


def _unit(matrix: Array) -> tuple[Array, Array]:
    """Return a positive semidefinite matrix over its trace, and the trace; the trace of zero is replaced by one."""
    size = jnp.trace(matrix)
    size = jnp.where(size > 0, size, 1)
    return matrix / size, size


def _basis(projector: Array) -> Array:
    """Return orthonormal columns that span the range of a projector, and zero columns for the rest."""
    values, vectors = jnp.linalg.eigh(projector)
    return vectors * (values > 0.5)[None]


def _rank(projector: Array) -> Array:
    return jnp.round(jnp.trace(projector)).astype(int)


# compiled as a whole, because each single operation would be compiled as a program of its own


@partial(jax.jit, static_argnames="width")
def balanced_factors(
    product: Float[Array, "m n"], gamma_left: Float[Array, "m m"], gamma_right: Float[Array, "n n"], width: int
) -> tuple[Float[Array, "m d"], Float[Array, "d n"]]:
    """Return (U, W) with UW = product and W Gamma_W W' = U'Gamma_U U, by the SVD of Gamma_U^1/2 V Gamma_W^1/2.

    The factors are unique up to an inner rotation, so UU' and W'W are unique. `width` is the inner dimension, at least
    the rank of the product.
    """
    half_left, half_right = _root(gamma_left, 0.5), _root(gamma_right, 0.5)
    vectors, values, others = jnp.linalg.svd(half_left @ product @ half_right, full_matrices=False)
    rank = min(width, values.shape[0])
    roots = jnp.sqrt(values[:rank])
    left = _root(gamma_left, -0.5) @ (vectors[:, :rank] * roots[None])
    right = (roots[:, None] * others[:rank]) @ _root(gamma_right, -0.5)
    pad = width - rank
    return jnp.pad(left, ((0, 0), (0, pad))), jnp.pad(right, ((0, pad), (0, 0)))


def deep_linear(
    product: Float[Array, "m n"], inputs: Float[Array, "n n"], noise: Float[Array, "m m"], widths: Sequence[int]
) -> list[Array]:
    """Return W_1, ..., W_D of a deep linear net with W_D ... W_1 = product at its noise equilibrium.

    The net is at the global minimum (noise_equilibrium, Theorem 5.4, corrected). `inputs` is the second moment of x,
    `noise` that of the label noise. `widths` are the D - 1 inner widths, each at least the rank of the product.
    """
    return _deep_linear(product, inputs, noise, tuple(widths))


@partial(jax.jit, static_argnames="widths")
def _deep_linear(
    product: Float[Array, "m n"], inputs: Float[Array, "n n"], noise: Float[Array, "m m"], widths: tuple[int, ...]
) -> list[Array]:
    depth = len(widths) + 1
    half_in, half_out = _root(inputs, 0.5), _root(noise, 0.5)
    left, values, right = jnp.linalg.svd(half_out @ product @ half_in, full_matrices=False)
    scale_in, scale_out = jnp.trace(inputs), jnp.trace(noise)
    beta = (jnp.sum(values) / jnp.sqrt(scale_in * scale_out)) ** (2 / depth)
    first = jnp.sqrt(jnp.sqrt(scale_in / scale_out) * beta ** (-(depth - 2) / 2) * values)
    last = jnp.sqrt(jnp.sqrt(scale_out / scale_in) * beta ** (-(depth - 2) / 2) * values)
    rank = values.shape[0]
    if any(width < rank for width in widths):
        raise ValueError(
            f"`deep_linear(widths={list(widths)})`: a width is below {rank}, the rank that the product may have; give "
            f"widths of at least {rank}."
        )
    frame = lambda width: jnp.eye(width, rank, dtype=product.dtype)
    layers = [frame(widths[0]) @ (first[:, None] * right) @ _root(inputs, -0.5)]
    used = (values > values[0] * rank * jnp.finfo(values.dtype).eps).astype(product.dtype)
    for before, after in itertools.pairwise(widths):
        layers.append(jnp.sqrt(beta) * (frame(after) * used[None]) @ frame(before).T)
    layers.append(_root(noise, -0.5) @ (left * last[None]) @ frame(widths[-1]).T)
    return layers


def deep_linear_norms(
    product: Float[Array, "m n"], inputs: Float[Array, "n n"], noise: Float[Array, "m m"], depth: int
) -> list[Array]:
    """Return the squared Frobenius norms of the layers at the equilibrium of `deep_linear`, first to last."""
    return _squared_norms(deep_linear(product, inputs, noise, [min(product.shape)] * (depth - 1)))


@jax.jit
def _squared_norms(layers: list[Array]) -> list[Array]:
    return [jnp.sum(layer**2) for layer in layers]
