"""What every figure shares."""

import numpy as np
import pytest

from undertow.figures.style import COLOURS, new_figure, proportional, some


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 399, 401, 100_000])
def test_some_are_few_and_evenly_spread(count):
    values = np.arange(2 * count).reshape(count, 2)
    found = some(values, 200)
    assert len(found) <= 200
    assert len(found) == count if count <= 200 else len(found) > 100
    steps = np.diff(found[:, 0])
    assert steps.size == 0 or steps.min() == steps.max()
    assert found[:1].tolist() == values[:1].tolist()


@pytest.mark.parametrize(("values", "ends"), [([-1.0, 3.0, 1.0], [-1.2, 3.2]), ([[8.0], [10.0]], [7.9, 10.1])])
def test_a_proportional_line_reaches_past_every_point(values, ends):
    _, (axes,) = new_figure()
    proportional(axes, values)
    proportional(axes, values, "half", 0.5, "red")
    equal, half = axes.lines
    np.testing.assert_allclose(equal.get_xydata(), np.stack([ends, ends], axis=1))
    np.testing.assert_allclose(half.get_xydata(), np.stack([ends, np.array(ends) / 2], axis=1))
    assert (equal.get_label(), half.get_label(), half.get_color()) == ("equality", "half", COLOURS["red"])
