"""Results of runs: conversion to xarray, means over seeds, printed tables."""

from dataclasses import replace

import jax
import numpy as np

import undertow as ut
from tests.kinds import params, problem
from tests.mistakes import assert_explained
from undertow import _trees as trees
from undertow.regime import Regime, SmallParameter

NOISE = ut.Minibatch(problem(), 2)
KEY = jax.random.key(7)


def test_a_dataset_has_the_values_and_metadata_of_a_run():
    run = ut.descend(
        NOISE, params(), step_size=0.02, steps=2500, key=KEY, every=500, seeds=3,
        observe={"flat": trees.ravel, "tree": lambda p: p},
    )  # fmt: skip
    data = run.to_xarray()
    assert data["flat"].dims == ("seed", "step", "flat_0")
    assert data["tree.inner"].shape == (3, 6, 2, 3)
    assert data["params.outer"].dims == ("seed", "params.outer_0")
    np.testing.assert_allclose(data.time, data.step * 0.02)
    np.testing.assert_allclose(data.slow_time, data.step * 0.0004)
    assert float(data["flat"].sel(seed=1, step=1000)[0]) == run.observed["flat"][1, 2, 0]
    assert data.attrs["step_size"] == 0.02
    assert data.attrs["steps"] == 2500
    single = ut.descend(NOISE, params(), step_size=0.02, steps=10, key=KEY, observe={"flat": trees.ravel}).to_xarray()
    assert single["flat"].dims == ("step", "flat_0")
    part = run.select([0, -1])
    assert part.observed["flat"].shape == (3, 2, 8)
    assert part.step.tolist() == [0, 2500]


def test_no_observable_is_lost_in_xarray():
    """Names reserved by the dataset, names with dots, and names of dimensions."""
    names = ["params", "params.inner", "diverged", "diverged_at", "step", "time", "slow_time", "seed", "flat", "flat_0"]
    observe = {name: lambda p, i=i: i + trees.ravel(p)[0] for i, name in enumerate(names)}
    observe |= {"flat": trees.ravel, "tree": lambda p: {"leaf": 50 + p["inner"][0, 0]}}
    observe["tree.leaf"] = lambda p: 60 + p["inner"][0, 0]
    run = ut.descend(NOISE, params(), step_size=0.02, steps=4, key=KEY, every=2, seeds=3, observe=observe)
    for seeds, data in ((3, run.to_xarray()), (None, _alone(observe).to_xarray())):
        lead = () if seeds is None else ("seed",)
        recorded = [v.values for v in data.data_vars.values() if v.dims == (*lead, "step")]
        offsets = sorted(round(float(np.ravel(v)[0] - np.ravel(run.observed["params"])[0])) for v in recorded)
        assert offsets == sorted({*range(len(names)), 50, 60} - {names.index("flat")})
        assert data["flat"].dims == (*lead, "step", "flat_0")
        assert data["params.inner"].dims == (*lead, "params.inner_0", "params.inner_1")
        assert data["diverged"].dtype == bool
        np.testing.assert_array_equal(data.time, data.step * 0.02)
        assert "observed.params" in data
        assert "observed.diverged" in data


def _alone(observe):
    return ut.descend(NOISE, params(), step_size=0.02, steps=4, key=KEY, every=2, observe=observe)


def _diverging() -> ut.Trajectory:
    """Half of the seeds start where w' = w^2 explodes, at different steps; the observable is w itself."""
    cubic = ut.Problem(lambda w, x: -(w**3) / 3 + x, np.zeros(2))
    start = lambda key: jax.random.uniform(key, (), minval=-1.0, maxval=1.0)
    return ut.descend(ut.Minibatch(cubic, 1), start, step_size=0.5, steps=60, key=3, every=3, seeds=40,
                      observe={"w": lambda w: w, "pair": lambda w: {"a": w, "b": jax.numpy.stack([w, w])}})  # fmt: skip


def test_series_leave_out_diverged_runs():
    run = _diverging()
    w = run.observed["w"].astype(float)
    assert 0 < run.diverged.sum() < 40
    assert list(run.series()) == ["pair.a", "w"]
    series = run.series()["w"]
    for k in range(len(run.step)):
        kept = [w[i, k] for i in range(40) if not run.diverged[i] or run.step[k] < run.diverged_at[i]]
        assert series.runs[k] == len(kept)
        np.testing.assert_allclose(series.mean[k], np.mean(kept), rtol=1e-5)
    assert series.runs[-1] == 40 - run.diverged.sum()


