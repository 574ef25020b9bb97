"""What `optimiser=` accepts, and optax transformations in `descend`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from tests.kinds import params, problem
from tests.mistakes import assert_explained
from undertow import _trees as trees
from undertow.optimisers.transformation import Transformation, as_optimiser, theory_optimiser

NOISE = ut.Minibatch(problem(), 2)
PAIRS = {
    "SGD with momentum": (ut.SGD(0.9), optax.sgd(0.01, 0.9)),
    "Nesterov": (ut.SGD(0.9, nesterov=True), optax.sgd(0.01, 0.9, nesterov=True)),
    "Adam": (ut.Adam(), optax.adam(0.01)),
    "AdamW": (ut.AdamW(weight_decay=0.1), optax.adamw(0.01, weight_decay=0.1)),
    "RMSProp": (ut.RMSProp(), optax.rmsprop(0.01, 0.99, eps_in_sqrt=False)),
}


@pytest.mark.parametrize("seeds", [None, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_the_same_run_by_an_optax_transformation(name, seeds, x64):
    ours, theirs = PAIRS[name]
    settings = {"steps": 1000, "key": 0, "seeds": seeds}
    start = params(dtype=jnp.float64)
    run = ut.descend(NOISE, start, optimiser=ours, step_size=0.01, **settings)
    other = ut.descend(NOISE, start, optimiser=theirs, **settings)
    np.testing.assert_allclose(trees.ravel(run.params), trees.ravel(other.params), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(run.time, [0.0, 10.0])
    assert np.isnan(other.time).all()
    clock = ut.descend(NOISE, start, optimiser=theirs, step_size=0.01, **settings)
    np.testing.assert_array_equal(trees.ravel(clock.params), trees.ravel(other.params))
    np.testing.assert_array_equal(clock.time, run.time)


def test_another_transformation_by_a_plain_loop(x64):
    """Sign descent with clipping, by optax step by step, on the same draws."""
    chain = optax.chain(optax.clip(0.5), optax.lion(0.01))
    run = ut.descend(NOISE, params(dtype=jnp.float64), optimiser=chain, steps=3, key=0, seeds=None)
    point = params(dtype=jnp.float64)
    state = chain.init(point)
    slices = NOISE.randomness(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0), 1000, point)
    for step in range(3):
        updates, state = chain.update(NOISE.gradient(point, trees.take(slices, step)), state, point)
        point = trees.add(point, updates)
    np.testing.assert_allclose(trees.ravel(run.params), trees.ravel(point), rtol=1e-12)


class Foreign:
    """An optimiser of another library."""


Foreign.__module__ = "torch.optim.adamw"


def go(**settings):
    return ut.descend(NOISE, params(), **{"step_size": 0.1, "steps": 2, "key": 0, **settings})


WRONG_STATE = {"m": jnp.zeros(2), "v": jnp.zeros(2)}
MISTAKES = {
    "a class": (lambda: go(optimiser=ut.Adam), r"`descend\(optimiser=Adam\)`: this is a class; give an instance"),
    "a PyTorch optimiser": (lambda: go(optimiser=Foreign()), r"optimiser of PyTorch; give the one of undertow"),
    "a PyTorch class": (lambda: go(optimiser=Foreign), r"optimiser of PyTorch"),
    "text": (lambda: go(optimiser="adam"), r"`descend\(optimiser='adam'\)`: `optimiser` is .*give `SGD`.*or an optax"),
    "another tuple": (lambda: go(optimiser=(1, 2)), r"give `SGD`"),
    "momentum twice": (lambda: go(optimiser=ut.Adam(), momentum=0.9), r"`momentum` is a setting of SGD; give it to"),
    "decay twice": (lambda: go(optimiser=ut.AdamW(), weight_decay=0.1), r"`weight_decay` is a setting of SGD"),
    "no step size": (lambda: go(optimiser=ut.Adam(), step_size=None), "`step_size` must be a number"),
    "a state of another shape": (
        lambda: go(optimiser=ut.Adam(), optimiser_state=WRONG_STATE),
        r"`descend\(optimiser_state=\.\.\.\)` is .* and the state of the optimiser is .*; make them match",
    ),
    "an SDE of optax": (
        lambda: ut.diffuse(NOISE, params(), optimiser=optax.adam(0.1), step_size=0.1, time=1.0, key=0),
        r"`diffuse\(optimiser=\.\.\.\)`: the metric of an optax transformation is not known",
    ),
    "the metric of optax": (
        lambda: Transformation(tuple(optax.adam(0.1))).metric(None, jnp.zeros(2)),
        "the metric of an optax transformation is not known",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_explained(name, as_a_user):
    assert_explained(*MISTAKES[name])


def test_none_is_sgd_with_the_arguments_of_the_function():
    chosen = as_optimiser("descend", None, 0.5, 0.1)
    assert (type(chosen), chosen.momentum, chosen.weight_decay) == (ut.SGD, 0.5, 0.1)
    assert theory_optimiser("Limit", ut.Adam()) == ut.Adam()
    unknown = Transformation(tuple(optax.adam(0.1)))
    for method, arguments in (("decay", (1,)), ("slow_state", (1, 1, 1)), ("regime", (1, 1))):
        with pytest.raises(TypeError, match=rf"`Transformation\.{method}`"):
            getattr(unknown, method)(*arguments)
