"""`undertow list`: all claims, or those of one paper."""

from tests.cli.calls import FAST, call
from undertow.verification import claims


def test_list(capsys):
    status, out, _ = call(capsys, "list")
    assert status == 0
    assert all(name in out for name in claims)
    _, only, _ = call(capsys, "list", "--paper", "heterogeneity")
    assert FAST in only
    assert "sde-weak-order" not in only
