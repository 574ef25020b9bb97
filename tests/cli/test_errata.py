"""`undertow errata`: the same list as text and as JSON."""

import json

from tests.cli.calls import call
from undertow.verification import claims


def test_errata(capsys):
    _, out, _ = call(capsys, "errata", "--json")
    errata = json.loads(out)
    assert {erratum["claim"] for erratum in errata} <= {*claims, None}
    for erratum in errata:
        assert set(erratum) == {"paper", "place", "printed", "right", "claim"}
        assert all(value for name, value in erratum.items() if name != "claim")
    _, out, _ = call(capsys, "errata")
    for erratum in errata:
        assert erratum["printed"] in out
        assert erratum["right"] in out
        assert erratum["claim"] is None or f"undertow verify {erratum['claim']}" in out


def test_files_without_errata_are_reported(capsys, tmp_path):
    claim = "from undertow.verification import Claim\nsmall = Claim(statement='One.', measure=lambda key: ())\n"
    (tmp_path / "mine.py").write_text(claim)
    assert call(capsys, "errata", tmp_path / "mine.py")[:2] == (0, "no errata\n")
    assert call(capsys, "errata", tmp_path / "mine.py", "--json")[:2] == (0, "[]\n")
