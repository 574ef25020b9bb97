"""Noise and weights on the two sides of a symmetry, against the covariance matrix."""

import numpy as np
import pytest
import torch

from undertow.torch import Axis, Symmetry
from undertow.torch.equilibrium.charge_moments import centred_noise, charge_moments

pytestmark = pytest.mark.torch


def example(block):
    """Return a symmetry between columns of `out` and rows of `into`, weights, and gradients of nine batches."""
    index = np.arange(4)[:, None]
    symmetry = Symmetry("", (Axis("out", 1, index, 4),), (Axis("into", 0, index, 4, shift=0.5),), block, True, 0.0)
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    values = {"out": draw(3, 4), "into": draw(4, 5)}
    return symmetry, values, {"out": draw(9, 3, 4), "into": draw(9, 4, 5)}


def test_scales_have_the_variances_of_their_rows():
    symmetry, values, gradients = example(1)
    moments = charge_moments(symmetry, values, centred_noise(gradients, [symmetry]))
    np.testing.assert_allclose(moments.noise_plus, gradients["out"].var(0).sum(0))
    np.testing.assert_allclose(moments.noise_minus, gradients["into"].var(0).sum(1))
    np.testing.assert_allclose(moments.weight_plus, values["out"].square().sum(0))
    np.testing.assert_allclose(moments.weight_minus, (values["into"] + 0.5).square().sum(1))


@pytest.mark.parametrize("block", [2, 4])
def test_blocks_have_the_covariances_of_their_rows(block):
    symmetry, values, gradients = example(block)
    moments = charge_moments(symmetry, values, centred_noise(gradients, [symmetry]))
    covariance = sum(np.cov(gradients["out"][:, k].numpy().T) for k in range(3))
    weight = values["out"].mT @ values["out"]
    for place in range(4 // block):
        inside = slice(place * block, (place + 1) * block)
        np.testing.assert_allclose(moments.noise_plus[place], covariance[inside, inside])
        np.testing.assert_allclose(moments.weight_plus[place], weight[inside, inside])


def test_the_noise_of_equal_batches_is_exactly_zero():
    symmetry, values, gradients = example(1)
    equal = {name: g[:1].float().expand_as(g) for name, g in gradients.items()}
    moments = charge_moments(symmetry, values, centred_noise(equal, [symmetry]))
    assert (moments.noise_plus == 0).all()
    assert (moments.noise_minus == 0).all()
