"""The message for invalid input is one sentence that names the argument and says what to do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import GROUPS, params, population, problem, regression

POINT = params()


def run(**changes):
    settings = {"step_size": 0.1, "steps": 10, "key": jax.random.key(0)} | changes
    noise = settings.pop("noise", None) or ut.Minibatch(problem(), 1)
    return ut.descend(noise, settings.pop("params", POINT), **settings)


def diffused(**changes):
    settings = {"step_size": 0.1, "time": 1.0, "key": jax.random.key(0)} | changes
    return ut.diffuse(settings.pop("noise", None) or ut.Minibatch(problem(), 1), POINT, **settings)


def quadratic(w, x):
    return jnp.sum((w - x) ** 2)


X = jnp.arange(3.0)

MISTAKES = {
    "leading axes that differ": (lambda: ut.Problem(quadratic, (X, jnp.zeros(4))), "leading .* axes differ.*3.*4"),
    "inputs and targets that differ": (lambda: ut.Regression(quadratic, X, jnp.zeros(4)), "`inputs` 3, `targets` 4"),
    "a scalar as data": (lambda: ut.Problem(quadratic, 3.0), "must be arrays"),
    "an array without a sample axis": (lambda: ut.Problem(quadratic, jnp.array(3.0)), "leading sample axis"),
    "no data": (lambda: ut.Problem(quadratic, {}), "no data"),
    "empty data": (lambda: ut.Problem(quadratic, jnp.zeros((0, 2))), "empty"),
    "a loss that is not a function": (lambda: ut.Problem(X, quadratic), "give loss"),
    "targets of three axes": (lambda: ut.Regression(quadratic, X, jnp.zeros((3, 2, 2))), r"\(n, q\)"),
    "a population without functions": (lambda: ut.Population(quadratic, 3), "two functions"),
    "integer params": (lambda: run(params={"w": jnp.arange(3)}), r"params\['w'\]` has dtype int32.*astype"),
    "params of a module with functions": (
        lambda: run(params=eqx.nn.MLP(1, 1, 2, 1, key=jax.random.key(0))),
        "partition",
    ),
    "params without leaves": (lambda: run(params={}), "no leaves"),
    "integer params to a loss": (lambda: problem().loss(jnp.arange(3)), "dtype int32"),
    "a batch larger than the data": (
        lambda: ut.Minibatch(problem(), 64, replace=False),
        r"`Minibatch\(batch_size=64\)`: the problem has 7 samples; use batch_size <= 7 or replace=True",
    ),
    "a label batch larger than the data": (
        lambda: ut.LabelNoise(regression(), batch_size=64, replace=False),
        r"`LabelNoise\(batch_size=64\)`: the problem has 7 samples",
    ),
    "a batch of none": (
        lambda: ut.Minibatch(problem(), 0),
        r"`Minibatch\(batch_size=0\)`: `batch_size` must be at least 1",
    ),
    "the old name of the batch size": (lambda: ut.Minibatch(problem(), size=2), r"Minibatch\(batch_size=\.\.\.\)"),
    "that of label noise": (lambda: ut.LabelNoise(regression(), size=2), "called `batch_size` now"),
    "that of environments": (lambda: ut.Environments(problem(), GROUPS, size=2), "called `batch_size` now"),
    "the old attribute of the batch size": (lambda: ut.Minibatch(problem(), 2).size, "called `batch_size` now"),
    "the old square root": (lambda: ut.Isotropic(problem()).covariance(POINT).root, "called `sqrt_mv` now"),
    "the old shapes of normals": (lambda: ut.Isotropic(problem()).covariance(POINT).white, "called `normal_structure`"),
    "half a batch": (lambda: ut.Minibatch(problem(), 0.5), "whole number"),
    "a negative step size": (lambda: run(step_size=-0.1), r"`descend\(step_size=-0.1\)`.*finite number"),
    "a NaN step size": (lambda: run(step_size=float("nan")), "`step_size` must be a finite number"),
    "no step size": (lambda: run(step_size=None), "`step_size` must be a number"),
    "a schedule that turns negative": (lambda: run(step_size=lambda k: 0.05 - 0.01 * k), "at step 6"),
    "a schedule of vectors": (lambda: run(step_size=lambda k: jnp.ones(2)), "one number per step"),
    "no steps": (lambda: run(steps=0), r"`descend\(steps=0\)`: `steps` must be at least 1"),
    "too many steps": (lambda: run(steps=2**31), "fewer than"),
    "a key that is a string": (lambda: run(key="seed"), r"jax.random.key\(0\)"),
    "no key": (lambda: run(key=None), r"jax.random.key\(0\)"),
    "no seeds": (lambda: run(seeds=0), "`seeds` must be at least 1"),
    "observing never": (lambda: run(every=0), "`every` must be at least 1"),
    "momentum of one": (lambda: run(momentum=1.0), "below 1"),
    "negative weight decay": (lambda: run(weight_decay=-1e-3), "`weight_decay` must be a finite number, at least 0"),
    "one name for two things": (lambda: run(observe={"w": jnp.sum}, average={"w": jnp.sum}), "different names"),
    "a problem where a noise is meant": (lambda: run(noise=problem()), r"give a noise, such as `Minibatch"),
    "a changed continuation": (
        lambda: ut.descend(run(), steps=3, step_size=0.3),
        r"continues with `run\.resume\(steps=",
    ),
    "a loss that returns a vector": (
        lambda: run(noise=ut.Minibatch(ut.Problem(lambda w, x: w * x, X), 1), params=jnp.ones(2)),
        r"one real number for one sample, not shape \(2,\).*sum or average",
    ),
    "a loss that is NaN at the start": (
        lambda: run(noise=ut.Minibatch(ut.Problem(lambda w, x: jnp.log(w - x), X), 1), params=jnp.array(1.5)),
        "the loss is nan at the given params",
    ),
    "NaN in the data": (
        lambda: run(noise=ut.Minibatch(ut.Problem(quadratic, jnp.array([1.0, np.nan])), 1), params=jnp.array(1.5)),
        "check the data",
    ),
    "a prediction of another shape": (
        lambda: ut.Regression(lambda w, x: w * x, X, X).loss(jnp.ones(2)),
        r"returns shape \(2,\).*target of one sample has shape \(\)",
    ),
    "a population loss that is a vector": (
        lambda: run(noise=ut.Minibatch(ut.Population(lambda w, x: w * x, jax.random.normal), 1), params=jnp.ones(2)),
        "one real number",
    ),
    "a group without data": (
        lambda: ut.Environments(problem(), jnp.array([0, 0, 2, 2, 2, 0, 0])),
        "group 1 has no data.*return_inverse",
    ),
    "groups of another length": (lambda: ut.Environments(problem(), jnp.zeros(3, int)), "one label each"),
    "masked groups": (
        lambda: ut.Environments(problem(), np.ma.array(np.arange(7) % 2, mask=np.arange(7) == 3)),
        "`groups` has masked labels",
    ),
    "complex targets": (lambda: ut.Regression(lambda w, x: w * x, X, X * 1j), "`targets` is complex"),
    "groups that are names": (lambda: ut.Environments(problem(), np.array(list("abcabca"))), "whole numbers"),
    "a negative group": (lambda: ut.Environments(problem(), jnp.array([0, -1, 0, 0, 0, 0, 0])), "holds -1"),
    "weights that do not sum to 1": (
        lambda: ut.Environments(problem(), GROUPS, weights=[0.5, 0.5, 0.5]),
        "sum to 1 .they sum to 1.5.; divide by the sum",
    ),
    "a negative weight": (lambda: ut.Environments(problem(), GROUPS, [1.5, -0.5, 0.0]), "must be positive"),
    "weights of another length": (lambda: ut.Environments(problem(), GROUPS, weights=[0.5, 0.5]), "give one each"),
    "environments of a population": (lambda: ut.Environments(population(), GROUPS), "no samples to group"),
    "environments with different losses": (
        lambda: ut.Environments.of([ut.Problem(quadratic, X), ut.Problem(lambda w, x: w, X)]),
        "the same function",
    ),
    "environments with different samples": (
        lambda: ut.Environments.of([ut.Problem(quadratic, X), ut.Problem(quadratic, jnp.zeros((3, 2)))]),
        "another shape",
    ),
    "no environments": (lambda: ut.Environments.of([]), "at least one"),
    "the noise within whole environments": (
        lambda: ut.Environments(problem(), GROUPS).within(POINT),
        "give `batch_size=`",
    ),
    "a factor without a trailing axis": (
        lambda: ut.Additive(problem(), lambda p: p).covariance(POINT),
        r"shape \(2, 3\) where params have \(2, 3\); give \(2, 3, 'k'\)",
    ),
    "a factor that is not a pytree like params": (
        lambda: run(noise=ut.Additive(problem(), lambda p: jnp.ones((8, 2)))),
        "a pytree like params",
    ),
    "a factor with two ranks": (
        lambda: run(noise=ut.Additive(problem(), lambda p: {"inner": jnp.ones((2, 3, 1)), "outer": jnp.ones((2, 4))})),
        "use one k",
    ),
    "a factor that is a matrix": (lambda: ut.Additive(problem(), jnp.ones((2, 2))), "lambda params: B"),
    "label noise without labels": (lambda: ut.LabelNoise(problem()), "no labels.*give a `Regression`"),
    "label noise of another kind": (lambda: ut.LabelNoise(regression(), kind="uniform"), '"sign" or "gaussian"'),
    "negative label noise": (lambda: ut.LabelNoise(regression(), -1.0), "`strength` must be"),
    "isotropic noise that is NaN": (lambda: ut.Isotropic(problem(), float("nan")), "`scale` must be"),
    "isotropic noise on a population": (lambda: ut.Isotropic(population()), r"population.sample\(key, count\)"),
    "subsets of a population": (lambda: ut.Minibatch(population(), 2, replace=False), "without replacement"),
    "settle on a population": (lambda: ut.settle(population(), POINT), r"population.sample\(key, count\)"),
    "diffuse a population": (lambda: diffused(noise=ut.Minibatch(population(), 2)), r"population.sample\(key, count\)"),
    "diffuse by a schedule": (lambda: diffused(step_size=lambda k: 0.1), "one noise level"),
    "diffuse backwards": (lambda: diffused(time=-1.0), "`time` must be a finite number"),
    "diffuse for no time": (lambda: diffused(time=0.0), "above 0"),
    "the loss of a population": (lambda: population().loss(POINT), r"population\.estimate_loss\(params, key="),
    "its loss with a key": (lambda: population().loss(POINT, key=0, samples=8), "estimate_loss"),
    "the gradient of a population": (lambda: population().gradient(POINT), r"population\.estimate_gradient\("),
    "the covariance of a population": (
        lambda: population().covariance(POINT),
        r"Minibatch\(population, 1\)\.covariance",
    ),
    "one sample for its covariance": (
        lambda: ut.Minibatch(population(), 1).covariance(POINT, samples=1),
        "at least 2 samples",
    ),
    "one sample for a standard error": (lambda: population().estimate_loss(POINT, samples=1), "at least 2 samples"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_input_raises(mistake, as_a_user):
    call, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError, AttributeError), match=message) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text, "one sentence"
    assert text.startswith("`"), "quotes the call"
