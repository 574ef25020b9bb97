"""Bad arguments of problems: losses, data, params, weights, indices."""

import random

import jax.numpy as jnp
import numpy as np

import undertow as ut
from tests.bad_input import things
from tests.bad_input.cases import Bad, Case, counts, functions, keys, refused
from tests.bad_input.things import PARAMS, square

DATA = jnp.zeros((3, 2))
TARGETS = jnp.zeros(3)
MIXED = np.array([1.0, "a", None], object)
NAMES = np.array(["a", "b", "c"])


def data(name: str) -> list[Bad]:
    """Return bad data of a problem."""
    place = f"`{name}`"
    return [
        Bad(None, "None", "give at least one array"),
        Bad({}, "{}", "give at least one array"),
        Bad("abc", "'abc'", "must be arrays"),
        Bad([1.0, 2.0], f"`{name}[0]`", "must be arrays"),
        Bad({"x": [1.0]}, f"`{name}['x'][0]`", "must be arrays"),
        Bad({"x": DATA, "y": 3}, f"`{name}['y']`", "must be arrays"),
        Bad(np.float32(3), "scalar", "leading sample axis"),
        Bad(jnp.zeros(()), "scalar", "leading sample axis"),
        Bad(np.zeros((0, 2)), "(0, 2)", "give at least one sample"),
        Bad((np.zeros(3), np.zeros(4)), f"`{name}[1]` 4", "make them equal"),
        Bad(MIXED, "object", "encode text"),
        Bad(NAMES, "<U1", "encode text"),
        Bad({"x": DATA, "y": MIXED}, f"`{name}['y']`", "encode text"),
        Bad(np.array(["2020-01-01"], "datetime64[D]"), "datetime64[D]", "encode text"),
        Bad(np.ma.array([1.0, 2.0], mask=[0, 1]), place, "drop those samples or fill them"),
        Bad(open, "open", "must be arrays"),
    ]


def targets() -> list[Bad]:
    """Return bad targets of a regression, those of other lengths than the inputs among them."""
    wrong = [bad for bad in data("targets") if not isinstance(bad.value, dict | tuple | list)]
    return [
        *wrong,
        Bad([1.0, 2.0, 3.0], "list", "give an array"),
        Bad({"y": jnp.zeros(3)}, "dict", "give an array"),
        Bad(jnp.zeros(4), "`targets` 4", "make them equal"),
        Bad(jnp.zeros((3, 1, 1)), "(3, 1, 1)", "give (n,) or (n, q)"),
        Bad(jnp.zeros(3) * 1j, "complex", "real and imaginary parts"),
    ]


def params(what: str = "params") -> list[Bad]:
    """Return bad params of any problem."""
    return [
        Bad(None, "None", "a pytree of floating-point arrays"),
        Bad({}, "{}", "a pytree of floating-point arrays"),
        Bad(1.0, "float", "wrap numbers with jnp.asarray"),
        Bad([1.0, 2.0], f"`{what}[0]`", "wrap numbers with jnp.asarray"),
        Bad("w", "str", "wrap numbers with jnp.asarray"),
        Bad({"w": "text"}, f"`{what}['w']`", "wrap numbers with jnp.asarray"),
        Bad(jnp.arange(2), "int32", "must be real floating-point"),
        Bad(jnp.ones(2, bool), "bool", "must be real floating-point"),
        Bad(PARAMS * 1j, "complex64", "must be real floating-point"),
        Bad(np.array([1.0, None], object), "object", "must be real floating-point"),
        Bad(np.array(["a"]), "<U1", "must be real floating-point"),
    ]


def results() -> list[Bad]:
    """Return losses that do not return one real number."""
    return [
        Bad(lambda w, x: w - x, "(2,)", "sum or average inside the loss"),
        Bad(lambda w, x: (w**2).sum() * 1j, "complex64", "sum or average inside the loss"),
        Bad(lambda w, x: jnp.sum(w > 0), "int32", "sum or average inside the loss"),
        Bad(lambda w, x: None, "None", "sum or average inside the loss"),
        Bad(lambda w, x: "text", "str", "return JAX arrays"),
        Bad(lambda w, x: ((w - x).sum(), w), "tuple", "sum or average inside the loss"),
        Bad(lambda w, x: jnp.nan * w.sum(), "nan", "check the data"),
        Bad(lambda w, x: square(w, x) * random.random(), "different values", "`jax.random`"),
        Bad(lambda w, x: square(w, x + np.random.normal(size=2)), "different values", "`jax.random`"),  # noqa: NPY002
    ]


def legacy(key):
    """Draw from the global generator of NumPy."""
    return np.random.normal(size=2)  # noqa: NPY002


def checked(loss):
    """Check a problem with this loss at params."""
    return ut.Problem(loss, DATA).check(PARAMS)


def predicted(predict):
    """Check a regression with this model at params."""
    return ut.Regression(predict, DATA, jnp.zeros(3)).check(PARAMS)


