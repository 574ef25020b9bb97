"""Matrix-free spectral methods against dense eigenvalue decompositions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow import spectral


def symmetric(seed, size):
    """Return a random symmetric matrix."""
    matrix = jax.random.normal(jax.random.key(seed), (size, size))
    return (matrix + matrix.T) / 2


def test_a_unit_vector_has_length_one_and_zero_stays_zero(x64):
    vector = {"a": jnp.array([3.0, 0.0]), "b": jnp.array(4.0)}
    assert float(spectral.norm(vector)) == 5.0
    np.testing.assert_allclose(spectral.norm(spectral.unit(vector)), 1.0, rtol=1e-15)
    np.testing.assert_array_equal(spectral.unit(jnp.zeros(3)), jnp.zeros(3))


@pytest.mark.parametrize("size", [2, 7])
def test_power_iteration_approaches_the_largest_absolute_eigenvalue_from_below(x64, size):
    matrix = symmetric(0, size)
    largest = np.abs(np.linalg.eigvalsh(matrix)).max()
    apply = lambda v: matrix @ v
    start = spectral.unit(jax.random.normal(jax.random.key(1), (size,)))
    norms = [float(spectral.norm(apply(spectral.power_iteration(apply, start, steps)))) for steps in (0, 1, 5, 20, 400)]
    assert np.all(np.diff(norms) >= -1e-12)
    assert norms[-1] <= largest * (1 + 1e-12)
    np.testing.assert_allclose(norms[-1], largest, rtol=1e-6)


def test_a_projection_confines_the_power_iteration(x64):
    """With the first eigenvector projected out, the iteration converges to the second one."""
    values = jnp.array([5.0, 3.0, 1.0])
    inside = lambda v: spectral.unit(v.at[0].set(0.0))
    end = spectral.power_iteration(lambda v: values * v, inside(jnp.ones(3)), 100, inside)
    np.testing.assert_allclose(jnp.abs(end), [0.0, 1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 12])
def test_lanczos_with_as_many_steps_as_dimensions_is_exact(x64, size):
    matrix = symmetric(2, size)
    start = jax.random.normal(jax.random.key(3), (size,))
    largest = spectral.lanczos(lambda v: matrix @ v, start, size)[0][-1]
    np.testing.assert_allclose(largest, np.linalg.eigvalsh(matrix)[-1], rtol=1e-10)


def test_lanczos_is_a_lower_bound_that_grows_with_the_steps(x64):
    matrix = symmetric(4, 30)
    start = jax.random.normal(jax.random.key(5), (30,))
    bounds = [float(spectral.lanczos(lambda v: matrix @ v, start, steps)[0][-1]) for steps in (1, 3, 8, 20)]
    assert np.all(np.diff(bounds) > 0)
    assert bounds[-1] <= np.linalg.eigvalsh(matrix)[-1] * (1 + 1e-12)


def test_lanczos_ends_at_an_invariant_subspace(x64):
    """The start has two eigenvectors only, so two steps are exact and further ones change nothing."""
    values = jnp.array([-4.0, -1.0, 9.0, 9.5])
    start = jnp.array([1.0, 1.0, 0.0, 0.0])
    ritz, weights = spectral.lanczos(lambda v: values * v, start, 4)
    np.testing.assert_allclose(ritz[-1], -1.0, rtol=1e-10)
    np.testing.assert_allclose(weights[ritz == ritz[-1]].sum(), 0.5, rtol=1e-10)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-12)


def test_weights_of_lanczos_integrate_polynomials_exactly(x64):
    """k steps are a Gauss quadrature: sums of weights times powers up to 2k - 1 are x'A^p x/|x|^2."""
    matrix = symmetric(8, 12)
    start = jax.random.normal(jax.random.key(9), (12,))
    ritz, weights = spectral.lanczos(lambda v: matrix @ v, start, 3)
    for power in range(6):
        exact = start @ jnp.linalg.matrix_power(matrix, power) @ start / (start @ start)
        np.testing.assert_allclose(jnp.sum(weights * ritz**power), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("values", [[1.0, -2.0, 0.5], [1.0, 1.0, -1.0], [0.0, 0.0, 3.0]])
def test_the_spectral_norm_by_squaring_is_within_its_bound(x64, values):
    basis = jnp.linalg.qr(symmetric(6, 3))[0]
    matrix = (basis * jnp.array(values)[None]) @ basis.T
    exact = np.abs(values).max()
    excess = np.log(float(spectral.spectral_norm(matrix, 12)) / exact)
    assert -1e-12 <= excess <= np.log(3) / 2**12 + 1e-12


def test_random_signs_have_the_shape_of_params_and_no_zeros():
    signs = spectral.random_signs(jax.random.key(0), {"a": jnp.zeros((50, 3)), "b": jnp.zeros(())})
    assert jax.tree.map(jnp.shape, signs) == {"a": (50, 3), "b": ()}
    assert set(np.unique(signs["a"])) == {-1.0, 1.0}


def test_hutchinson_is_exact_for_a_diagonal_and_unbiased_otherwise(x64):
    """The variance of s'A s is 2 sum_{i != j} A_ij^2: zero for a diagonal matrix."""
    keys = jax.random.split(jax.random.key(1), 4000)
    draw = lambda key: spectral.random_signs(key, jnp.zeros(5))
    diagonal = jnp.arange(5.0)
    forms = spectral.quadratic_forms(draw, lambda v: diagonal * v, keys)
    np.testing.assert_allclose(forms, 10.0, rtol=1e-14)
    matrix = symmetric(7, 5)
    forms = np.asarray(spectral.quadratic_forms(draw, lambda v: matrix @ v, keys))
    variance = 2 * float(jnp.sum(matrix**2) - jnp.sum(jnp.diag(matrix) ** 2))
    np.testing.assert_allclose(forms.var(), variance, rtol=0.1)
    assert abs(forms.mean() - float(jnp.trace(matrix))) < 5 * np.sqrt(variance / len(forms))
