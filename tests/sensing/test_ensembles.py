"""Ensembles of measurement matrices: their covariance and symmetry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.sensing.ensembles import Correlated, MatrixNormal, as_ensemble


def _ensembles() -> dict:
    factor = jax.random.normal(jax.random.key(7), (2, 4, 4)) / 2 + jnp.eye(4)[None]
    some = jax.random.normal(jax.random.key(8), (12, 4, 4)) / 3
    return {"goe": "goe", "full": "full", "matrix normal": MatrixNormal(*factor), "correlated": Correlated(some)}


ENSEMBLES = _ensembles()


@pytest.mark.parametrize(("ensemble", "d"), [*((name, 4) for name in ENSEMBLES), ("goe", 5), ("goe", 1)])
def test_an_ensemble_has_the_stated_covariance(ensemble, d, x64):
    law = as_ensemble("test", ENSEMBLES[ensemble])
    white = jnp.zeros(law.normal_structure(d))
    jacobian = jax.jacobian(lambda w: law.sqrt_mv(w.reshape(white.shape), d).ravel())(white.ravel())
    matrix = jax.random.normal(jax.random.key(0), (d, d))
    np.testing.assert_allclose(law.transform(matrix).ravel(), jacobian @ (jacobian.T @ matrix.ravel()), atol=1e-10)
    even = matrix + matrix.T
    np.testing.assert_allclose(law.apply(even), law.transform(even), atol=1e-10)
