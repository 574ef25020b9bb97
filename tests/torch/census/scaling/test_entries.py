"""Scaling maps are read from both conventions, written in both, and errors say what to do."""

import json
import tomllib

import pytest

from undertow.torch import ScalingEntry, ScalingMap, load_scaling_map
from undertow.torch.census.scaling.entries import scaling_entry

pytestmark = pytest.mark.torch

NORM = ScalingEntry("re:.*input_layernorm$", ("re:.*q_proj$", "re:.*k_proj$"))
FORMS = [
    {"source": NORM.source, "readers": list(NORM.readers)},
    {"smooth_layer": NORM.source, "balance_layers": list(NORM.readers), "activation_hook_target": None},
    {"smooth_layers": NORM.source, "balance_layers": list(NORM.readers)},
    [list(NORM.readers), NORM.source],
    NORM,
]


@pytest.mark.parametrize("form", FORMS, ids=["undertow", "AWQ", "SmoothQuant table", "SmoothQuant pair", "entry"])
def test_every_form_is_the_same_entry(form):
    assert scaling_entry(form) == NORM


def test_one_reader_may_be_a_text():
    assert scaling_entry({"source": "up", "readers": "down"}) == ScalingEntry("up", ("down",))


@pytest.mark.parametrize(
    "wrong", ["up_proj", {"source": "up"}, [["down"]], {"source": 3, "readers": ["x"]}, {"source": "x", "readers": []},
              [["down", 3], "up"], 7],
)  # fmt: skip
def test_an_unreadable_entry_is_quoted_with_the_forms(wrong):
    with pytest.raises(ValueError, match="the entry ") as error:
        scaling_entry(wrong)
    assert repr(wrong) in str(error.value)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"mappings": x}, lambda x: {"scaling": x}])
@pytest.mark.parametrize("form", FORMS[:4])
def test_json_files_hold_entries_in_every_form(tmp_path, form, wrap):
    (tmp_path / "map.json").write_text(json.dumps(wrap([form])))
    assert load_scaling_map(tmp_path / "map.json").entries == (NORM,)


def test_toml_files_hold_tables_or_pairs(tmp_path):
    table = "[[mappings]]\nsource = 're:.*input_layernorm$'\nreaders = ['re:.*q_proj$', 're:.*k_proj$']\n"
    pair = "mappings = [[['re:.*q_proj$', 're:.*k_proj$'], 're:.*input_layernorm$']]\n"
    for text in (table, pair):
        (tmp_path / "map.toml").write_text(text)
        assert load_scaling_map(str(tmp_path / "map.toml")).entries == (NORM,)


def test_what_is_written_is_read_back(tmp_path):
    entries = (NORM, ScalingEntry(r"re:a\.\d+\.'v'$", ("o",)), ScalingEntry("v", ("o",), note="each scale twice"))
    plain = tuple(ScalingEntry(entry.source, entry.readers) for entry in entries)
    written = ScalingMap(entries)
    for name, text in (("map.toml", written.to_toml()), ("map.json", written.to_json())):
        (tmp_path / name).write_text(text)
        assert load_scaling_map(tmp_path / name).entries == plain
    for form in (written.smoothquant(), written.awq()):
        assert tuple(map(scaling_entry, form)) == plain
    assert "# each scale twice" in written.to_toml()
    assert tomllib.loads(written.to_toml())["mappings"] == written.awq()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("map.yaml", "", "give a .toml or .json file"),
        ("map.toml", "x = [", "the file is not valid TOML"),
        ("map.json", "{", "the file is not valid JSON"),
        ("map.json", "[]", "holds no list of entries"),
        ("map.json", '"up"', "holds no list of entries"),
        ("map.toml", "[other]\nx = 1", r"has the keys \['other'\]; put the entries under `mappings`"),
        ("map.json", '[{"source": "up"}]', "the entry {'source': 'up'} is not readable"),
    ],
)
def test_errors_of_files_quote_the_call(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_scaling_map(tmp_path / name)
    assert f"`load_scaling_map('{tmp_path / name}')`" in str(error.value)


def test_a_missing_file_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"`load_scaling_map\('nothing.toml'\)`: there is no such file"):
        load_scaling_map("nothing.toml")
