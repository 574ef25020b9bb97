"""What every figure shares."""

import numpy as np
import pytest

from undertow.figures.style import some


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 399, 401, 100_000])
def test_some_are_few_and_evenly_spread(count):
    values = np.arange(2 * count).reshape(count, 2)
    found = some(values, 200)
    assert len(found) <= 200
    assert len(found) == count if count <= 200 else len(found) > 100
    steps = np.diff(found[:, 0])
    assert steps.size == 0 or steps.min() == steps.max()
    assert found[:1].tolist() == values[:1].tolist()
