"""Runs of matrix sensing: the measures at the end, and the stationary error under measurement noise."""

import jax
import numpy as np
import pytest

import undertow as ut
from undertow.papers.heterogeneity._runs import ends, noise_square
from undertow.sensing.laws import two_point

TASK = ut.MatrixSensing(4, m=400, law=two_point(1.0, 2.0))
KEY = jax.random.key(3)


def by_hand(step_size, steps, **settings):
    run = ut.descend(
        TASK, TASK.start(0.1, **settings), step_size=step_size, steps=steps, key=KEY, seeds=3, progress=False
    )
    return run.diverged, jax.vmap(TASK.measure)(run.params)


@pytest.mark.parametrize("signed", [False, True])
def test_the_measures_are_those_of_the_last_step(signed):
    measures, diverged = ends(TASK, 0.05, 40, 3, KEY, alpha=0.1, signed=signed)
    _, expected = by_hand(0.05, 40, **({"signed": True} if signed else {}))
    assert diverged == 0
    assert set(measures) == set(expected)
    for name, values in measures.items():
        assert values.shape == (3,)
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*step_size")
def test_diverged_runs_are_counted_and_left_out():
    measures, diverged = ends(TASK, 3.0, 40, 3, KEY, alpha=0.1)
    lost, _ = by_hand(3.0, 40)
    assert diverged == lost.sum() > 0
    assert all(len(values) == 3 - diverged for values in measures.values())


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
