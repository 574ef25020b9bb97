"""Bad arguments of noises, and of a noise that is checked."""

import random

import jax.numpy as jnp
import numpy as np

import undertow as ut
from tests.bad_input import things
from tests.bad_input.cases import Bad, Case, choice, counts, flags, functions, keys, numbers, refused
from tests.bad_input.problems import params
from tests.bad_input.things import PARAMS


def problems(advice: str, *, population: bool = False) -> list[Bad]:
    """Return values that are no problem."""
    wrong = [
        (None, "None"),
        ("problem", "str"),
        (jnp.ones(2), "(2,)"),
        (things.square, "square"),
        (ut.Problem, "Problem"),
        ({}, "{}"),
    ]
    more = [(things.population(), "Population")] if population else []
    return [Bad(value, shown, advice) for value, shown in [*wrong, *more]]


GROUPS = [
    Bad([0, 1], "(2,)", "give one label each"),
    Bad(None, "None", "give one label each"),
    Bad([[0, 1, 1]], "(1, 3)", "give one label each"),
    Bad([0.0, 1.0, 1.0], "float64", "whole numbers 0..k-1"),
    Bad(["a", "b", "b"], "<U1", "whole numbers 0..k-1"),
    Bad([0, None, 1], "object", "whole numbers 0..k-1"),
    Bad([True, False, True], "bool", "whole numbers 0..k-1"),
    Bad([0, -1, 1], "-1", "labels are 0..k-1"),
    Bad([0, 2, 2], "group 1", "without gaps"),
    Bad([0, 1, 2**40], str(2**40), "without gaps"),
    Bad(np.ma.array([0, 1, 1], mask=[0, 0, 1]), "masked", "drop those samples"),
    Bad([[0], [1, 1]], "[[0], [1, 1]]", "give one label each"),
]
SHARES = [
    Bad([1.0], "(1,)", "give one each"),
    Bad([0.5, 0.6], "[0.5, 0.6]", "divide by the sum"),
    Bad([1.0, 0.0], "[1.0, 0.0]", "leave out an environment of weight 0"),
    Bad([2.0, -1.0], "[2.0, -1.0]", "must be positive"),
    Bad([np.nan, 1.0], "nan", "must be positive"),
    Bad(["a", "b"], "<U1", "give real numbers"),
    Bad([0.5, None], "object", "give real numbers"),
    Bad([0.5, 0.5j], "complex128", "give real numbers"),
    Bad("ab", "'ab'", "give one each"),
    Bad(0.5, "0.5", "give one each"),
]
FACTORS = [
    Bad(lambda w: w, "(2,)", "one extra trailing axis"),
    Bad(lambda w: {"a": w[:, None]}, "{'a': *}", "a pytree like params"),
    Bad(lambda w: None, "None", "a pytree like params"),
    Bad(lambda w: "text", "str", "return JAX arrays"),
    Bad(lambda w: w[:, None] * 1j, "complex64", "real"),
    Bad(lambda w: w[:, None] * random.random(), "different values", "`jax.random`"),
]
DRAWS = [
    Bad(lambda key, w: w[:1], "(1,)", "make them equal"),
    Bad(lambda key, w: {"a": w}, "{'a': *}", "make them match"),
    Bad(lambda key, w: None, "None", "make them match"),
    Bad(lambda key, w: "text", "str", "return JAX arrays"),
    Bad(lambda key, w: jnp.ones(2, int), "int32", "`.astype`"),
    Bad(lambda key, w: w * np.random.normal(), "different values", "`jax.random`"),  # noqa: NPY002
]


def minibatch(problem=None, batch_size=1, replace=True):
    """Return a minibatch noise."""
    return ut.Minibatch(things.problem() if problem is None else problem, batch_size, replace)


def environments(groups=(0, 1, 1), weights=None, batch_size=None):
    """Return a noise with two environments."""
    return ut.Environments(things.problem(), groups, weights, batch_size)


def other_loss(problems):
    """Return environments of these problems."""
    return ut.Environments.of(problems)


ONE, PLAIN = ut.Problem(things.square, jnp.zeros((2, 2))), "give a Problem or a Regression"

