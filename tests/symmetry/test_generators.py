"""Orbits, charges and checks of the four kinds of symmetry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets

KINDS = {
    "neurons": (nets.relu_net, nets.relu_params(), nets.RELU_LAYERS[0]),
    "one neuron": (
        nets.relu_net, nets.relu_params(),
        ut.Rescaling(lambda p: p["w3"][:, 1], lambda p: (p["w2"][1], p["b2"][1])),
    ),
    "scaling": (nets.normalised, nets.weights(u=(2, 3), w=(3, 2)), nets.SCALE),
    "rotation": (nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)), nets.FACTORS),
    "rotation, transposed": (
        lambda p, s: nets.square(p["U"].T @ (p["W"].T @ s[0]), s[1]), nets.weights(U=(3, 2), W=(2, 3)),
        ut.DoubleRotation(lambda p: p["U"].T, lambda p: p["W"].T),
    ),
    "diagonal generator": (
        nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)),
        ut.Exponential({"U": jnp.ones((2, 3)), "W": -jnp.ones((3, 2))}),
    ),
    "generator as a function": (
        nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)),
        ut.Exponential(lambda v: {"U": v["U"] @ nets_b(), "W": -nets_b() @ v["W"]}),
    ),
}  # fmt: skip


def nets_b():
    return jnp.array([[1.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 2.0]])


@pytest.fixture(params=KINDS, ids=list(KINDS))
def kind(request, x64):
    loss, params, symmetry = KINDS[request.param]
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
    problem = ut.Problem(loss, jax.tree.map(lambda x: x.astype(jnp.float64), nets.data()))
    return problem, params, symmetry


def test_the_check_of_a_true_symmetry_passes(kind):
    problem, params, symmetry = kind
    check = symmetry.check(problem, params, jax.random.key(0))
    assert check.holds
    assert max(check.loss, check.gradient) < 1e-12
    assert "holds" in str(check)


def test_moves_along_the_orbit_compose_and_increase_the_charge(kind):
    _, params, symmetry = kind
    moved = symmetry.orbit(params, 0.4)
    back = symmetry.orbit(moved, -0.4)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    total = lambda p: np.trace(symmetry.charge(p)) if symmetry.charge(p).ndim == 2 else np.sum(symmetry.charge(p))
    assert total(symmetry.orbit(params, -0.1)) < total(params) < total(symmetry.orbit(params, 0.1))


def test_the_charge_is_half_the_derivative_of_the_norm_along_the_orbit(kind):
    """d/d amount |exp(amount A) params|^2 = 2 params'A params = 4 C, summed over a family."""
    _, params, symmetry = kind
    norm = lambda a: sum(jnp.sum(x**2) for x in jax.tree.leaves(symmetry.orbit(params, a)))
    slope = (norm(1e-5) - norm(-1e-5)) / 2e-5
    charge = symmetry.charge(params)
    total = jnp.trace(charge) if charge.ndim == 2 else jnp.sum(charge)
    np.testing.assert_allclose(slope, 4 * total, rtol=1e-7)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_change_of_the_charge_in_one_step_equals_the_identity(kind, decay):
    problem, params, symmetry = kind
    eta = 0.05
    gradient = ut.Minibatch(problem, 3).draw(jax.random.key(1), params)
    after = jax.tree.map(lambda p, g: (1 - eta * decay) * p - eta * g, params, gradient)
    predicted = symmetry.change(params, gradient, step_size=eta, weight_decay=decay)
    np.testing.assert_allclose(symmetry.charge(after) - symmetry.charge(params), predicted, atol=1e-12)


def test_an_exponential_of_a_function_matches_the_matrix_exponential(x64):
    from scipy.linalg import expm

    matrix = jax.random.normal(jax.random.key(0), (6, 6), jnp.float64)
    matrix = matrix + matrix.T
    symmetry = ut.Exponential(lambda v: matrix @ v)
    v = jax.random.normal(jax.random.key(1), (6,), jnp.float64)
    np.testing.assert_allclose(symmetry.orbit(v, 1.7), expm(1.7 * np.asarray(matrix)) @ v, rtol=1e-9)


def test_the_check_of_a_broken_symmetry_fails():
    params = nets.weights(o=(2, 3), i=(3, 2))
    problem = ut.Problem(lambda p, s: nets.square(p["o"] @ jnp.tanh(p["i"] @ s[0]), s[1]), nets.data())
    check = ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True).check(problem, params, jax.random.key(0))
    assert not check.holds
    assert min(check.loss, check.gradient) > 1e-2
    assert "broken" in str(check)


