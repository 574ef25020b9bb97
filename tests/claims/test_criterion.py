"""Verdicts at their edges, and their error rates when the truth is known."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from undertow.claims.claim import Measurement, overall
from undertow.claims.criterion import Above, AtLevel, Below, Check, Within, judge

finite = st.floats(-1e6, 1e6)


def check(measured, criterion, uncertainty=0.1, predicted=1.0, printed=None):
    return Check("x", measured, predicted, uncertainty, criterion, printed)


@pytest.mark.parametrize(
    ("measured", "uncertainty", "printed", "verdict"),
    [
        (1.0, 0.01, None, "holds"),
        (1.08, 0.01, None, "holds"),  # .05 + 4 * .01 = .09
        (1.10, 0.01, None, "fails"),
        (1.0, 0.2, None, "inconclusive"),  # four of them hide a deviation of .5
        (1.0, 0.01, 2.0, "corrected"),
        (1.0, 0.3, 2.0, "inconclusive"),  # the printed value is within four standard errors
        (2.0, 0.01, 2.0, "fails"),
        (1.0, 0.0, 2.0, "corrected"),
        (math.nan, 0.1, None, "fails"),
        (1.0, math.inf, None, "fails"),
    ],
)
def test_within(measured, uncertainty, printed, verdict):
    found, seeds = judge(check(measured, Within(0.05, 0.5), uncertainty, printed=printed), 100)
    assert found == verdict
    assert (seeds is not None) == (verdict == "inconclusive")


def test_the_seeds_asked_for_would_decide():
    for printed in (None, 1.8):
        _, seeds = judge(check(1.0, Within(0.0, 0.5), 0.4, printed=printed), 100)
        smaller = 0.4 * math.sqrt(100 / seeds)
        found, _ = judge(check(1.0, Within(0.0, 0.5), smaller, printed=printed), seeds)
        assert found == ("holds" if printed is None else "corrected")


@example(measured=0.0, bound=5e-324, uncertainty=1.0)  # a margin so small that the seeds needed overflow
@given(measured=finite, bound=finite, uncertainty=st.floats(0, 1e3))
def test_below_and_above_are_mirror_images(measured, bound, uncertainty):
    one, _ = judge(check(measured, Below(bound), uncertainty), 10)
    other, _ = judge(check(-measured, Above(-bound), uncertainty), 10)
    assert one == other
    if abs(measured - bound) > 4 * uncertainty:
        assert one == ("holds" if measured < bound else "fails")


def test_a_test_at_a_level():
    assert judge(check(0.2, AtLevel(1e-3, "KS")), 10)[0] == "holds"
    assert judge(check(1e-4, AtLevel(1e-3, "KS")), 10)[0] == "fails"


def test_the_worst_check_counts():
    good, bad = check(1.0, Within(0.0, 1.0), 0.01), check(2.0, Within(0.0, 1.0), 0.01)
    unsure, printed = check(1.0, Below(1.05), 0.1), check(1.0, Within(0.0, 1.0), 0.01, printed=2.0)
    for checks, verdict in [
        ((good,), "holds"),
        ((good, printed), "corrected"),
        ((good, printed, unsure), "inconclusive"),
        ((good, printed, unsure, bad), "fails"),
    ]:
        found, seeds = overall(Measurement(checks, None, seeds=10))
        assert found == verdict
        assert (seeds is not None) == (verdict == "inconclusive")


def test_error_rates():
    """A true claim fails about once in 16,000; one that is off by ten standard errors practically always."""
    rng = np.random.default_rng(0)
    verdicts = [judge(check(1 + 0.1 * z, Within(0.0, 1.0), 0.1), 10)[0] for z in rng.normal(size=20_000)]
    assert verdicts.count("fails") <= 8  # expectation 1.3; Poisson probability of more than 8 is 2e-5
    off = [judge(check(2 + 0.1 * z, Within(0.0, 1.0), 0.1), 10)[0] for z in rng.normal(size=1000)]
    assert off.count("fails") == 1000
