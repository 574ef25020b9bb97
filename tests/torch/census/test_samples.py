"""Batches with too few samples are named as such, by the measured share of inactive units."""

import pytest
import torch
from torch import nn

from tests.torch.zoo import square
from undertow.torch import census
from undertow.torch.census.samples import most_inactive, too_few_samples

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2))


def test_a_batch_of_one_sample_is_too_small_for_relus(model):
    torch.manual_seed(0)
    sentences = census(model, torch.randn(1, 4), square, count=False).unclear
    assert any("0.weight[i, :]" in text and "give a batch of at least 32 samples" in text for text in sentences)


def test_a_batch_of_32_samples_suffices(model):
    torch.manual_seed(0)
    symmetries = census(model, torch.randn(32, 4), square, count=False)
    assert symmetries.unclear == ()
    assert [symmetry.size for symmetry in symmetries] == [40, 40]


def test_smooth_units_are_active_for_one_sample():
    torch.manual_seed(0)
    smooth = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2))
    assert census(smooth, torch.randn(1, 4), square, count=False).unclear == ()


def test_the_number_of_samples_follows_from_the_measured_share():
    from undertow.torch.census.candidates import plain_axes

    axes = plain_axes(nn.Sequential(nn.Linear(4, 9)))
    shares = {("0.weight", 0, False, 0.0): [0.8, 0.7]}
    (sentence,) = too_few_samples(axes, shares, {"x": torch.zeros(6, 4)})
    assert "75% of its indices" in sentence
    assert "at least 49 samples" in sentence  # 0.75 = q^6 gives q^49 < 0.1
    assert too_few_samples(axes, {("0.weight", 0, False, 0.0): [0.2]}, torch.zeros(6, 4)) == []


def test_longer_axes_allow_fewer_inactive_units():
    shares = [most_inactive(length) for length in (2, 8, 64, 4096)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0.25
