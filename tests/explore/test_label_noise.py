"""Label noise on the sparse linear model against the law of its products and gradient descent."""

import numpy as np

from tests.explore.instrument_checks import check_code, check_other_values_compile_nothing
from undertow.explore.label_noise import LABEL_NOISE, compute


def test_other_values_compile_nothing_new():
    check_other_values_compile_nothing(LABEL_NOISE)


def test_the_code_runs():
    check_code(LABEL_NOISE, {"step_size": 0.008, "noise": 0.75}, 0)


def test_runs_approach_the_flow_as_the_step_size_falls():
    """The rate of the products exceeds that of the flow in proportion to the step size (claim uv-rate)."""
    rates = {eta: compute(LABEL_NOISE.defaults() | {"step_size": eta}).rate for eta in (0.004, 0.008)}
    excess = {eta: rate - 1 for eta, (rate, _) in rates.items()}
    assert 0 < excess[0.004] < excess[0.008]
    assert abs(excess[0.008] / excess[0.004] - 2) < 0.6


def test_without_noise_nothing_moves_along_the_solutions():
    half, whole = (compute(LABEL_NOISE.defaults() | {"noise": 0.0, "step_size": eta}) for eta in (0.004, 0.008))
    np.testing.assert_allclose(whole.flow, whole.flow[0])
    assert np.isnan(whole.rate[0])
    # gradient descent ends where gradient flow does, up to an error proportional to the step size
    gaps = [result.descent[-1] - result.flow[0] for result in (half, whole)]
    assert abs(gaps[1] / gaps[0] - 2) < 0.3
    assert abs(gaps[1]) < 0.01 * whole.flow[0]


def test_noise_brings_the_sparse_vector_nearer():
    result = compute(LABEL_NOISE.defaults())
    assert result.sgd[:, -1].mean() < result.descent[-1] / 2
    assert result.flow[-1] < result.descent[-1] / 2
