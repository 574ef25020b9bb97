def test_an_exponential_of_a_function_matches_the_matrix_exponential(x64):
    from scipy.linalg import expm

    matrix = jax.random.normal(jax.random.key(0), (6, 6), jnp.float64)
    matrix = matrix + matrix.T
    symmetry = ut.Exponential(lambda v: matrix @ v)
    v = jax.random.normal(jax.random.key(1), (6,), jnp.float64)
    np.testing.assert_allclose(symmetry.orbit(v, 1.7), expm(1.7 * np.asarray(matrix)) @ v, rtol=1e-9)


def test_amounts_out_of_range_inside_jit_do_not_hang():
    symmetry, params = HUGE["generator as a function"]
    moved = jax.jit(symmetry.orbit)
    for amount in (1e30, -1e30, jnp.nan, jnp.inf):
        assert np.isnan(moved(params, amount)).all()
    np.testing.assert_allclose(moved(params, 1.0), symmetry.orbit(params, 1.0))
