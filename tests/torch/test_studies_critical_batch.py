"""The study of critical batch sizes: crossings, fit and averages against closed forms; all tasks at a small size."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from studies import critical_batch as study
from studies import critical_batch_noise as noise
from studies import critical_batch_page
from studies.adamw import Inputs
from studies.adamw_networks import Task
from studies.results import ROOT, load, save
from undertow.torch.monitor.noise_scale import ratio_uncertainty

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def test_the_first_crossing_is_interpolated():
    steps = np.array([10, 20, 40, 80])
    losses = np.array([[3.0, 3.0, 1.0, np.inf], [2.0, 2.9, 3.0, 0.5], [1.0, 2.8, 4.0, 0.4], [2.0, 2.7, np.inf, 0.3]])
    expected = [20 * 2**0.5, np.inf, 10, 20]  # between 2 and 1; never; at once; after an infinite loss
    np.testing.assert_allclose(study.first_crossing(steps, losses, 1.5), expected)


def test_the_fit_recovers_the_curve_and_its_error():
    """Steps with independent errors of 5 % at the best step size; the error over data sets is that of the bootstrap."""
    rng = np.random.default_rng(0)
    batches, seeds = 2.0 ** np.arange(1, 9), 8
    exact = 120 * (1 + 30 / batches)

    def drawn():
        best = np.exp(np.log(exact)[:, None] + 0.05 * rng.normal(size=(8, seeds)))
        return [np.stack([2 * row, row, 1.5 * row]) for row in best]

    assert study.fit(batches, exact) == pytest.approx((120, 30, 0), rel=2e-3, abs=2e-3)
    facts = [study.fit_with_error(batches, drawn(), 50) for _ in range(30)]
    critical = np.log([f["critical_batch"] for f in facts])
    assert abs(critical.mean() - math.log(30)) < 4 * critical.std() / 30**0.5
    # the bootstrap has n - 1 of n of the variance
    assert np.mean([f["critical_batch_log_error"] for f in facts]) == pytest.approx(critical.std(ddof=1), rel=0.4)
    assert all(f["place"] == [1] * 8 for f in facts)
    missing = drawn()
    missing[0][:] = np.inf
    missing[1][1, 0] = np.inf
    kept = study.fit_with_error(batches, missing, 5)
    assert (kept["kept"], kept["place"][1]) == (7, 2)  # one seed of the best step size did not reach the target


def test_the_steps_of_a_quadratic_are_those_of_its_moments():
    """The loss theta^2/2 + x theta has the gradient theta plus noise x: E theta^2 is known exactly."""
    size, start, target = 400, 4.0, 0.04

    class Point(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.full((size,), start))

        def forward(self, x):
            return (self.theta.square() / 2 + x * self.theta).sum(-1)

    draw = lambda index: (torch.randn(*index.shape, size), torch.zeros(index.shape))
    mine = Task([Point(), Point()], draw, 2**30, 1, lambda model, batch: model(batch[0]).mean())
    case = study.Case("quadratic", "none", False, size * target / 2, 0.02, batches=(1, 4, 16))
    scale = study.Scale(seeds=2, grid=9, most_steps=400, evaluation=300, first=3)
    etas = case.step_size * study.GRID_FACTOR ** np.arange(scale.grid)

    def exact(eta, batch):
        """Return the steps until E theta^2 is at its target."""
        square, step = start**2, 0
        while square > target and step < scale.most_steps:
            square, step = (1 - eta) ** 2 * square + eta**2 / batch, step + 1
        return step if square <= target else np.inf

    least = []
    for batch in case.batches:
        steps, place = study.best_steps(study.curve(case, mine, scale, batch, 60.0, CPU))
        expected = [exact(eta, batch) for eta in etas]
        least.append(min(expected))
        assert steps == pytest.approx(least[-1], rel=0.1, abs=1)
        assert expected[place] <= 1.1 * least[-1] + 1
    assert least[0] > 5 * least[-1]


def test_the_average_is_that_of_the_model():
    """A run of two halves of the noise-free progress, with the scales 10 and 90: S (1 + 50/batch) steps."""
    batch = 20
    counts = np.array([1 + 10 / batch, 1 + 90 / batch]) * 1000
    scales = np.repeat([10.0, 90.0], counts.astype(int))
    assert noise.average(scales, batch) == pytest.approx(50, rel=1e-3)
    assert noise.average(np.array([np.inf, np.inf]), batch) == math.inf


def test_pooled_scales_have_the_error_of_the_jackknife():
    """For a ratio of means the jackknife agrees with the delta method."""
    rng = np.random.default_rng(0)
    noises, signals = rng.gamma(50, 0.02, (40, 1)), rng.gamma(30, 0.01, (40, 1))
    found = noise.pooled(noises, signals, 8)
    assert found["end"] == pytest.approx(8 * noises.mean() / signals.mean())
    error, *_ = ratio_uncertainty(8 * noises[:, 0], signals[:, 0])
    assert found["end_log_error"] == pytest.approx(error / found["end"], rel=0.05)
    assert found["average"] == pytest.approx(found["end"])


@pytest.mark.parametrize(
    "cases", [study.SMALL_CASES[2:5:2], pytest.param(study.SMALL_CASES, marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_tasks_run_and_make_a_page(cases, tmp_path):
    inputs = Inputs.make(study.SMALL.sizes, ())
    facts = study.study(study.SMALL, inputs, CPU, tmp_path, cases)
    assert [len(task["batches"]) for task in facts["tasks"].values()] == [3] * len(cases)
    stored = json.loads((tmp_path / f"{study.NAME}.json").read_text())
    facts = noise.add_noise_scales(stored, study.SMALL, inputs.images, CPU, cases)
    save(study.NAME, facts, tmp_path)
    facts = json.loads((tmp_path / f"{study.NAME}.json").read_text())
    measured = [name for name, task in facts["tasks"].items() if "simple" in task]
    assert len(measured) >= len(cases) - 2
    text = critical_batch_page.page(facts)
    assert all(name in text for name in facts["tasks"])
    assert "nan" not in text
    assert set(critical_batch_page.figures(facts)) == {"critical-batch"}


def test_the_stored_page_equals_that_of_the_stored_results():
    assert (ROOT / "docs" / "studies" / f"{study.NAME}.md").read_text() == critical_batch_page.page(load(study.NAME))
