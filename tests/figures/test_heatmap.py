"""Phase diagrams: every value in its cell, the boundary seen on every colour, mistakes named."""

import numpy as np
import pytest

from undertow.figures import export, style, words
from undertow.figures.heatmap import COLOUR_MAP, boundary, heat_map


def mesh_of(axes):
    (mesh,) = axes.collections
    return mesh


@pytest.mark.parametrize(
    ("x", "scale", "edges"),
    [
        ([1.0, 2.0, 3.0], "linear", [0.5, 1.5, 2.5, 3.5]),
        ([0.0, 0.1, 0.2], "linear", [-0.05, 0.05, 0.15, 0.25]),
        ([0.01, 0.1, 1.0], "log", [10**-2.5, 10**-1.5, 10**-0.5, 10**0.5]),
        ([1.0, 2.0, 5.0], "linear", [0.5, 1.5, 3.5, 6.5]),
    ],
)
def test_cells_lie_round_their_centres(x, scale, edges):
    _, (axes,) = style.new_figure()
    values = np.arange(6.0).reshape(2, 3)
    heat_map(axes, x, [0.0, 1.0], values, "value")
    mesh = mesh_of(axes)
    assert axes.get_xscale() == scale
    np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], edges)
    np.testing.assert_array_equal(mesh.get_array(), values)  # row j of values is the row y[j]
    np.testing.assert_allclose(axes.get_xlim(), [edges[0], edges[-1]])


def test_the_boundary_leaves_the_map_as_it_is_and_differs_from_every_colour():
    import matplotlib

    _, (axes,) = style.new_figure()
    heat_map(axes, [1, 2, 3], [1, 2, 3], np.eye(3), "value")
    before = axes.get_xlim(), axes.get_ylim()
    boundary(axes, [-10, 10], [0, 20], "theory")
    assert (axes.get_xlim(), axes.get_ylim()) == before

    def luminance(rgb):
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ np.array([0.2126, 0.7152, 0.0722])

    under = luminance(matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, 64))[:, :3])
    white, edge = 1.0, luminance(np.full(3, 15 / 255))
    contrast = np.maximum((white + 0.05) / (under + 0.05), (under + 0.05) / (edge + 0.05))
    assert contrast.min() >= 3  # what WCAG 2.1 asks of graphics, for the line or for its edge


def test_missing_values_stay_empty_and_limits_are_kept():
    _, (axes,) = style.new_figure()
    heat_map(axes, [1, 2], [1, 2], [[np.nan, 1.0], [2.0, 3.0]], "value", limits=(0.0, 10.0))
    mesh = mesh_of(axes)
    assert np.ma.getmaskarray(mesh.get_array()).tolist() == [[True, False], [False, False]]
    assert mesh.get_clim() == (0, 10)


def test_a_map_is_one_small_picture_in_svg_and_has_words():
    figure, (axes,) = style.new_figure()
    n = 60
    heat_map(axes, np.arange(n), np.logspace(-3, 0, n), np.random.default_rng(0).random((n, n)), "share of runs")
    boundary(axes, [0, n], [0.01, 1], "predicted threshold")
    axes.set_xlabel("spread")
    axes.set_ylabel("step size")
    axes.legend(loc="upper left")  # "best" warns where the machine is slow
    svg = export.to_svg(figure)
    assert svg.count("<image") >= 1
    assert len(svg) < 300_000  # 3,600 paths would take more
    said = words.describe(figure)
    assert said.startswith("step size against spread. share of runs, a heat map of 60 by 60 cells: ")
    assert "predicted threshold, a line: 0.01 at 0 to 1 at 60" in said


@pytest.mark.parametrize(
    ("x", "values", "message"),
    [
        ([1, 2, 3], np.zeros((3, 2)), r"shape \(3, 2\) for 3 columns x and 2 rows y"),
        ([2, 1, 3], np.zeros((2, 3)), "x must hold at least two centres, growing"),
        ([1], np.zeros((2, 1)), "at least two centres"),
    ],
)
def test_mistakes_are_named(x, values, message):
    _, (axes,) = style.new_figure()
    with pytest.raises(ValueError, match=message):
        heat_map(axes, x, [1, 2], values, "value")
