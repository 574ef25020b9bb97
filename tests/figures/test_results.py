"""The pictures of results: what is drawn is what was given."""

import matplotlib.pyplot as plt
import numpy as np

from undertow.figures import results
from undertow.figures.style import COLOURS


def test_new_axes_belong_to_pyplot_and_given_axes_are_used():
    axes = results.new_axes(None)
    assert axes.figure.number in plt.get_fignums()
    assert not axes.spines["top"].get_visible()
    assert results.new_axes(axes) is axes


def test_every_curve_has_a_colour_of_its_own_and_bands_one_entry_in_the_legend():
    axes = results.new_axes(None)
    x = np.arange(3.0)
    for k in range(3):
        results.draw_band(axes, results.Band(x, x + k, x + k - 0.5, x + k + 0.5), f"curve {k}")
    results.draw_band(axes, results.Band(x, x, np.full(3, np.nan), np.full(3, np.nan)), "a single run")
    results.label_axes(axes, "step", "loss")
    assert len(axes.collections) == 3
    assert [line.get_color() for line in axes.get_lines()] == list(COLOURS.values())[:4]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["curve 0", "95% interval of the mean", "curve 1", "curve 2", "a single run"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")


def test_one_curve_alone_names_the_axis():
    axes = results.new_axes(None)
    results.draw_points(axes, [0, 1], [1.0, 2.0], None, "charge of u")
    results.label_axes(axes, "generator")
    assert axes.get_legend() is None
    assert axes.get_ylabel() == "charge of u"


def test_points_have_their_intervals():
    axes = results.new_axes(None)
    results.draw_points(axes, [0, 1], [1.0, 2.0], [[0.5, 0.5], [0.25, 1.0]], "x")
    (bars,) = axes.collections
    np.testing.assert_allclose([segment[:, 1] for segment in bars.get_segments()], [[0.5, 1.25], [1.5, 3.0]])


def test_groups_stand_beside_each_other_also_over_several_calls():
    axes = results.new_axes(None)
    results.draw_groups(axes, {"a": [1.0, np.inf, 3.0], "b": 4.0})
    results.draw_groups(axes, {"c": [[5.0, 6.0], [7.0, 8.0]]})
    lines = [line for line in axes.get_lines() if line.get_gid() == results.SERIES]
    assert [line.get_xdata().tolist() for line in lines] == [[0, 2], [3], [4, 5, 6, 7]]
    assert [line.get_ydata().tolist() for line in lines] == [[1, 3], [4], [5, 6, 7, 8]]


def test_bars_have_the_given_heights():
    axes = results.new_axes(None)
    results.draw_bars(axes, ["u", "w"], {"tangent": [1.0, 2.0], "normal": [3.0, 4.0]})
    assert [[bar.get_height() for bar in group] for group in axes.containers] == [[1, 2], [3, 4]]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["u", "w"]


def test_windows_are_drawn_from_end_to_end_and_empty_ones_named():
    axes = results.new_axes(None)
    results.draw_windows(axes, {"one": (0.1, 0.4), "two": None}, (0.2, "best"))
    window, marked = axes.get_lines()
    assert list(window.get_xdata()) == [0.1, 0.4]
    assert list(marked.get_xdata()) == [0.2, 0.2]
    assert {text.get_text() for text in axes.texts} == {"one", "two: empty"}
    assert axes.get_xscale() == "log"


def test_divergence_is_marked_at_the_lower_edge():
    axes = results.new_axes(None)
    results.draw_diverged(axes, np.array([3.0, 5.0]), 7)
    (crosses,) = axes.get_lines()
    assert crosses.get_xdata().tolist() == [3.0, 5.0]
    assert crosses.get_label() == "diverged (2 of 7 runs)"
    at = crosses.get_transform().transform(np.column_stack([crosses.get_xdata(), crosses.get_ydata()]))[:, 1]
    assert (at < axes.transAxes.transform((0, 0.05))[1]).all()
