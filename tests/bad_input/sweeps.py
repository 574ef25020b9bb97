"""Bad specifications of sweeps, in TOML and in Python."""

import math
import tempfile
from pathlib import Path

import numpy as np

import undertow as ut
from tests.bad_input.cases import Bad, Case, refused
from undertow.execution.sweeps.spec import read_spec

GOOD = 'experiment = "own.py:f"\n[axes]\nn = [1, 2]\n'


def read(text: str | bytes):
    """Read a specification from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_spec(path)


def toml(argument: str, line: str, shown: str, sentence: str, *, where: str = "top") -> Case:
    """Return the case of a file with one bad line, at the top or in the table of axes."""
    lines = f"{line}\n{GOOD}" if where == "top" else f'experiment = "own.py:f"\n[axes]\n{line}\n'
    if where == "experiment":
        lines = f"{line}\n[axes]\nn = [1, 2]\n"
    return Case(f"toml: {line}", lambda: read(lines), "spec.toml: ", argument, shown, sentence)


WHOLE = ["0", "-1", "2.5", "true", '"three"', "[1]", "nan", "inf", "{}"]
PYTHON = {'""': "''", "true": "True", '"three"': "'three'", '"a"': "'a'"}


def tops() -> list[Case]:
    """Return bad values outside of the axes."""
    whole = lambda name, value, advice: toml(name, f"{name} = {value}", f"{name} = {PYTHON.get(value, value)}", advice)
    return [
        *(whole("seeds", value, "a whole number, at least 1") for value in WHOLE),
        *(whole("seed", value, "from 0 to 2^32 - 1") for value in [*WHOLE[1:], "4294967296"]),
        *(
            whole("time_limit", value, "seconds above 0")
            for value in ["0", "-1", "true", '"a"', "[1]", "nan", "inf", "{}"]
        ),
        *(
            toml("scale", f"scale = {value}", f"scale = {PYTHON.get(value, value)}", "string")
            for value in ("3", "true", "[1]")
        ),
        *(
            toml("show", f"show = {value}", f"show = {PYTHON.get(value, value)}", "string")
            for value in ("3", "true", "[1]")
        ),
        *(
            toml("parameters", f"parameters = {value}", f"parameters = {PYTHON.get(value, value)}", "a table of names")
            for value in ("3", '"a"', "[1]", "true")
        ),
        *(
            toml("parameters", f"parameters = {{a = {value}}}", shown, advice)
            for value, shown, advice in [
                ("nan", "a = nan", "finite numbers"),
                ("inf", "a = inf", "finite numbers"),
                ("[1]", "a = [1]", "numbers, text or"),
                ("{}", "a = {}", "numbers, text or"),
                ("2020-01-01", "datetime.date(2020, 1, 1)", "numbers, text or"),
            ]
        ),
        toml("n", "parameters = {n = 1}", "n", "given twice"),
        *(
            toml(
                "experiment",
                f"experiment = {value}",
                PYTHON.get(value, value),
                'experiment = "own.py:name"',
                where="experiment",
            )
            for value in ("3", '""', "[1]", "true")
        ),
        toml("sedes", "sedes = 3", "'sedes'", "did you mean seeds?"),
        toml("colour", "colour = 3", "'colour'", "there are experiment, axes"),
    ]


AXES = [
    ("n = []", "axes.n", "there are no values"),
    ("n = 3", "axes.n = 3", "give a list"),
    ('n = "abc"', "axes.n = 'abc'", "give a list"),
    ("n = true", "axes.n = True", "give a list"),
    ("n = [nan]", "n = nan", "finite numbers"),
    ("n = [[1]]", "n = [1]", "numbers, text or flags"),
    ("n = [1, 1]", "axes.n", "use seeds to repeat it"),
    ("n = {}", "axes.n = {}", "give a list"),
    ("n = {cubic = [1, 2, 3]}", "'cubic'", "give a list"),
    ("n = {linear = 3}", "axes.n.linear = 3", "[low, high, count]"),
    ("n = {linear = [1, 2]}", "[1, 2]", "[low, high, count]"),
    ("n = {linear = [2, 1, 3]}", "from 2 to 1", "the smaller one"),
    ("n = {linear = [1, 1, 3]}", "from 1 to 1", "the smaller one"),
    ("n = {linear = [1, nan, 3]}", "nan", "a finite number"),
    ("n = {linear = [1, 2, 1]}", "1", "at least 2"),
    ("n = {linear = [1, 2, 2.5]}", "2.5", "a whole number"),
    ("n = {linear = [1, 2, true]}", "True", "a whole number"),
    ("n = {linear = [1, 2, -3]}", "-3", "at least 2"),
    ("n = {linear = ['a', 2, 3]}", "'a'", "a finite number"),
    ("n = {linear = [true, 2, 3]}", "True", "a finite number"),
    ("n = {log = [0, 1, 3]}", "0 has no logarithm", "start above 0"),
    ("n = {log = [-1, 1, 3]}", "-1", "start above 0"),
    ("n = {zip = {}}", "axes.n.zip", "a table of parameters"),
    ("n = {zip = 3}", "axes.n.zip", "a table of parameters"),
    ("n = {zip = {a = [1], b = [1, 2]}}", "b has 2", "equally many values"),
    ("n = {zip = {a = [1, 2]}, more = 1}", "'more'", "there are zip"),
    ("n = {zip = {a = 3}}", "axes.n.a = 3", "give a list"),
    ("n = {random = {}, count = 3}", "axes.n.random", "a table of parameters"),
    ("n = {random = {a = {linear = [0, 1]}}}", "None", "a whole number, at least 1"),
    ("n = {random = {a = {linear = [0, 1]}}, count = 0}", "0", "at least 1"),
    ("n = {random = {a = {linear = [0, 1]}}, count = true}", "True", "a whole number"),
    ("n = {random = {a = 3}, count = 3}", "axes.n.random.a = 3", "{linear = [low, high]}"),
    ("n = {random = {a = {linear = [0, 1, 2]}}, count = 3}", "[0, 1, 2]", "give [low, high]"),
    ("n = {random = {a = {log = [0, 1]}}, count = 3}", "0", "start above 0"),
    ("n = {random = {a = {linear = [0, 1]}}, cuont = 3}", "'cuont'", "did you mean count?"),
    ("seed = [1, 2]", "axes.seed", "something else"),
    ("done = [1, 2]", "axes.done", "something else"),
    ('"a/b" = [1, 2]', "'a/b'", "letters, digits and underscores"),
    ('"" = [1, 2]', "''", "letters, digits and underscores"),
    ('".." = [1, 2]', "'..'", "letters, digits and underscores"),
]


def sweep(**given):
    """Start a sweep with one bad argument; it is refused before anything runs."""
    return ut.sweep(**{"experiment": f, "axes": {"n": [1, 2]}, "out": tempfile.gettempdir() + "/never"} | given)


def f(key, *, n: int):
    """Return the number."""
    return {"n": n}


NAMES = "give 'file.py:name' or a function"
CASES: list[Case] = [
    *tops(),
    *(toml("axes", line, shown, advice, where="axes") for line, shown, advice in AXES),
    *(
        Case(f"toml: {text[:20]!r}", lambda text=text: read(text), "spec.toml: ", argument, shown, advice)
        for text, argument, shown, advice in [
            ("n = = 3", "TOML", "line 1", "not TOML"),
            ('experiment = "own.py:f"', "axis", "axes.step_size", "at least one axis"),
            ('experiment = "own.py:f"\naxes = 3', "axis", "axes.step_size", "at least one axis"),
            ("", "experiment", "own.py", "name the"),
            ("[axes]\nn = [1]", "experiment", "own.py:name", "name the experiment"),
        ]
    ),
    *refused(
        "ut.sweep",
        sweep,
        {
            "experiment": [Bad(None, "None", NAMES), Bad(3, "3", NAMES), Bad({}, "{}", NAMES)],
            "axes": [
                Bad(None, "None", "at least one axis"),
                Bad([], "[]", "at least one axis"),
                Bad({}, "{}", "at least one axis"),
                Bad("n", "'n'", "at least one axis"),
            ],
            "seeds": [
                Bad(value, shown, "a whole number, at least 1")
                for value, shown in [
                    (0, "0"),
                    (-1, "-1"),
                    (2.5, "2.5"),
                    (True, "True"),
                    (None, "None"),
                    ("3", "'3'"),
                    (np.ones(2), "array([1., 1.])"),
                ]
            ],
            "seed": [
                Bad(value, shown, "from 0 to 2^32 - 1")
                for value, shown in [
                    (-1, "-1"),
                    (2.5, "2.5"),
                    (True, "True"),
                    (None, "None"),
                    ("3", "'3'"),
                    (2**32, str(2**32)),
                ]
            ],
            "time_limit": [
                Bad(value, shown, "seconds above 0")
                for value, shown in [
                    (0, "0"),
                    (-1, "-1"),
                    (True, "True"),
                    ("3", "'3'"),
                    (math.nan, "nan"),
                    (math.inf, "inf"),
                    ([1], "[1]"),
                ]
            ],
            "scale": [Bad(3, "3", "string"), Bad(None, "None", "string")],
            "parameters": [
                Bad([1], "[1]", "a table"),
                Bad("a", "'a'", "a table"),
                Bad({"a": None}, "None", "numbers, text"),
            ],
            "jobs": [
                Bad(value, shown, "whole number")
                for value, shown in [(0, "0"), (-1, "-1"), (2.5, "2.5"), (True, "True"), ("2", "'2'")]
            ],
            "out": [Bad(3, "3", "a path"), Bad(None, "None", "a path")],
            "on": [Bad(3, "3", "the address"), Bad("", "''", "the address")],
            "progress": [Bad("yes", "'yes'", "True or False"), Bad(3, "3", "True or False")],
        },
    ),
    *refused(
        "ut.sweep", sweep, {"time_limit": [Bad(3.0, "3.0", "'file.py:name'")], "jobs": [Bad(2, "2", "'file.py:name'")]}
    ),
]
