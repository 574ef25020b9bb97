"""`undertow verify`: results, report, exit statuses, a folder in use, and claims of a user's files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import FAST, call
from undertow.execution import store
from undertow.execution.user_packs import user_pack


def test_verify_writes_results_and_report(verified):
    out, finished = verified
    assert finished.returncode == 0, finished.stderr
    assert "1 of 1 verdicts as expected" in finished.stdout
    assert "corrected" in finished.stdout
    (result,) = json.loads((out / "results.json").read_text())
    wanted = {"claim", "paper", "verdict", "expected", "measured", "predicted", "uncertainty", "seeds", "seconds"}
    assert wanted <= set(result)
    assert result["claim"] == FAST
    assert result["predicted"] == 2.0
    page = (out / "report.html").read_text()
    assert '<svg role="img"' in page
    assert f'id="{FAST}"' in page
    for outside in ("http://", "https://", "<script src", "<link"):
        assert outside not in page
    assert not (out / "claims" / FAST / "figure.pdf").exists()


def test_a_surprise_is_exit_status_one(verified, capsys, monkeypatch, tmp_path):
    """Were the erratum not on the list, its claim would be expected to hold, and `corrected` a surprise."""
    monkeypatch.setattr("undertow.verification.errata.errata", lambda: ())
    status, out, _ = call(capsys, "verify", FAST, "--scale", "smoke", "--jobs", 1, "--out", tmp_path)
    assert status == 1
    assert "0 of 1 verdicts as expected" in out
    assert "expected: holds" in out


def test_two_runs_on_one_folder(capsys, tmp_path):
    with store.folder_lock(tmp_path):
        status, _, err = call(capsys, "verify", FAST, "--scale", "smoke", "--out", tmp_path)
    assert status == 2
    assert "another run is writing" in err


HEAD = """
from undertow.verification import Below, Check, Claim, Entry, Erratum, Within, replaced
TITLE = "A book"
VALUE = 1.0
def measure(key):
    return Check("one", VALUE, 0.0, 0.0, Below(2.0), alternative=3.0)
small = Claim("One is below two.", measure, plant=replaced(measure, lambda value: 3.0, "VALUE"))
"""
MISTAKES = """
also = Claim("It rests on another.", measure, rests_on=("small",))
raises = Claim("It raises.", lambda key: 1 / 0)
text = Claim("It returns text.", lambda key: "one")
nan = Claim("NaN.", lambda key: Check("one", float("nan"), 0.0, 0.0, Below(2.0), alternative=3.0))
open_ended = Claim("It names no alternative.", lambda key: Check("one", 1.0, 0.0, 0.0, Below(2.0)))
lost = Claim("It rests on nothing.", measure, rests_on=("smal",))
one = Claim("Chicken.", measure, rests_on=("two",))
two = Claim("Egg.", measure, rests_on=("one",))
twice = Claim("Twice.", measure, id="twin")
again = Claim("Again.", measure, id="twin")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that writes a file of claims in the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(text)
        return name

    user_pack.cache_clear()
    return write


def results(folder="out"):
    return {result["claim"]: result for result in json.loads(Path(folder, "results.json").read_text())}


def test_a_file_of_claims_is_verified_kept_and_planted(own, capsys):
    file = own(HEAD)
    arguments = ("verify", file, "--jobs", 1, "--out", "out")
    status, _, err = call(capsys, *arguments)
    assert (status, err) == (0, "")
    result = results()["small"]
    assert (result["verdict"], result["paper"], result["title"], result["source"]) == ("holds", "mine", "A book", file)
    assert result["command"] == "undertow verify mine.py:small --scale default --seed 0"
    page = Path("out", "report.html").read_text()
    assert "A book" in page
    assert "Probability of rejecting it at this scale: above 0.999" in page
    assert "alternatives are planted" not in page
    _, again, _ = call(capsys, *arguments)
    assert " kept " in again
    status, planted, _ = call(capsys, *arguments, "--plant")
    assert status == 0
    assert "fails" in planted
    assert results("out/planted")["small"]["expected"] == "fails"
    assert results()["small"]["verdict"] == "holds", "the plain results are not replaced"
    assert "The alternatives are planted." in Path("out", "planted", "report.html").read_text()
    status, rebuilt, _ = call(capsys, "report", "out")
    assert status == 0
    assert "A book" in Path(rebuilt.strip()).read_text()


