"""Numbers beside their predictions: all of them on the axis, whatever their size."""

import numpy as np
import pytest

from undertow.figures import words
from undertow.figures.compare import compare
from undertow.verification.criterion import Above, AtLevel, Below, Check, Within

CASES = {
    "a correction": [Check("k", 2.0, 2.0, 0.01, Within(0.1, 0.5), printed=1.0)],
    "exact": [Check("k", -0.25, -0.25, 0.0, Within(1e-9, 0.1))],
    "a tiny error": [Check("e", 2e-15, 0.0, 0.0, Below(1e-6)), Check("f", 0.0, 0.0, 0.0, Below(1e-6))],
    "both signs": [Check("a", -4.0, -4.0, 0.1, Within(0.1, 1.0)), Check("b", 1e-9, 0.0, 1e-10, Within(0.1, 1.0))],
    "a p-value": [Check("p", 0.3, 1.0, 0.0, AtLevel(0.01, "normal"))],
    "not a number": [Check("n", np.nan, 1.0, 0.0, Above(0.5))],
    "all zero": [Check("z", 0.0, 0.0, 0.0, Within(0.1, 0.1))],
}


@pytest.mark.parametrize("case", CASES)
def test_everything_is_on_the_axis(case):
    checks = CASES[case]
    figure = compare(checks)
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert np.isfinite([low, high]).all()
    assert low < high
    for line in axes.lines:
        x = np.asarray(line.get_xdata(), float)
        x = x[np.isfinite(x)]
        assert ((x >= low) & (x <= high)).all()
    assert [text.get_text() for text in axes.texts] == [check.what for check in checks]
    assert all(check.what in words.describe(figure) for check in checks)


def test_numbers_of_different_size_get_a_logarithmic_axis():
    scale = lambda checks: compare(checks).axes[0].get_xscale()
    assert scale(CASES["a tiny error"]) == "log"
    assert scale(CASES["a correction"]) == "linear"
    assert scale(CASES["both signs"]) == "linear"  # a negative number has no logarithm


def test_a_bound_is_a_band_on_its_own_side():
    above = Check("a", 0.9, 1.0, 0.0, Above(0.5))
    below = Check("b", 0.2, 0.0, 0.0, Below(0.6))
    (axes,) = compare([above, below]).axes
    low, high = axes.get_xlim()
    bands = [band.get_paths()[0].get_extents() for band in axes.collections if band.get_paths()[0].vertices.size > 8]
    spans = [(round(float(band.x0), 9), round(float(band.x1), 9)) for band in bands]
    assert spans == [(0.5, round(high, 9)), (round(low, 9), 0.6)]
    assert axes.get_legend_handles_labels()[1].count("allowed by the claim") == 1


def test_numbers_that_differ_by_rounding_have_an_axis_with_short_ticks():
    checks = [
        Check("k", -0.25 + 1e-16, -0.25, 0.0, Within(1e-5, 0.1)),
        Check("l", -0.25, -0.25, 0.0, Within(1e-5, 0.1)),
    ]
    low, high = compare(checks).axes[0].get_xlim()
    assert high - low > 0.01
