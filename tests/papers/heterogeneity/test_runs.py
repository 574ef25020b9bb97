"""Runs of matrix sensing: the measures at the end, and the stationary error under measurement noise."""

import types

import jax
import numpy as np
import pytest
import xarray

import undertow as ut
from undertow.figures.style import COLOURS, new_figure
from undertow.papers.heterogeneity import _runs
from undertow.papers.heterogeneity._runs import draw_learnt, ends, learnt_columns, noise_square
from undertow.sensing.laws import two_point
from undertow.sensing.quadratic_net import QuadraticNet

TASK = ut.MatrixSensing(4, m=400, law=two_point(1.0, 2.0))
KEY = jax.random.key(3)


@pytest.fixture
def recorded(monkeypatch):
    """`descend` replaced: it keeps its arguments and returns three runs, of which the second has diverged."""
    calls = []

    def descend(noise, start, **settings):
        calls.append((noise, start, settings))
        observed = {"true": np.array([[0.0, 1.0], [0.0, np.nan], [0.0, 3.0]])}
        (name,) = settings["observe"]
        return types.SimpleNamespace(diverged=np.array([False, True, False]), observed={name: observed})

    monkeypatch.setattr(_runs, "descend", descend)
    return calls


def test_diverged_runs_are_counted_and_left_out(recorded):
    measures, diverged = ends(TASK, 0.05, 40, 3, KEY)
    assert diverged == 1
    np.testing.assert_array_equal(measures["true"], [1.0, 3.0])


@pytest.mark.parametrize("signed", [False, True])
def test_runs_start_small_and_are_measured_by_the_task(signed, recorded):
    ends(TASK, 0.05, 40, 3, KEY, alpha=0.1, signed=signed)
    ((noise, start, settings),) = recorded
    assert noise is TASK
    expected = TASK.start(0.1, signed=signed)
    assert jax.tree.structure(start) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(start), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, other)
    assert (settings["step_size"], settings["steps"], settings["seeds"], settings["key"]) == (0.05, 40, 3, KEY)
    (measure,) = settings["observe"].values()
    assert measure == TASK.measure


def test_a_quadratic_network_has_no_signed_start(recorded):
    net = QuadraticNet(4, 6, two_point(1.0, 2.0))
    ends(net, 0.05, 40, 3, KEY, alpha=0.1, signed=True)
    np.testing.assert_array_equal(recorded[0][1], net.start(0.1))


@pytest.mark.parametrize("learnt", [[1.0], [2.0, -0.5]])
def test_the_stationary_error_is_the_fixed_point_of_its_recursion(learnt):
    """Each entry: v+ = (1 - r)^2 v + r^2 F/m (F/(2m) off the diagonal), F = square + sum of all v, to its end."""
    d, m, eta, square = 4, 50, 0.1, 0.7
    values = np.zeros(d)
    values[: len(learnt)] = np.abs(learnt)
    rates = eta * (values[:, None] + values[None])
    shares = np.where(np.eye(d) > 0, 1 / m, 1 / (2 * m))
    variances = np.zeros((d, d))
    for _ in range(2000):
        variances = (1 - rates) ** 2 * variances + rates**2 * shares * (square + variances.sum())
    assert noise_square(learnt, d, m, eta, square) == pytest.approx(variances.sum(), rel=1e-9)


def test_without_a_signal_there_is_no_stationary_error():
    assert noise_square([], 4, 50, 0.1, 0.7) == 0
    assert noise_square([1.0], 4, 50, 0.1, 0.0) == 0


def test_every_run_is_drawn_at_its_signals_inside_the_panel():
    signals = {"one": ([1.0, 0.9], [0.0, 0.1]), "pooled": ([1.4, 0.5, 1.0], [1.0, 0.9, 1.2])}
    runs = {kind: dict(zip(("true", "spurious"), map(np.array, pair), strict=True)) for kind, pair in signals.items()}
    _, (axes,) = new_figure()
    draw_learnt(axes, xarray.Dataset(learnt_columns(runs)))
    marks = {line.get_color(): line.get_xydata().T for line in axes.lines if line.get_marker() in "os"}
    np.testing.assert_array_equal(marks[COLOURS["blue"]], signals["one"])
    np.testing.assert_array_equal(marks[COLOURS["red"]], signals["pooled"])
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] > 1.4
