"""The clocks of runs with schedules."""

import numpy as np
import pytest

from undertow.dynamics import clock


def test_clocks_of_schedules_add_up_over_spans(monkeypatch):
    monkeypatch.setattr(clock, "SPAN", 7)
    etas = 0.1 / (1 + np.arange(40.0))
    steps = np.array([0, 1, 7, 8, 13, 14, 40])
    time_, slow = clock.clocks("descend", lambda step: 0.1 / (1.0 + step), steps)
    np.testing.assert_allclose(time_, [etas[:k].sum() for k in steps], rtol=1e-6)
    np.testing.assert_allclose(slow, [(etas[:k] ** 2).sum() for k in steps], rtol=1e-6)


@pytest.mark.parametrize(("time", "steps"), [(0.05, 1), (0.2, 2), (0.21, 3), (1.0, 10)])
def test_steps_cover_the_time(time, steps):
    """A time of whole steps is not rounded up by the error of a division."""
    assert clock.steps_of_time("diffuse", time, 0.1) == steps
