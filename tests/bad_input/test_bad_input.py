"""Bad input over the whole public interface: one sentence each, before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.bad_input import command_line, estimators, noises, problems, runs, sensing, sweeps, theory, things
from tests.bad_input.cases import Case, assert_sentence
from tests.bad_input.things import PAIR, PARAMS, balance
from undertow.sensing.laws import two_point

CASES = [
    case
    for table in (problems, noises, runs, theory, sensing, estimators, sweeps, command_line)
    for case in table.CASES
]


def test_the_tables_have_at_least_700_cases():
    assert len(CASES) >= 700
    subjects = {case.name.partition("(")[0] for case in CASES}
    assert len(subjects) > 40


BY_ARGUMENT: dict[str, list[Case]] = {}
for case in CASES:
    BY_ARGUMENT.setdefault(case.name.partition(":")[0], []).append(case)


@pytest.mark.parametrize("argument", BY_ARGUMENT)
def test_bad_input_is_explained(argument, as_a_user, subtests):
    for case in BY_ARGUMENT[argument]:
        with subtests.test(case.name):
            assert_sentence(case)


CALLS = {
    "unknown": (lambda: runs.descend(learning_rate=0.1), r"`descend\(learning_rate=\.\.\.\)`: there is no argument"),
    "misspelt": (lambda: runs.descend(stepsize=0.1), "did you mean `step_size`"),
    "missing": (
        lambda: ut.descend(things.noise(), PARAMS),
        r"`descend\(steps=\.\.\.\)`: the argument `steps` is missing",
    ),
    "too many": (
        lambda: ut.descend(things.noise(), PARAMS, 0.1, 10),
        "2 arguments too many; it takes 2 positional arguments",
    ),
    "twice": (lambda: ut.Minibatch(things.problem(), 1, problem=3), "given twice"),
    "of a class": (lambda: ut.Minibatch(things.problem()), "the argument `batch_size` is missing"),
    "renamed": (lambda: ut.Minibatch(things.problem(), size=3), "called `batch_size` now"),
    "of an optimiser": (lambda: ut.Adam(beta1=0.9), "there is no argument `beta1`"),
    "of an estimator": (lambda: ut.HeteroRegressor(step=0.1), "did you mean `steps`"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_of_a_call_are_explained(name, as_a_user):
    call, message = CALLS[name]
    with pytest.raises(TypeError, match=message) as caught:
        call()
    assert caught.value.__cause__ is None


ONE = np.float32(0.1)
GOOD = {
    "key of int64": lambda: runs.descend(key=np.int64(3)),
    "key of uint8": lambda: runs.descend(key=np.uint8(3)),
    "key of an array": lambda: runs.descend(key=np.array(3)),
    "key of raw data": lambda: runs.descend(key=np.array([0, 3], np.uint32)),
    "a large key": lambda: runs.descend(key=2**63),
    "steps": lambda: runs.descend(steps=np.int64(2), every=np.int32(1), seeds=np.uint8(2), lane_width=np.array(2)),
    "step size": lambda: runs.descend(step_size=jnp.array(0.1), momentum=ONE, weight_decay=np.array(0.1)),
    "a schedule of Python numbers": lambda: runs.descend(step_size=lambda step: 0.1),
    "params of NumPy": lambda: runs.descend(params=np.ones(2)),
    "an observable of NumPy": lambda: runs.descend(observe={"one": lambda w: np.float32(1)}),
    "strength": lambda: ut.LabelNoise(things.task(), np.float32(0.5), np.int64(1), np.True_),
    "a scale that is an array": lambda: ut.Isotropic(things.problem(), jnp.array(2.0, jnp.bfloat16)),
    "whole numbers as numbers": lambda: ut.Isotropic(things.problem(), np.int8(2)),
    "batch size": lambda: ut.Minibatch(things.problem(), jnp.array(2), replace=np.False_),
    "samples": lambda: ut.SampledNoise(things.problem(), lambda key, w: w, samples=np.int16(4), key=np.int64(1)),
    "groups": lambda: ut.Environments(things.problem(), np.array([0, 1, 1], np.uint8), [np.float32(0.5), 0.5]),
    "optimisers": lambda: ut.AdamW(ONE, np.array(0.9), jnp.array(1e-8), np.float16(0.1), bias_correction=np.True_),
    "population": lambda: things.population().estimate_loss(PARAMS, key=np.int64(1), samples=np.int64(4)),
    "limit": lambda: theory.limit(resolution=ONE),
    "flow": lambda: theory.flow(step_size=ONE, weight_decay=np.array(0.1), key=np.int64(0)),
    "an amount": lambda: balance().orbit(PAIR, np.float32(0.5)),
    "indices": lambda: things.problem().batch_gradient(PARAMS, np.array([0, 2])),
    "sensing": lambda: ut.MatrixSensing(
        np.int64(4), np.int64(20), two_point(ONE, 8, np.int64(1)), spectrum=np.float32(2)
    ),
    "sensing of lists": lambda: ut.sensing_problem([[1.0, 2.0], [0.0, 1.0]], [1, 2]),
    "a law of integers": lambda: ut.lyapunov(np.array([1, -2]), ONE),
    "an estimator": lambda: estimators.fit(ut.HeteroRegressor, settings={"steps": np.int64(9), "seeds": np.int8(2)}),
    "select": lambda: things.run().select(np.int64(-1)),
    "resume": lambda: things.run().resume(steps=np.int64(2)),
    "a level": lambda: ut.Estimate.of(np.arange(4.0)).interval(ONE),
}


@pytest.mark.parametrize("name", GOOD)
def test_numbers_of_numpy_and_jax_are_accepted(name, as_a_user):
    assert GOOD[name]() is not None


def test_an_integer_of_numpy_gives_the_run_of_its_number(as_a_user):
    by_number, by_array = (
        runs.descend(key=key, step_size=step) for key, step in ((3, 0.1), (np.int64(3), np.array(0.1)))
    )
    np.testing.assert_array_equal(by_number.params, by_array.params)


class OwnError(Exception):
    """An exception of a user."""


def fails(*args):
    raise OwnError("my own words", 3)


OWN = {
    "loss": (lambda: ut.Problem(fails, jnp.ones(2)).loss(PARAMS), "`loss(params, sample)` of `Problem`"),
    "predict": (
        lambda: ut.Regression(fails, jnp.ones(2), jnp.ones(2)).check(PARAMS),
        "`predict(params, x)` of `Regression`",
    ),
    "draw of a population": (lambda: ut.Population(things.square, fails).check(PARAMS), "`draw(key)` of `Population`"),
    "factor": (lambda: ut.Additive(things.problem(), fails).check(PARAMS), "`factor(params)` of `Additive`"),
    "draw": (lambda: ut.SampledNoise(things.problem(), fails).check(PARAMS), "`draw(key, params)` of `SampledNoise`"),
    "start": (lambda: runs.descend(params=fails), "`params(key)` of `descend`"),
    "schedule": (lambda: runs.descend(step_size=fails), "`step_size(step)` of `descend`"),
    "observable": (lambda: runs.descend(observe={"w": fails}), "`observe['w'](params)` of `descend`"),
    "average": (lambda: runs.descend(average={"w": fails}), "`average['w'](params)` of `descend`"),
    "flow": (lambda: runs.average(observe={"w": fails}), "`observe['w'](params)` of `average`"),
    "limit": (lambda: theory.solve(observe={"w": fails}), "`observe['w'](params)` of `Limit.solve`"),
    "generator": (lambda: ut.Exponential(fails).charge(PARAMS), "`generator(vector)` of `Exponential`"),
    "pick": (lambda: ut.Scaling(fails).charge(PAIR), "`where(params)` of `Scaling`"),
    "law": (lambda: ut.lyapunov(fails, 0.1), "`law(key, count)` of `lyapunov`"),
}


@pytest.mark.parametrize("name", OWN)
def test_an_exception_of_the_user_passes_with_one_line_of_context(name):
    call, context = OWN[name]
    with pytest.raises(OwnError) as caught:
        call()
    assert caught.value.args == ("my own words", 3)
    ours = [note for note in caught.value.__notes__ if "undertow" in note]
    assert ours == [f"undertow called {context} here."]


def test_a_mistake_inside_a_loss_keeps_the_words_of_jax():
    """The user's own line is in the traceback: a sentence of ours would hide which operation failed."""
    problem = ut.Problem(lambda w, x: jnp.sum(w @ x), jnp.ones((3, 5)))
    with pytest.raises(TypeError) as caught:
        problem.loss(PARAMS)
    assert any("`loss(params, sample)` of `Problem`" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("seed", [0, 1])
def test_randomness_of_jax_is_no_randomness_of_python(seed):
    """A loss with a fixed key, constants and inner functions is traced twice to the same program."""
    mask = jax.random.bernoulli(jax.random.key(seed), 0.5, (2,))

    @jax.jit
    def inner(w):
        return jnp.where(mask, w, jnp.asarray(np.random.default_rng(seed).normal(size=2), w.dtype))

    def loss(w, x):
        keys = jax.random.split(jax.random.key(7), 2)
        dropped = jax.nn.relu(inner(w)) * jax.random.bernoulli(keys[0], 0.5, (2,))
        return jnp.sum((dropped - x) ** 2) + jax.lax.cond(jnp.sum(w) > 0, jnp.sum, jnp.max, w)

    ut.Problem(loss, jnp.ones((3, 2))).check(PARAMS)
