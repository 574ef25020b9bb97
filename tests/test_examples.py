"""The examples run without changes and print the results that their docstrings state."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from undertow.verification.coverage import user_coverage
from undertow.verification.errata import user_errata
from undertow.verification.select import select

EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parent.parent / "examples").glob("*.py"))}


@functools.cache
def output(name: str) -> str:
    """Return the output of an example; warnings are errors."""
    run = subprocess.run([sys.executable, "-W", "error", str(EXAMPLES[name])], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_every_example_has_a_test():
    source = Path(__file__).read_text()
    assert all(f'output("{name}")' in source for name in EXAMPLES)


def test_the_teleport_allows_larger_steps():
    out = output("teleport")
    losses = re.search(r"loss ([\d.]+) before, ([\d.]+) after", out)
    assert losses
    assert abs(float(losses[1]) - float(losses[2])) < 1e-3 * float(losses[1])
    rows = [line for line in out.splitlines() if re.match(r"\s+0\.\d", line)]
    largest = [max(float(r.split()[0]) for r in rows if "8/8" in r[12:][20 * k : 20 * k + 20]) for k in (0, 1)]
    assert largest[1] >= 4 * largest[0]


def test_label_noise_network_follows_its_limit():
    lines = output("label_noise_network").splitlines()
    rows = [list(map(float, line.split())) for line in lines if re.match(r"\s+\d", line)]
    assert len(rows) == 6
    assert rows[-1][1] < rows[0][1] / 2, "label noise flattens"
    for _, limit, sgd in rows:
        assert abs(limit - sgd) < 0.06 * limit


PACKS = Path(__file__).parent.parent / "examples" / "law_of_balance"


def test_the_pack_uses_public_names_only():
    """Claims of others need `undertow` and `undertow.verification`, with its statistics."""
    for file in sorted(PACKS.glob("*.py")):
        imported = re.findall(r"^(?:from|import) (undertow[\w.]*)", file.read_text(), re.MULTILINE)
        assert set(imported) <= {"undertow", "undertow.verification", "undertow.verification.statistics"}, file.name


def test_the_pack_has_claims_without_mistakes():
    selection = select([str(PACKS)])
    assert not selection.problems
    names = {one.claim.id for one in selection.chosen}
    assert len(names) >= 8
    assert all(one.claim.plant and one.claim.alternative for one in selection.chosen)
    assert {name for entry in user_coverage(str(PACKS)) for name in entry.claims} == names
    assert {erratum.claim for erratum in user_errata(str(PACKS))} <= names


@pytest.mark.slow
@pytest.mark.parametrize("plant", [(), ("--plant",)], ids=["as stated", "planted"])
def test_the_claims_of_the_pack_have_the_expected_verdicts(plant, tmp_path):
    """The report uses seed 0; another seed must not change a verdict."""
    code = "from undertow.cli import main; import sys; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "verify", str(PACKS), "--scale", "smoke", "--jobs", "1", "--seed", "7"]
    run = subprocess.run([*command, *plant, "--out", str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "13 of 13 verdicts as expected" in run.stdout
