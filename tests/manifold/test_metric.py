"""Problems and noises in rescaled coordinates, against products with dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow._trees import ravel
from undertow.covariance import LabelCovariance, Projected, SampleCovariance, Sum
from undertow.manifold.label import label_amount
from undertow.manifold.metric import RescaledNoise, RescaledProblem, rescale_problem

RNG = np.random.default_rng(3)
PARAMS = {"a": RNG.normal(size=2), "b": RNG.normal(size=3)}
ROOT = {"a": RNG.uniform(0.5, 2, 2), "b": RNG.uniform(0.5, 2, 3)}
INPUTS, TARGETS = RNG.normal(size=(4, 3)), RNG.normal(size=4)


def regression():
    return ut.Regression(lambda p, x: jnp.sum(p["a"] ** 2) + jnp.tanh(p["b"] @ x), jnp.asarray(INPUTS), TARGETS)


def loss():
    return ut.Problem(lambda p, x: (jnp.sum(p["a"] ** 2) * jnp.tanh(p["b"] @ x) - 1) ** 2, jnp.asarray(INPUTS))


NOISES = {
    "labels": lambda: ut.LabelNoise(regression(), 0.5),
    "batches of a regression": lambda: ut.Minibatch(regression(), 2),
    "batches": lambda: ut.Minibatch(loss(), 2),
    "isotropic": lambda: ut.Isotropic(loss(), 0.3),
}


@pytest.mark.parametrize("name", NOISES)
def test_gradient_and_covariance_are_multiplied_by_the_root(name, x64):
    noise, (params, root) = NOISES[name](), jax.tree.map(jnp.asarray, (PARAMS, ROOT))
    rescaled = RescaledNoise(noise, root)
    phi = jax.tree.map(jnp.divide, params, root)
    r, unravel = jax.flatten_util.ravel_pytree(root)
    gradient = lambda n, p: ravel(n.draw(0, p))
    np.testing.assert_allclose(gradient(rescaled, phi), r * gradient(noise, params), rtol=1e-10)
    np.testing.assert_allclose(ravel(rescaled.mean(phi)), r * ravel(noise.mean(params)), rtol=1e-10)
    np.testing.assert_allclose(ravel(rescaled.problem.gradient(phi)), r * ravel(noise.problem.gradient(params)))
    columns = lambda n, p: jax.vmap(lambda v: ravel(n.covariance(p).mv(unravel(v))))(jnp.eye(5))
    expected = r[:, None] * columns(noise, params) * r[None]
    np.testing.assert_allclose(columns(rescaled, phi), expected, rtol=1e-9, atol=1e-12)


def test_a_regression_keeps_its_structure(x64):
    noise = RescaledNoise(ut.LabelNoise(regression(), 0.5), jax.tree.map(jnp.asarray, ROOT))
    covariance = noise.covariance(jax.tree.map(jnp.asarray, PARAMS))
    assert isinstance(noise.problem, ut.Regression)
    assert isinstance(covariance, Sum)
    assert [type(part) for part in covariance.parts] == [LabelCovariance, SampleCovariance]
    assert all(part.problem is noise.problem for part in covariance.parts)
    np.testing.assert_allclose(label_amount(covariance, noise.problem), 0.25)


def test_other_problems_are_wrapped(x64):
    root = jax.tree.map(jnp.asarray, ROOT)
    problem = rescale_problem(loss(), root)
    assert isinstance(problem, RescaledProblem)
    noise = RescaledNoise(ut.Minibatch(loss(), 1), root)
    assert isinstance(noise.covariance(jax.tree.map(jnp.asarray, PARAMS)), Projected)
    with pytest.raises(ValueError, match="the loss is nan"):
        noise.check({"a": jnp.full(2, jnp.nan), "b": jnp.zeros(3)})
