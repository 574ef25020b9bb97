def test_keys_of_both_kinds_and_numbers_of_numpy():
    assert as_key("f", jax.random.PRNGKey(5)) == jax.random.key(5)
    assert as_key("f", np.int64(5)) == jax.random.key(5)
    for wrong in (None, 1.5, True, "7"):
        with pytest.raises(TypeError, match=r"`f\(key=.*give `key=jax\.random\.key\(0\)`, or a whole number"):
            as_key("f", wrong)
