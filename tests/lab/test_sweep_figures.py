"""A sweep can be drawn before it is finished: a line for one axis, a heat map for two, nothing where none is known."""

import numpy as np
import pytest
import xarray

from undertow.diagrams import diagrams
from undertow.lab.sweeps.draw import draw
from undertow.lab.sweeps.spec import as_spec


def dataset(spec, names, finished):
    """The first `finished` points of a sweep done, the rest NaN."""
    coordinates = {name: (axis.name, list(v)) for axis in spec.axes for name, v in axis.values.items()}
    dimensions = [*(axis.name for axis in spec.axes), "seed"]
    values = np.full(spec.shape, np.nan)
    values.reshape(-1)[: finished * spec.seeds] = np.linspace(0, 1, finished * spec.seeds)
    done = np.isfinite(values).astype("i1")
    arrays = dict.fromkeys(names, (dimensions, values)) | {"done": (dimensions, done)}
    return xarray.Dataset(arrays, coords=coordinates)


@pytest.mark.parametrize("finished", [0, 1, 7, 20])
@pytest.mark.parametrize("axes", [{"a": {"log": [0.1, 1, 20]}}, {"a": [1, 2, 3, 4], "b": [3.0, 1.0, 2.0, 5.0, 4.0]}])
def test_partial_figures(axes, finished):
    spec = as_spec("f.py:f", axes, seeds=3)
    figure = draw(spec, dataset(spec, ["x"], finished))
    if finished == 0:
        assert figure is None
        return
    panel = figure.axes[0]
    assert panel.get_xlabel() == ("b" if len(axes) == 2 else "a")
    if len(axes) == 2:
        (mesh,) = panel.collections
        assert np.ma.count(mesh.get_array()) == finished


@pytest.mark.parametrize("name", diagrams)
def test_partial_diagrams(name):
    spec = as_spec(name, diagrams[name].axes(4), seeds=2)
    outputs = ["filtered", "recovered", "lives", "lives_teleported", "stiffness", "stiffness_teleported"]
    for finished in (3, 16):
        figure = draw(spec, dataset(spec, outputs, finished))
        assert figure.axes[0].get_legend() is not None or len(figure.legends) > 0 or figure.axes[0].lines


def test_text_axes_have_no_figure():
    spec = as_spec("f.py:f", {"word": ["a", "b"]}, seeds=2)
    assert draw(spec, dataset(spec, ["x"], 2)) is None
