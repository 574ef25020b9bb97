"""The studies of coloured digits and of label noise run and write the pages from their results."""

import jax
import jax.flatten_util
import numpy as np
import pytest

import undertow as ut
from studies import colours, colours_page, label_noise, results

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("study", "written"), [(colours, colours_page), (label_noise, label_noise)])
def test_the_stored_page_equals_that_of_the_stored_results(study, written):
    page = written.page(results.load(study.NAME))
    assert (results.ROOT / "docs" / "studies" / f"{study.NAME}.md").read_text() == page
    assert f"python -m {study.__name__}" in page


def test_colours_and_batches_have_the_stated_distribution():
    settings = colours.Settings(seeds=2, steps=40, every=20)
    prepared = colours.prepare(settings)
    n = settings.train
    for design, agreement in colours.DESIGNS.items():
        agrees = (prepared[f"colour_{design}"] == prepared["y"]).reshape(2, 2, n).mean(axis=(0, 2))
        deviation = np.sqrt(np.array(agreement) * (1 - np.array(agreement)) / (2 * n))
        assert np.all(np.abs(agrees - agreement) < 4 * deviation)
    environments = prepared["batches_one environment"] // n
    assert np.all(environments == environments[..., :1])
    mixed = (prepared["batches_pooled"] // n).mean(axis=-1)
    assert 0.3 < mixed.min() < mixed.max() < 0.7


def test_runs_are_counted_and_diverged_runs_are_never_chosen():
    settings = colours.Settings(seeds=2, steps=40, every=20, hidden=4, annealed=0)
    grids = {"V-REx": ((0.3, 1e20), (0.0, 1e4))}
    records = colours.run_all(settings, colours.prepare(settings), grids)
    risks = records["steady/diagonal/V-REx"].astype(float)
    assert risks.shape == (2, 2, 2, 3, 6)  # the first record is the start, which is the same for all settings
    assert (risks[:, :, :, 0] == risks[:, :1, :1, 0]).all()
    assert (risks[:, 1, 0, -1] == 0).all()
    assert (colours.choose(colours.scores(risks[:, :, :, 1:], "validation"), "validation")[:, 0] == 0).all()
    facts = colours.summarise(settings, records, grids)
    assert facts["count"] == 2 * 4 * 2 * 4  # designs, models, seeds, settings
    assert facts["diverged"] >= 2


def test_batched_runs_equal_single_runs():
    settings = colours.Settings(seeds=2, steps=6, every=3, hidden=4, annealed=3)
    prepared = colours.prepare(settings)
    batches = prepared["batches_pooled"].astype(np.int32)
    data = {k: v.astype(np.float32) for k, v in prepared.items() if not k.startswith(("batches", "colour"))}
    data |= {"tint": np.ones(2, np.float32), "colour": prepared["colour_steady"].astype(np.float32)}
    data["colour_validation"] = prepared["colour_validation_steady"].astype(np.float32)
    keys = jax.vmap(jax.random.key)(np.arange(2))
    columns = [np.array(column, np.float32) for column in ((1.0, 0.1), (0.3, 1.0), (10.0, 1.0))]
    for method in ("pooled", "V-REx"):
        run = lambda how, method=method: colours.train(method, "network", settings, how, data, batches, keys, *columns)
        np.testing.assert_allclose(run(True), run(False), atol=0.01)  # shares of a few hundred images


def test_an_optimum_at_the_end_of_a_grid_is_reported_with_its_gain():
    generator = np.random.default_rng(0)
    score = np.zeros((10, 5, 1, 4))
    score[:, 4, 0, 3] = 1.0
    gains = colours.at_the_ends(score + 0.01 * generator.normal(size=score.shape))
    assert set(gains) == {"largest step size", "largest steps"}
    assert all(colours_page.verdict(gain) == "better" for gain in gains.values())
    score[:, 2, 0, 1] = 1.0  # an inner value is as good
    ties = colours.at_the_ends(score + 0.01 * generator.normal(size=score.shape))
    assert all(colours_page.verdict(gain) == "no difference" for gain in ties.values())
    score[:, 1, 0, 0] = 2.0  # a run that does not train is not an end of the grid
    assert colours.at_the_ends(score) == {}


def test_sharpness_is_the_trace_of_the_hessian_and_the_return_ends_at_zero_loss(x64):
    settings = label_noise.Settings(images=4, hidden=(3, 2))
    drawn, params, _ = label_noise.begin(settings, 0)
    targets = jax.vmap(lambda x: label_noise.predict(params, x))(drawn.inputs)
    problem = ut.Regression(label_noise.predict, drawn.inputs, targets)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    hessian = jax.jit(jax.hessian(lambda x: problem.loss(unravel(x))))(flat)
    traces = label_noise._traces(problem.inputs, jax.tree.map(lambda leaf: leaf[None], params))
    np.testing.assert_allclose(traces, [np.trace(hessian)], rtol=1e-10)
    moved = unravel(flat + 0.01 * jax.random.normal(jax.random.key(1), flat.shape))
    _, residual = label_noise._back(problem.data, jax.tree.map(lambda leaf: leaf[None], moved), settings.returns)
    assert problem.loss(moved) > 1e-8
    assert residual[0] < 1e-20


@pytest.mark.slow
def test_sgd_with_label_noise_follows_the_flow():
    settings = label_noise.Settings(
        seeds=1, runs=64, images=4, hidden=(4, 3), time=1.0, num_saves=2, step_sizes=(0.05,)
    )
    (start,) = label_noise.measure(settings)["starts"]
    assert start["trace"][-1] < start["trace"][0]
    (sgd,) = start["sgd"]
    assert sgd["diverged"] == 0
    assert sgd["trace"][-1] < start["trace"][0]
    assert abs(sgd["progress"][-1] - 1) < 0.5
