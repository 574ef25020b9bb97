"""Bad arguments of runs: `descend`, `diffuse`, `average`, `settle`, and of results of runs."""

import random

import jax.numpy as jnp
import numpy as np

import undertow as ut
from tests.bad_input import things
from tests.bad_input.cases import Bad, Case, choice, counts, flags, keys, numbers, refused
from tests.bad_input.noises import problems
from tests.bad_input.problems import params
from tests.bad_input.things import PARAMS

A_NOISE = "give a noise, such as"


def noises(*, population: bool = False) -> list[Bad]:
    """Return values that are no noise."""
    fresh = [Bad(ut.Minibatch(things.population(), 1), "Population", "`population.sample(key, count)`")]
    return [*problems(A_NOISE), Bad(things.problem(), "Problem", A_NOISE), *(fresh if population else [])]


def starts() -> list[Bad]:
    """Return bad starts of a run; floats are accepted there, and functions of a key."""
    kept = [bad for bad in params() if not isinstance(bad.value, float | list)]
    return [
        *kept,
        Bad(lambda: PARAMS, "()", "`params(key)`"),
        Bad(lambda key: "text", "str", "return JAX arrays"),
        Bad(lambda key: None, "None", "a pytree of floating-point arrays"),
        Bad(lambda key: jnp.arange(2), "int32", "must be real floating-point"),
        Bad(PARAMS * jnp.nan, "nan", "check the data"),
        Bad(things.noise(), "`params.problem.function`", "wrap numbers with jnp.asarray"),
    ]


def observers(name: str) -> list[Bad]:
    """Return bad dicts of functions."""
    one = f"{name}['w']"
    return [
        Bad("loss", "'loss'", "give a dict of functions"),
        Bad([lambda w: w], "a list", "give a dict of functions"),
        Bad(lambda w: w, "a function", "give a dict of functions"),
        Bad(("w",), "('w',)", "give a dict of functions"),
        Bad({"w": 1.0}, "1.0", f"`{one}(params)`"),
        Bad({"w": None}, "None", f"`{one}(params)`"),
        Bad({"w": "loss"}, "'loss'", f"`{one}(params)`"),
        Bad({1: lambda w: w}, "1", "must be non-empty strings"),
        Bad({"": lambda w: w}, "''", "must be non-empty strings"),
        Bad({"w": lambda: 0}, "()", f"`{one}(params)`"),
        Bad({"w": lambda w: "text"}, "'text'", "return JAX arrays"),
        Bad({"w": lambda w: np.array([None, 1.0], object)}, "object", "return JAX arrays"),
        Bad({"w": lambda w: None}, "None", "return JAX arrays"),
        Bad({"w": lambda w: w * random.random()}, "different values", "`jax.random`"),
    ]


SCHEDULES = [
    Bad(lambda step: -0.1, "-0.1", "must be finite and not negative"),
    Bad(lambda step: jnp.nan * step, "nan", "must be finite and not negative"),
    Bad(lambda step: jnp.ones(2), "(2,)", "one number per step"),
    Bad(lambda step: "text", "'text'", "return JAX arrays"),
    Bad(lambda step: None, "None", "one number per step"),
    Bad(lambda: 0.1, "()", "`step_size(step)`"),
    Bad(lambda step: 0.1 * random.random(), "different values", "`jax.random`"),
]
OPTIMISERS = [
    Bad("adam", "'adam'", "`Adam` or `AdamW`"),
    Bad(0.1, "0.1", "`Adam` or `AdamW`"),
    Bad({}, "{}", "`Adam` or `AdamW`"),
    Bad(ut.Adam, "Adam", "give an instance, `Adam()`"),
    Bad([ut.Adam()], "a list", "`Adam` or `AdamW`"),
    Bad(lambda g: g, "a function", "`Adam` or `AdamW`"),
]
STATES = [
    Bad({"v": PARAMS}, "{'v': *}", "make them match"),
    Bad({"m": PARAMS, "v": jnp.ones(3)}, "(3,)", "make them equal"),
    Bad({"m": PARAMS, "v": "text"}, "'text'", "make them match"),
    Bad("text", "*", "make them match"),
    Bad({"m": PARAMS, "v": jnp.ones(2, int)}, "int32", "`.astype`"),
]
PROGRESS = [
    Bad("yes", "'yes'", "`progress(done, total)`"),
    Bad(3, "3", "`progress(done, total)`"),
    Bad(lambda: 0, "()", "`progress(done, total)`"),
]


def descend(**given):
    """Run SGD with one bad argument."""
    return ut.descend(**{"noise": things.noise(), "params": PARAMS, "step_size": 0.1, "steps": 2, "key": 0} | given)


