"""Two layers: the runs follow the averaged flow and end at the equilibrium, which depends on the optimiser."""

import pytest

from tests.explore.instrument_checks import check_code, check_other_values_compile_nothing, near
from undertow.explore.balance import BALANCE_OF_LAYERS, compute, draw


def test_other_values_compile_nothing_new():
    check_other_values_compile_nothing(BALANCE_OF_LAYERS)


def test_the_code_runs():
    check_code(BALANCE_OF_LAYERS, {"steps": 10000, "start": -1.0}, 0)


@pytest.mark.parametrize("optimiser", ["SGD", "AdamW"])
def test_runs_follow_the_flow(optimiser):
    result = compute(BALANCE_OF_LAYERS.defaults() | {"optimiser": optimiser, "decay": 0.03, "seeds": 64})
    moved = abs(result.flow[-1] - result.flow[0])
    assert moved > 1
    assert abs(result.ratio.mean(axis=0) - result.flow).max() < 0.03 * moved
    assert abs(result.flow[-1] - result.end) < 0.03 * moved
    assert near(draw(result), 0, share=0.1)


def test_noise_changes_the_charge_and_a_smaller_step_changes_it_less():
    fast, slow = (compute(BALANCE_OF_LAYERS.defaults() | {"step_size": eta, "steps": 3000}) for eta in (0.01, 0.001))
    change = lambda result: abs(result.charge[:, -1].mean() - result.charge[0, 0])
    assert change(fast) > 4 * change(slow) > 0
