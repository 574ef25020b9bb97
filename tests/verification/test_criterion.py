"""Verdicts at their edges, and their error rates when the truth is known."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from undertow.verification.claim import Measurement, overall
from undertow.verification.criterion import POWER, Above, AtLevel, Below, Check, Within, judge, power

finite = st.floats(-1e6, 1e6)


MANY = math.inf
"""Samples behind a standard error that is known."""


def check(measured, criterion, uncertainty=0.1, predicted=1.0, printed=None, alternative=None, samples=MANY):
    return Check("x", measured, predicted, uncertainty, criterion, printed, alternative, samples)


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
        (1.0, 0.01, -1.0, "corrected"),  # a printed value of the wrong sign
        (1.0, 0.1, 1.3, "inconclusive"),  # four of .1 resolve .5, but not the printed value
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


@pytest.mark.parametrize("tolerance", [0.0, 0.3])
def test_the_seeds_that_would_reject_the_alternative(tolerance):
    """Twice the width of four standard errors must fit between the tolerance and the alternative."""
    unsure = check(1.0, Within(tolerance, 5.0), 0.4, alternative=1.8)
    found, seeds = judge(unsure, 10_000)
    assert found == "inconclusive"
    np.testing.assert_allclose(seeds, 10_000 * (8 * 0.4 / (0.8 - tolerance)) ** 2, rtol=2e-3)


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
    assert judge(check(0.2, AtLevel(1e-3, "KS"), alternative=0.2), 10) == ("inconclusive", 20)


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


def test_a_printed_value_does_not_excuse_a_blunt_measurement():
    """Four standard errors of .4 hide a deviation of .5, wherever the printed value lies."""
    blunt = check(1.0, Within(0.0, 0.5), 0.4, printed=100.0)
    verdict, seeds = judge(blunt, 100)
    assert verdict == "inconclusive"
    assert seeds == math.ceil(100 * (4 * 0.4 / 0.5) ** 2)


@pytest.mark.parametrize("seeds", [4, 8, 30])
def test_false_alarms_with_few_seeds(seeds):
    """With a standard error estimated from few seeds a true claim fails as rarely as with many.

    Four standard errors of four Gaussian values miss the truth once in 36; the t quantile does in 16,000.
    """
    draws = np.random.default_rng(seeds).normal(size=(40_000, seeds))
    verdicts = [
        judge(check(m, Within(0.0, 1e9), u, predicted=0.0, samples=None), seeds)[0]
        for m, u in zip(draws.mean(1), draws.std(1, ddof=1) / math.sqrt(seeds), strict=True)
    ]
    assert verdicts.count("fails") <= 12  # expectation 2.5; Poisson probability of more than 12 is 5e-6


@pytest.mark.parametrize("criterion", [Within(0.2, 9.0), Below(1.5), Above(0.5)])
@pytest.mark.parametrize("gap", [0.4, 0.8, 1.2])
def test_power_is_the_frequency_of_rejections(criterion, gap):
    """The stated probability against draws of the measurement under the alternative."""
    alternative = 1.0 - gap if isinstance(criterion, Above) else 1.0 + gap
    one = lambda measured, value=None: check(measured, criterion, 0.1, alternative=value)
    drawn = alternative + 0.1 * np.random.default_rng(0).normal(size=4000)
    rejected = np.mean([judge(one(m), 100)[0] != "holds" for m in drawn])
    stated = power(one(1.0, alternative), 100)
    assert abs(rejected - stated) <= 4 * math.sqrt(max(stated * (1 - stated), 1e-4) / 4000)


def test_a_claim_that_cannot_reject_its_alternative_does_not_hold():
    near, far = check(1.0, Within(0.2, 9.0), 0.1, alternative=1.3), check(1.0, Within(0.2, 9.0), 0.1, alternative=2.0)
    assert power(near, 100) < POWER < power(far, 100)
    assert judge(near, 100)[0] == "inconclusive"
    assert judge(far, 100)[0] == "holds"
    assert judge(check(0.3, AtLevel(1e-3, "KS"), alternative=0.4), 10)[0] == "inconclusive"
    assert judge(check(0.3, AtLevel(1e-3, "KS"), alternative=1e-9), 10)[0] == "holds"
    for printed in (None, 1.4):  # also beside a printed value that is rejected
        assert judge(check(1.0, Within(0.2, 9.0), 0.01, printed=printed, alternative=1.1), 10)[0] == "inconclusive"


@pytest.mark.parametrize(("criterion", "outside"), [(Below(1.5), 2.0), (Above(1.5), 1.0)])
def test_power_of_an_exact_number_is_what_the_verdict_would_be(criterion, outside):
    for alternative in (1.5, outside, 3.0 - outside):
        verdict, _ = judge(check(alternative, criterion, uncertainty=0.0), 10)
        assert power(check(1.5, criterion, uncertainty=0.0, alternative=alternative), 10) == (verdict != "holds")


def test_a_number_known_exactly_holds_on_the_right_side_of_its_bound():
    for margin, verdict in ((0.5, "holds"), (1e-9, "holds"), (0.0, "fails"), (-0.5, "fails")):
        assert judge(check(2.0 - margin, Below(2.0), 0.0), 10)[0] == verdict
        assert judge(check(2.0 + margin, Above(2.0), 0.0), 10)[0] == verdict


def test_a_check_cannot_be_changed_after_it_was_made():
    with pytest.raises(FrozenInstanceError):
        check(1.0, Below(2.0)).measured = 3.0
    for criterion in (Within(0.1, 0.5), Below(2.0), Above(2.0), AtLevel(1e-3, "KS")):
        (name, *_) = vars(criterion)
        with pytest.raises(FrozenInstanceError):
            setattr(criterion, name, 3.0)


def test_the_seeds_that_tell_a_printed_value_from_the_prediction():
    """With twice four standard errors in the gap between them, no measurement agrees with both."""
    verdict, seeds = judge(check(1.0, Within(0.0, 0.5), 0.1, printed=1.3), 100)
    assert (verdict, seeds) == ("inconclusive", math.ceil(100 * (2 * 4 * 0.1 / 0.3) ** 2))


def test_power_of_an_exact_number_within_a_tolerance():
    """A measurement at the alternative, without error: it is rejected if it is farther away than the tolerance."""
    for alternative, rejected in ((1.3, 0.0), (1.7, 1.0), (0.3, 1.0)):
        exact = check(1.0, Within(0.5, 1.0), uncertainty=0.0, alternative=alternative)
        assert power(exact, 10) == rejected


def test_the_width_is_four_standard_errors_of_any_size():
    """A standard error of one: 3.9 is within four of them, 4.1 is not."""
    assert judge(check(4.9, Within(0.0, 9.0), uncertainty=1.0), 100)[0] == "holds"
    assert judge(check(5.1, Within(0.0, 9.0), uncertainty=1.0), 100)[0] == "fails"
