"""The averaged flow of the network with one input against runs of SGD."""

import numpy as np

from tests.explore.instrument_checks import check_code, check_other_values_compile_nothing, near
from undertow.explore.averaged import AVERAGED, INPUTS, compute, draw


def test_other_values_compile_nothing_new():
    check_other_values_compile_nothing(AVERAGED)


def test_the_code_runs():
    check_code(AVERAGED, {"time": 25, "noise": 0.5}, 0)


def test_runs_follow_the_flow():
    result = compute(AVERAGED.defaults() | {"seeds": 64})
    assert near(draw(result), 0, share=0.02)
    spread = result.functions.std(axis=0) / 8
    assert (abs(result.functions.mean(axis=0) - result.function_flow) < 5 * spread + 0.05).all()
    assert result.trace_flow[-1] < result.trace_flow[0]


def test_the_function_fits_the_data():
    result = compute(AVERAGED.defaults() | {"noise": 0.25, "time": 400})
    inputs, targets = result.data
    fitted = np.interp(inputs, INPUTS, result.function_flow)
    assert abs(fitted - targets).max() < 0.15