def test_a_plant_that_changes_nothing_is_a_surprise(own, capsys):
    file = own(HEAD.replace("lambda value: 3.0", "lambda value: value"))
    status, out, _ = call(capsys, "verify", file, "--plant", "--jobs", 1, "--out", "out")
    assert status == 1
    assert "expected: fails" in out


def test_every_mistake_is_one_sentence_and_other_claims_go_on(own, capsys):
    file = own(HEAD + MISTAKES)
    status, out, err = call(capsys, "verify", file, "--jobs", 1, "--out", "out")
    assert status == 2
    assert err.splitlines() == [
        "undertow: mine.py: two claims have the name 'twin'; neither is run.",
        "undertow: the claim 'lost' rests on 'smal', and there is no such claim; did you mean small?",
        "undertow: the claims one, two rest on each other; none of them is run.",
    ]
    verdicts = {name: result["verdict"] for name, result in results().items()}
    errors = dict.fromkeys(("raises", "text", "nan", "open-ended"), "error")
    assert verdicts == {"small": "holds", "also": "holds"} | errors
    assert "2 of 6 verdicts as expected" in out
    notes = [line for line in out.splitlines() if line.startswith("error")]
    assert len(notes) == 4
    assert any("ZeroDivisionError: division by zero" in note for note in notes)
    status, _, _ = call(capsys, "verify", f"{file}:text", "--jobs", 1, "--out", "one")
    assert status == 2, "a claim that cannot be judged is bad input"


CHECKS = {
    "Check(1, 1.0, 0.0, 0.0, Below(2.0), alternative=3.0)": "a check has what = 1; give text",
    "Check('x', 1.0, 0.0, 0.0, None, alternative=3.0)": "criterion = None; give Within, Below, Above or AtLevel",
    "Check('x', 1.0, 0.0, 0.0, Below('2'), alternative=3.0)": "bound = '2', which is not a number",
    "Check('x', 1.0, 0.0, 0.0, Below(float('nan')), alternative=3.0)": "bound = nan, which cannot be judged",
    "Check('x', [1.0, 2.0], 0.0, 0.0, Below(2.0), alternative=3.0)": "measured = [1.0, 2.0], which is not a number",
    "Check('x', 1.0, 0.0, 0.0, Below(2.0), alternative='three')": "alternative = 'three', which is not a number",
    "Check('x', 1.0, 0.0, 0.0, Below(2.0), alternative=float('nan'))": "alternative = nan, which cannot be judged",
    "Check('x', 1.0, 0.0, -0.1, Below(2.0), alternative=3.0)": "uncertainty = -0.1; give a standard error",
    "Check('x', 1.0, 0.0, 0.1, Below(2.0), alternative=3.0, samples='ten')": "samples = 'ten', which is not a number",
    "Check('x', 1.0, 0.0, 0.1, Below(2.0), alternative=3.0, samples=1)": "a standard error needs at least 2",
    "Measurement(())": "returned a Measurement whose checks are an empty tuple",
    "Measurement(measure(key), data=3)": "a Measurement with data = 3; give an xarray.Dataset",
    "Measurement(measure(key), seeds='two')": "a Measurement with seeds = 'two'; give a whole number",
    "Measurement(measure(key), note=3)": "a Measurement with note = 3; give text",
    "sys.exit(3)": "the experiment ended the program: it calls sys.exit(3)",
    "StoreError('mine')": "`measure` returned a value of the type StoreError",
    "load('nowhere')": "MissingError: nowhere: there is no stored result",
}
"""What a `measure` may return or do, with the sentence about it."""
OTHERS = """
no_figure = Claim("It draws nothing.", measure, draw=lambda measurement, parameters: None)
arguments = Claim("It takes no key.", lambda: measure(None))
single = Claim("One check need not be a tuple.", lambda key: Measurement(measure(key)))
"""


