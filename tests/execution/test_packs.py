"""Packs are found by entry points, and their claims get names, papers and plants."""

import dataclasses
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from undertow.execution import packs, registry
from undertow.execution.packs import GROUP, OWN_PACKS, claim_modules, installed_packs, named_claims, submodule, typed
from undertow.verification import Below, Check, Claim, claims

ROOT = Path(__file__).parent.parent.parent
CLAIM = Claim("A statement.", lambda key: Check("one", 1.0, 0.0, 0.0, Below(2.0), alternative=3.0))


def module_with(**values) -> ModuleType:
    module = ModuleType("own")
    vars(module).update(values)
    return module


def test_the_distribution_names_its_own_packs():
    """The fallback for a checkout that is not installed is the list of the entry points."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    assert tuple(stated.values()) == OWN_PACKS
    assert [module.rpartition(".")[2] for module in stated.values()] == list(stated)


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Return a function that installs a distribution with a pack."""

    def install(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}\n")

    registry.import_claims()  # the claims of this process stay those that are really installed
    monkeypatch.syspath_prepend(str(tmp_path))
    # without the cache, so that the distributions of one test are not those of the next
    monkeypatch.setattr(registry, "installed_packs", installed_packs.__wrapped__)
    yield install
    for name in [name for name in sys.modules if str(tmp_path) in str(getattr(sys.modules[name], "__file__", ""))]:
        del sys.modules[name]


PACK = """
from undertow.verification import Below, Check, Claim, Erratum
TITLE = "A paper of others"
def measure(key):
    return Check("one", 1.0, 0.0, 0.0, Below(2.0), alternative=3.0)
one_is_small = Claim("One is below two.", measure)
again = Claim("A name that undertow has.", measure, id="recovery")
ERRATA = (Erratum("others_pack", "Eq. (1)", "one is three", "one is one", "one-is-small"),)
"""


def test_an_installed_pack_is_found_beside_those_of_undertow(distribution):
    distribution("others_pack", PACK)
    distribution("broken_pack", "1/0\n")
    assert installed_packs.__wrapped__() == (*OWN_PACKS, "broken_pack", "others_pack")
    found, problems = registry._installed.__wrapped__()
    assert found["one-is-small"].paper == "others_pack"
    assert found["recovery"].paper == "zero_loss"
    assert set(found) == {*claims, "one-is-small"}
    broken, twice = problems
    assert broken == "the installed pack broken_pack cannot be imported: ZeroDivisionError: division by zero"
    assert "zero_loss and others_pack have a claim 'recovery' each" in twice
    assert registry.titles.__wrapped__()["others_pack"] == "A paper of others"
    assert registry.collect("errata", "ERRATA", object)[-1].printed == "one is three"


def test_without_a_distribution_the_packs_of_undertow_are_there(monkeypatch):
    monkeypatch.setattr(packs, "entry_points", lambda group: ())
    assert installed_packs.__wrapped__() == OWN_PACKS


def test_names_and_papers_have_defaults():
    plant = lambda: None
    module = module_with(my_claim=CLAIM, _hidden=3, other=dataclasses.replace(CLAIM, id="named", paper="a book"))
    named, problems = named_claims(module, "own", {"named": plant})
    assert not problems
    assert [(claim.id, claim.paper, claim.module) for claim in named] == [
        ("my-claim", "own", "own"), ("named", "a book", "own"),
    ]  # fmt: skip
    assert [claim.plant for claim in named] == [None, plant]
    listed, _ = named_claims(module_with(a=CLAIM, b=dataclasses.replace(CLAIM), CLAIMS=(CLAIM,)), "own")
    assert [claim.id for claim in listed] == ["a"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"CLAIMS": (3,)}, "own: `CLAIMS` contains a int; give objects of the class Claim."),
        ({"CLAIMS": (CLAIM,)}, "own: a claim has no name; give it an `id` such as 'my-claim'."),
        (
            {"a": dataclasses.replace(CLAIM, id="../a")},
            "own: the name '../a' of a claim has over 200 characters, or others",
        ),
        ({"a": dataclasses.replace(CLAIM, id="a" * 201)}, "own: the name 'aaa"),
    ],
)
def test_what_is_wrong_with_a_claim_is_a_sentence(values, sentence):
    named, (problem,) = named_claims(module_with(**values), "own")
    assert not named
    assert problem.startswith(sentence)


def test_a_submodule_is_the_pack_itself_where_there_is_none():
    assert submodule("undertow.papers.zero_loss", "errata").__name__ == "undertow.papers.zero_loss.errata"
    assert submodule("undertow.papers.optimisers", "errata").__name__ == "undertow.papers.optimisers"
    assert submodule("json.decoder", "anything").__name__ == "json.decoder"
    assert all(module.__name__.startswith(OWN_PACKS[1]) for module in claim_modules(OWN_PACKS[1]))


def test_a_list_with_something_else_is_an_error():
    assert typed("NUMBERS", [1, 2], int) == (1, 2)
    with pytest.raises(TypeError, match="`NUMBERS` of a pack holds 'three'; give objects of int"):
        typed("NUMBERS", [1, "three"], int)