CASES: list[Case] = [
    *refused("Minibatch", lambda problem: ut.Minibatch(problem, 1), {"problem": problems(PLAIN)}),
    *refused("Minibatch", minibatch, {"batch_size": counts(), "replace": flags()}),
    *refused(
        "Minibatch",
        lambda batch_size: minibatch(batch_size=batch_size, replace=False),
        {"batch_size": [Bad(4, "4", "3 samples")]},
    ),
    *refused(
        "Minibatch.draw",
        lambda key=0, params=PARAMS: minibatch().draw(key, params),
        {"key": keys(), "params": params()},
    ),
    *refused(
        "Minibatch.covariance",
        lambda key=0, samples=4: minibatch(things.population()).covariance(PARAMS, key=key, samples=samples),
        {"key": keys(optional=True), "samples": counts(least=2)},
    ),
    *refused(
        "LabelNoise",
        lambda problem: ut.LabelNoise(problem),
        {"problem": [*problems("give a `Regression`"), Bad(things.problem(), "Problem", "give a `Regression`")]},
    ),
    *refused(
        "LabelNoise",
        lambda **given: ut.LabelNoise(things.task(), **given),
        {"strength": numbers(), "batch_size": counts(), "replace": flags(), "kind": choice("sign")},
    ),
    *refused("Isotropic", lambda problem: ut.Isotropic(problem), {"problem": problems(PLAIN)[:-1]}),
    *refused("Isotropic", lambda scale: ut.Isotropic(things.problem(), scale), {"scale": numbers()}),
    *refused("Additive", lambda problem: ut.Additive(problem, lambda w: w[:, None]), {"problem": problems(PLAIN)}),
    *refused("Additive", lambda factor: ut.Additive(things.problem(), factor), {"factor": functions("factor(params)")}),
    *refused("Additive", lambda factor: ut.Additive(things.problem(), factor).check(PARAMS), {"factor": FACTORS}),
    *refused("SampledNoise", lambda problem: ut.SampledNoise(problem, lambda key, w: w), {"problem": problems(PLAIN)}),
    *refused(
        "SampledNoise",
        lambda draw=lambda key, w: w, samples=4, key=0, unbiased=True: ut.SampledNoise(
            things.problem(), draw, samples, key=key, unbiased=unbiased
        ),
        {"draw": functions("draw(key, params)"), "samples": counts(least=2), "key": keys(), "unbiased": flags()},
    ),
    *refused("SampledNoise", lambda draw: ut.SampledNoise(things.problem(), draw).check(PARAMS), {"draw": DRAWS}),
    *refused("Environments", lambda problem: ut.Environments(problem, [0, 1]), {"problem": problems("give a Problem")}),
    *refused("Environments", environments, {"groups": GROUPS, "weights": SHARES, "batch_size": counts(optional=True)}),
    *refused(
        "Environments.pooled",
        lambda batch_size: environments().pooled(batch_size),
        {"batch_size": counts(optional=True)},
    ),
    *refused(
        "Environments.of",
        other_loss,
        {
            "problems": [
                Bad([], "[]", "at least one"),
                Bad(None, "None", "at least one"),
                Bad([ONE, things.task()], "problem 1", "the same function"),
                Bad([ONE, 3], "problem 1", "the same function"),
                Bad([3], "problem 0", "the same function"),
                Bad(ONE, "Problem", "a list"),
                Bad([ONE, ut.Problem(things.square, jnp.zeros((2, 3)))], "problem 1", "(3,)"),
                Bad([ONE, ONE.reweight([0.5, 0.5])], "problem 1", "plain problems"),
            ]
        },
    ),
    *refused(
        "check_noise",
        lambda **given: ut.check_noise(**{"noise": things.noise(), "params": PARAMS} | given),
        {
            "noise": problems("give a noise"),
            "params": params(),
            "key": keys(),
            "draws": counts(),
            "false_alarm": numbers(below="1", zero=False),
        },
    ),
    *refused(
        "check_noise",
        lambda draws: ut.check_noise(things.noise(), PARAMS, draws=draws),
        {"draws": [Bad(99, "99", "give a larger number")]},
    ),
]