def diffuse(**given):
    """Run the SDE with one bad argument."""
    return ut.diffuse(**{"noise": things.noise(), "params": PARAMS, "step_size": 0.1, "time": 0.2, "key": 0} | given)


def average(**given):
    """Solve the averaged flow with one bad argument."""
    return ut.average(**{"noise": things.noise(), "params": PARAMS, "step_size": 0.1, "time": 0.2} | given)


def settle(**given):
    """Follow gradient flow with one bad argument."""
    return ut.settle(**{"problem": things.problem(), "params": PARAMS} | given)


CASES: list[Case] = [
    *refused(
        "descend",
        descend,
        {
            "noise": noises(),
            "step_size": numbers(),
            "steps": counts(),
            "key": keys(),
            "observe": observers("observe"),
            "average": observers("average"),
            "every": counts(optional=True),
            "seeds": counts(optional=True),
            "optimiser": OPTIMISERS,
            "momentum": numbers(below="1"),
            "weight_decay": numbers(),
            "lane_width": counts(optional=True),
            "progress": PROGRESS,
        },
    ),
    *refused(
        "descend",
        lambda params: descend(params=params),
        {"params": [bad for bad in starts() if "nan" not in bad.shown]},
    ),
    *refused("Problem", lambda params: descend(params=params), {"params": starts()[-2:-1]}),
    *refused("descend", descend, {"step_size": SCHEDULES}),
    *refused(
        "descend",
        lambda optimiser_state: descend(optimiser=ut.Adam(), optimiser_state=optimiser_state),
        {"optimiser_state": STATES},
    ),
    *refused(
        "descend",
        lambda momentum: descend(optimiser=ut.Adam(), momentum=momentum),
        {"momentum": [Bad(0.5, "0.5", "give it to the optimiser"), Bad("a", "'a'", "give it to the optimiser")]},
    ),
    *refused(
        "descend",
        lambda observe: descend(observe=observe, average={"w": lambda w: w}),
        {"observe": [Bad({"w": lambda w: w}, "'w'", "different names")]},
    ),
    *refused(
        "diffuse",
        diffuse,
        {
            "noise": noises(population=True),
            "step_size": [*numbers()[:-1], Bad(lambda step: 0.1, "a function", "give a number")],
            "time": numbers(),
            "key": keys(),
            "observe": observers("observe"),
            "every": counts(optional=True),
            "seeds": counts(optional=True),
            "optimiser": OPTIMISERS,
            "weight_decay": numbers(),
            "substeps": counts(),
            "lane_width": counts(optional=True),
            "progress": PROGRESS,
        },
    ),
    *refused(
        "diffuse",
        lambda params: diffuse(params=params),
        {"params": [bad for bad in starts()[:9] if "nan" not in bad.shown]},
    ),
    *refused("diffuse", diffuse, {"time": [Bad(0.0, "0", "above 0")], "step_size": [Bad(0.0, "0", "above 0")]}),
    *refused(
        "average",
        average,
        {
            "noise": noises(population=True),
            "params": params(),
            "step_size": numbers(zero=False),
            "time": numbers(zero=False),
            "observe": observers("observe"),
            "num_saves": counts(),
            "closure": choice("small_step"),
            "tolerance": numbers(optional=True, zero=False),
            "max_steps": counts(),
            "estimate_error": flags(optional=True),
            "check_seeds": counts(optional=True, least=2),
            "optimiser": OPTIMISERS,
        },
    ),
    *refused("average", average, {"observe": [Bad({"loss": lambda w: w}, "'loss'", "use another name")]}),
    *refused(
        "settle",
        settle,
        {
            "problem": [
                *problems("give a Problem or a Regression"),
                Bad(things.population(), "Population", "`population.sample(key, count)`"),
            ],
            "params": params(),
            "tolerance": numbers(optional=True, zero=False),
            "max_steps": counts(),
        },
    ),
    *refused("SGD", ut.SGD, {"momentum": numbers(below="1"), "nesterov": flags(), "weight_decay": numbers()}),
    *refused("SGD", ut.SGD, {"nesterov": [Bad(True, "True", "give `momentum=0.9`")]}),
    *refused("RMSProp", ut.RMSProp, {"b2": numbers(below="1"), "eps": numbers()}),
    *refused(
        "Adam",
        ut.Adam,
        {"b1": numbers(below="1"), "b2": numbers(below="1"), "eps": numbers(), "bias_correction": flags()},
    ),
    *refused(
        "AdamW",
        ut.AdamW,
        {
            "b1": numbers(below="1"),
            "b2": numbers(below="1"),
            "eps": numbers(),
            "weight_decay": numbers(),
            "bias_correction": flags(),
        },
    ),
]
