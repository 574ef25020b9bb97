"""A census is the same after it was stored as JSON, and other files are refused with a sentence."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest

from tests.torch.known import census_of
from tests.torch.zoo import KNOWN
from undertow.torch import Axis, Census, Symmetry
from undertow.torch.census.axes import Symmetry as SymmetryType
from undertow.torch.census.stored import VERSION, decode, encode, load_record

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def assert_equal(one: object, two: object) -> None:
    """Compare two values field by field, with arrays and their dtypes."""
    assert type(one) is type(two)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype
    elif isinstance(one, tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_equal(a, b)
    elif hasattr(one, "__dataclass_fields__"):
        for field in fields(one):
            assert_equal(getattr(one, field.name), getattr(two, field.name))
    else:
        assert one == two or (one != one and two != two)


@pytest.mark.parametrize("name", KNOWN)
def test_a_census_is_the_same_after_save_and_load(name, tmp_path):
    taken = census_of(name)
    taken.save(tmp_path / "census.json")
    loaded = Census.load(tmp_path / "census.json")
    assert_equal(taken, loaded)
    assert str(taken) == str(loaded)
    assert loaded.to_json() == taken.to_json()


def test_the_file_is_strict_json_and_indices_are_short(tmp_path):
    wide = Axis("w", 0, np.arange(4096)[:, None], 4096)
    odd = Axis("v", 0, np.array([[0], [1], [5], [7]]), 8)
    symmetry = Symmetry("rescaling", (wide,), (), 1, True, math.inf)
    stored = Census((symmetry, replace(symmetry, plus=(odd,), change=math.nan)), (), (), (), (), ())
    stored.save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(text) < 1000
    assert record["census"]["symmetries"][0]["plus"][0]["index"] == {
        "offset": 0, "generators": [[4096, 1]], "members": [],
    }  # fmt: skip
    assert_equal(stored, Census.load(tmp_path / "c.json"))


def test_missing_fields_have_their_defaults():
    """A later field with a default does not invalidate files of this version."""
    record = encode(Axis("w", 0, np.arange(3)[:, None], 3))
    assert isinstance(record, dict)
    del record["fold"]
    assert decode(record, Axis).fold == ""


BROKEN = {
    "another kind": (lambda text: json.dumps({"format": "undertow analysis"}), "this file holds no census"),
    "a list": (lambda text: "[1, 2]", "this file holds no census"),
    "another version": (
        lambda text: text.replace(f'"version": {VERSION}', '"version": 99'), r"version 99 .* reads version 1"
    ),
    "truncated": (lambda text: text[: len(text) // 2], "truncated or damaged"),
    "truncated in a string": (lambda text: text[: text.index("weight") + 2], "truncated or damaged"),
    "not JSON": (lambda text: "symmetries: 3", "this is not JSON"),
    "an empty file": (lambda text: "", "this is not JSON"),
    "an unknown field": (lambda text: text.replace('"axis": 0', '"axes": 0'), "damaged: Axis has no field 'axes'"),
    "a missing field": (lambda text: text.replace('"axis": 0, ', ""), "damaged"),
    "another type": (lambda text: text.replace('"axis": 0', '"axis": "0"'), "damaged: a str in place of int"),
    "bad indices": (lambda text: text.replace('"offset": 0', '"offset": null'), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_another_file_is_refused_with_a_sentence(name, tmp_path):
    path = tmp_path / "census.json"
    census_of("relu").save(path)
    change, sentence = BROKEN[name]
    changed = change(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    with pytest.raises(ValueError, match=sentence) as raised:
        Census.load(path)
    assert str(path) in str(raised.value)


def test_paths_without_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        Census.load(tmp_path / "nowhere.json")
    with pytest.raises(ValueError, match="this is a folder"):
        Census.load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(ValueError, match="not a text file"):
        Census.load(tmp_path / "binary")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        census_of("relu").save(tmp_path / "no" / "census.json")
    assert [p.name for p in tmp_path.iterdir()] == ["binary"]


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "census.json"
    taken = census_of("relu")
    taken.save(path)
    before = path.read_text()
    monkeypatch.setattr("pathlib.Path.replace", lambda *a: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        taken.save(path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["census.json"]


def test_values_that_are_not_data_are_not_stored():
    with pytest.raises(TypeError, match="cannot be stored"):
        encode((object(),))


def test_a_record_is_read_as_the_type_that_is_asked_for(tmp_path):
    census_of("relu").save(tmp_path / "census.json")
    with pytest.raises(ValueError, match="damaged: Symmetry has no field"):
        load_record(tmp_path / "census.json", SymmetryType)
