"""Criteria and the numbers judged by them, as text for reports and terminals."""

from functools import singledispatch

from undertow.verification.criterion import Above, AtLevel, Below, Criterion, TextCriterion, Within

__all__ = ["alternative_text", "measured_text", "number", "prediction_text"]

Stored = Criterion | TextCriterion


def number(value: float | int | None, error: float | int | None = None) -> str:
    """Return a number as text, with its standard error if there is one.

    >>> from undertow.verification.presentation import number
    >>> number(0.123456, 0.01), number(None)
    ('0.1235 ± 0.01', '–')
    """
    if value is None:
        return "–"
    text = f"{value:.4g}"
    return f"{text} ± {error:.1g}" if error else text


@singledispatch
def measured_text(criterion: Stored, value: float | int | None, error: float | int | None) -> str:
    """Return a measured value as text; a p-value is named as such.

    >>> from undertow.verification.criterion import AtLevel, Below
    >>> from undertow.verification.presentation import measured_text
    >>> measured_text(Below(1.0), 0.2194, 0.01), measured_text(AtLevel(1e-3, "KS"), 0.2194, 0.0)
    ('0.2194 ± 0.01', 'p = 0.2194')
    """
    return number(value, error)


@measured_text.register
def _(criterion: AtLevel, value: float | int | None, error: float | int | None) -> str:
    return f"p = {number(value, error)}"


@singledispatch
def prediction_text(criterion: Stored, predicted: float | int | None, printed: float | int | None) -> str:
    """Return the requirement of a criterion on the measured value: a number, a bound, or the level of a test.

    >>> from undertow.verification.criterion import Below, Within
    >>> from undertow.verification.presentation import prediction_text
    >>> prediction_text(Below(0.5), 0.1, None), prediction_text(Within(0.1, 1.0), 1.0, 2.0)
    ('below 0.5', '1 (in print: 2)')
    """
    text = number(predicted)
    return text if printed is None else f"{text} (in print: {number(printed)})"


@prediction_text.register
def _(criterion: Below | Above, predicted: float | int | None, printed: float | int | None) -> str:
    return f"{criterion.kind} {criterion.bound:g}"


@prediction_text.register
def _(criterion: AtLevel, predicted: float | int | None, printed: float | int | None) -> str:
    return f"p above {criterion.level:g}"


@singledispatch
def alternative_text(criterion: Stored, value: float | int | None) -> str:
    """Return the value that the alternative predicts, as text; where it states none, the values that are rejected.

    >>> from undertow.verification.criterion import Within
    >>> from undertow.verification.presentation import alternative_text
    >>> alternative_text(Within(0.1, 0.5), 2.0), alternative_text(Within(0.1, 0.5), None)
    ('2', 'more than 0.5 away')
    """
    return number(value)


@alternative_text.register
def _(criterion: Within, value: float | int | None) -> str:
    return f"more than {criterion.resolution:g} away" if value is None else number(value)


@alternative_text.register
def _(criterion: Below, value: float | int | None) -> str:
    return f"{criterion.bound:g} or more" if value is None else number(value)


@alternative_text.register
def _(criterion: Above, value: float | int | None) -> str:
    return f"{criterion.bound:g} or less" if value is None else number(value)


@alternative_text.register
def _(criterion: AtLevel, value: float | int | None) -> str:
    return "another distribution" if value is None else f"p = {value:.1g}"
