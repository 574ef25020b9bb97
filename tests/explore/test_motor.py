"""The motor turns at the predicted speed, with and without momentum, for any number of phases."""

import numpy as np
import pytest

from tests.explore.instrument_checks import check_code, check_other_values_compile_nothing, near
from undertow.explore.motor import MOTOR, compute, draw


def test_other_values_compile_nothing_new():
    check_other_values_compile_nothing(MOTOR)


def test_the_code_runs():
    check_code(MOTOR, {"step_size": 0.2, "seeds": 8}, 0)


@pytest.mark.parametrize("change", [{}, {"momentum": 0.5, "step_size": 0.05}, {"phases": 6, "step_size": 0.05}])
def test_the_speed_is_predicted(change):
    picture = draw(compute(MOTOR.defaults() | {"seeds": 128} | change))
    assert near(picture, 0, share=0.02)


def test_points_stay_near_the_circle_and_larger_steps_turn_faster():
    slow, fast = (compute(MOTOR.defaults() | {"step_size": eta}) for eta in (0.05, 0.2))
    assert abs(np.linalg.norm(slow.ends, axis=1) - 1).max() < 0.1
    assert slow.small_step_speed < slow.speed < fast.speed
