"""Bounds on the restricted isometry constant."""

import jax
import jax.numpy as jnp
import numpy as np

from undertow.sensing.ensembles import Goe
from undertow.sensing.isometry import _climb, rip


def test_the_isometry_constant_of_each_rank_along_an_indefinite_matrix(x64):
    """The gain is 1.6 along B = diag(1, -1, 0)/sqrt(2) and 1 elsewhere: delta is 0.6 for rank 2 and 0.3 for rank 1.

    For a unit v, <vv', B>^2 = (v_1^2 - v_2^2)^2/2 is at most 1/2. Half of each X is in its lower triangle.
    """
    units = [np.diag([1.0, -1.0, 0.0]), np.diag([1.0, 1.0, 0.0]), np.diag([0.0, 0.0, np.sqrt(2.0)])]
    for i, j in zip(*np.triu_indices(3, 1), strict=True):
        units.append(np.zeros((3, 3)))
        units[-1][i, j] = 2.0  # only the symmetric part of X counts
    gains = np.array([1.6, 1, 1, 1, 1, 1])
    x = jnp.asarray(np.stack([np.sqrt(g * 6 / 2) * b for g, b in zip(gains, units, strict=True)]))
    for rank, delta in ((1, 0.3), (2, 0.6)):
        bounds = rip(x, rank)
        np.testing.assert_allclose([bounds.least, bounds.most], [delta, 0.6], atol=1e-6)
    # fewer measurements than dimensions vanish on some matrix, whose deviation is 1
    assert rip(x[:4] / 2, 1).most == 1


def test_the_spread_of_ascents_is_the_distance_to_their_median(x64):
    """There are two local maxima, 0.9 with the larger basin and 0.3, so that most but not all ascents agree."""
    units = [np.diag([1.0, 0.0]), np.diag([0.0, 1.0]), np.array([[0.0, 1.0], [1.0, 0.0]]) / np.sqrt(2)]
    x = jnp.asarray(np.stack([np.sqrt(g * 3) * b for g, b in zip((1.9, 1.3, 1.0), units, strict=True)]))
    ends = np.sort(np.asarray(_climb(x, jax.random.split(jax.random.key(0), 16), 1, 1.0, 60)))
    np.testing.assert_allclose(ends[[0, -1]], [0.3, 0.9], atol=1e-6)
    bounds = rip(x, 1, starts=16)
    np.testing.assert_allclose(bounds.least, 0.9, atol=1e-6)
    np.testing.assert_allclose(bounds.spread, 0, atol=1e-6)


def test_the_isometry_constant_of_an_orthonormal_basis(x64):
    """X_i = a_i sqrt(D) E_i over an orthonormal basis of symmetric matrices: the constant is known for every rank."""
    d = 4
    basis = [np.outer(e, e) for e in np.eye(d)]
    for i, j in zip(*np.triu_indices(d, 1), strict=True):
        unit = np.zeros((d, d))
        unit[i, j] = unit[j, i] = 1 / np.sqrt(2)
        basis.append(unit)
    size = np.ones(len(basis))
    size[0], size[1] = 1.3, 0.5  # along two matrices of rank one
    x = jnp.asarray(np.stack([np.sqrt(s * len(basis)) * b for s, b in zip(size, basis, strict=True)]))
    bounds = rip(x, 1)
    np.testing.assert_allclose([bounds.least, bounds.most], 0.5, atol=1e-6)


def test_the_isometry_constant_is_within_its_bounds_and_falls_with_m():
    for rank in (1, 3):
        few, many = (rip(Goe().draw(jax.random.key(0), m, 6, jnp.float32), rank) for m in (200, 5000))
        assert 0 < many.least <= many.most < few.least <= few.most
        assert many.spread >= 0
    # no random matrix of this rank deviates more
    x = Goe().draw(jax.random.key(0), 200, 6, jnp.float32)
    drawn = jax.random.normal(jax.random.key(1), (5000, 6, 1))
    units = drawn @ jnp.swapaxes(drawn, 1, 2)
    units = units / jnp.linalg.norm(units, axis=(1, 2), keepdims=True)
    values = jnp.mean(jnp.tensordot(units, x, axes=((1, 2), (1, 2))) ** 2, axis=1)
    assert float(jnp.abs(values - 1).max()) <= rip(x, 1).least + 1e-5
