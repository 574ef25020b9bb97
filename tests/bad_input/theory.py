"""Bad arguments of the limit, of derivatives on the manifold and of symmetries."""

import random

import jax.numpy as jnp
import numpy as np

import undertow as ut
from tests.bad_input import things
from tests.bad_input.cases import Bad, Case, counts, flags, functions, keys, numbers, refused
from tests.bad_input.problems import params
from tests.bad_input.runs import OPTIMISERS, noises, observers
from tests.bad_input.things import PAIR, PARAMS, balance

AT = jnp.array([2.0, 0.5])
V_STATES = [
    Bad({"m": AT}, "{'m': *}", '{"v": ...}'),
    Bad("text", "'text'", '{"v": ...}'),
    Bad(3.0, "3.0", '{"v": ...}'),
    Bad({"v": jnp.ones(3)}, "(3,)", "make them equal"),
    Bad({"v": "text"}, "'text'", "make them match"),
    Bad({"v": -AT}, "-2.0", "at least 0"),
    Bad({"v": AT * jnp.nan}, "nan", "at least 0"),
]
CORRECTIONS = [
    Bad("finite", "'finite'", "finite_step"),
    Bad(["nonsense"], "'nonsense'", "finite_step"),
    Bad(3, "3", "finite_step"),
    Bad(None, "None", "finite_step"),
]
FACTOR = [
    Bad(jnp.ones(2), "(2,)", "one extra trailing axis"),
    Bad(jnp.ones((3, 1)), "(3, 1)", "one extra trailing axis"),
    Bad({"a": jnp.ones((2, 1))}, "{'a': *}", "a pytree like params"),
    Bad(None, "None", "a pytree like params"),
    Bad("text", "'text'", "one extra trailing axis"),
    Bad(np.array([[None], [1.0]], object), "object", "real"),
    Bad(jnp.ones((2, 1), int), "int32", "real"),
]


def limit(**given):
    """Make a limit with one bad argument."""
    return ut.Limit(**{"noise": things.label_noise()} | given)


def solve(**given):
    """Solve a limit with one bad argument."""
    return limit().solve(**{"params": AT, "slow_time": 0.1} | given)


def solve_adam(**given):
    """Solve a limit of Adam with one bad argument."""
    return limit(optimiser=ut.Adam()).solve(**{"params": AT, "slow_time": 0.1, "step_size": 0.1} | given)


def symmetries(one: str) -> list[Bad]:
    """Return values that are no symmetry."""
    wrong = [(None, "None"), ("u", "'u'"), (PARAMS, "(2,)"), (ut.Rescaling, "Rescaling"), (lambda p: p, "a function")]
    return [Bad(value, shown, one) for value, shown in wrong]


def flow(**given):
    """Compute a Noether flow with one bad argument."""
    return ut.noether_flow(
        **{"noise": ut.Minibatch(things.product(), 1), "params": PAIR, "symmetry": balance(), "step_size": 0.1} | given
    )


def equilibrium(**given):
    """Compute an equilibrium with one bad argument."""
    return ut.equilibrium(
        **{"noise": ut.Minibatch(things.product(), 1), "params": PAIR, "symmetries": balance(), "step_size": 0.1}
        | given
    )


def picks(name: str, *, outside: bool = True) -> list[Bad]:
    """Return bad picks of entries of params."""
    return [
        *functions(f"{name}(params)"),
        *(
            [
                Bad(lambda p: 2 * p["u"], name, "as they are"),
                Bad(lambda p: (), name, "as they are"),
                Bad(lambda p: None, name, "as they are"),
                Bad(lambda p: "text", name, "as they are"),
            ]
            if outside
            else []
        ),
    ]


LABELS = [Bad(3, "3", "must be a string"), Bad(None, "None", "must be a string")]
AMOUNTS = [
    Bad(jnp.nan, "nan", "give finite numbers"),
    Bad(1e4, "1e+04", "overflows"),
    Bad(jnp.ones(3), "(3,)", "give one number"),
    Bad("far", "'far'", "give one number"),
    Bad(None, "None", "give one number"),
    Bad(1j, "1j", "give one number"),
    Bad(np.array(None, object), "None", "give one number"),
]
PROBLEMS = [
    Bad(None, "None", "which has samples"),
    Bad(jnp.ones(2), "(2,)", "which has samples"),
    Bad("loss", "'loss'", "which has samples"),
    Bad(ut.Problem, "Problem", "which has samples"),
    Bad(things.noise(), "Minibatch", "which has samples"),
]

