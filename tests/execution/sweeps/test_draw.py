"""A sweep can be drawn before it is finished: a line for one axis, a heat map for two, nothing where none is known."""

import functools

import numpy as np
import pytest
import xarray

from tests.execution.sweeps.functions import picky
from undertow.execution.registry import diagrams
from undertow.execution.sweeps import sweep
from undertow.execution.sweeps.draw import Drawer, draw
from undertow.execution.sweeps.spec import as_spec


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
    outputs = ["filtered", "recovered", "finite", "finite_teleported", "stiffness", "stiffness_teleported"]
    for finished in (3, 16):
        figure = draw(spec, dataset(spec, outputs, finished))
        assert figure.axes[0].get_legend() is not None or len(figure.legends) > 0 or figure.axes[0].lines


def test_text_axes_have_no_figure():
    spec = as_spec("f.py:f", {"word": ["a", "b"]}, seeds=2)
    assert draw(spec, dataset(spec, ["x"], 2)) is None


def test_a_figure_that_cannot_be_drawn_stops_nothing(tmp_path, monkeypatch):
    """Neither while the sweep runs nor at its end; one warning for all of them."""

    def write_figure(*given):
        tries.append(given)
        raise ValueError("no room for the labels")

    tries: list[tuple] = []
    monkeypatch.setattr("undertow.execution.sweeps.draw.write_figure", write_figure)
    monkeypatch.setattr("undertow.execution.sweeps.draw.SHARE", 0)
    monkeypatch.setattr(sweep, "Drawer", functools.partial(Drawer, first=0.0))
    with pytest.warns(UserWarning, match=r"cannot be drawn: ValueError: no room for the labels \(") as told:
        data = sweep.sweep(picky, {"n": [1, 2, 4]}, out=tmp_path)
    assert (data.done == 1).all()
    assert len(tries) == 4  # after every block, and at the end
    assert len(told) == 1
