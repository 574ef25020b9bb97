"""The table of a check, and the error for a noise that fails."""

import pytest

from undertow.noise.checks.table import CheckRow, NoiseCheck, NoiseCheckError

ROWS = (
    CheckRow("shapes", "ok"),
    CheckRow("mean", "ok", 1.0, 1.25, -0.5),
    CheckRow("gradient", "differs", 1.0, 2.0, 12.0, "another problem"),
    CheckRow("factor", "skipped", remark="too large"),
)
FAILED = CheckRow("variance", "failed", 4.0, 1.0, 77.0, "a factor of 4 is missing")


def result(*rows: CheckRow) -> NoiseCheck:
    return NoiseCheck("Mine", rows, 4096, 56, 4.776, 1e-4)


def test_the_table_shows_every_row():
    assert str(result(*ROWS)).splitlines() == [
        "Mine: 4096 draws, 56 statistics, |z| < 4.78 (a correct noise fails with probability 0.0001)",
        "check     value  expected      z  result",
        "shapes                            ok",
        "mean          1      1.25  -0.50  ok",
        "gradient      1         2  12.00  differs: another problem",
        "factor                            skipped: too large",
    ]


def test_a_check_without_draws_has_no_limit():
    check = NoiseCheck("Mine", (FAILED,), 0, 0, 3.9, 1e-4)
    assert str(check).splitlines()[0] == "Mine: 0 draws, 0 statistics"


def test_differences_and_skipped_rows_are_no_failures():
    assert result(*ROWS).passed
    assert not result(*ROWS, FAILED).passed
    assert result(*ROWS, FAILED).failures == (FAILED,)


def test_the_error_names_the_part_and_has_the_table():
    check = result(*ROWS, FAILED)
    error = NoiseCheckError(check)
    assert error.result is check
    first, table = str(error).split("\n\n")
    assert first == "`check_noise(Mine)`: 1 of 5 checks failed: variance: a factor of 4 is missing"
    assert table == str(check)
    assert table.splitlines()[-1].endswith("77.00  FAILED")


def test_the_result_is_frozen():
    with pytest.raises(AttributeError):
        result(*ROWS).draws = 3
