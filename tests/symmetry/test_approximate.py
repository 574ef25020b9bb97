"""Stationary charges of broken symmetries: a closed form, an identity and a simulation."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov

import undertow as ut
from undertow.symmetry.approximate import _minimum, deviation

HOME = np.array([2.0, 0.5])
BALANCE = ut.Exponential(jnp.array([1.0, -1.0]))


def pull_to(home, strength):
    return lambda p: strength / 2 * jnp.sum((p - jnp.asarray(home, p.dtype)) ** 2)


@pytest.mark.parametrize("strength", [0.5, 4.0])
def test_the_shift_of_a_linear_recursion_is_exact_to_first_order(x64, strength):
    """For l = z u w with z = +-s and a quadratic term of curvature h, SGD is linear and its moments are known.

    u+ = a u + (1 - a) u0 - eta z w with a = 1 - eta h, and the same for w, give
    E[u^2 - w^2] = (u0^2 - w0^2) (1 - a^2)/(1 - a^2 + eta^2 s^2), while E[u] = u0 exactly.
    """
    s = 1.5
    pull = pull_to(HOME, strength)
    problem = ut.Problem(lambda p, z: z * p[0] * p[1] + pull(p), jnp.array([s, -s]))
    errors = []
    for eta in (0.01, 0.005):
        result = deviation(ut.Minibatch(problem, 1), jnp.asarray(HOME), BALANCE, pull, step_size=eta)
        decay = (1 - eta * strength) ** 2
        charge = (HOME[0] ** 2 - HOME[1] ** 2) / 2
        exact = charge * (1 - decay) / (1 - decay + eta**2 * s**2) - charge
        np.testing.assert_allclose(result.charge, charge)
        np.testing.assert_allclose(result.drift, 0, atol=1e-12)
        np.testing.assert_allclose(result.printed, 2 * result.shift)
        errors.append(float(result.shift) / exact - 1)
    np.testing.assert_allclose(errors[0] / errors[1], 2, rtol=0.05)  # the error is of the order of the step size
    assert abs(errors[1]) < 0.02


def test_the_corrections_for_one_noisy_direction(x64):
    """The corrections of Eq. (21) and (23) are 1 - h/n'Hn and 1 - h/(2 n'Hn) where one direction n is noisy."""
    strength = 8.0
    pull = pull_to(HOME, strength)
    problem = ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2 + pull(p), jnp.array([0.0, 2.0]))
    result = deviation(ut.Minibatch(problem, 1), jnp.asarray(HOME), BALANCE, pull, step_size=0.01)
    stiff = 2 * np.sum(HOME**2) + strength
    np.testing.assert_allclose(result.params, HOME, rtol=1e-10)
    np.testing.assert_allclose(result.balance, result.push * (1 - strength / stiff), rtol=1e-9)
    np.testing.assert_allclose(result.shift, result.printed * (1 - strength / (2 * stiff)), rtol=1e-9)


def net(key):
    """Return a loss of two factors on data, plus a term without any symmetry."""
    keys = jax.random.split(key, 4)
    x, y = jax.random.normal(keys[0], (20, 3)), jax.random.normal(keys[1], (20, 2))
    params = {"U": jax.random.normal(keys[2], (2, 2)), "W": jax.random.normal(keys[3], (2, 3))}

    def breaking(p):
        flat = jax.flatten_util.ravel_pytree(p)[0]
        return jnp.sum(flat**4) / 4 + jnp.sum(jnp.arange(1.0, 11.0) * flat**2) / 20 - jnp.sum(jnp.sin(flat))

    def loss(p, sample):
        out = p["U"] @ p["W"] @ sample[0]
        return jnp.sum((out - sample[1]) ** 2) + breaking(p)

    return ut.Problem(loss, (x, y)), breaking, params


SYMMETRIES = {
    "rescaling": ut.Rescaling(lambda p: p["U"], lambda p: p["W"]),
    "neurons": ut.Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True),
    "GL": ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("symmetry", SYMMETRIES.values(), ids=SYMMETRIES.keys())
def test_the_balance_equals_that_of_the_noether_identity(x64, symmetry):
    """The mean displacement E[delta], from third derivatives of the loss, against the identity of the symmetry.

    E[delta]'H A params = eta/2 Tr[Sigma A] - Tr[b'' A X] - 1/2 b'''[A params, X] uses the breaking term b alone.
    """
    problem, breaking, params = net(jax.random.key(3))
    noise, eta = ut.Minibatch(problem, 2), 0.02
    result = deviation(noise, params, symmetry, breaking, step_size=eta)
    flat, unravel = jax.flatten_util.ravel_pytree(result.params)
    rows = jax.vmap(lambda g: jax.flatten_util.ravel_pytree(g)[0])(problem.sample_gradients(result.params))
    sigma = jnp.cov(rows.T, bias=True) / 2
    hessian = jax.hessian(lambda v: problem.loss(unravel(v)))(flat)
    spread = jnp.asarray(solve_continuous_lyapunov(np.asarray(hessian), eta * np.asarray(sigma)))
    soft = lambda v: breaking(unravel(v))
    bend = jax.grad(lambda v: jnp.sum(jax.hessian(soft)(v) * spread))(flat)
    charge = lambda v: symmetry.charge(unravel(v))
    along, generators = jax.jacobian(charge)(flat), jax.hessian(charge)(flat)
    trace = lambda matrix: jnp.tensordot(generators, matrix, axes=2)
    np.testing.assert_allclose(result.push, eta / 2 * trace(sigma), rtol=1e-9)
    np.testing.assert_allclose(result.spread, trace(spread) / 2, rtol=1e-7, atol=1e-12)
    expected = result.push - trace(jax.hessian(soft)(flat) @ spread) - along @ bend / 2
    np.testing.assert_allclose(result.balance, expected, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(result.shift, result.drift + result.spread)
    assert result.shift.shape == symmetry.charge(params).shape


def test_sgd_has_the_predicted_mean_charge(x64):
    """The breaking term is not quadratic, and its minimum is at another point."""
    pull = lambda p: jnp.sum((p - jnp.asarray([1.8, 0.8], p.dtype)) ** 2) + jnp.sum(p**4) / 20
    labels = jnp.array([0.0, 2.0, 0.5, 1.5])
    problem = lambda dtype: ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2 + pull(p), labels.astype(dtype))
    eta, seeds = 0.005, 1024
    theory = deviation(ut.Minibatch(problem(jnp.float64), 1), jnp.asarray(HOME), BALANCE, pull, step_size=eta)
    charge = lambda p: (p[0] ** 2 - p[1] ** 2) / 2 - theory.charge.astype(jnp.float32)
    run = ut.descend(
        ut.Minibatch(problem(jnp.float32), 1), theory.params.astype(jnp.float32), step_size=eta, steps=20_000,
        every=4000, key=0, average={"charge": charge}, seeds=seeds, lane_width=seeds, progress=False,
    )  # fmt: skip
    ratio = run.observed["charge"][:, 2:].mean(axis=1) / float(theory.shift)
    error = ratio.std() / np.sqrt(seeds)
    assert error < 0.01
    assert abs(ratio.mean() - 1) < 0.05 + 4 * error  # 0.05: the next order in the step size
    assert abs(ratio.mean() - float(theory.printed / theory.shift)) > 0.05 + 4 * error


class TestInvalidInput:
    def test_a_population_raises(self, as_a_user):
        population = ut.Population(lambda p, y: (p[0] * p[1] - y) ** 2, jax.random.normal)
        with pytest.raises(TypeError, match="fix a data set"):
            deviation(ut.Minibatch(population, 1), jnp.ones(2), BALANCE, jnp.sum, step_size=0.1)

    def test_a_minimum_that_is_not_isolated_raises(self, as_a_user):
        problem = ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2, jnp.array([0.0, 2.0]))
        with pytest.raises(ValueError, match="isolated"):
            deviation(ut.Minibatch(problem, 1), jnp.ones(2), BALANCE, lambda p: 0 * jnp.sum(p), step_size=0.1)

    def test_a_loss_without_a_minimum_raises(self, as_a_user):
        problem = ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2 + p[0], jnp.array([0.0, 2.0]))
        with pytest.raises(ValueError, match=r"no minimum|isolated"):
            deviation(ut.Minibatch(problem, 1), jnp.ones(2), BALANCE, lambda p: p[0], step_size=0.1)

    def test_an_argument_that_is_not_a_noise_raises(self, as_a_user):
        with pytest.raises(TypeError, match="give a noise"):
            deviation(jnp.ones(2), jnp.ones(2), BALANCE, jnp.sum, step_size=0.1)

    def test_a_breaking_term_that_is_not_a_function_raises(self, as_a_user):
        problem = ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2, jnp.array([0.0, 2.0]))
        with pytest.raises(TypeError, match="a function of params"):
            deviation(ut.Minibatch(problem, 1), jnp.ones(2), BALANCE, 2.0, step_size=0.1)


def test_newton_leaves_the_origin(x64):
    """Minimise |w - 1|^2 + |w - 1|^4 from w = 0, where steps relative to |w| would have length zero."""
    noise = ut.Isotropic(ut.Problem(lambda w, _: jnp.sum((w - 1) ** 2) + jnp.sum((w - 1) ** 4), jnp.zeros(1)))
    point, gradient, least = _minimum(noise, jnp.zeros(3))
    np.testing.assert_allclose(point, 1.0, atol=1e-6)
    assert gradient < 1e-8
    np.testing.assert_allclose(least, 1.0, atol=1e-6)