def probabilities(count: str) -> list[Bad]:
    """Return bad probabilities of three samples."""
    return [
        Bad(jnp.ones(2) / 2, "(2,)", f"give {count} numbers"),
        Bad(1.0, "()", f"give {count} numbers"),
        Bad(None, "None", f"give {count} numbers"),
        Bad("abc", "'abc'", f"give {count} numbers"),
        Bad(NAMES, "<U1", "give real numbers"),
        Bad(np.array([1.0, None, 0.0], object), "object", "give real numbers"),
        Bad([0.5, 0.5j, 0.5], "complex128", "give real numbers"),
        Bad([0.5, np.nan, 0.5], "nan", "finite and not negative"),
        Bad([1.5, -0.5, 0.0], "-0.5", "finite and not negative"),
        Bad([1.0, 1.0, 1.0], "3", "divide it by its sum"),
        Bad([0.0, 0.0, 0.0], "0", "divide it by its sum"),
    ]


INDICES = [
    Bad(jnp.array(3), "3", "from 0 to 2"),
    Bad(jnp.array([0, 7]), "7", "from 0 to 2"),
    Bad(jnp.array(-1), "-1", "from 0 to 2"),
    Bad(jnp.array([0.0, 1.0]), "float32", "whole numbers"),
    Bad([0, 1], "list", "whole numbers"),
    Bad("0", "'0'", "whole numbers"),
    Bad(jnp.zeros((1, 1), int), "(1, 1)", "one index or a vector"),
    Bad(jnp.zeros(0, int), "(0,)", "at least one"),
]
ARROW = [
    Bad(jnp.ones(3), "(3,)", "make them equal"),
    Bad({"w": PARAMS}, "{'w': *}", "make them match"),
    Bad(None, "None", "make them match"),
    Bad("up", "'up'", "make them match"),
]

CASES: list[Case] = [
    *refused(
        "Problem",
        lambda loss=square, data=DATA: ut.Problem(loss, data),
        {"loss": functions("loss(params, sample)"), "data": data("data")},
    ),
    *refused("Problem", checked, {"loss": results()}),
    *refused("Problem", lambda params: things.problem().check(params), {"params": params()}),
    *refused("Problem", lambda params: things.problem().loss(params), {"params": params()[:4]}),
    *refused("Problem", lambda params: things.problem().gradient(params), {"params": params()[4:8]}),
    *refused("Problem.reweight", lambda weights: things.problem().reweight(weights), {"weights": probabilities("3")}),
    *refused(
        "Problem.batch_gradient", lambda indices: things.problem().batch_gradient(PARAMS, indices), {"indices": INDICES}
    ),
    *refused("Problem.along", lambda direction: things.problem().along(PARAMS, direction), {"direction": ARROW}),
    *refused(
        "Problem.combine",
        lambda coefficients: things.problem().combine(PARAMS, coefficients),
        {
            "coefficients": [
                Bad(jnp.ones(2), "(2,)", "give 3 numbers"),
                Bad(NAMES, "<U1", "give real numbers"),
                Bad(None, "None", "give 3 numbers"),
            ]
        },
    ),
    *refused(
        "Problem.quadratic",
        lambda form: things.problem().quadratic(PARAMS, form),
        {"form": functions("form(gradient)")},
    ),
    *refused(
        "Regression",
        lambda predict=lambda w, x: w @ x, inputs=DATA, targets=TARGETS: ut.Regression(predict, inputs, targets),
        {"predict": functions("predict(params, x)"), "inputs": data("inputs"), "targets": targets()},
    ),
    *refused(
        "Regression",
        predicted,
        {
            "predict": [
                Bad(lambda w, x: w, "(2,)", "make them equal"),
                Bad(lambda w, x: None, "None", "make them equal"),
                Bad(lambda w, x: "text", "str", "return JAX arrays"),
                Bad(lambda w, x: w @ x * 1j, "complex64", "real"),
                Bad(lambda w, x: w @ x + random.random(), "different values", "`jax.random`"),
            ]
        },
    ),
    *refused(
        "Population",
        lambda loss=square, draw=lambda key: jnp.zeros(2): ut.Population(loss, draw),
        {"loss": functions("loss(params, sample)"), "draw": functions("draw(key)")},
    ),
    *refused(
        "Population.sample",
        lambda key=0, count=3: things.population().sample(key, count),
        {"key": keys(), "count": counts()},
    ),
    *refused("Population.draw", lambda key: things.population().draw(key), {"key": keys()}),
    *refused(
        "Population.estimate_loss",
        lambda params=PARAMS, key=0, samples=4: things.population().estimate_loss(params, key=key, samples=samples),
        {"params": params(), "key": keys(optional=True), "samples": counts(least=2)},
    ),
    *refused(
        "Population.estimate_gradient",
        lambda params=PARAMS, samples=4: things.population().estimate_gradient(params, samples=samples),
        {"params": params()[:2], "samples": counts(least=2)},
    ),
    *refused(
        "Population",
        lambda draw: ut.Population(square, draw).check(PARAMS),
        {
            "draw": [
                Bad(lambda key: "text", "str", "arrays"),
                Bad(lambda key: None, "None", "arrays"),
                Bad(legacy, "different values", "`jax.random`"),
            ]
        },
    ),
]
