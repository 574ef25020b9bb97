"""Files that are damaged, foreign or hostile: a sentence for each, and no code of them is executed."""

import json
import os
import pickle
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import undertow as ut
from tests.verification.work import CHECK, finish, result_of
from undertow.execution import store
from undertow.execution.provenance import Provenance
from undertow.execution.reading import check_fields, open_zarr, plain_name, read_json
from undertow.execution.sweeps import drive
from undertow.execution.sweeps.plan import Job
from undertow.execution.sweeps.results import DONE, read_folder
from undertow.execution.sweeps.spec import as_spec
from undertow.execution.sweeps.sweep import status
from undertow.execution.workers import InProcess
from undertow.verification.graph import draw_graph, layers
from undertow.verification.report import build_report
from undertow.verification.result import ClaimResult, Task, read_results, write_results
from undertow.verification.runner import run_claims

pytestmark = pytest.mark.usefixtures("as_a_user")

FOREIGN = {
    "empty": b"",
    "truncated": b'{"a": [1,',
    "a number": b"3",
    "nothing": b"null",
    "a list": b"[]",
    "a list of lists": b"[[]]",
    "text": b'"text"',
    "another object": b'{"a": {"b": 1}}',
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 200_000,
}
"""What may stand in a JSON file instead of what undertow wrote."""


@pytest.mark.parametrize("content", FOREIGN)
def test_a_json_file_is_read_or_raises_one_of_two_errors(tmp_path, content):
    path = tmp_path / "f.json"
    path.write_bytes(FOREIGN[content])
    try:
        assert read_json(path) == json.loads(FOREIGN[content])
    except ValueError as error:
        assert content in ("empty", "truncated", "not text", "deep"), error  # noqa: PT017
    with pytest.raises(OSError, match="nowhere"):
        read_json(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "plain"),
    [("a-claim", True), ("größe", True), ("v:1", True), ("", False), ("..", False), (".hidden", False), ("a/b", False),
     ("a\\b", False), ("a\nb", False), ("x" * 201, False)],
)  # fmt: skip
def test_a_plain_name_is_one_component_of_a_path(name, plain):
    assert plain_name(name) is plain


# the files of verify


RECORD = result_of(
    Task("a-claim", "smoke", {"seeds": 4, "step_size": 0.1}, 7, fingerprint="f"), checks=(CHECK,), place="Eq. (1)",
    meanings={"seeds": "runs"}, provenance=Provenance("9", "cpu: cpu", {"seeds": 4}, 4, 1.0, True, {"jax": "1"}),
)  # fmt: skip


@pytest.mark.parametrize("content", FOREIGN)
def test_results_of_another_program(tmp_path, content):
    (tmp_path / "results.json").write_bytes(FOREIGN[content])
    if content == "a list":
        assert read_results(tmp_path) == []
        return
    with pytest.raises(store.StoreError, match=r"results\.json: damaged, it is not a list of results") as caught:
        read_results(tmp_path)
    assert not re.search(r"\n|Error|object|attribute", str(caught.value))


WRONG = (None, True, -1e400, "../../<b>", [1], {"a": []})


def places(record: object, place: tuple = ()) -> list[tuple]:
    """Return the paths to all values of a JSON object."""
    inner = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    return [place, *(p for key, value in inner for p in places(value, (*place, key)))]


def test_every_field_of_a_result_is_checked(tmp_path):
    """Each value of a stored result is replaced by six others: the page is built, or there is one sentence."""
    plain = json.dumps([RECORD.to_json()])
    assert read_results(write_results(tmp_path, [RECORD]).parent) == [RECORD]
    built = refused = 0
    for place in places(json.loads(plain))[1:]:
        for wrong in WRONG:
            data = json.loads(plain)
            inner = data
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            (tmp_path / "results.json").write_text(json.dumps(data))
            try:
                results = read_results(tmp_path)
            except store.StoreError as error:
                assert "\n" not in str(error)  # noqa: PT017
                refused += 1
                continue
            build_report(tmp_path, results)
            built += 1
    assert built > 50
    assert refused > 150
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.json"]


def test_results_that_rest_on_each_other_are_shown(tmp_path):
    """undertow runs no such claims, and computes the graph without recursion."""
    others = replace(RECORD, rests_on=("other",)), replace(RECORD, rests_on=(RECORD.claim,))
    chain = [replace(RECORD, task=replace(RECORD.task, claim=f"c{k}"), rests_on=(f"c{k + 1}",)) for k in range(2000)]
    other = replace(others[1], task=replace(RECORD.task, claim="other"))
    for results in ([others[0], other], [others[1]]):
        assert draw_graph(results) is None
        build_report(tmp_path, read_results(write_results(tmp_path, results).parent))
    assert layers({result.claim: result.rests_on for result in chain})["c0"] == 2000


