"""Figures as files: nothing clipped, nothing hidden, the same bytes every time."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.figures.curves import LABELS, curve
from undertow.figures import export, words
from undertow.figures.inline import words_of


@pytest.mark.parametrize(("panels", "width"), [(1, 5.2), (1, 3.0), (2, 4.2)])
def test_legends_lie_above_their_panels_and_inside_the_figure(panels, width):
    figure = curve(panels=panels, width=width)
    export.tidy(figure)
    figure.draw_without_rendering()
    page = figure.get_tightbbox().padded(0.01)
    for axes in figure.axes:
        legend, panel = axes.get_legend().get_window_extent(), axes.get_window_extent()
        assert legend.y0 >= panel.y1 - 1
        assert legend.x0 >= panel.x0 - 12
        assert page.x1 * figure.dpi >= legend.x1
        assert [text.get_text() for text in axes.get_legend().get_texts()] == list(LABELS)


def test_a_title_stays_clear_of_the_legend():
    figure = curve()
    figure.axes[0].set_title("a title", loc="left")
    export.tidy(figure)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes._left_title.get_window_extent().y0 >= axes.get_legend().get_window_extent().y1 - 1


def test_one_legend_for_several_panels_belongs_to_the_figure():
    figure = curve(panels=2)
    figure.axes[1].get_legend().remove()
    export.tidy(figure)
    figure.draw_without_rendering()
    assert figure.axes[0].get_legend() is None
    (legend,) = figure.legends
    assert legend.get_window_extent().y0 >= max(axes.get_window_extent().y1 for axes in figure.axes) - 1


@pytest.mark.parametrize(
    ("low", "decades"), [(1e-15, 14.0), (1e-3, 0.3), (0.3, 0.7), (2.0, 1.2), (5e4, 2.0), (1e-8, 5.0), (1e-15, 0.7)]
)
def test_labels_of_logarithmic_axes_do_not_run_into_each_other(low, decades):
    figure = curve(low * np.logspace(0, decades, 5))
    axes = figure.axes[0]
    axes.set_xscale("log")
    axes.set_yscale("log")
    export.tidy(figure)
    figure.draw_without_rendering()
    for axis, side in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        view = sorted(getattr(axes, f"get_{side}lim")())
        ticks = [t for t in axis.get_major_ticks() if view[0] <= t.get_loc() <= view[1] and t.label1.get_text()]
        boxes = [tick.label1.get_window_extent() for tick in ticks]
        ends = sorted((getattr(box, f"{side}0"), getattr(box, f"{side}1")) for box in boxes)
        assert len(ends) >= 2
        assert all(a[1] <= b[0] + 0.5 for a, b in pairwise(ends)), [tick.label1.get_text() for tick in ticks]
        assert not any(tick.label1.get_text() for tick in axis.get_minor_ticks())


def test_files_are_the_same_bytes_every_time():
    assert export.to_svg(curve()) == export.to_svg(curve())
    assert export.to_pdf(curve()) == export.to_pdf(curve())
    assert export.to_pdf(curve()).startswith(b"%PDF")


def test_svg_keeps_text_as_text_and_tells_what_it_shows():
    svg = export.to_svg(curve())
    texts = {"".join(node.itertext()) for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {*LABELS, "step size η", "|w − w*|² & <more>"} <= texts
    assert words_of(svg) == words.describe(curve())
    assert "the theory of a thing, a line: 1 at 1 to 9 at 3" in words_of(svg)


@pytest.mark.parametrize("backend", ["svg", "pdf", "agg"])
def test_a_figure_keeps_its_canvas_and_its_window(backend):
    before = plt.get_backend()
    plt.switch_backend(backend)
    try:
        figure, axes = plt.subplots()
        axes.plot([0, 1], [0, 1], label="line")
        canvas, manager = figure.canvas, figure.canvas.manager
        export.to_svg(figure)
        assert figure.canvas is canvas
        assert figure.canvas.manager is manager is not None
        plt.close(figure)
    finally:
        plt.switch_backend(before)
