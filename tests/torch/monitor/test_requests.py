"""Statistics that symmetries share are requested once."""

import numpy as np
import pytest

from undertow.torch import Axis, Census, Symmetry
from undertow.torch.monitor.requests import Requests

pytestmark = pytest.mark.torch


def census_with(*symmetries):
    return Census(tuple(symmetries), (), (), (), (), ())


def symmetry(axis, block=1):
    return Symmetry("", (axis,), (), block, True, 0.0)


ROWS = Axis("weight", 0, np.arange(4)[:, None], 4)
SHIFTED = Axis("weight", 0, np.arange(4)[:, None], 4, shift=1.0)
COLUMNS = Axis("weight", 1, np.arange(3)[:, None], 3)


def test_scales_of_one_axis_share_a_request():
    first, shifted, block, columns = symmetry(ROWS), symmetry(SHIFTED), symmetry(ROWS, 2), symmetry(COLUMNS)
    requests = Requests(census_with(first, shifted, block, columns))
    assert len(requests.all()) == 3
    assert requests.of(ROWS, first) is requests.of(SHIFTED, shifted)
    assert requests.of(ROWS, block).index.shape == (2, 2, 1)
    assert requests.of(COLUMNS, columns).axis == 1


def test_matrices_with_indices_of_their_own_are_other_requests():
    experts = Axis("experts", 1, np.arange(6)[:, None], 6, 3, matrices=2, by_matrix=True)
    shared = Axis("experts", 1, np.arange(3)[:, None], 3, 3, matrices=2)
    first, second = symmetry(experts), symmetry(shared)
    requests = Requests(census_with(first, second))
    assert [request.matrices for request in requests.all()] == [2, 1]
    assert requests.of(experts, first) is not requests.of(shared, second)
