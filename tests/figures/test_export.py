"""Figures as files: nothing clipped, nothing hidden, the same bytes every time."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from undertow.figures import export, style, words
from undertow.figures.inline import inline, words_of

LABELS = ("the theory of a thing", "an experiment", "another, with a longer name", "a fourth")


def curve(x=(1.0, 2.0, 3.0), panels=1, **more):
    figure, panels = style.new_figure(panels, **more)
    for axes in panels:
        style.theory(axes, x, np.square(x), LABELS[0])
        for k, label in enumerate(LABELS[1:]):
            style.points(axes, x, np.square(x) + k, [0.1] * len(x), label)
        axes.set_xlabel("step size η")
        axes.set_ylabel("|w − w*|² & <more>")
        axes.legend()
    return figure


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


def test_inlined_figures_share_a_page():
    """Two figures with equal insides: every reference resolves within its own figure, no id comes twice."""
    svg = export.to_svg(curve())
    name = 'it is <second> & quoted: "'
    page = f"<div>{inline(svg, 'a', 'first')}{inline(svg, 'b', name)}</div>"
    root = ET.fromstring(page)
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert len(ids) == len(set(ids)) > 2
    used = re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'href="#([^"]+)"', page)
    assert used
    assert set(used) == set(ids)
    first, second = root
    assert second.get("aria-label") == name
    assert first.get("role") == "img"
    for leak in ("<style", "<metadata", "xlink", "<?xml", "http:"):
        assert leak not in page


def test_inlined_figures_take_the_colours_of_the_page():
    page = inline(export.to_svg(curve()), "a", "")
    assert "stroke: var(--figure-blue, #2166ac)" in page
    assert "fill: currentColor" in page
    assert not re.findall(r": (#2166ac|#1c1c1c|#000000|#ffffff)", page)
    assert "fill: #ffffff" in export.to_svg(curve())  # on its own it brings its paper along
