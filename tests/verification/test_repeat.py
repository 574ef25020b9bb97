"""The command in a report repeats what the report shows."""

import dataclasses
import json
import shlex
from dataclasses import dataclass

import pytest

from undertow import cli
from undertow.verification import claims
from undertow.verification.claim import SCALES
from undertow.verification.repeat import command, meanings
from undertow.verification.result import Task

FAST = "sensing-factor-two"


def test_every_parameter_of_every_claim_has_its_meaning():
    for claim in claims.values():
        assert set(meanings(type(claim.scales["smoke"]))) == set(claim.parameters("smoke"))


def test_parameters_without_source_have_no_meanings():
    namespace = {"__name__": "nowhere"}
    exec("from dataclasses import dataclass\n@dataclass\nclass Sizes:\n    n: int = 3\n    'A number.'", namespace)
    assert meanings(namespace["Sizes"]) == {}


def test_flags_are_those_of_the_command_line():
    @dataclass(frozen=True)
    class Switches:
        """Parameters of each kind."""

        on: bool = True
        """A switch."""
        step_size: float = 0.1
        """A number."""
        name: str = "plain"
        """A word."""

    claim = dataclasses.replace(claims[FAST], id="stub", scales=dict.fromkeys(SCALES, Switches()))
    own = {"on": False, "step_size": 1e-05, "name": "two words"}
    line = command(claim, Task("stub", "full", own, 3))
    assert shlex.split(line) == [
        "undertow", "run", "stub", "--scale", "full", "--seed", "3",
        "--no-on", "--step-size", "1e-05", "--name", "two words",
    ]  # fmt: skip
    of_file = command(claim, Task("stub", "full", claim.parameters("full"), 0, "my claims.py", planted=True))
    assert shlex.split(of_file) == [
        "undertow", "verify", "my claims.py:stub", "--scale", "full", "--seed", "0", "--plant",
    ]  # fmt: skip
    assert meanings(Switches) == {"on": "A switch.", "step_size": "A number.", "name": "A word."}


def test_the_command_gives_the_same_numbers(tmp_path, capsys):
    def result(line: str, out) -> dict:
        with pytest.raises(SystemExit) as ended:
            cli.main([*shlex.split(line), "--out", str(out)])
        assert ended.value.code == 0
        (found,) = json.loads((out / "results.json").read_text())
        return found

    before = result(f"run {FAST} --d 4 --seed 2", tmp_path / "first")
    words = before["command"].removeprefix("undertow ")
    after = result(words, tmp_path / "again")
    assert words in (tmp_path / "first" / "report.html").read_text()
    for key in ("measured", "uncertainty", "checks", "parameters", "seed", "scale", "command"):
        assert before[key] == after[key]
