"""Noise and weights on the two sides of a symmetry, from the gradients of minibatches."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from undertow.torch.census.axes import Axis, Symmetry, unfold

__all__ = ["ChargeMoments", "batched", "block_grams", "centred_noise", "charge_moments", "generator_squares"]


class ChargeMoments(NamedTuple):
    """Noise and weights on both sides of a symmetry: (generators,), or matrices (blocks, block, block) of a GL.

    The noise is the covariance of the gradient. It pushes the charge up on the side plus and down on the side minus.
    """

    noise_plus: np.ndarray
    noise_minus: np.ndarray
    weight_plus: np.ndarray
    weight_minus: np.ndarray


def generator_squares(tensor: Tensor, axis: Axis) -> np.ndarray:
    """Return the sum of squares of each generator: (generators,)."""
    return unfold(tensor, axis).double().square().sum(dim=(1, 2)).numpy(force=True)


def block_grams(tensor: Tensor, axis: Axis, block: int) -> np.ndarray:
    """Return the inner products of the indices inside each block: (blocks, block, block)."""
    rows = unfold(tensor, axis).double().reshape(axis.size // block, block, -1)
    return (rows @ rows.mT).numpy(force=True)


def batched(axis: Axis) -> Axis:
    """Return the same axis for tensors with a batch dimension in front."""
    return replace(axis, axis=axis.axis + 1)


def charge_moments(symmetry: Symmetry, values: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> ChargeMoments:
    """Return the noise and weights of both sides, with noise as `centred_noise` returns it."""

    def total(side: tuple[Axis, ...], of_noise: bool) -> np.ndarray:
        block = symmetry.block
        moment = np.zeros(symmetry.size if block == 1 else (symmetry.size // block, block, block))
        for axis in side:
            tensor = noise[axis.parameter] if of_noise else values[axis.parameter] + axis.shift
            along = batched(axis) if of_noise else axis
            moment = moment + (generator_squares(tensor, along) if block == 1 else block_grams(tensor, along, block))
        return moment

    sides = symmetry.plus, symmetry.minus
    return ChargeMoments(*(total(side, of_noise) for of_noise in (True, False) for side in sides))


def centred_noise(stacks: Mapping[str, Tensor], symmetries: Sequence[Symmetry]) -> dict[str, Tensor]:
    """Return gradients (batches, *shape) centred and divided by sqrt(batches - 1), in double precision.

    The sum of their outer products is the covariance. Symmetries of scales need the variance of every entry only:
    where no GL mixes indices, one row of standard deviations replaces all batches.
    """
    mixed = {name for symmetry in symmetries if symmetry.block > 1 for name in symmetry.parameters}
    noise = {}
    for name, stack in stacks.items():
        centred = stack.double() - stack[:1].double()  # equal batches then have exactly zero noise
        centred = (centred - centred.mean(0, keepdim=True)) / (len(stack) - 1) ** 0.5
        noise[name] = centred if name in mixed else centred.square().sum(0, keepdim=True).sqrt()
    return noise
