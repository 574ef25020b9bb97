"""A user's file or folder is a pack; mistakes are sentences, and its hash covers the files that it imports."""

import pytest

from undertow.execution.registry import UserFileError
from undertow.execution.user_packs import digest_with_neighbours, user_pack
from undertow.verification import Erratum

CLAIM = """
from __future__ import annotations
from dataclasses import dataclass
from undertow.verification import Below, Check, Claim, Erratum
@dataclass(frozen=True)
class Sizes:
    n: int = 1
def measure(parameters, key):
    return Check("one", 1.0, 0.0, 0.0, Below(2.0), alternative=3.0)
{name} = Claim("A statement.", measure, scales=dict.fromkeys(("smoke", "default", "full"), Sizes()){more})
"""


def claim(name: str = "small", more: str = "") -> str:
    return CLAIM.format(name=name, more=more)


def test_a_file_is_a_pack(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(claim() + "TITLE = 'Mine'\nERRATA = (Erratum('mine', 'Eq. (1)', 'a', 'b', 'small'),)\n")
    pack = user_pack(str(file))
    assert (pack.name, pack.title, list(pack.claims), pack.problems) == ("mine", "Mine", ["small"], ())
    assert pack.claims["small"].paper == "mine"
    assert [erratum.right for erratum in pack.collect("ERRATA", Erratum)] == ["b"]
    assert pack.collect("COVERAGE", object) == ()


def test_a_folder_joins_its_files_and_leaves_out_private_ones(tmp_path):
    (tmp_path / "b.py").write_text(claim("second") + "from _shared import x\n")
    (tmp_path / "a.py").write_text(claim("first"))
    (tmp_path / "_shared.py").write_text(claim("hidden") + "x = 1\n")
    (tmp_path / "helper.py").write_text("y = 2\n")
    (tmp_path / "broken.py").write_text("1/0\n")
    pack = user_pack(str(tmp_path))
    assert list(pack.claims) == ["first", "second"]
    assert pack.title == tmp_path.name
    (problem,) = pack.problems
    assert problem.endswith("broken.py cannot be run: ZeroDivisionError: division by zero (broken.py, line 1)")


def test_two_claims_of_one_name_are_not_run_and_others_are(tmp_path):
    (tmp_path / "a.py").write_text(claim("small") + "other = Claim('Other.', measure, id='other')\n")
    (tmp_path / "b.py").write_text(claim("anything", ", id='small'"))
    pack = user_pack(str(tmp_path))
    assert list(pack.claims) == ["other"]
    assert pack.problems == ("a.py and b.py: two claims have the name 'small'; neither is run.",)


def test_a_file_without_claims_is_an_error(tmp_path):
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    with pytest.raises(UserFileError, match=r"empty.py: there is no claim here; assign Claim\(...\) to a variable."):
        user_pack(str(file))
    with pytest.raises(UserFileError, match=r"missing.py: there is no such file."):
        user_pack(str(tmp_path / "missing.py"))
    with pytest.raises(UserFileError, match="there is no claim here"):
        user_pack(str(tmp_path))


def test_the_hash_covers_the_files_beside_that_are_imported(tmp_path):
    (tmp_path / "mine.py").write_text("import near\nfrom far.away import x\nimport json\n")
    (tmp_path / "near.py").write_text("from nearer import y\n")
    (tmp_path / "nearer.py").write_text("y = 1\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "away.py").write_text("x = 1\n")
    (tmp_path / "unrelated.py").write_text("z = 1\n")
    digest = lambda: digest_with_neighbours(tmp_path / "mine.py")
    hashes = [digest()]
    (tmp_path / "unrelated.py").write_text("z = 2\n")
    assert digest() == hashes[0]
    for name in ("mine.py", "near.py", "nearer.py", "far/away.py"):
        with (tmp_path / name).open("a") as file:
            file.write("# changed\n")
        hashes.append(digest())
    assert len(set(hashes)) == 5


def test_in_a_package_only_its_own_modules_count(tmp_path):
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "__init__.py").write_text("")
    (pack / "claims.py").write_text("from . import models\nfrom pack.laws import z\nimport elsewhere\n")
    (pack / "models.py").write_text("x = 1\n")
    (pack / "laws.py").write_text("z = 1\n")
    (tmp_path / "elsewhere.py").write_text("y = 1\n")
    digest = lambda: digest_with_neighbours(pack / "claims.py")
    before = digest()
    (tmp_path / "elsewhere.py").write_text("y = 2\n")
    assert digest() == before
    (pack / "models.py").write_text("x = 2\n")
    after = digest()
    assert after != before
    (pack / "laws.py").write_text("z = 2\n")
    assert digest() != after
