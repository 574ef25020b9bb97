"""Isotropic noise: the full gradient plus normals of one variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import params, population, problem
from tests.mistakes import assert_explained
from undertow import _trees as trees

POINT = params()


@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_a_draw_is_the_gradient_plus_scaled_normals(scale):
    noise, normals = ut.Isotropic(problem(), scale), trees.standard_normal(jax.random.key(3), POINT)
    expected = np.asarray(trees.ravel(problem().gradient(POINT))) + scale * np.asarray(trees.ravel(normals))
    np.testing.assert_allclose(trees.ravel(noise.gradient(POINT, normals)), expected, rtol=1e-6)


def test_the_covariance_is_the_square_of_the_scale_times_the_identity():
    sigma = ut.Isotropic(problem(), 0.3).covariance(POINT)
    np.testing.assert_allclose(trees.ravel(sigma.mv(POINT)), 0.09 * np.asarray(trees.ravel(POINT)), rtol=1e-6)
    np.testing.assert_allclose(sigma.trace(), 0.09 * trees.count(POINT), rtol=1e-6)


def test_the_scale_is_one_by_default():
    assert float(ut.Isotropic(problem()).covariance(POINT).variance) == 1


MISTAKES = {
    "no problem at all": (lambda: ut.Isotropic(jnp.sum), "`problem` is a .*; give a Problem or a Regression"),
    "a negative scale": (lambda: ut.Isotropic(problem(), -0.1), r"`Isotropic\(scale=-0.1\)`.*at least 0"),
    "isotropic noise that is NaN": (lambda: ut.Isotropic(problem(), float("nan")), "`scale` must be"),
    "isotropic noise on a population": (lambda: ut.Isotropic(population()), r"population.sample\(key, count\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
