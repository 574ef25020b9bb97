"""The fingerprint of a task covers what its result depends on, for installed claims and for those of a file."""

import pytest

from undertow.execution import user_packs
from undertow.verification import claims, tasks
from undertow.verification.tasks import claim_of, task_of, title_of

TEXT = """
from undertow.verification import Below, Check, Claim
from near_by import BOUND
TITLE = "A book"
small = Claim("One.", lambda key: Check("one", 1.0, 0.0, 0.0, Below(BOUND), alternative=3.0))
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "near_by.py").write_text("BOUND = 2.0\n")
    (tmp_path / "mine.py").write_text(TEXT)
    yield tmp_path / "mine.py"
    __import__("sys").modules.pop("near_by", None)


def test_the_claim_and_the_title_of_a_task(file):
    task = task_of("small", "smoke", {}, 0, str(file))
    assert claim_of(task).statement == "One."
    assert title_of(task) == "A book"
    installed = task_of("recovery", "smoke", claims["recovery"].parameters("smoke"), 0)
    assert claim_of(installed) is claims["recovery"]
    assert title_of(installed) == "What Happens after SGD Reaches Zero Loss?"


def test_the_fingerprint_follows_the_file_and_what_it_imports(file):
    fingerprint = lambda **more: task_of("small", "smoke", {}, 0, str(file), **more).fingerprint
    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint(planted=True) != first
    assert task_of("small", "smoke", {}, 1, str(file)).fingerprint != first
    (file.parent / "near_by.py").write_text("BOUND = 4.0\n")
    second = fingerprint()
    assert second != first
    file.write_text(TEXT + "# changed\n")
    assert fingerprint() not in (first, second)
    moved = file.parent / "moved" / "mine.py"
    moved.parent.mkdir()
    moved.write_text(file.read_text())
    (moved.parent / "near_by.py").write_text("BOUND = 4.0\n")
    here = fingerprint()
    assert task_of("small", "smoke", {}, 0, str(moved)).fingerprint == here, "the place of the file does not count"


def test_plants_count_only_where_they_are_planted(monkeypatch):
    seen = []
    monkeypatch.setattr(tasks, "fingerprint", lambda *facts, modules: seen.append(modules) or "")
    for planted in (False, True):
        task_of("recovery", "smoke", {}, 0, planted=planted)
    plain, with_plants = seen
    assert plain == ["undertow.papers.zero_loss.claims.linear_model", "undertow.verification.measure"]
    assert with_plants == [*plain, "undertow.papers.zero_loss.plants"]


def test_files_are_loaded_once(file):
    assert user_packs.user_pack(str(file)) is user_packs.user_pack(str(file))
