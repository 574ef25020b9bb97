"""Claims are chosen by name, pack, file, object of a file and folder; mistakes are sentences and others go on."""

import pytest

from undertow.execution.registry import UserFileError
from undertow.verification import claims
from undertow.verification.select import UnknownClaimError, is_source, select, source_of

HEAD = """
from undertow.verification import Below, Check, Claim
measure = lambda key: Check("one", 1.0, 0.0, 0.0, Below(2.0), alternative=3.0)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        HEAD + "first_claim = Claim('One.', measure)\n"
        "other = Claim('Two.', measure, id='second', rests_on=('first-claim', 'recovery'))\n"
        "lost = Claim('Three.', measure, rests_on=('recovry',))\n"
        "round = Claim('Four.', measure, rests_on=('round',))\n"
    )
    return str(path)


def ids(selection):
    return [one.claim.id for one in selection.chosen]


def test_all_installed_claims_by_default():
    assert ids(select()) == list(claims)
    assert {one.claim.paper for one in select(paper="zero_loss").chosen} == {"zero_loss"}
    assert ids(select(["zero_loss"])) == ids(select(paper="zero_loss"))


def test_installed_claims_come_in_the_order_of_the_packs():
    assert ids(select(["recovery", "exact-law", "recovery"])) == ["exact-law", "recovery"]


def test_claims_of_a_file_and_what_is_wrong_with_others(file):
    selection = select([file, "recovery"])
    assert [(one.claim.id, one.source) for one in selection.chosen] == [
        ("first-claim", file), ("second", file), ("recovery", ""),
    ]  # fmt: skip
    assert selection.problems == [
        "the claim 'lost' rests on 'recovry', and there is no such claim; did you mean recovery?",
        "the claim 'round' rests on itself; it is not run.",
    ]


@pytest.mark.parametrize("name", ["first_claim", "first-claim", "other", "second"])
def test_one_claim_of_a_file(file, name):
    (one,) = select([f"{file}:{name}"]).chosen
    assert one.claim.id == ("first-claim" if "first" in name else "second")
    assert select([f"{file}:{name}"]).problems == []


def test_one_wrong_claim_of_a_file(file):
    assert select([f"{file}:lost"]).chosen == []
    with pytest.raises(UserFileError, match="has no claim 'nothing'; it has first-claim, second, lost, round"):
        select([f"{file}:nothing"])


def test_a_name_that_a_pack_has_too(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "recovery = Claim('One.', measure)\n")
    assert ids(select([str(path)])) == ["recovery"]
    both = select([str(path), "recovery", "exact-law"])
    assert ids(both) == ["exact-law"]
    assert both.problems == [f"{path} and the pack zero_loss: two claims have the name 'recovery'; neither is run."]


def test_unknown_names():
    with pytest.raises(UnknownClaimError, match="did you mean recovery"):
        select(["recovry"])
    with pytest.raises(UserFileError, match="there is no such file"):
        select(["missing.py:claim"])


def test_what_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert [is_source(name) for name in ("a.py", "a.py:b", "folder", "recovery", "a:b")] == [True] * 3 + [False] * 2
    assert source_of("x/a.py:b") == "x/a.py"
