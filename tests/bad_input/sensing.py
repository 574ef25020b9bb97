"""Bad arguments of matrix sensing, of advice, of estimates and of results of runs."""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import undertow as ut
from tests.bad_input import things
from tests.bad_input.cases import Bad, Case, choice, counts, flags, keys, numbers, refused
from tests.bad_input.problems import params
from tests.bad_input.runs import observers
from undertow.sensing.laws import Gaussian, Table, Uniform, two_point

LAW = two_point(1.0, 8.0)


def laws() -> list[Bad]:
    """Return values that are no law."""
    return [
        Bad(None, "None", "give a law"),
        Bad("uniform", "'uniform'", "give a law"),
        Bad({}, "{}", "give a law"),
        Bad(Uniform, "Uniform", "give a law"),
        Bad([], "[]", "finite numbers"),
        Bad([1.0, np.nan], "nan", "finite numbers"),
        Bad([1.0, np.inf], "inf", "finite numbers"),
        Bad(["a", "b"], "'a'", "not numbers"),
        Bad([1.0, None], "None", "not numbers"),
        Bad([1.0, 2j], "complex", "real numbers"),
        Bad(np.ones((2, 2, 2)), "(2, 2, 2)", "finite numbers"),
        Bad([[1.0], [1.0, 2.0]], "[[1.0], [1.0, 2.0]]", "not numbers"),
    ]


def vectors(advice: str = "finite") -> list[Bad]:
    """Return values that are no finite numbers, one for all directions or one for each."""
    return [
        Bad(np.nan, "nan", advice),
        Bad(np.inf, "inf", advice),
        Bad([1.0, np.nan], "nan", advice),
        Bad("a", "'a'", "not numbers"),
        Bad(None, "None", "not numbers"),
        Bad(1j, "complex", "real numbers"),
        Bad([[1.0]], "(1, 1)", advice),
        Bad([], "[]", advice),
        Bad(np.array([1.0, None], object), "object", "not numbers"),
    ]


SPECTRA = [
    Bad([np.nan], "nan", "finite numbers"),
    Bad([np.inf], "inf", "finite numbers"),
    Bad([0.0], "0.0", "other than 0"),
    Bad([1.0, 0.0], "0.0", "other than 0"),
    Bad([], "[]", "at least one"),
    Bad(["a"], "'a'", "not numbers"),
    Bad([1j], "complex", "real numbers"),
    Bad(np.ones((1, 1)), "(1, 1)", "one number"),
    Bad([None], "None", "not numbers"),
    Bad({}, "{}", "not numbers"),
]
STARTS = [
    Bad(jnp.ones((3, 3)), "(3, 3)", "4 rows"),
    Bad(jnp.ones(4), "(4,)", "4 rows"),
    Bad({"A": jnp.ones((4, 4))}, "'A'", '"U" and "V"'),
    Bad({"U": jnp.ones((4, 4)), "V": jnp.ones((4, 2, 1))}, "(4, 2, 1)", "4 rows"),
]
MATRICES = [
    Bad(np.ones((3, 2, 4)), "(3, 2, 4)", "give (n, d, d)"),
    Bad(np.ones(3), "(3,)", "give (n, d, d)"),
    Bad(3.0, "3.0", "give (n, d, d)"),
    Bad(None, "None", "not numbers"),
    Bad("x", "'x'", "not numbers"),
    Bad(np.full((3, 2, 2), np.nan), "nan", "remove them"),
    Bad(np.zeros((0, 2, 2)), "(0, 2, 2)", "give (n, d, d)"),
    Bad(np.full((3, 2, 2), None), "object", "not numbers"),
    Bad(np.ones((3, 2, 2)) * 1j, "complex", "real numbers"),
    Bad([[[1.0]], [[1.0, 2.0]]], "[[[1.0]], [[1.0, 2.0]]]", "not numbers"),
]
TARGETS = [
    Bad(np.ones(2), "(2,)", "per measurement"),
    Bad(np.ones((3, 1)), "(3, 1)", "per measurement"),
    Bad(1.0, "1.0", "per measurement"),
    Bad(None, "None", "not numbers"),
    Bad(["a"] * 3, "'a'", "not numbers"),
    Bad([1.0, np.inf, 1.0], "inf", "remove them"),
    Bad([1j, 0, 0], "complex", "real numbers"),
]
VALUES = [
    Bad(None, "None", "at least one"),
    Bad({}, "{}", "at least one"),
    Bad([], "[]", "at least one"),
    Bad(1.0, "1.0", "must be arrays"),
    Bad("a", "'a'", "must be arrays"),
    Bad([1.0, 2.0], "1.0", "must be arrays"),
    Bad(jnp.zeros(()), "scalar", "leading sample axis"),
    Bad(np.zeros((0, 2)), "(0, 2)", "at least one sample"),
    Bad((np.zeros(2), np.zeros(3)), "`{name}[1]` 3", "make them equal"),
    Bad(np.array(["a"]), "<U1", "as numbers"),
    Bad(np.array([None]), "object", "as numbers"),
]
LEVELS = [Bad(value, repr(value), "between 0 and 1") for value in (0, 1, -1.0, 1.5, np.nan, np.inf)] + [
    Bad(value, shown, "between 0 and 1")
    for value, shown in (("a", "'a'"), (None, "None"), ([0.5], "[0.5]"), (True, "True"))
]


