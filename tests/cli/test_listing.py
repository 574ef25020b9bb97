"""`undertow list`: all claims, or those of one paper."""

import json
from collections import Counter

from tests.cli.calls import FAST, call
from undertow.execution.registry import titles
from undertow.verification import claims


def test_list(capsys):
    status, out, _ = call(capsys, "list")
    assert status == 0
    assert all(name in out for name in claims)
    counts = Counter(claim.paper for claim in claims.values())
    headings = [f"{title} ({paper}, {counts[paper]} claims)" for paper, title in titles().items()]
    lines = out.splitlines()
    assert len(headings) == 4
    for heading in headings:
        assert lines[lines.index(heading) + 1] == "-" * len(heading)
    _, only, _ = call(capsys, "list", "--paper", "heterogeneity")
    assert "---" not in only
    assert FAST in only
    assert "sde-weak-order" not in only


def test_the_list_as_json(capsys):
    _, out, _ = call(capsys, "list", "--json")
    listed = {record["claim"]: record for record in json.loads(out)}
    assert list(listed) == list(claims)
    record = listed["recovery"]
    assert record["expected"] == "holds"
    assert record["plant"] is True
    assert record["rests_on"] == ["flow-minimises-l1", "kernel-regime-bound"]
    assert record["scales"]["smoke"] == claims["recovery"].parameters("smoke")
    assert "Theorem 6.1" in " ".join(record["results"])
    assert listed[FAST]["errata"]


def test_claims_of_a_file(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from undertow.verification import Below, Check, Claim, Entry, Erratum\n"
        "small = Claim('One is below two.', lambda key: Check('one', 1.0, 0.0, 0.0, Below(2.0), alternative=3.0))\n"
        "lost = Claim('Lost.', small.measure, rests_on=('nothing-of-this-name',))\n"
        "ERRATA = (Erratum('mine', 'Eq. (1)', 'above', 'below', 'small'),)\n"
        "COVERAGE = (Entry('mine', 'Lemma 1', 'One is small.', ('small',)),)\n"
    )
    status, out, err = call(capsys, "list", file, "--json")
    assert status == 2
    assert "rests on 'nothing-of-this-name'" in err
    (record,) = json.loads(out)
    assert (record["expected"], record["results"], record["errata"]) == ("corrected", ["Lemma 1"], ["Eq. (1)"])
    assert (record["source"], record["scales"]["full"], record["plant"]) == (str(file), {}, False)
    _, text, _ = call(capsys, "list", f"{file}:small")
    assert text.splitlines()[0].endswith("mine; expected: corrected")
    status, errata, _ = call(capsys, "errata", file)
    assert status == 0
    assert f"decided: undertow verify {file}:small" in errata
    _, as_json, _ = call(capsys, "errata", file, "--json")
    assert json.loads(as_json)[0]["right"] == "below"


def test_mistakes(capsys):
    for command in ("list", "errata"):
        status, _, err = call(capsys, command, "missing.py")
        assert (status, err) == (2, "undertow: missing.py: there is no such file.\n")