def test_a_plot_has_the_mean_its_interval_and_the_diverged_runs():
    run = _diverging()
    axes = run.plot("w")
    line, crosses = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), run.step)
    np.testing.assert_allclose(line.get_ydata(), run.series()["w"].mean)
    np.testing.assert_array_equal(np.sort(crosses.get_xdata()), np.sort(run.diverged_at[run.diverged]))
    (band,) = axes.collections
    low, high = run.series()["w"].interval()
    np.testing.assert_allclose(band.get_datalim(axes.transData).intervaly, [low.min(), high.max()])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["w", "95% interval of the mean", f"diverged ({run.diverged.sum()} of 40 runs)"]


def test_runs_on_the_same_axes_share_its_clock():
    single = {"step_size": 0.02, "key": KEY, "observe": {"w": lambda p: p["inner"][0, 0]}}
    run = ut.descend(NOISE, params(), steps=4, every=2, **single)
    axes = run.plot(clock="time")
    assert axes.get_ylabel() == "w"
    sde = ut.diffuse(NOISE, params(), time=0.08, every=1, **single)
    assert sde.plot(ax=axes, label="SDE") is axes
    assert [line.get_label() for line in axes.get_lines()] == ["w", "SDE w"]
    assert len({line.get_color() for line in axes.get_lines()}) == 2
    np.testing.assert_allclose(axes.get_lines()[1].get_xdata(), [0, 0.02, 0.04, 0.06, 0.08])
    default = sde.plot()
    assert default.get_xlabel() == "time"
    assert default is not axes


def test_predictions_are_dashed():
    run = _diverging()
    axes = replace(run, continuation=None).plot("w", ax=run.plot("w"))
    curves = [line for line in axes.get_lines() if line.get_gid()]
    assert [line.get_linestyle() for line in curves] == ["-", "--"]


def test_divergence_is_marked_in_the_clock_of_the_plot():
    run = _diverging()
    for clock, unit in (("time", 0.5), ("slow_time", 0.25)):
        crosses = run.plot("w", clock=clock).get_lines()[-1].get_xdata()
        np.testing.assert_allclose(np.sort(crosses), unit * np.sort(run.diverged_at[run.diverged]), rtol=1e-6)


def test_a_plot_that_is_not_possible_says_why():
    run = _diverging()
    limit = replace(run, step=np.full(21, np.nan), time=np.full(21, np.nan), clock="slow_time")
    assert_explained(lambda: run.plot("v"), r"`run.plot\('v'\)`: the scalar observables of the run are 'pair.a', 'w'")
    assert_explained(lambda: run.select([0]).plot("pair.b"), "are 'pair.a', 'w'; give one of them")
    assert_explained(ut.descend(NOISE, params(), step_size=0.02, steps=4, key=KEY).plot, "are none; .* `observe`")
    assert_explained(lambda: limit.plot("w", ax=run.plot("w")), "has no such clock; it has 'slow_time'. Two runs")


def test_print_shows_every_observable_and_the_diverged_runs():
    run = _diverging()
    lines = str(run).splitlines()
    assert lines[0] == "descend, Minibatch: 40 runs to step 60 (time 30, slow_time 15)"
    assert [line.split()[0] for line in lines[1:5]] == ["observed", "pair.a", "pair.b", "w"]
    assert lines[3].endswith("shape (40, 21, 2)")
    mean, error = (float(x) for x in lines[4].split()[-2:])
    np.testing.assert_allclose([mean, error], [run.series()["w"].mean[-1], run.series()["w"].standard_error[-1]], 1e-3)
    first = run.diverged_at[run.diverged].min()
    assert lines[5].startswith(f"{run.diverged.sum()} of 40 runs diverged, the first at step {first};")
    assert "pair.b" in run._repr_html_()


def test_print_shows_the_regime_of_a_prediction():
    limit = ut.Limit(ut.LabelNoise(ut.Regression(lambda w, x: w["a"] * w["b"] * x, np.ones(3), np.ones(3)), 0.5, 1))
    solved = limit.solve({"a": np.array(2.0), "b": np.array(0.5)}, slow_time=0.1)
    assert str(solved).endswith(str(solved.regime))
    run = replace(solved, regime=None)
    assert str(run).splitlines()[0] == "Limit.solve, LabelNoise: 1 run to slow_time 0.1"
    assert "regime" not in str(run)
    regime = Regime((SmallParameter("eta * lambda_max", 3.0, 2.0),))
    with_regime = replace(run, regime=regime)
    assert str(with_regime) == f"{run}\n{regime}"
    assert "outside the theory" in with_regime._repr_html_()
    assert with_regime.select([0, -1]).regime is regime


def test_a_run_without_observables_prints_its_length():
    run = ut.descend(NOISE, params(), step_size=0.02, steps=4, key=KEY)
    assert str(run) == "descend, Minibatch: 1 run to step 4 (time 0.08, slow_time 0.0016)"
