"""Second moments of per-sample gradients by either algorithm, and the choice between them."""

import numpy as np
import pytest
import torch

from tests.torch.oracle import (
    Block,
    assert_noise,
    census_of,
    monitored_step,
    sample_gradients_by_vmap,
    square,
)
from undertow.torch.equilibrium.amounts import general_amount
from undertow.torch.equilibrium.charge_moments import ChargeMoments, block_grams
from undertow.torch.monitor import sample_gradients, statistics
from undertow.torch.monitor.sample_gradients import Outer
from undertow.torch.monitor.statistics import Autotuner, StatisticRequest

pytestmark = pytest.mark.torch


@pytest.fixture(params=["gram", "direct"])
def algorithm(request, monkeypatch):
    monkeypatch.setattr(statistics, "ALGORITHMS", {request.param: statistics.ALGORITHMS[request.param]})
    return request.param


def test_noise_of_sequences_by_either_algorithm(algorithm):
    torch.manual_seed(0)
    model, x = Block().double(), torch.randn(6, 7, 8, dtype=torch.float64)
    symmetries = census_of(model, x[:2])
    assert {r.block for r in symmetries} == {1, 4}
    monitor, before = monitored_step(model, symmetries, square, x)
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)
    assert set(monitor.algorithms.values()) == {algorithm}
    for reading in monitor.last:  # compare the full-rank solution of a GL with the general one
        block = reading.symmetry.block
        if block > 1 and algorithm == "gram":
            matrices = lambda side, b=block: sum(
                block_grams(before.get_parameter(a.parameter).detach(), a, b) for a in side
            )
            weights = map(matrices, (reading.symmetry.plus, reading.symmetry.minus))
            general = general_amount(
                reading.symmetry, ChargeMoments(reading.noise_plus, reading.noise_minus, *weights), 0.1, 0.0
            )
            np.testing.assert_allclose(reading.amount, general.amount, atol=1e-6)


def test_noise_of_sequences_in_single_precision():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(6, 7, 8)
    monitor, before = monitored_step(model, census_of(model, x[:2]), square, x)
    assert_noise(monitor, sample_gradients_by_vmap(before.double(), square, x.double()), 1e-5)
    assert monitor.algorithms  # the algorithms were timed


def runs_of(monkeypatch, outer, requests):
    """Return the algorithms that run for the choice and for the statistics, with the number of samples each time."""
    runs = []

    def spy(name, algorithm):
        def run(part, statistics_requested):
            runs.append((name, len(part.out)))
            return algorithm(part, statistics_requested)

        return run

    algorithms = {name: spy(name, algorithm) for name, algorithm in statistics.ALGORITHMS.items()}
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "ALGORITHMS", algorithms)
        ((statistic,),) = Autotuner().run(outer, requests)
    exact = outer.formed().flatten(2).square().sum((0, 2))
    torch.testing.assert_close(statistic, exact, rtol=1e-10, atol=0)
    return runs


def test_only_algorithms_that_may_be_the_fastest_are_tried(monkeypatch):
    outer = lambda n, t, out, into: Outer(
        torch.randn(n, t, out).double(), torch.randn(n, t, into).double(), (out, into)
    )
    requests = [StatisticRequest("weight", 0)]
    assert runs_of(monkeypatch, outer(3, 500, 4, 6), requests) == [("direct", 3)]  # an image: 500^2 inner products
    assert runs_of(monkeypatch, outer(3, 2, 90, 80), requests) == [("gram", 3)]
    balanced = outer(9, 20, 30, 30)
    monkeypatch.setattr(sample_gradients, "CPU_CHUNK_BYTES", 8 * 3 * 1000)  # 3 gradients, or 3 Gram matrices
    runs = runs_of(monkeypatch, balanced, requests)
    chosen = runs[-1][0]
    small = {"gram": 24000 // (8 * 20 * 50), "direct": 24000 // (8 * 900)}
    assert runs == [(algorithm, small[algorithm]) for algorithm in ("gram", "direct") for _ in range(3)] + [(chosen, 9)]
    monkeypatch.setattr(statistics, "MEMORY", 8 * 950)  # too little for 20 * (20 + 30) numbers
    assert runs_of(monkeypatch, balanced, requests) == [("direct", 9)]
    monkeypatch.setattr(statistics, "MEMORY", 8)  # neither algorithm fits: the one with less memory
    assert runs_of(monkeypatch, balanced, requests) == [("direct", 9)]


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_matrices_with_indices_of_their_own(axis, positions):
    """Two matrices in a row along the first axis: the squares along an axis by matrix, formed from outer products."""
    torch.manual_seed(0)
    out, into = (torch.randn(5, positions, size, dtype=torch.float64) for size in (6, 4))
    gradients = (out.mT @ into).reshape(5, 2, 3, 4)  # samples, matrices, rows, columns
    exact = gradients.square().sum((0, 3 if axis == 0 else 2)).flatten()
    request = StatisticRequest("weight", axis, matrices=2)
    (found,) = statistics.batch_statistics([Outer(out, into, (6, 4))], [request], Autotuner())
    np.testing.assert_allclose(found, exact, rtol=1e-12)