PARAMS = nets.weights(U=(2, 3), W=(4, 2), b=(4,))
BAD = {
    "factors that do not multiply": (lambda: nets.FACTORS.charge(PARAMS), "do not multiply"),
    "neurons that do not match": (
        lambda: ut.Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True).charge(PARAMS), "do not multiply",
    ),
    "an entry on both sides": (lambda: ut.Rescaling(lambda p: p["b"], lambda p: p["b"]).charge(PARAMS), "picked twice"),
    "no function": (lambda: ut.Scaling("w"), "give a function that picks"),
    "not the entries themselves": (
        lambda: ut.Scaling(lambda p: jnp.zeros(2)).charge(PARAMS), "must pick entries of params",
    ),
    "a rotation as generator": (
        lambda: ut.Exponential(lambda v: jnp.stack([v[1], -v[0]])).charge(jnp.ones(2)), "not symmetric",
    ),
    "a generator of another shape": (lambda: ut.Exponential(lambda v: v[:1]).charge(jnp.ones(2)), "vector like params"),
    "a generator for other params": (
        lambda: ut.Exponential(lambda v: v["w"]).charge(jnp.ones(2)), "does not act on vectors like params",
    ),
    "momentum in the identity": (
        lambda: nets.SCALE.change({"w": jnp.ones(2)}, {"w": jnp.ones(2)}, step_size=0.1, momentum=0.9),
        "without momentum",
    ),
    "two arrays for one factor": (
        lambda: ut.DoubleRotation(lambda p: (p["U"], p["b"]), lambda p: p["W"]).charge(PARAMS), "one array each",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case, as_a_user):
    call, sentence = BAD[case]
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()


HUGE = {
    "neurons": (nets.RELU_LAYERS[0], nets.relu_params()),
    "scaling": (nets.SCALE, nets.weights(u=(2, 3), w=(3, 2))),
    "rotation": (nets.FACTORS, nets.weights(U=(2, 3), W=(3, 2))),
    "diagonal generator": (
        ut.Exponential({"U": jnp.ones((2, 3)), "W": -jnp.ones((3, 2))}), nets.weights(U=(2, 3), W=(3, 2)),
    ),
    "generator as a function": (ut.Exponential(lambda v: v[::-1]), jnp.array([1.0, 2.0])),
}  # fmt: skip


@pytest.mark.parametrize("case", HUGE)
def test_amounts_out_of_range_raise(case, as_a_user):
    """The error is raised before the exponential, whose number of steps is proportional to the amount."""
    symmetry, params = HUGE[case]
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


def test_amounts_out_of_range_inside_jit_do_not_hang():
    symmetry, params = HUGE["generator as a function"]
    moved = jax.jit(symmetry.orbit)
    for amount in (1e30, -1e30, jnp.nan, jnp.inf):
        assert np.isnan(moved(params, amount)).all()
    np.testing.assert_allclose(moved(params, 1.0), symmetry.orbit(params, 1.0))


def test_half_precision_is_checked_in_single_precision():
    """Rounding of bfloat16 neither hides a broken symmetry nor rejects a true one."""
    cast = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
    params, neurons = (
        cast(nets.weights(o=(2, 3), i=(3, 2))),
        ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True),
    )
    nearly = lambda h: jax.nn.relu(h) + 0.02 * jnp.tanh(h)
    for act, holds in ((jax.nn.relu, True), (nearly, False)):
        loss = lambda p, s, act=act: nets.square(p["o"] @ act(p["i"] @ s[0]), s[1])
        check = neurons.check(ut.Problem(loss, cast(nets.data())), params, jax.random.key(0))
        assert check.holds == holds, check


def test_the_measure_of_a_check_for_a_determinant(x64):
    """A move maps det U to det U exp(tr A), so that the check returns the largest of three |tr A| over twice the loss.

    The diagonal of A has the standard deviation 0.3. The mean over keys is compared with draws in NumPy.
    """
    problem = ut.Problem(lambda p, s: s + jnp.linalg.slogdet(p["U"])[1], jnp.full(2, 100.0))
    params = {"U": 50 * jnp.eye(2), "W": jnp.eye(2)}
    before = 100 + 2 * np.log(50)
    changes = [2 * before * nets.FACTORS.check(problem, params, jax.random.key(k)).loss for k in range(60)]
    traces = 0.3 * np.random.default_rng(0).normal(size=(100_000, 3, 2)).sum(2)
    drawn = np.abs(traces).max(1)
    assert abs(np.mean(changes) - drawn.mean()) < 5 * drawn.std() / np.sqrt(60)
