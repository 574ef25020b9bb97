"""Noise and weights on the two sides of a symmetry, against the covariance matrix."""

from dataclasses import replace

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


def test_an_axis_of_power_two_counts_twice_and_is_kept_apart():
    symmetry, values, gradients = example(1)
    plain = charge_moments(symmetry, values, centred_noise(gradients, [symmetry]))
    assert plain.by_exponent == ()
    squared = replace(symmetry, plus=(replace(symmetry.plus[0], power=2),))
    moments = charge_moments(squared, values, centred_noise(gradients, [squared]))
    np.testing.assert_allclose(moments.noise_plus, 2 * plain.noise_plus)
    np.testing.assert_allclose(moments.weight_plus, 2 * plain.weight_plus)
    np.testing.assert_allclose(moments.noise_minus, plain.noise_minus)
    assert [part.exponent for part in moments.by_exponent] == [-1, 2]
    np.testing.assert_allclose(moments.by_exponent[1].noise, plain.noise_plus)
    np.testing.assert_allclose(moments.by_exponent[0].weight, plain.weight_minus)


@pytest.mark.parametrize("block", [1, 2])
def test_every_matrix_has_indices_of_its_own(block):
    """Two matrices (2, 4) in a row: generators 0 to 3 move columns of the first, 4 to 7 those of the second."""
    axis = Axis("both", 1, np.arange(8)[:, None], 8, matrices=2, by_matrix=True)
    symmetry = Symmetry("", (axis,), (), block, True, 0.0)
    generator = torch.Generator().manual_seed(0)
    values = {"both": torch.randn(4, 4, generator=generator, dtype=torch.float64)}
    gradients = {"both": torch.randn(9, 4, 4, generator=generator, dtype=torch.float64)}
    moments = charge_moments(symmetry, values, centred_noise(gradients, [symmetry]))
    columns = torch.cat([values["both"][:2], values["both"][2:]], 1)
    stack = torch.cat([gradients["both"][:, :2], gradients["both"][:, 2:]], 2)
    if block == 1:
        np.testing.assert_allclose(moments.weight_plus, columns.square().sum(0))
        np.testing.assert_allclose(moments.noise_plus, stack.var(0).sum(0))
    else:
        np.testing.assert_allclose(moments.weight_plus[1], (columns.mT @ columns)[2:4, 2:4])
        covariance = sum(np.cov(stack[:, k].numpy().T) for k in range(2))
        np.testing.assert_allclose(moments.noise_plus[3], covariance[6:, 6:])
    assert np.all(moments.noise_minus == 0)