def sensing(**given):
    """Make a sensing problem with one bad argument."""
    return ut.MatrixSensing(**{"d": 4, "m": 20, "law": LAW} | given)


def load(**given):
    """Load a stored run with one bad argument."""
    with tempfile.TemporaryDirectory() as folder:
        path = things.run().save(Path(folder) / "run.zarr")
        return ut.Trajectory.load(**{"path": path, "noise": things.noise()} | given)


CASES: list[Case] = [
    *refused(
        "MatrixSensing",
        sensing,
        {
            "d": counts(),
            "m": counts(),
            "law": laws(),
            "rank": counts(optional=True),
            "spectrum": SPECTRA,
            "spurious_rank": counts(optional=True),
            "pooled": flags(),
            "ensemble": choice("goe"),
            "key": keys(optional=True),
            "dtype": [
                Bad("text", "'text'", "a floating-point type"),
                Bad(int, "int", "a floating-point type"),
                Bad(complex, "complex", "a floating-point type"),
                Bad(3, "3", "a floating-point type"),
            ],
        },
    ),
    *refused(
        "MatrixSensing", sensing, {"rank": [Bad(5, "5", "give a larger `d`")], "spurious_rank": [Bad(3, "3", "give 3")]}
    ),
    *refused(
        "MatrixSensing.start",
        lambda **given: sensing().start(**{"alpha": 0.1} | given),
        {
            "alpha": numbers(zero=False),
            "columns": [*counts(optional=True), Bad(5, "5", "at most 4")],
            "signed": flags(),
        },
    ),
    *refused("MatrixSensing", lambda params: sensing().check(params), {"params": [*params(), *STARTS]}),
    *refused(
        "MatrixSensing.measure", lambda params: sensing().measure(params), {"params": [*params()[:3], *STARTS[:2]]}
    ),
    *refused(
        "sensing_problem",
        lambda **given: ut.sensing_problem(**{"measurements": np.ones((3, 2, 2)), "targets": np.ones(3)} | given),
        {"measurements": MATRICES, "targets": TARGETS},
    ),
    *refused(
        "advise",
        lambda **given: ut.advise(**{"law": LAW} | given),
        {"law": laws(), "horizon": counts(), "alpha": numbers(below="1", zero=False), "key": keys(), "runs": counts()},
    ),
    *refused(
        "lyapunov",
        lambda **given: ut.lyapunov(**{"law": LAW, "step_size": 0.1} | given),
        {"law": laws(), "step_size": numbers(), "key": keys(optional=True), "samples": counts(least=2)},
    ),
    *refused(
        "lyapunov",
        lambda law: ut.lyapunov(law, 0.1),
        {
            "law": [
                Bad(lambda key: 1.0, "(key)", "`law(key, count)`"),
                Bad(lambda key, n: "text", "str", "return JAX arrays"),
                Bad(lambda key, n: jnp.ones(3), "(3,)", "one number for each"),
                Bad(lambda key, n: None, "None", "one number for each"),
            ]
        },
    ),
    *refused(
        "tail_exponent",
        lambda **given: ut.tail_exponent(**{"law": LAW, "step_size": 0.1} | given),
        {"law": laws(), "step_size": numbers()},
    ),
    *refused(
        "Table",
        lambda **given: Table(**{"values": [1.0, 2.0]} | given),
        {
            "values": laws()[4:],
            "probabilities": [
                Bad([0.5], "(1,)", "give 2 numbers"),
                Bad([0.7, 0.7], "1.4", "divide it by its sum"),
                Bad([-0.5, 1.5], "-0.5", "not negative"),
                Bad("ab", "<U2", "give 2 numbers"),
                Bad(["a", "b"], "<U1", "give real numbers"),
            ],
        },
    ),
    *refused(
        "two_point",
        lambda **given: two_point(**{"mean": 1.0, "spread": 2.0} | given),
        {"mean": vectors(), "spread": vectors(), "directions": counts()},
    ),
    *refused(
        "Uniform",
        lambda **given: Uniform(**{"low": 0.0, "high": 1.0} | given),
        {"low": [*vectors(), Bad(2.0, "2.0", "must not be above")], "high": vectors()},
    ),
    *refused(
        "Gaussian",
        lambda **given: Gaussian(**{"mean": 0.0, "deviation": 1.0} | given),
        {"mean": vectors(), "deviation": [*vectors(), Bad(-1.0, "-1.0", "at least 0")]},
    ),
    *refused("Estimate.of", lambda values: ut.Estimate.of(values), {"values": VALUES}),
    *refused("Estimate.share", lambda flags: ut.Estimate.share(flags), {"flags": VALUES}),
    *refused("Estimate.interval", lambda level: ut.Estimate.of(jnp.arange(4.0)).interval(level), {"level": LEVELS}),
    *refused("run.resume", lambda steps: things.run().resume(steps=steps), {"steps": counts(optional=True)}),
    *refused("run.resume", lambda time: things.run().resume(time=time), {"time": [Bad(1.0, "1.0", "give `steps=`")]}),
    *refused(
        "run.select",
        lambda times: things.run().select(times),
        {
            "times": [
                Bad(7, "7", "from -3 to 2"),
                Bad(-4, "-4", "from -3 to 2"),
                Bad([0, 9], "9", "from -3 to 2"),
                Bad("a", "'a'", "whole"),
                Bad(1.5, "1.5", "whole"),
                Bad(None, "None", "whole"),
                Bad([], "[]", "at least one"),
                Bad([0.5], "[0.5]", "whole"),
            ]
        },
    ),
    Case(
        "run.plot(names): 'nonsense'",
        lambda: things.run().plot("nonsense"),
        "`run.plot('nonsense')`",
        "observables",
        "'w'",
        "give one of them",
    ),
    Case("run.plot(names): 3", lambda: things.run().plot(3), "`run.plot(3)`", "observables", "'w'", "give one of them"),
    *refused(
        "run.plot",
        lambda clock: things.run().plot(clock=clock),
        {
            "clock": [
                Bad("hours", "'hours'", "'slow_time'"),
                Bad(3, "3", "'slow_time'"),
                Bad(["step"], "['step']", "'slow_time'"),
            ]
        },
    ),
    *refused(
        "Trajectory.load",
        load,
        {
            "path": [Bad(3, "3", "a path"), Bad(None, "None", "a path")],
            "noise": [
                Bad("noise", "'noise'", "the noise of the run"),
                Bad(things.problem(), "Problem", "the noise of the run"),
            ],
            "observe": [observers("observe")[0], *observers("observe")[4:9]],
        },
    ),
    *refused(
        "run.save", lambda path: things.run().save(path), {"path": [Bad(3, "3", "a path"), Bad(None, "None", "a path")]}
    ),
]
for index, case in enumerate(CASES):
    if "`{name}" in case.shown:
        CASES[index] = Case(
            case.name, case.call, case.quoted, case.argument, case.shown.replace("{name}", case.argument), case.sentence
        )
