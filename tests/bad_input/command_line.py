"""Bad arguments of the command line, and bad files that it reads."""

import contextlib
import io
import tempfile
from pathlib import Path

from tests.bad_input.cases import Case
from undertow import cli

PROBLEM = """
import jax.numpy as jnp
import undertow as ut

problem = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, jnp.ones((4, 2)))
params = jnp.ones(2)
number, text, nothing, empty = 3, "text", None, ()
integers = (problem, jnp.arange(2))
three = (problem, params, 3)
swapped = (params, problem)
not_finite = (problem, params * jnp.nan)
objects = (problem, "text")
plain = (ut.Isotropic(problem).problem, {})
broken = (ut.Problem(lambda w, x: w, jnp.ones((4, 2))), params)
label = ut.Population


def raises():
    raise RuntimeError("my own error")


def takes(argument):
    return problem, params


def nothing_back():
    pass
"""


def called(*arguments: str, text: str = PROBLEM):
    """Call the command line in a folder with a file of the user; raise its message where the exit status is 2."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine.py").write_text(text)
        (Path(folder) / "spec.toml").write_text('experiment = "own.py:f"\n[axes]\nn = [1, 2]\n')
        (Path(folder) / "file").write_text("")
        message = io.StringIO()
        with contextlib.redirect_stderr(message), contextlib.redirect_stdout(message), contextlib.chdir(folder):
            try:
                cli.main(list(arguments))
            except SystemExit as ended:
                if ended.code == 2:
                    raise ValueError(_plain(message.getvalue()).replace(f"{folder}/", "")) from None
                raise AssertionError(f"exit status {ended.code}: {message.getvalue()}") from None


def _plain(message: str) -> str:
    """Return a message without the frame that the parser of arguments draws, on one line."""
    lines = [
        text for text in message.splitlines() if "undertow: " in text or text.startswith(("│", "╭"))
    ] or message.splitlines()
    return " ".join("".join(" " if c in "╭╮╰╯─│" else c for c in " ".join(lines)).replace("---", "").split())


def line(arguments: str, argument: str, shown: str, sentence: str) -> Case:
    """Return the case of a line of arguments."""
    return Case(f"undertow {arguments}", lambda: called(*arguments.split()), "", argument, shown, sentence)


FAST = "sensing-factor-two"
NUMBER = [
    ("abc", "abc"),
    ("2.5", "2.5"),
    ("1e3", "1e3"),
    ("None", "None"),
    ("1j", "1j"),
    ("true", "true"),
]
OBJECTS = [
    ("mine.py:number", "int", "give a problem, a noise"),
    ("mine.py:text", "str", "give a problem, a noise"),
    ("mine.py:nothing", "None", "give a problem, a noise"),
    ("mine.py:empty", "tuple", "give a problem, a noise"),
    ("mine.py:integers", "int32", "must be real floating-point"),
    ("mine.py:three", "tuple", "give a problem, a noise"),
    ("mine.py:swapped", "an array", "give a problem or a noise"),
    ("mine.py:not_finite", "nan", "check the data"),
    ("mine.py:objects", "str", "wrap numbers with jnp.asarray"),
    ("mine.py:plain", "{}", "floating-point arrays"),
    ("mine.py:broken", "(2,)", "sum or average inside the loss"),
    ("mine.py:missing", "'missing'", "it has"),
    ("mine.py", "mine.py", "name an object"),
    ("mine.py:", "mine.py:", "name an object"),
    (":problem", ":problem", "no such file"),
    ("absent.py:problem", "absent.py", "no such file"),
    ("file:problem", "file", "not a Python file"),
    ("mine.py:raises", "RuntimeError: my own error", "cannot be run"),
    ("mine.py:takes", "(argument)", "without arguments"),
    ("mine.py:nothing_back", "None", "give a problem, a noise"),
    ("mine.py:label", "a class", "give a problem, a noise"),
]
FILES = [
    ("1 +", "SyntaxError", "cannot be run"),
    ("import nonsense_module", "nonsense_module", "cannot be run"),
    ("1/0", "ZeroDivisionError", "cannot be run"),
    ("raise ValueError('mine')", "mine", "cannot be run"),
    ("x = y", "'y'", "cannot be run"),
    ("\0", "null", "cannot be run"),
    ("", "'problem'", "it has"),
    ("class problem: pass", "problem", "give a problem, a noise"),
]

CASES: list[Case] = [
    *(line(f"verify {FAST} --jobs={value}", "--jobs", shown, "give a whole number") for value, shown in NUMBER),
    *(line(f"verify {FAST} --seed={value}", "--seed", shown, "give a whole number") for value, shown in NUMBER),
    *(line(f"verify {FAST} --jobs={value}", "--jobs", value, "give at least 1") for value in ("0", "-1")),
    *(line(f"verify {FAST} --seed={value}", "--seed", value, "from 0 to") for value in ("-1", str(2**64))),
    line(f"verify {FAST} --scale huge", "--scale", "huge", "smoke"),
    line(f"verify {FAST} --paper nature", "--paper", "nature", "zero_loss"),
    line(f"verify {FAST} --jbos 2", "--jbos", "--jbos", "--jobs"),
    line(f"verify {FAST} --out file/x", "file/x", "file", "cannot write here"),
    line(f"verify {FAST} --paper zero_loss", "zero_loss", "zero_loss", "none of the claims named"),
    line("", "Missing", "subcommand", "verify"),
    line("verfy", "verfy", "verfy", "verify"),
    line("run phase-diagram --of circle", "--of", "circle", "hetero"),
    *(line(f"run phase-diagram --points {value}", "--points", value, "a larger number") for value in ("0", "1", "-3")),
    *(line(f"run phase-diagram --seeds {value}", "--seeds", value, "a larger number") for value in ("0", "-3")),
    line("run phase-diagram --points abc", "--points", "abc", "give a whole number"),
    line("list --paper nature", "--paper", "nature", "zero_loss"),
    line("errata --jsn", "--jsn", "--jsn", "--json"),
    line("report absent", "absent", "absent", "results.json"),
    line("report", "", "", "required"),
    line("sweep", "Missing", "subcommand", "run"),
    line("sweep run", "SPEC.toml", "SPEC.toml", "required"),
    line("sweep run absent.toml", "absent.toml", "absent.toml", "cannot be read"),
    line("sweep status absent", "absent", "absent", "no sweep"),
    line("sweep run spec.toml --jobs x", "--jobs", "x", "give a whole number"),
    line("sweep run mine.py", "mine.py", "line 2", "not TOML"),
    line("sweep run file", "experiment", "None", "own.py:name"),
    *(
        line(f"analyze mine.py:problem --step-size {value}", "--step-size", shown, "a finite number above 0")
        for value, shown in (("0", "0.0"), ("-1", "-1.0"), ("nan", "nan"), ("inf", "inf"))
    ),
    *(
        line(f"analyze mine.py:problem --weight-decay {value}", "--weight-decay", shown, "0 or more")
        for value, shown in (("-1", "-1.0"), ("nan", "nan"), ("inf", "inf"))
    ),
    *(line(f"analyze mine.py:problem --batch-size {value}", "--batch-size", value, "above 0") for value in ("0", "-1")),
    *(
        line(f"analyze mine.py:problem {name}=abc", name, "abc", kind)
        for name, kind in (
            ("--step-size", "give a number"),
            ("--weight-decay", "give a number"),
            ("--batch-size", "give a whole number"),
            ("--seed", "give a whole number"),
        )
    ),
    line("analyze mine.py:problem --params nonsense", "'nonsense'", "--params", "(problem, params)"),
    line("analyze mine.py:problem --seed=-99999999999999999999", "--seed", "-99999999999999999999", "from 0 to"),
    *(line(f"analyze {target}", "", shown, advice) for target, shown, advice in OBJECTS),
    *(
        Case(
            f"analyze a file: {text!r}",
            lambda text=text: called("analyze", "mine.py:problem", text=text),
            "mine.py",
            "",
            shown,
            advice,
        )
        for text, shown, advice in FILES
    ),
    line("equilibrate mine.py:problem --step-size 0 --dry-run", "--step-size", "0", "above 0"),
    line("equilibrate mine.py:problem --dry-run", "--step-size", "", "required"),
    line("equilibrate mine.py:problem --step-size .1", "--out", "FILE.safetensors", "--dry-run"),
    line("equilibrate mine.py:problem --step-size .1 --out x.pt", "--out", "x.pt", "ends in .safetensors"),
    line(
        "equilibrate mine.py:problem --step-size .1 --out no/x.safetensors",
        "--out",
        "no/x.safetensors",
        "create it first",
    ),
    line("equilibrate mine.py:problem --step-size .1 --dry-run --batch-size 0", "--batch-size", "0", "above 0"),
    line("equilibrate mine.py:problem --step-size .1 --dry-run --weight-decay -1", "--weight-decay", "-1", "0 or more"),
    line("equilibrate mine.py:problem --step-size .1 --dry-run --optimiser lion", "--optimiser", "lion", "adamw"),
    line(
        "equilibrate mine.py:problem --step-size .1 --dry-run --out x.safetensors",
        "--dry-run",
        "x.safetensors",
        "leave one",
    ),
    line("equilibrate absent --step-size .1 --dry-run", "absent", "absent", "no such folder"),
    line("census absent", "absent", "absent", "no such folder"),
    line("census mine.py:x --json a b", "--json", "a b", "give one file"),
    line("census mine.py:x --json no/x.json", "--json", "no/x.json", "create it first"),
]
