"""Tuples of symmetries: they are tuples, and print and plot what they hold."""

import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow.symmetry.found import Symmetries

PARAMS = {"out": jnp.ones((1, 3)), "in": jnp.array([[1.0], [2.0], [3.0]]), "v": jnp.array([3.0, 4.0])}
NEURONS = ut.Rescaling(lambda p: p["out"], lambda p: p["in"], neurons=True)
NORM = ut.Scaling(lambda p: p["v"])


def test_symmetries_are_a_tuple():
    found = Symmetries([NEURONS, NORM], PARAMS)
    assert found == (NEURONS, NORM)
    assert found[0] is NEURONS
    assert Symmetries([], PARAMS) == ()


def test_the_table_has_a_row_for_each_symmetry():
    """The charges are (|out|^2 - |in|^2)/2 per neuron, and |v|^2/2."""
    lines = str(Symmetries([NEURONS, NORM], PARAMS)).splitlines()
    assert lines[0] == "2 symmetries, 4 generators"
    assert lines[2].split("  ")[0] == NEURONS.describe(PARAMS)
    assert lines[2].endswith("3  -4 to 0")
    assert lines[3].split()[-2:] == ["1", "12.5"]
    assert "12.5" in Symmetries([NORM], PARAMS)._repr_html_()
    assert str(Symmetries([], PARAMS)) == "0 symmetries, 0 generators"


def test_a_long_list_is_shortened():
    lines = str(Symmetries([NORM] * 15, PARAMS)).splitlines()
    assert len(lines) == 2 + 12 + 1
    assert lines[-1] == "... and 3 more symmetries."


def test_the_plot_has_every_charge():
    axes = Symmetries([NEURONS, NORM], PARAMS).plot()
    np.testing.assert_allclose(np.concatenate([line.get_ydata() for line in axes.get_lines()]), [0, -1.5, -4, 12.5])
    np.testing.assert_allclose(np.concatenate([line.get_xdata() for line in axes.get_lines()]), [0, 1, 2, 3])
    assert axes.get_ylabel() == "charge"