@pytest.mark.parametrize("content", FOREIGN)
def test_a_result_that_cannot_be_read_runs_again(tmp_path, content):
    task, warnings = Task("sensing-factor-two", "smoke", {}, 0, fingerprint="f"), []
    folder = tmp_path / "claims" / task.claim
    folder.mkdir(parents=True)
    (folder / "result.json").write_bytes(FOREIGN[content])
    (result,) = run_claims(
        [task], tmp_path, 1, warn=warnings.append, workers=lambda jobs: InProcess(), work=finish
    )  # fmt: skip
    assert result.verdict == "holds"
    assert len(warnings) == 1
    assert "is damaged and runs again" in warnings[0]


# stores


@pytest.fixture
def stored(tmp_path):
    return store.save(tmp_path / "r.zarr", xarray.Dataset({"x": ("t", np.arange(4)), "s": ("t", list("abcd"))}), {})


@pytest.mark.parametrize("content", [*FOREIGN, "newer", "no number", "outside", "no files", "no provenance"])
def test_a_seal_of_another_program(stored, content):
    seal = stored / store.SEAL
    whole = json.loads(seal.read_text())
    outside = {"/etc/hostname": [1, 2], "../x": [1, 2]}
    changes = {"newer": {"undertow_format": 99}, "no number": {"undertow_format": "1"}, "outside": {"files": outside},
               "no files": {"files": ["x"]}, "no provenance": {"provenance": None}}  # fmt: skip
    seal.write_bytes(FOREIGN[content] if content in FOREIGN else sign_again(whole | changes[content]))
    for read in (store.load, store.provenance_of):
        with pytest.raises(store.StoreError, match=r"newer|not a result of undertow|damaged") as caught:
            read(stored)
        assert "\n" not in str(caught.value)


