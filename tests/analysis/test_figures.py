"""The figures of an analysis show its numbers."""

from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.analyses import SIDES, analysis_of, row_of
from undertow.analysis.figures import MOST, plots
from undertow.analysis.result import Path, Sides
from undertow.figures.export import to_svg
from undertow.figures.inline import words_of
from undertow.symmetry.curvature import Spectrum

EXACT = Spectrum((100.0, 1.0, -4.0, 1e-12), (1.0,) * 4, exact=True)
PATH = Path("label noise of strength 1", (0.0, 0.5, 1.0), (8.0, 3.0, 2.0))


def drawn(figure) -> dict[str, np.ndarray]:
    """Return the points and lines of the first panel by their labels."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    lines = [getattr(handle, "lines", (handle,))[0] for handle in handles]
    return {name: np.asarray(line.get_xydata()) for name, line in zip(names, lines, strict=True)}


def by_name(analysis):
    return {plot.name: plot for plot in plots(analysis)}


def test_figures_without_data_are_left_out():
    assert by_name(analysis_of()) == {}
    assert set(by_name(analysis_of(row_of()))) == {"charges", "noise"}
    assert set(by_name(analysis_of(spectrum=EXACT, path=PATH))) == {"spectrum", "path"}


def test_charges_are_drawn_in_their_order_by_row():
    """The sides of the tests have the charges 1/2 and -1; a second row starts after a gap."""
    then = replace(SIDES, weight_plus=(1.0, 1.0), weight_minus=(1.0, 0.0))
    (plot, _) = plots(analysis_of(row_of(then=then), row_of()))
    series = drawn(plot.figure)
    np.testing.assert_allclose(series["now"], [[0, -1], [1, 0.5], [4, -1], [5, 0.5]])
    np.testing.assert_allclose(series["at equilibrium"][:2], [[0, 0.5], [1, 0]])
    axes = plot.figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]
    np.testing.assert_allclose(axes.get_xticks(), [0.5, 4.5])


@pytest.mark.parametrize(("decay", "up", "down"), [(0.0, [4.0, 1.0], [0.0, 1.0]), (0.01, [10.0, 3.0], [2.0, 5.0])])
def test_noise_and_weight_decay_of_both_sides(decay, up, down):
    """With 2 lambda/eta = 2, twice the weights of the other side are added; zero is drawn at the lower edge."""
    plot = by_name(analysis_of(row_of(), weight_decay=decay))["noise"]
    series = drawn(plot.figure)
    edge = series["balanced"][0, 0]
    np.testing.assert_allclose(series["now"], np.maximum(np.transpose([down, up]), edge))
    assert ("weight decay" in plot.figure.axes[0].get_xlabel()) == (decay > 0)


def test_a_symmetry_of_many_generators_is_thinned():
    many = Sides(*(tuple(np.arange(1.0, 1001.0)) for _ in range(4)))
    plot = by_name(analysis_of(row_of(now=many, then=many)))["charges"]
    assert len(drawn(plot.figure)["now"]) == MOST


def test_the_spectrum_is_drawn_by_rank_with_the_bound_of_the_step_size():
    """Rounding (1e-12 of 100) is left out, and a negative curvature is a cross at its absolute value."""
    plot = by_name(analysis_of(spectrum=EXACT, step_size=0.01))["spectrum"]
    series = drawn(plot.figure)
    np.testing.assert_allclose(series["now"], [[1, 100], [3, 1]])
    np.testing.assert_allclose(series["now, negative"], [[2, 4]])
    np.testing.assert_allclose(series["2/step size = 200"][:, 1], 200)
    assert "Lanczos" not in plot.caption
    estimated = Spectrum((5.0, 1.0), (1.5, 98.5), exact=False)
    plot = by_name(analysis_of(spectrum=estimated, spectrum_then=EXACT))["spectrum"]
    np.testing.assert_allclose(drawn(plot.figure)["now"], [[1.5, 5], [100, 1]])
    assert "at equilibrium" in drawn(plot.figure)
    assert "Lanczos" in plot.caption


def test_the_path_is_drawn_in_steps():
    plot = by_name(analysis_of(path=PATH, step_size=0.1))["path"]
    np.testing.assert_allclose(drawn(plot.figure)["limiting flow"], [[0, 8], [50, 3], [100, 2]])
    assert "label noise of strength 1" in plot.caption


def test_every_figure_has_a_description_in_words():
    for plot in plots(analysis_of(row_of(), spectrum=EXACT, path=PATH)):
        assert "against" in words_of(to_svg(plot.figure)), plot.name
