"""Criteria and numbers as text."""

import math

import pytest

from undertow.verification.criterion import Above, AtLevel, Below, TextCriterion, Within
from undertow.verification.presentation import alternative_text, measured_text, number, prediction_text

WITHIN, BELOW, ABOVE = Within(0.1, 0.5), Below(0.5), Above(1e-9)
LEVEL, TEXT = AtLevel(1e-3, "Kolmogorov-Smirnov"), TextCriterion("größer als 1")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (None, None, "–"),
        (None, 0.1, "–"),
        (0, None, "0"),
        (0.0, 0.0, "0"),
        (3, 2, "3 ± 2"),
        (1.0, 0.0, "1"),
        (-0.123456, 0.0123, "-0.1235 ± 0.01"),
        (123456.0, None, "1.235e+05"),
        (1e-15, 2e-16, "1e-15 ± 2e-16"),
        (math.nan, 0.1, "nan ± 0.1"),
        (1.0, math.nan, "1 ± nan"),
        (math.inf, math.inf, "inf ± inf"),
    ],
)
def test_numbers_have_four_digits_and_errors_one(value, error, text):
    assert number(value, error) == text


@pytest.mark.parametrize("criterion", [WITHIN, BELOW, ABOVE, TEXT])
def test_a_measured_value_has_its_error(criterion):
    assert measured_text(criterion, 0.2194, 0.01) == "0.2194 ± 0.01"
    assert measured_text(criterion, None, None) == "–"


def test_a_p_value_is_named():
    assert measured_text(LEVEL, 0.2194, 0.0) == "p = 0.2194"


@pytest.mark.parametrize(
    ("criterion", "printed", "text"),
    [
        (WITHIN, None, "2"),
        (WITHIN, 4.0, "2 (in print: 4)"),
        (WITHIN, 0.0, "2 (in print: 0)"),
        (BELOW, None, "below 0.5"),
        (ABOVE, 4.0, "above 1e-09"),
        (LEVEL, None, "p above 0.001"),
        (TEXT, None, "2"),
        (TEXT, 4.0, "2 (in print: 4)"),
    ],
)
def test_a_prediction_is_a_number_a_bound_or_a_level(criterion, printed, text):
    assert prediction_text(criterion, 2.0, printed) == text


def test_a_prediction_that_is_missing_is_a_dash():
    assert prediction_text(WITHIN, None, None) == "–"


@pytest.mark.parametrize(
    ("criterion", "value", "text"),
    [
        (WITHIN, 0.12345, "0.1235"),
        (WITHIN, None, "more than 0.5 away"),
        (BELOW, 0.7, "0.7"),
        (BELOW, None, "0.5 or more"),
        (ABOVE, None, "1e-09 or less"),
        (LEVEL, 1.234e-9, "p = 1e-09"),
        (LEVEL, None, "another distribution"),
        (TEXT, None, "–"),
        (TEXT, 3, "3"),
    ],
)
def test_the_value_of_the_alternative(criterion, value, text):
    assert alternative_text(criterion, value) == text
