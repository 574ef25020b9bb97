"""The description of a figure in words."""

import numpy as np
import pytest

from tests.figures.curves import curve
from undertow.figures import style, words
from undertow.figures.heatmap import heat_map


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


def test_the_label_of_a_figure_is_its_description():
    figure = curve()
    figure.set_label("größe & <more>")
    assert words.describe(figure) == "größe & <more>"


def test_a_figure_without_panels_and_a_panel_without_anything_have_no_words():
    figure, _ = style.new_figure()
    assert words.describe(figure) == ""
    figure, _ = style.new_figure(panels=0)
    assert words.describe(figure) == ""


@pytest.mark.parametrize(
    ("x", "y", "title", "description"),
    [
        ("step", "loss", "", "loss against step."),
        ("step", "", "", "step."),
        ("", "loss", "", "loss."),
        ("step", "loss", "η = 0.1", "η = 0.1. loss against step."),
    ],
)
def test_axes_and_title_come_first(x, y, title, description):
    figure, (axes,) = style.new_figure()
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, loc="right")
    assert words.describe(figure) == description


def test_a_series_is_described_by_its_first_and_last_finite_values():
    figure, (axes,) = style.new_figure()
    style.theory(axes, [0.0, 1.0, 2.0, 3.0], [np.nan, 1.0, 4.0, np.inf], "line")
    style.theory(axes, [7.0], [2.0], "short")
    style.points(axes, [1, 2], [3, 3], None, "same")
    style.points(axes, [1.0], [1.23456789], [0.1], "one")
    assert words.describe(figure) == (
        "line, a line: 1 at 1 to 4 at 2. short, a line: 2 at 7. same, 2 points: 3 at 1 to 3 at 2. "
        "one, 1 point with intervals: 1.235 at 1."
    )


def test_lines_without_a_label_are_left_out_and_texts_are_not():
    figure, (axes,) = style.new_figure()
    axes.plot([0, 1], [0, 1])
    axes.text(0, 0, "threshold")
    axes.text(0, 0, "")
    assert words.describe(figure) == "threshold."


def test_a_map_is_described_by_its_range_and_not_by_its_colour_bar():
    figure, (axes,) = style.new_figure()
    heat_map(axes, [1, 2, 3], [1, 2], [[np.nan, 0.25, 0.5], [0.5, 0.75, 1.0]], "share")
    assert words.describe(figure) == "share, a heat map of 3 by 2 cells: 0.25 to 1."


def test_a_map_without_finite_values_says_so():
    """All runs of a phase diagram may have diverged."""
    figure, (axes,) = style.new_figure()
    heat_map(axes, [1, 2], [1, 2], np.full((2, 2), np.nan), "share", limits=(0.0, 1.0))
    assert words.describe(figure) == "share, a heat map of 2 by 2 cells: no finite values."


def test_a_map_without_a_colour_bar_shows_values():
    figure, (axes,) = style.new_figure()
    axes.pcolormesh([0, 1, 2], [0, 1], [[3.0, 4.0]])
    assert words.describe(figure) == "values, a heat map of 2 by 1 cells: 3 to 4."