CASES: list[Case] = [
    *refused(
        "Limit",
        limit,
        {
            "noise": noises(population=True),
            "piecewise": flags(),
            "resolution": numbers(optional=True),
            "optimiser": OPTIMISERS,
        },
    ),
    *refused(
        "Limit.solve",
        solve,
        {
            "params": params(),
            "slow_time": numbers(),
            "observe": observers("observe"),
            "num_saves": counts(),
            "steps": counts(),
            "seeds": counts(optional=True),
            "finite_step": numbers(optional=True),
            "step_size": numbers(optional=True, zero=False),
            "tolerance": numbers(optional=True, zero=False),
            "quasi_static": flags(),
            "key": keys(optional=True),
            "corrections": CORRECTIONS,
        },
    ),
    *refused("Limit.solve", solve_adam, {"state": V_STATES}),
    *refused(
        "Limit.drift",
        lambda **given: limit().drift(**{"params": AT} | given),
        {
            "params": params(),
            "finite_step": numbers(optional=True),
            "step_size": numbers(optional=True, zero=False),
            "corrections": CORRECTIONS,
        },
    ),
    *refused("Limit.drift", lambda state: limit(optimiser=ut.Adam()).drift(AT, state=state), {"state": V_STATES}),
    *refused(
        "Limit.parts",
        lambda **given: limit().parts(**{"params": AT} | given),
        {"params": params(), "finite_step": numbers(optional=True)},
    ),
    *refused(
        "second_derivative",
        lambda **given: ut.second_derivative(
            **{"problem": things.task(), "params": AT, "factor": jnp.ones((2, 1))} | given
        ),
        {
            "problem": [
                Bad(None, "None", "a Problem or a Regression"),
                Bad(things.noise(), "Minibatch", "a Problem"),
                Bad(things.population(), "Population", "a Problem or a Regression"),
            ],
            "params": params(),
            "factor": FACTOR,
        },
    ),
    *refused(
        "noether_flow",
        flow,
        {
            "noise": noises(),
            "params": params(),
            "symmetry": symmetries("a symmetry, such as"),
            "step_size": numbers(),
            "weight_decay": numbers(),
            "momentum": numbers(below="1"),
            "optimiser": OPTIMISERS,
            "approximate": flags(),
            "key": keys(optional=True),
        },
    ),
    *refused(
        "noether_flow",
        lambda optimiser_state: flow(optimiser=ut.Adam(), optimiser_state=optimiser_state),
        {
            "optimiser_state": [
                Bad({"m": PAIR}, "{'m': {'u': *, 'w': *}}", '{"v": ...}'),
                Bad("text", "'text'", '{"v": ...}'),
                Bad({"v": AT}, "*", "make them match"),
            ]
        },
    ),
    *refused(
        "equilibrium",
        equilibrium,
        {
            "noise": noises(),
            "params": params(),
            "symmetries": [
                *symmetries("a symmetry or a sequence"),
                Bad([], "[]", "a symmetry or a sequence"),
                Bad([3, balance()], "3", "a symmetry or a sequence"),
            ],
            "step_size": numbers(zero=False),
            "weight_decay": numbers(),
            "optimiser": OPTIMISERS,
            "corrected": flags(),
            "tolerance": numbers(optional=True, zero=False),
            "max_sweeps": counts(),
            "key": keys(optional=True),
        },
    ),
    *refused(
        "find_symmetries",
        lambda **given: ut.find_symmetries(**{"problem": things.product(), "params": PAIR} | given),
        {"problem": PROBLEMS, "params": params(), "key": keys(optional=True), "points": counts(optional=True)},
    ),
    *refused(
        "Rescaling",
        lambda **given: ut.Rescaling(**{"outgoing": lambda p: p["u"], "incoming": lambda p: p["w"]} | given).charge(
            PAIR
        ),
        {"outgoing": picks("outgoing"), "incoming": picks("incoming"), "neurons": flags(), "label": LABELS},
    ),
    *refused("Rescaling", lambda params: balance().charge(params), {"params": params()}),
    *refused("Rescaling.orbit", lambda amount: balance().orbit(PAIR, amount), {"amount": AMOUNTS}),
    *refused(
        "Rescaling",
        lambda outgoing: ut.Rescaling(outgoing, lambda p: p["w"]).charge(PAIR),
        {"outgoing": [Bad(lambda p: p["w"], "twice", "picked twice")]},
    ),
    *refused(
        "Scaling",
        lambda **given: ut.Scaling(**{"where": lambda p: p["u"]} | given).charge(PAIR),
        {"where": picks("where"), "label": LABELS},
    ),
    *refused("Scaling.orbit", lambda amount: ut.Scaling(lambda p: p["u"]).orbit(PAIR, amount), {"amount": AMOUNTS}),
    *refused(
        "DoubleRotation",
        lambda **given: ut.DoubleRotation(**{"left": lambda p: p["u"], "right": lambda p: p["w"]} | given).charge(
            {"u": jnp.eye(2), "w": jnp.eye(2)}
        ),
        {"left": picks("left"), "right": picks("right", outside=False), "label": LABELS},
    ),
    *refused(
        "DoubleRotation",
        lambda params: ut.DoubleRotation(lambda p: p["u"], lambda p: p["w"]).charge(params),
        {"params": [*params(), Bad({"u": jnp.ones((2, 3)), "w": jnp.ones((2, 2))}, "(2, 3)", "do not multiply")]},
    ),
    *refused(
        "Exponential",
        lambda generator: ut.Exponential(generator).charge(PARAMS),
        {
            "generator": [
                Bad(lambda v: v[:1], "(1,)", "a vector like params"),
                Bad(lambda v: {"a": v}, "{'a': *}", "a vector like params"),
                Bad(lambda v: None, "None", "a vector like params"),
                Bad(lambda v: "text", "str", "return JAX arrays"),
                Bad(lambda: 0, "()", "`generator(vector)`"),
                Bad("swap", "'swap'", "like params"),
                Bad(None, "None", "like params"),
                Bad(jnp.ones(3), "(3,)", "like params"),
                Bad({"a": PARAMS}, "{'a': *}", "like params"),
                Bad(np.array([None, 1.0], object), "object", "like params"),
                Bad(lambda v: jnp.array([[0.0, 1.0], [-1.0, 0.0]]) @ v, "symmetric", "symmetric"),
                Bad(lambda v: v * random.random(), "different values", "`jax.random`"),
            ]
        },
    ),
    *refused("Exponential.orbit", lambda amount: ut.Exponential(PARAMS).orbit(PARAMS, amount), {"amount": AMOUNTS}),
]
