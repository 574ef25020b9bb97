"""The description of a figure in words."""

import numpy as np

from tests.figures.curves import curve
from undertow.figures import style, words


def test_words_count_points_and_name_what_has_none():
    figure, (axes,) = style.new_figure()
    style.points(axes, [0, 1], [np.nan, np.nan], None, "lost")
    style.points(axes, [0, 1], [np.nan, 2.0], None, "half")
    style.theory(axes, [0, 1], [3, 3], "flat")
    axes.axhspan(0, 1, label="band")
    assert words.describe(figure) == "flat, a line: 3 throughout. band. lost: no finite values. half, 1 point: 2 at 1."
    two = curve(panels=2)
    assert words.describe(two).startswith("Panel 1: ")
    assert "Panel 2: " in words.describe(two)