@pytest.mark.usefixtures("as_a_user")
def test_what_an_experiment_may_get_wrong_is_a_sentence_and_other_claims_go_on(own, capsys):
    """Each was once a sentence of Python or JAX, and three of them ended the whole verification."""
    imports = "import sys\nfrom undertow.execution.store import StoreError, load\n"
    imports += "from undertow.verification import Measurement\n"
    several = "".join(f"wrong_{k} = Claim('It is wrong.', lambda key: {code})\n" for k, code in enumerate(CHECKS))
    file = own(imports + HEAD.replace("small =", "last =") + several + OTHERS)
    status, _, err = call(capsys, "verify", file, "--jobs", 1, "--out", "out")
    assert (status, err) == (2, "")
    stored = results()
    for k, (code, sentence) in enumerate(CHECKS.items()):
        assert stored[f"wrong-{k}"]["verdict"] == "error", code
        assert sentence in stored[f"wrong-{k}"]["note"], code
    assert stored["no-figure"]["note"] == "`draw` returned None; return a matplotlib Figure."
    assert stored["arguments"]["note"] == "`measure` has other arguments; it is called as measure(key)."
    assert {stored[name]["verdict"] for name in ("last", "single")} == {"holds"}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("a = Claim(3, measure)", "claim 3: `statement` is 3; give text."),
        ("a = Claim('x', 'measure')", "claim 'x': `measure` is 'measure'; give a function."),
        ("a = Claim('x', measure, draw=1)", "claim 'x': `draw` is 1; give a function."),
        ("a = Claim('x', measure, plant=1)", "claim 'x': `plant` is 1; give a function that returns a context."),
        ("a = Claim('x', measure, rests_on='small')", "`rests_on` is 'small'; give a tuple of names of claims."),
        ("a = Claim('x', measure, scales={'smoke': 1})", "give parameters for the scales smoke, default, full."),
        ("a = Claim('x', measure, scales=dict.fromkeys(('smoke', 'default', 'full'), 1))", "objects of one dataclass"),
        (
            "from fractions import Fraction as F\nfrom dataclasses import make_dataclass\n"
            "P = make_dataclass('P', 'n')(F(1, 2))\n"
            "a = Claim('x', measure, scales=dict.fromkeys(('smoke', 'default', 'full'), P))",
            "claim 'x': `scales` has n = Fraction(1, 2); parameters are Python numbers, text or flags.",
        ),
        ("ERRATA = 5", "mine: `ERRATA` is 5; give a tuple of objects of Erratum."),
        ("COVERAGE = ('x',)", "mine: `COVERAGE` of a pack holds 'x'; give objects of Entry."),
    ],
)
def test_claims_that_cannot_be_made(own, capsys, code, sentence):
    status, _, err = call(capsys, "verify", own(f"{HEAD}\n{code}\n"), "--jobs", 1, "--out", "out")
    assert status == 2
    assert len(err.splitlines()) == 1
    assert sentence in err
    assert not Path("out").exists()


def test_files_that_cannot_be_used(own, capsys):
    for name, message in {
        own("x = 1\n", "empty.py"): "empty.py: there is no claim here; assign Claim(...) to a variable.",
        own("x = y\n", "broken.py"): (
            "broken.py cannot be run: NameError: name 'y' is not defined (broken.py, line 1)"
        ),
        "missing.py": "missing.py: there is no such file.",
        f"{own(HEAD)}:big": "mine.py has no claim 'big'; it has small.",
    }.items():
        status, _, err = call(capsys, "verify", name, "--out", "out")
        assert (status, err) == (2, f"undertow: {message}\n")
    status, _, err = call(capsys, "verify", own(HEAD), "--paper", "zero_loss", "--out", "out")
    assert (status, err) == (2, "undertow: none of the claims named belongs to the paper zero_loss.\n")
    assert not Path("out").exists()


def test_a_file_runs_in_worker_processes_too(own, tmp_path):
    """Workers load the files of a folder themselves, and import no pack."""
    (tmp_path / "pack").mkdir()
    own(HEAD, "pack/first.py")
    own(HEAD.replace("small =", "second ="), "pack/second.py")
    code = "from undertow.cli import main; import sys; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "verify", "pack", "--scale", "smoke", "--jobs", "2", "--out", "out"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert list(results()) == ["small", "second"]
