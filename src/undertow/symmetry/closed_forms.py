"""Noise equilibria in closed form. Arrays in, arrays out: whoever has the noise moments can call them."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

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


def rescaling_amount(
    noise_out: Array, noise_in: Array, weight_out: Array, weight_in: Array, step_size: Any, weight_decay: Any
) -> Array:
    """The amount that brings neurons to equilibrium: exp(4 amount) = (s_u + k |w|^2)/(s_w + k |u|^2).

    s are the noise powers of one stochastic gradient, out and in, k = 2 weight_decay/eta. Infinite where the noise is
    one-sided, NaN where there is none and no weight decay (a dead neuron).
    """
    k = 2 * weight_decay / step_size
    up, down = noise_out + k * weight_in, noise_in + k * weight_out
    return (jnp.log(up) - jnp.log(down)) / 4


def _root(matrix: Array, power: float) -> Array:
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * (jnp.maximum(values, 0) ** power)[None]) @ vectors.T


def geometric_mean(a: Float[Array, "d d"], b: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The positive definite X with X b X = a, for positive definite a and b."""
    half, back = _root(b, 0.5), _root(b, -0.5)
    x = back @ _root(half @ a @ half, 0.5) @ back
    return (x + x.T) / 2


class Balance(NamedTuple):
    """Factors at equilibrium, the symmetric log of the transformation, and how many directions have no equilibrium."""

    left: Array
    right: Array
    amount: Array
    lost: Array
    """Directions inside whose equilibrium is at infinity. One that a factor does not see: the other's part there decays
    to zero. One in which a factor has no noise: both stay as they are."""
    silent: Array
    """Directions without noise and weight decay on either side: nothing moves them."""
    balanced: Array
    """The projector on the directions inside that have an equilibrium."""


def rotation(
    left: Float[Array, "m d"],
    right: Float[Array, "d n"],
    noise_left: Float[Array, "d d"],
    noise_right: Float[Array, "d d"],
    step_size: Any,
    weight_decay: Any,
    clear: float | None = None,
) -> Balance:
    """The equilibrium of GL(d) between two factors with noise moments E[G_U'G_U] and E[G_W G_W'].

    With k = 2 weight_decay/eta, a = E[G_U'G_U] + k WW' and b = E[G_W G_W'] + k U'U, it is P = X^(1/2), X b X = a: the
    least of Tr[a X^-1] + Tr[b X]. Inside directions that do not reach the product UW are dropped first; there the
    equilibrium is at infinity, and what the other factor has in them goes to zero. Then those in which a or b vanishes
    are left alone: X would go to infinity or zero there, and in the limit the others see their own parts of a and b.
    Of the largest, noise below `clear` is rounding.
    """
    k = 2 * weight_decay / step_size
    d = left.shape[1]
    clear = 8 * d * float(jnp.finfo(left.dtype).eps) if clear is None else clear
    # keep the row space of U, then the column space of what is left of W: there both have full rank
    first = _range(left.T @ left)
    reach = _basis(_range(first @ (right @ right.T) @ first))  # d x d, zero columns for what is left out
    inside = lambda matrix: reach.T @ matrix @ reach
    a, b = noise_left + k * (right @ right.T), noise_right + k * (left.T @ left)
    all_of_it = jnp.round(reach.T @ reach)
    heard = _part(_part(all_of_it, inside(b), clear), inside(a), clear)
    silent = _rank(all_of_it) - _rank(_part(all_of_it, inside(a + b), clear))
    basis, beside = reach @ _basis(heard), reach @ _basis(all_of_it - heard)
    rest = jnp.eye(d, dtype=left.dtype) - basis.T @ basis  # ones on the diagonal of those: harmless there
    u, w = left @ basis, basis.T @ right
    (a, size_a), (b, size_b) = (_unit(basis.T @ matrix @ basis) for matrix in (a, b))  # of the size of those ones
    x = jnp.sqrt(size_a / size_b) * geometric_mean(a + rest, b + rest)
    values, vectors = jnp.linalg.eigh(x)
    values = jnp.maximum(values, jnp.finfo(x.dtype).tiny)
    there = (vectors * jnp.sqrt(values)[None]) @ vectors.T
    back = (vectors / jnp.sqrt(values)[None]) @ vectors.T
    amount = basis @ ((vectors * (jnp.log(values) / 2)[None]) @ vectors.T) @ basis.T
    balanced = u @ there @ basis.T + left @ beside @ beside.T, basis @ (back @ w) + beside @ (beside.T @ right)
    return Balance(*balanced, amount, d - _rank(heard) - silent, silent, basis @ basis.T)


def _range(matrix: Array, clear: float | None = None) -> Array:
    """The projector on the range of a positive semidefinite matrix: on what is above `clear`, of the largest."""
    clear = matrix.shape[0] * float(jnp.finfo(matrix.dtype).eps) if clear is None else clear
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * (values > clear * jnp.maximum(values[-1], 0))[None]) @ vectors.T


def _part(space: Array, matrix: Array, clear: float) -> Array:
    """The projector on the part of a space in which a matrix is above `clear`: exactly the space where that is all."""
    part = _range(space @ matrix @ space, clear)
    return jnp.where(_rank(part) == _rank(space), space, part)


def _unit(matrix: Array) -> tuple[Array, Array]:
    """A positive semidefinite matrix over its trace, and that; zero stays zero, over one."""
    size = jnp.trace(matrix)
    size = jnp.where(size > 0, size, 1)
    return matrix / size, size


def _basis(projector: Array) -> Array:
    """Of its range: orthonormal columns, and zeros for the rest."""
    values, vectors = jnp.linalg.eigh(projector)
    return vectors * (values > 0.5)[None]


def _rank(projector: Array) -> Array:
    return jnp.round(jnp.trace(projector)).astype(int)


def balanced_factors(
    product: Float[Array, "m n"], gamma_left: Float[Array, "m m"], gamma_right: Float[Array, "n n"], width: int
) -> tuple[Float[Array, "m d"], Float[Array, "d n"]]:
    """(U, W) with UW = product and W Gamma_W W' = U'Gamma_U U, by the SVD of Gamma_U^1/2 V Gamma_W^1/2.

    Unique up to a rotation inside: compare UU' and W'W. `width` inside, at least the rank of the product.
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
    """A deep linear net W_D ... W_1 = product at its noise equilibrium at the global minimum (Theorem 5.4, corrected).

    `inputs` is the second moment of x, `noise` that of the label noise; `widths` are the inner widths, D - 1 of them,
    each at least the rank of the product. Returns W_1, ..., W_D.
    """
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
            f"`deep_linear(widths={list(widths)})`: a width is below {rank}, the rank the product may have."
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
    """The squared Frobenius norms of the layers at that equilibrium, first to last."""
    return [jnp.sum(layer**2) for layer in deep_linear(product, inputs, noise, [min(product.shape)] * (depth - 1))]
