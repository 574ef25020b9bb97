"""The regime of a prediction: validity, table, JSON."""

import math

import pytest

from undertow.regime import Regime, SmallParameter

INSIDE = SmallParameter("eta * lambda_max", 0.3, 2.0, "stability")
OUTSIDE = SmallParameter("(1 - b2)/(eta lambda)", 2.0, 1.0, "memory")


@pytest.mark.parametrize(
    ("value", "limit", "valid"),
    [(0.3, 2.0, True), (2.0, 2.0, False), (2.1, 2.0, False), (math.nan, 2.0, False), (1e9, None, True)],
)
def test_a_parameter_is_valid_below_its_limit(value, limit, valid):
    assert SmallParameter("x", value, limit).valid is valid


def test_a_regime_is_valid_where_all_parameters_are():
    assert Regime().valid
    assert Regime((INSIDE,)).valid
    assert not Regime((INSIDE, OUTSIDE)).valid


def test_the_table_marks_the_parameters_outside_the_theory():
    title, _, inside, outside, note = str(Regime((INSIDE, OUTSIDE), 0.02, ("Constant steps.",))).splitlines()
    assert title == "regime: outside the theory, estimated error 2%"
    assert inside.split() == ["eta", "*", "lambda_max", "0.3", "2", "stability"]
    assert outside.endswith("memory     outside the theory")
    assert note == "Constant steps."
    assert "outside the theory" not in str(Regime((INSIDE,)))
    assert "stability" in Regime((INSIDE,))._repr_html_()


def test_json_gives_the_same_regime():
    for regime in (Regime(), Regime((INSIDE, OUTSIDE, SmallParameter("x", math.inf)), 0.5, ("a", "b"))):
        assert Regime.from_json(regime.to_json()) == regime
