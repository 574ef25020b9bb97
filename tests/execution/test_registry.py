"""Experiments are found by name, and a user's file is loaded with messages for its mistakes."""

import pytest

from undertow.execution.packs import OWN_PACKS
from undertow.execution.registry import Registry, UserFileError, claims, collect, diagrams, load_file
from undertow.verification.errata import Erratum


def test_experiments_load_on_first_use():
    loads = []

    def load():
        loads.append(1)
        return {"one": 1, "two": 2}

    registry = Registry("number", load)
    assert not loads
    assert dict(registry) == {"one": 1, "two": 2}
    assert len(registry) == 2
    assert loads == [1]


def test_an_unknown_name_gives_the_nearest():
    registry = Registry("number", lambda: {"seven": 7})
    with pytest.raises(KeyError, match=r"there is no number 'sevn'; did you mean seven\?"):
        registry["sevn"]
    assert "`undertow list` shows them all" in registry.unknown("qqqq")


def test_the_packs_have_claims_and_at_most_one_diagram_each():
    assert {claim.paper for claim in claims.values()} == {pack.rpartition(".")[2] for pack in OWN_PACKS}
    for name, claim in claims.items():
        assert name == claim.id
        assert claim.module.startswith(f"undertow.papers.{claim.paper}.claims.")
    assert set(diagrams) == {"hetero", "recovery", "stability"}


def test_lists_of_the_packs_are_joined_in_their_order():
    papers = [erratum.paper for erratum in collect("errata", "ERRATA", Erratum)]
    assert list(dict.fromkeys(papers)) == ["heterogeneity", "zero_loss", "noise_equilibrium"]


def test_a_users_file_can_import_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("x = 3\n")
    (tmp_path / "mine.py").write_text("from neighbour_of_mine import x\n")
    assert load_file(tmp_path / "mine.py").x == 3


def test_mistakes_in_a_users_file_are_messages(tmp_path):
    (tmp_path / "broken.py").write_text("x = y\n")
    with pytest.raises(UserFileError, match="cannot be run: NameError"):
        load_file(tmp_path / "broken.py")
    with pytest.raises(UserFileError, match="not a Python file"):
        load_file(tmp_path / "notes.txt")
