"""Relaxation times against closed forms, differences of the flow along the orbit, and long runs of SGD."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry.relaxation import metric_relaxation, relaxation_steps

ETA, DECAY = 0.05, 0.6


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


PRODUCT = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])


def product(spread):
    """Return minibatches of one for (uw - y)^2, y = 1 +- spread: the variance of y is spread^2."""
    problem = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([1.0 - spread, 1.0 + spread]))
    return ut.Minibatch(problem, 1)


@pytest.mark.parametrize("momentum", [0.0, 0.75])
@pytest.mark.parametrize("u", [0.5, 1.0, 4.0])
def test_a_product_with_weight_decay_has_the_same_relaxation_time_on_its_whole_orbit(x64, u, momentum):
    """The noise of u is 4 V w^2, so dC/dt = -(2 lambda + 4 eta V) C (noise_equilibrium, section 5.1, corrected)."""
    params = {"u": jnp.array(u), "w": jnp.array(1 / u)}
    eta = ETA * (1 - momentum)
    flow = ut.noether_flow(product(0.5), params, PRODUCT, step_size=eta, weight_decay=DECAY, momentum=momentum)
    np.testing.assert_allclose(flow.relaxation_steps, 1 / (ETA * (2 * DECAY + 4 * ETA * 0.25)), rtol=1e-12)


def test_factors_with_isotropic_noise_have_the_closed_form(x64):
    """tau = S/(4 eta^2 gamma) steps where Gamma_U = Gamma_W = gamma I."""
    x = jnp.concatenate([jnp.eye(2), -jnp.eye(2)]) * jnp.sqrt(2.0)
    x = jnp.concatenate([x, x])
    e = jnp.concatenate([jnp.ones((4, 2)), jnp.ones((4, 2)) * jnp.array([[1.0, -1.0]])])
    params = {"U": jnp.eye(2), "W": jnp.eye(2)}
    noise = ut.Minibatch(ut.Problem(nets.linear_net, (x, x + e)), 4)
    rate = float(jnp.mean(jnp.sum(e**2, 1)))  # |r|^2 = 2 and E xx' = I: Gamma = 2 I; likewise Gamma_U
    flow = ut.noether_flow(noise, params, nets.FACTORS, step_size=0.01)
    np.testing.assert_allclose(flow.relaxation_steps, np.full(2, 4 / (4 * 0.01**2 * rate)), rtol=1e-6)


def square_and_factor(p, s):
    """A loss of a^2 b: a grows by 1 where b shrinks by 2."""
    return nets.square(p["a"] ** 2 * (p["b"] @ s[0]), s[1][0])


KINDS = {
    "neurons": (nets.relu_net, nets.relu_params(3, 3), nets.RELU_LAYERS[0]),
    "one rescaling": (
        nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)), ut.Rescaling(lambda p: p["U"], lambda p: p["W"]),
    ),
    "scaling": (nets.normalised, nets.weights(u=(2, 3), w=(3, 2)), nets.SCALE),
    "eigenvalues 1 and -2": (
        square_and_factor, nets.weights(a=(), b=(2,)), ut.Exponential({"a": jnp.array(1.0), "b": jnp.full(2, -2.0)}),
    ),
    "swap": (
        lambda p, s: nets.square((p[0] ** 2 - p[1] ** 2) * s[0][0], s[1][0]), jnp.array([2.0, 0.5]),
        ut.Exponential(lambda v: v[::-1]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_relaxation_times_are_the_slope_of_the_flow_along_the_orbit(x64, kind):
    """tau = -1/(eta dG/dC) steps at the given point and at the equilibrium, by differences of the flow."""
    loss, params, symmetry = KINDS[kind]
    params, symmetry = double(params), jax.tree.map(lambda x: double(x) if eqx.is_array(x) else x, symmetry)
    noise = ut.Minibatch(ut.Problem(loss, double(nets.data())), 4)
    end = ut.equilibrium(noise, params, symmetry, step_size=ETA, weight_decay=DECAY)
    for point in (params, end.params):
        at = lambda p: ut.noether_flow(noise, p, symmetry, step_size=ETA, weight_decay=DECAY)
        up, down = at(symmetry.orbit(point, 1e-4)), at(symmetry.orbit(point, -1e-4))
        slope = (up.rate - down.rate) / (up.charge - down.charge)
        np.testing.assert_allclose(at(point).relaxation_steps, -1 / (ETA * slope), rtol=1e-6)
    np.testing.assert_allclose(end.relaxation_steps[0], at(end.params).relaxation_steps, rtol=1e-6)


def test_the_slowest_and_the_fastest_time_of_a_matrix_of_charges_are_exact(x64):
    """The matrix of the flow's derivative by the charges has -1/(eta tau) as its extreme eigenvalues.

    The noise and the weights of these factors do not commute.
    """
    params = double(nets.weights(U=(4, 3), W=(3, 4)))
    noise = ut.Minibatch(ut.Problem(nets.linear_net, double(nets.data(inputs=4, outputs=4))), 4)
    at = lambda amount: ut.noether_flow(
        noise, nets.FACTORS.orbit(params, amount), nets.FACTORS, step_size=ETA, weight_decay=DECAY
    )
    upper = np.triu_indices(3)
    rates, charges = [], []
    for i, j in zip(*upper, strict=True):
        amount = np.zeros((3, 3))
        amount[i, j] = amount[j, i] = 1e-4
        up, down = at(amount), at(-amount)
        rates.append(np.asarray(up.rate - down.rate)[upper])
        charges.append(np.asarray(up.charge - down.charge)[upper])
    slopes = np.linalg.eigvals(np.linalg.solve(np.array(charges), np.array(rates)))
    times = np.asarray(at(np.zeros((3, 3))).relaxation_steps)
    assert times.shape == (3,)
    assert np.all(np.diff(times) < 0)
    np.testing.assert_allclose(times[[0, -1]], -1 / (ETA * np.array([slopes.real.max(), slopes.real.min()])), rtol=1e-5)


def test_the_mean_charge_of_sgd_relaxes_with_the_predicted_time():
    """The mean over seeds after one and two relaxation times is exp(-1) and exp(-2) of the start.

    The flow leaves out the fluctuations of uw around the minimum, whose variance is 2 eta V: they add a share of
    2 eta to the noise.
    """
    eta, decay, start = 0.01, 0.005, {"u": jnp.array(2.0), "w": jnp.array(0.5)}
    noise = product(0.5)
    steps = round(float(ut.noether_flow(noise, start, PRODUCT, step_size=eta, weight_decay=decay).relaxation_steps))
    assert steps == round(1 / (eta * (2 * decay + eta)))
    run = ut.descend(
        noise, start, step_size=eta, weight_decay=decay, steps=2 * steps, every=steps, key=0, seeds=64, progress=False,
        observe={"charge": PRODUCT.charge},
    )  # fmt: skip
    share = run.observed["charge"] / float(PRODUCT.charge(start))
    error = share.std(axis=0, ddof=1) / 8
    expected = np.exp([0.0, -1.0, -2.0])
    assert np.all(np.abs(share.mean(axis=0) - expected) <= 5 * error + 2 * eta)


def test_without_a_restoring_force_the_time_is_infinite():
    """A neuron without gradient, scale-invariant weights without decay, and a factor of zero."""
    x = jnp.ones((4, 2)) + jax.random.normal(jax.random.key(0), (4, 2)) / 9
    problem = ut.Problem(lambda p, s: (p["o"] @ jax.nn.relu(p["i"] @ s) - s[0] ** 2) ** 2, x)
    neurons = ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True)
    params = {"o": jnp.ones(2), "i": jnp.array([[1.0, 1.0], [-1.0, -1.0]])}
    times = lambda noise, p, symmetry, **more: np.asarray(
        ut.noether_flow(noise, p, symmetry, step_size=0.1, **more).relaxation_steps
    )
    dead = times(ut.Minibatch(problem, 1), params, neurons)
    assert np.isfinite(dead[0])
    assert np.isinf(dead[1])
    decayed = times(ut.Minibatch(problem, 1), params, neurons, weight_decay=0.5)
    np.testing.assert_allclose(decayed[1], 1 / (0.1 * 2 * 0.5), rtol=1e-6)

    noise = ut.Minibatch(ut.Problem(nets.normalised, nets.data()), 4)
    assert np.isinf(times(noise, nets.weights(u=(2, 3), w=(3, 2)), nets.SCALE))
    assert np.isfinite(times(noise, nets.weights(u=(2, 3), w=(3, 2)), nets.SCALE, weight_decay=0.1))

    factors = nets.weights(U=(2, 3), W=(3, 2)) | {"U": jnp.zeros((2, 3))}
    assert np.isinf(times(ut.Minibatch(ut.Problem(nets.linear_net, nets.data()), 4), factors, nets.FACTORS)).all()


def test_generators_at_infinity_have_no_time_at_the_equilibrium():
    noise = ut.Minibatch(ut.Problem(nets.normalised, nets.data()), 4)
    with pytest.warns(UserWarning, match="no finite equilibrium"):
        end = ut.equilibrium(noise, nets.weights(u=(2, 3), w=(3, 2)), nets.SCALE, step_size=0.1)
    assert np.isinf(end.relaxation_steps[0])


def test_the_flow_can_be_traced():
    """Inside `jit` and `vmap`, along the orbit of a product: 1/(4 eta^2 V)."""
    noise = product(0.5)
    time = lambda amount: (
        ut.noether_flow(
            noise, PRODUCT.orbit({"u": jnp.array(1.0), "w": jnp.array(1.0)}, amount), PRODUCT, step_size=0.1
        ).relaxation_steps
    )
    np.testing.assert_allclose(jax.jit(jax.vmap(time))(jnp.array([-0.5, 0.0, 0.5])), np.full(3, 100.0), rtol=1e-5)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_relaxation_times_do_not_depend_on_the_unit_of_noise_and_weights(unit):
    """1/(eta^2 s/w): a ratio of noise to weight of 1/4 at eta = 0.1 gives 400 steps."""
    np.testing.assert_allclose(relaxation_steps(unit * np.array([0.5]), unit * np.array([2.0]), 0.1, 0.0), [400.0])
    np.testing.assert_allclose(
        relaxation_steps(unit * np.eye(2)[None] / 2, unit * np.eye(2)[None] * 2, 0.1, 0.0), [[400.0] * 2]
    )


def test_directions_without_weight_and_numbers_without_noise_have_infinite_times():
    """Noise diag(4, 1) against weights diag(2, 0) gives 1/(0.1^2 4/2) steps for the first direction."""
    times = relaxation_steps(np.diag([4.0, 1.0]), np.diag([2.0, 0.0]), 0.1, 0.0)
    np.testing.assert_allclose(times, [np.inf, 50.0])
    noise, weight = np.array([4.0, 0.0, 0.0]), np.array([2.0, 1.0, 0.0])
    np.testing.assert_allclose(relaxation_steps(noise, weight, 0.1, 0.0), [50.0, np.inf, np.inf])
    # C' = -2 lambda C per unit time: 1/(2 eta lambda) steps
    np.testing.assert_allclose(relaxation_steps(noise, weight, 0.1, 1.0), [1 / (0.1 * (2 + 0.1 * 2)), 5.0, np.inf])
    flat = relaxation_steps(np.diag([4.0, 0.0]), np.diag([2.0, 1.0]), 0.1, 1.0)
    np.testing.assert_allclose(flat, [5.0, 1 / (0.1 * (2 + 0.1 * 2))])


@pytest.mark.parametrize("decay", [0.0, 0.03])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_the_time_under_adam_is_the_slower_mode_of_params_and_v(x64, decay, eps):
    """The flow is differentiated in the amount s of params and the amount q of v; v follows with kappa (s - q)."""
    eta, forgetting = 0.02, 3e-4
    signs, theta = jnp.array([1.0, 1.0, -1.0]), jnp.array([0.8, 1.2, 0.9])
    root = jnp.array([0.5, 1.0, 1.6])

    def flow(s, q):
        inverse = root * jnp.exp(-signs * q) + eps
        noise = root**2 * jnp.exp(-2 * signs * s) / inverse
        weight = theta**2 * jnp.exp(2 * signs * s) * inverse
        return jnp.sum(signs * (eta / 2 * noise - decay * weight)) / jnp.sum(theta**2 * (root + eps))

    kappa = forgetting / eta
    matrix = np.array([[-jax.grad(flow)(0.0, 0.0), -jax.grad(flow, 1)(0.0, 0.0)], [-kappa, kappa]])
    slower = np.linalg.eigvals(matrix).min()
    power, weight, share = root**2 / (root + eps), theta**2 * (root + eps), root / (root + eps)
    sums = (np.asarray(jnp.sum(x)) for x in (power, weight, share * power, share * weight))
    np.testing.assert_allclose(metric_relaxation(*sums, eta, decay, forgetting), 1 / (eta * slower), rtol=1e-12)
    assert np.isinf(metric_relaxation(*[np.zeros(())] * 4, eta, 0.0, forgetting))
