HUGE = {
    "neurons": (nets.RELU_LAYERS[0], nets.relu_params()),
    "scaling": (nets.SCALE, nets.weights(u=(2, 3), w=(3, 2))),
    "rotation": (nets.FACTORS, nets.weights(U=(2, 3), W=(3, 2))),
    "diagonal generator": (
        ut.Exponential({"U": jnp.ones((2, 3)), "W": -jnp.ones((3, 2))}), nets.weights(U=(2, 3), W=(3, 2)),
    ),
    "generator as a function": (ut.Exponential(lambda v: v[::-1]), jnp.array([1.0, 2.0])),
}  # fmt: skip


@pytest.mark.parametrize("what", HUGE)
def test_amounts_out_of_range_are_refused(what, as_a_user):
    """At once: the exponential of a function took a number of steps in proportion to the amount."""
    symmetry, params = HUGE[what]
    for amount in (1e30, -1e30):
        with pytest.raises(ValueError, match=r"overflows; give amounts between -88\.\d and 88\.\d"):
            symmetry.orbit(params, amount)
    for amount in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=rf"`amount` is {amount}; give finite numbers"):
            symmetry.orbit(params, amount)
    shape = np.shape(symmetry.charge(params))
    if shape:
        with pytest.raises(ValueError, match="give finite numbers"):
            symmetry.orbit(params, np.full(shape, np.nan))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(symmetry.orbit(params, 40.0)))
