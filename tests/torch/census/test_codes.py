"""Random codes: which gradients vanish where an index is zero."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.zoo import square
from undertow.torch._copies import model_copy
from undertow.torch.census.candidates import is_bias, plain_axes
from undertow.torch.census.codes import Codes, varies

pytestmark = pytest.mark.torch


def codes_of(model, x, roles, passes):
    twin = model_copy(model, torch.float64)
    axes = [axis for axis in plain_axes(twin) if not is_bias(axis.parameter)]
    codes = Codes(twin, x.double(), square, [(axis,) for axis in axes if axis.role in roles], axes, 0)
    codes.run(passes)
    return codes, {str(axis): place for place, axis in enumerate(axes)}


def test_a_reader_vanishes_exactly_where_its_writer_is_zero():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Identity(), nn.Linear(6, 3))
    codes, place = codes_of(model, torch.randn(9, 5), ("out",), 12)
    assert np.array_equal(codes.zeros[place["2.weight[:, i]"]], codes.codes[0])
    assert not varies(codes.zeros[place["0.weight[:, i]"]], codes.valid[place["0.weight[:, i]"]]).any()
    assert codes.partners(place["2.weight[:, i]"], 0).tolist() == np.eye(6, dtype=bool).tolist()


class Sum(nn.Module):
    """Two layers write one stream that a third reads."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.one(x) + self.two(x.square()))


def test_two_writers_are_found_together():
    torch.manual_seed(0)
    codes, place = codes_of(Sum(), torch.randn(9, 4), ("out",), 40)
    found = codes.two_writers(place["out.weight[:, i]"], np.ones(5, bool))
    assert found == [(k, 0, k, 1, k) for k in range(5)]
