"""Noise and weights on the two sides of a symmetry, from the gradients of minibatches.

Tensors of noise have the shape of their parameter with one more dimension at the end, over batches, so that the axes of
a symmetry address them like the parameter itself.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from undertow.torch.census.axes import Axis, Symmetry, unfold
from undertow.torch.census.generators import signed

__all__ = [
    "ChargeMoments",
    "ExponentMoments",
    "block_grams",
    "centred_noise",
    "charge_moments",
    "collect_moments",
    "generator_squares",
]


class ExponentMoments(NamedTuple):
    """Noise and weights of the entries that a symmetry multiplies by exp(exponent * amount): (generators,)."""

    exponent: int
    noise: np.ndarray
    weight: np.ndarray


class ChargeMoments(NamedTuple):
    """Noise and weights on both sides of a symmetry: (generators,), or matrices (blocks, block, block) of a GL.

    The noise is the covariance of the gradient. It pushes the charge up on the side plus and down on the side minus. An
    axis of power p counts p times: the charge is (weight_plus - weight_minus)/2, the sum of p |w|^2/2 with its sign.
    """

    noise_plus: np.ndarray
    noise_minus: np.ndarray
    weight_plus: np.ndarray
    weight_minus: np.ndarray
    by_exponent: tuple[ExponentMoments, ...] = ()
    """The moments for each exponent where one of them is not 1 or -1. The equilibrium depends on them one by one."""


def generator_squares(tensor: Tensor, axis: Axis) -> np.ndarray:
    """Return the sum of squares of each generator: (generators,)."""
    return unfold(tensor, axis).double().square().sum(dim=(1, 2)).numpy(force=True)


def block_grams(tensor: Tensor, axis: Axis, block: int) -> np.ndarray:
    """Return the inner products of the indices inside each block: (blocks, block, block)."""
    rows = unfold(tensor, axis).double().reshape(axis.size // block, block, -1)
    return (rows @ rows.mT).numpy(force=True)


def charge_moments(symmetry: Symmetry, values: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> ChargeMoments:
    """Return the noise and weights of both sides, with noise as `centred_noise` returns it."""
    block = symmetry.block
    moment = generator_squares if block == 1 else lambda tensor, axis: block_grams(tensor, axis, block)
    return collect_moments(
        symmetry,
        lambda axis: moment(noise[axis.parameter], axis),
        lambda axis: moment(values[axis.parameter] + axis.shift, axis),
    )


def collect_moments(
    symmetry: Symmetry, noise: Callable[[Axis], np.ndarray], weight: Callable[[Axis], np.ndarray]
) -> ChargeMoments:
    """Return the moments of both sides of a symmetry from those of each of its axes."""
    block = symmetry.block
    zero = np.zeros(symmetry.size if block == 1 else (symmetry.size // block, block, block))
    by_exponent: dict[int, ExponentMoments] = {}
    for axis, exponent in signed(symmetry):
        before = by_exponent.get(exponent, ExponentMoments(exponent, zero, zero))
        by_exponent[exponent] = ExponentMoments(exponent, before.noise + noise(axis), before.weight + weight(axis))
    sides: dict[bool, list[np.ndarray]] = defaultdict(lambda: [zero, zero])
    for exponent, of_noise, of_weight in by_exponent.values():
        side = sides[exponent > 0]
        side[:] = side[0] + abs(exponent) * of_noise, side[1] + abs(exponent) * of_weight
    (noise_plus, weight_plus), (noise_minus, weight_minus) = sides[True], sides[False]
    plain = all(abs(exponent) == 1 for exponent in by_exponent)
    separate = () if plain else tuple(by_exponent[exponent] for exponent in sorted(by_exponent))
    return ChargeMoments(noise_plus, noise_minus, weight_plus, weight_minus, separate)


def centred_noise(stacks: Mapping[str, Tensor], symmetries: Sequence[Symmetry]) -> dict[str, Tensor]:
    """Return gradients (*shape, batches) centred and divided by sqrt(batches - 1), in double precision.

    The gradients of batches are given as (batches, *shape). The sum of the outer products of the results is the
    covariance. Symmetries of scales need the variance of every entry only: where no GL mixes indices, one row of
    standard deviations replaces all batches.
    """
    mixed = {name for symmetry in symmetries if symmetry.block > 1 for name in symmetry.parameters}
    noise = {}
    for name, stack in stacks.items():
        centred = stack.double() - stack[:1].double()  # equal batches then have exactly zero noise
        centred = (centred - centred.mean(0, keepdim=True)) / (len(stack) - 1) ** 0.5
        centred = centred if name in mixed else centred.square().sum(0, keepdim=True).sqrt()
        noise[name] = centred.movedim(0, -1)
    return noise