class Hostile:
    """Unpickling it creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def seal_again(path: Path) -> None:
    seal = json.loads((path / store.SEAL).read_text())
    seal["files"] = {name: store._checksum((path / name).read_bytes()) for name in seal["files"]}
    (path / store.SEAL).write_bytes(sign_again(seal))


def sign_again(data: dict) -> bytes:
    """Return the content of a file that holds its own checksum, which anybody can write."""
    return store.signed({name: value for name, value in data.items() if name != store.CHECKSUM})


PICKLE = {"id": "pickle"}
CODECS = {
    "a filter": {"filters": [PICKLE], "compressor": None},
    "a compressor": {"compressor": PICKLE},
    "a second filter": {"filters": [{"id": "delta", "dtype": "<i8"}, PICKLE], "compressor": None},
    "objects": {"dtype": "|O", "filters": [{"id": "vlen-utf8"}, PICKLE], "compressor": None},
    "an unknown codec": {"compressor": {"id": "nonsense"}},
    "a shape that is text": {"shape": "x"},
    "a shape of terabytes": {"shape": [2**45], "chunks": [2**45]},
    "no metadata": None,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("where", [".zmetadata", "x/.zarray"])
def test_a_store_that_would_execute_code_is_not_decoded(stored, tmp_path, codec, where):
    """The seal is valid: whoever made the folder made the checksums too."""
    made = json.loads((stored / where).read_text())
    array = made["metadata"]["x/.zarray"] if where == ".zmetadata" else made
    if CODECS[codec] is None:
        array.clear()
    else:
        array.update(CODECS[codec])
    (stored / where).write_text(json.dumps(made))
    (stored / "x" / "0").write_bytes(pickle.dumps(Hostile(tmp_path / "executed")))
    seal_again(stored)
    with pytest.raises(store.StoreError, match="damaged, it cannot be read"):
        store.load(stored)
    if "pickle" in json.dumps(CODECS[codec]):
        with pytest.raises(ValueError, match="an array has the codec 'pickle'"):
            open_zarr(stored)
    assert not (tmp_path / "executed").exists()


def test_a_symbolic_link_is_not_replaced(tmp_path, stored):
    link = tmp_path / "link.zarr"
    link.symlink_to(stored)
    np.testing.assert_array_equal(store.load(link)["x"], np.arange(4))
    with pytest.raises(store.StoreError, match=r"link\.zarr: a symbolic link, which is not replaced"):
        store.save(link, xarray.Dataset({"x": 1.0}), {})
    assert link.is_symlink()
    np.testing.assert_array_equal(store.load(stored)["x"], np.arange(4))


@cache
def example_run() -> ut.Trajectory:
    noise = ut.Isotropic(ut.Problem(lambda w, x: w * x, jnp.zeros(1)))
    return ut.descend(noise, jnp.array(1.0), step_size=0.1, steps=3, key=0, observe={"w": lambda w: w})


@pytest.mark.parametrize("content", [*FOREIGN, "a field of another type", "no state"])
def test_a_run_of_another_program(tmp_path, content):
    path = example_run().save(tmp_path / "r")
    attributes = json.loads((path / ".zattrs").read_text())
    described = json.loads(attributes["run"])
    if content in FOREIGN:
        attributes["run"] = FOREIGN[content].decode("latin-1")
    else:
        change = {"facts": 3} if content == "a field of another type" else {}
        kept = {name: value for name, value in described.items() if name != "state" or change}
        attributes["run"] = json.dumps(kept | change)
    (path / ".zattrs").write_text(json.dumps(attributes))
    metadata = json.loads((path / ".zmetadata").read_text())
    metadata["metadata"][".zattrs"] = attributes
    (path / ".zmetadata").write_text(json.dumps(metadata))
    seal_again(path)
    with pytest.raises(store.StoreError, match="damaged, its description of the run cannot be read"):
        ut.Trajectory.load(path)


# sweeps


@pytest.fixture
def swept(tmp_path):
    (tmp_path / "own.py").write_text("def f(key, *, a: float):\n    return {'x': a}\n")
    folder = tmp_path / "out" / "f-1"
    spec = as_spec(f"{tmp_path / 'own.py'}:f", {"a": [1.0, 2.0]})
    drive.run(Job(spec, lambda key, *, a: {"x": a}, "", folder), InProcess)
    return folder


@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize("name", ["sweep.json", "results.zarr/done/.zarray", "results.zarr/.zmetadata"])
def test_a_sweep_of_another_program(swept, name, content):
    (swept / name).write_bytes(FOREIGN[content])
    with pytest.raises(store.StoreError, match=r"damaged|no readable") as caught:
        read_folder(swept)[1].open()
    assert "\n" not in str(caught.value)
    says_what_is_damaged(swept, name)


@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize("name", ["plan.json", "results.zarr/.zattrs", f"results.zarr/{store.SEAL}"])
def test_a_sweep_whose_other_files_say_the_same(swept, name, content):
    (swept / name).write_bytes(FOREIGN[content])
    results = read_folder(swept)[1]
    assert (results.flags() == DONE).all()
    try:
        np.testing.assert_array_equal(results.open()["x"], [[1.0], [2.0]])
    except store.StoreError as error:
        assert name == "results.zarr/.zattrs", error  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    says_what_is_damaged(swept, name)


def says_what_is_damaged(swept: Path, name: str) -> None:
    lines = status(swept.parent)
    assert str(swept) in lines[0]
    damaged = [f"1 damaged in results.zarr: {name.removeprefix('results.zarr/')}"] if "results.zarr" in name else []
    assert [line.strip().split(";")[0] for line in lines[1:]] == damaged


@pytest.mark.parametrize("content", FOREIGN)
def test_notes_on_a_sweep_by_another_program(swept, content):
    for name in ("failures.json", "progress.json"):
        (swept / name).write_bytes(FOREIGN[content])
    assert status(swept) == [f"{swept}: {read_folder(swept)[0].experiment}: 2 of 2 runs done; finished."]
    with store.folder_lock(swept):
        assert status(swept)[0].endswith("running.")


def test_every_field_of_a_sweep_is_checked(swept):
    for name in ("sweep.json", "plan.json", f"results.zarr/{store.SEAL}"):
        plain = (swept / name).read_text()
        for place in places(json.loads(plain))[1:]:
            for wrong in WRONG:
                data = json.loads(plain)
                inner = data
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = wrong
                (swept / name).write_bytes(sign_again(data))
                try:
                    assert len(status(swept)) <= 2
                except store.StoreError as error:
                    assert "\n" not in str(error)  # noqa: PT017
        (swept / name).write_text(plain)


@pytest.mark.parametrize("name", [store.SEAL, ".zattrs"])
def test_outputs_do_not_lead_out_of_the_folder(swept, name):
    path = swept / "results.zarr" / name
    content = json.loads(path.read_text())
    outputs = json.loads(content["outputs"])
    outputs["../../x"] = outputs.pop("x")
    content["outputs"] = json.dumps(outputs)
    (path.parent / store.SEAL).unlink()  # without a seal, the attributes say what the outputs are
    path.write_bytes(sign_again(content))
    with pytest.raises(store.StoreError, match="damaged"):
        read_folder(swept)


def test_a_seal_does_not_name_files_outside(swept):
    """A driver that repairs the dataset writes the seal again, and no other file that the seal names."""
    path = swept / "results.zarr" / store.SEAL
    plain = path.read_bytes()
    (swept / "x").write_bytes(b"kept")
    for name in ("../x", str(swept / "x"), "y"):
        seal = json.loads(plain)
        path.write_bytes(sign_again(seal | {"files": seal["files"] | {name: [1, 1]}}))
        read_folder(swept)[1].repair()
        assert path.read_bytes() == plain
    assert (swept / "x").read_bytes() == b"kept"
    assert not (path.parent / "y").exists()


def test_files_that_are_not_chunks_do_not_count(swept):
    width = next((swept / "results.zarr" / "done").glob("[0-9]*")).read_bytes()
    for name in ("notes", "9.9", "0.0.0", "7"):
        (swept / "results.zarr" / "done" / name).write_bytes(width)
    assert "2 of 2 runs done" in status(swept)[0]


def test_the_types_of_records_are_checked():
    check_fields(RECORD)
    for change in ({"verdict": "great"}, {"seeds": "4"}, {"note": None}, {"seconds": True}):
        with pytest.raises(ValueError, match=next(iter(change))):
            ClaimResult.from_json(RECORD.to_json() | change)
