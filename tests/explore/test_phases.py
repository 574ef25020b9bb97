"""The phase diagram: runs on both sides of the predicted boundary."""

import numpy as np

from tests.explore.instrument_checks import check_code, check_other_values_compile_nothing
from undertow.explore.phases import PHASES, SPREADS, STEP_SIZES, compute, draw


def test_other_values_compile_nothing_new():
    check_other_values_compile_nothing(PHASES)


def test_the_code_runs():
    check_code(PHASES, {"spread": 3.5, "step_size": 0.08}, 0)


def test_the_spurious_signal_survives_below_the_boundary_and_is_filtered_out_above():
    result = compute(PHASES.defaults())
    low, high = (compute(PHASES.defaults() | {"spread": spread}) for spread in (0.5, 8.5))
    assert np.median(low.spurious[:, -1]) > 0.5
    assert np.median(high.spurious[:, -1]) < 1e-3
    for run in (low, high):
        np.testing.assert_allclose(run.true.mean(axis=0)[-1], run.true_theory[-1], rtol=0.02)
    boundary = np.interp(STEP_SIZES, result.curve_sizes, result.boundary)
    above = np.array(SPREADS)[:, None] - boundary[None]
    assert result.share[above > 2].mean() > 0.95
    # small steps have not brought any signal up after 200 steps
    grown = np.array(STEP_SIZES) > 0.05
    assert result.share[:, grown][above[:, grown] < -2].mean() < 0.05


def test_a_click_sets_step_size_and_spread():
    (diagram, _) = draw(compute(PHASES.defaults())).panels
    assert diagram.pick == ("step_size", "spread")
    assert {"step_size", "spread"} <= set(PHASES.defaults())
