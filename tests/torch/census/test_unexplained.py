"""The null space over all indices, and what named symmetries leave of it."""

import pytest
import torch
from torch import nn

from tests.torch.zoo import square
from undertow.torch import census
from undertow.torch._copies import OnePrecision, cast_batch, model_copy
from undertow.torch.census.unexplained import IndexNullSpace

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Identity, nn.Tanh])
def test_what_the_named_symmetries_leave_is_counted(activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(12, 4)
    symmetries = census(model, x, square)
    assert symmetries.unexplained == ()
    twin = model_copy(model, torch.float64)
    with OnePrecision():
        space = IndexNullSpace(twin, cast_batch(x, torch.float64), square, eps=0.1, seed=3)
    for left_out, symmetry in enumerate(symmetries):
        known = [s for k, s in enumerate(symmetries) if k != left_out]
        (rest,) = space.unexplained(known)
        assert rest.count == symmetry.size
        assert set(symmetry.parameters) <= set(rest.parameters)


def test_units_that_saturate_at_large_weights_are_not_unexplained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU6(), nn.Linear(6, 3))
    symmetries = census(model, torch.randn(12, 4), square)
    assert symmetries.symmetries == ()
    assert symmetries.unexplained == ()


def test_larger_networks_are_counted_on_request():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 320), nn.ReLU(), nn.Linear(320, 3))
    x = torch.randn(64, 4)
    (note,) = census(model, x, square).unexplained
    assert note.count == 0
    assert "count=True" in str(note)
    assert census(model, x, square, count=True).unexplained == ()
    assert "unexplained: not counted" in str(census(model, x, square, count=False))
