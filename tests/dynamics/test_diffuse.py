"""The SDE against its exact law, and against SGD with the same noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import KINDS, params, point, population, problem
from tests.mistakes import assert_explained
from undertow import _trees as trees
from undertow.noise.base import second_moment

KEY = jax.random.key(21)

# L = w'Aw/2 with noise B: an Ornstein-Uhlenbeck process with exact moments
CURVATURE = jnp.array([0.5, 2.0])
FACTOR = jnp.array([[1.0], [0.5]])
BOWL = ut.Additive(ut.Problem(lambda w, _: jnp.sum(CURVATURE * w**2) / 2, jnp.zeros(1)), lambda w: FACTOR)


def moments(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The second moments of final positions about the mean, with standard errors."""
    centred = w - w.mean(0)
    products = centred[:, :, None] * centred[:, None, :]
    return products.mean(0), products.std(0) / np.sqrt(len(w))


@pytest.mark.parametrize("substeps", [1, 4])
def test_against_the_exact_law_of_the_scheme(substeps):
    """Euler-Maruyama of an OU process is a linear recursion: w+ = (1 - dt A) w + sqrt(eta dt) B z."""
    eta, time, dt = 0.2, 3.0, 0.2 / substeps
    run = ut.diffuse(BOWL, jnp.array([1.0, -1.0]), step_size=eta, time=time, key=KEY, observe={"w": lambda w: w},
                     seeds=20_000, substeps=substeps)  # fmt: skip
    steps = round(time / dt)
    decay = 1 - dt * np.asarray(CURVATURE)
    sigma = np.asarray(FACTOR @ FACTOR.T)
    mean, covariance = np.array([1.0, -1.0]) * decay**steps, np.zeros((2, 2))
    for _ in range(steps):
        covariance = decay[:, None] * covariance * decay + eta * dt * sigma
    w = run.observed["w"][:, -1].astype(float)
    assert np.all(np.abs(w.mean(0) - mean) < 4.5 * w.std(0) / np.sqrt(len(w)))
    second, error = moments(w)
    assert np.all(np.abs(second - covariance) < 4.5 * error)
    np.testing.assert_allclose(run.time, [0, time], rtol=1e-9)
    np.testing.assert_allclose(run.step, [0, time / eta])
    np.testing.assert_allclose(run.slow_time, [0, time * eta])


@pytest.mark.slow
def test_finer_steps_approach_the_sde():
    """The exact OU variance eta sigma / (2 a) at stationarity; Euler-Maruyama's is that over 1 - a dt / 2."""
    curvature, eta = 1.0, 0.5
    task = ut.Additive(ut.Problem(lambda w, _: curvature * w**2 / 2, jnp.zeros(1)), lambda w: jnp.ones(1))
    for substeps in (1, 8):
        run = ut.diffuse(task, jnp.array(0.0), step_size=eta, time=12.0, key=KEY, observe={"w": lambda w: w},
                         seeds=30_000, substeps=substeps)  # fmt: skip
        w = run.observed["w"][:, -1].astype(float)
        error = w.var() * np.sqrt(2 / len(w))
        expected = eta / (2 * curvature) / (1 - curvature * eta / substeps / 2)
        assert abs(w.var() - expected) < 4.5 * error
        if substeps == 1:
            assert abs(w.var() - eta / 2) > 10 * error  # so the test can tell the two apart


def test_sgd_and_sde_agree_on_a_quadratic():
    """Minibatch SGD on least squares and its diffusion: same mean, and variances equal to O(step_size)."""
    keys = jax.random.split(jax.random.key(1), 2)
    x, y = jax.random.normal(keys[0], (40, 2)), jax.random.normal(keys[1], (40,))
    noise = ut.Minibatch(ut.Regression(lambda w, x: w @ x, x, y), 1)
    common = {"step_size": 0.02, "key": KEY, "observe": {"w": lambda w: w}, "seeds": 4000}
    sgd = ut.descend(noise, jnp.ones(2), steps=200, **common).observed["w"][:, -1]
    sde = ut.diffuse(noise, jnp.ones(2), time=4.0, **common).observed["w"][:, -1]
    error = np.sqrt((sgd.var(0) + sde.var(0)) / 4000)
    assert np.all(np.abs(sgd.mean(0) - sde.mean(0)) < 4.5 * error + 0.02 * np.abs(sgd.mean(0)))
    np.testing.assert_allclose(sgd.var(0), sde.var(0), rtol=0.15)


def test_weight_decay_pulls_to_zero():
    task = ut.Additive(ut.Problem(lambda w, _: 0.0 * w, jnp.zeros(1)), lambda w: jnp.zeros(1))
    run = ut.diffuse(task, jnp.array(1.0), step_size=0.01, time=2.0, key=KEY, weight_decay=1.0, substeps=20)
    np.testing.assert_allclose(run.params, np.exp(-2.0), rtol=2e-3)


@pytest.mark.parametrize("kind", [k for k in KINDS if "population" not in k])
def test_every_noise_diffuses(kind):
    start = point(kind)
    run = ut.diffuse(KINDS[kind](), start, step_size=0.01, time=0.1, key=KEY, observe={"flat": trees.ravel}, every=2)
    assert run.observed["flat"].shape == (6, trees.count(start))
    assert np.isfinite(run.observed["flat"]).all()
    assert run.clock == "time"


def test_params_in_single_precision_with_data_in_double_precision(x64):
    bowl = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, jnp.arange(4.0))
    assert bowl.data.dtype == jnp.float64
    start = jnp.ones(2, jnp.float32)
    run = ut.diffuse(ut.Minibatch(bowl, 1), start, step_size=0.1, time=1.0, key=0, optimiser=ut.RMSProp())
    assert run.params.dtype == jnp.float32


def test_a_diffusion_can_be_resumed(as_a_user):
    whole = ut.diffuse(BOWL, jnp.ones(2), step_size=0.1, time=3.0, key=KEY, seeds=3, every=5, observe={"w": jnp.sum})
    part = ut.diffuse(BOWL, jnp.ones(2), step_size=0.1, time=1.0, key=KEY, seeds=3, every=5, observe={"w": jnp.sum})
    both = part.resume(time=2.0)
    np.testing.assert_array_equal(both.observed["w"], whole.observed["w"])
    np.testing.assert_allclose(both.time, whole.time)
    with pytest.raises(TypeError, match="made by `diffuse`; give `time=`"):
        part.resume(steps=5)
    with pytest.raises(TypeError, match=r"continues with `run\.resume\(time=\.\.\.\)`"):
        ut.diffuse(part, time=2.0)


def test_times_and_steps_are_those_of_sgd():
    """`time` is reached, not missed; steps and divergence count steps of SGD, not of the scheme."""
    run = ut.diffuse(BOWL, jnp.ones(2), step_size=0.2, time=0.33, key=KEY, substeps=4)
    np.testing.assert_allclose(run.time[-1], 0.35, rtol=1e-6)
    still = ut.Additive(ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1)), lambda w: jnp.zeros((1, 1)))
    # dt = 4 multiplies by -3: |w| = 3^k passes the largest number of single precision at k = 81 of the scheme
    grows = ut.diffuse(still, jnp.ones(1), step_size=8.0, time=800.0, key=KEY, substeps=2)
    assert bool(grows.diverged)
    assert int(grows.diverged_at) == 41


POINT = params()


def diffused(**changes):
    settings = {"step_size": 0.1, "time": 1.0, "key": jax.random.key(0)} | changes
    return ut.diffuse(settings.pop("noise", None) or ut.Minibatch(problem(), 1), POINT, **settings)


MISTAKES = {
    "diffuse a population": (lambda: diffused(noise=ut.Minibatch(population(), 2)), r"population.sample\(key, count\)"),
    "diffuse by a schedule": (lambda: diffused(step_size=lambda k: 0.1), "one noise level"),
    "diffuse backwards": (lambda: diffused(time=-1.0), "`time` must be a finite number"),
    "diffuse for no time": (lambda: diffused(time=0.0), "above 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])


def test_the_diffusion_of_adam_with_bias_correction_starts_with_its_first_step(x64):
    """The mean agrees with Adam's to first order. From v as after many steps it is off by the length of the path."""
    task = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0, 2.0, 0.5]), jnp.array([1.0, 2.1, 0.4]))
    noise, start = ut.Minibatch(task, batch_size=1), jnp.array([0.0, 1.0])
    settings = {"step_size": 0.005, "seeds": 2000, "key": 0}
    adam, plain = (ut.Adam(b1=0.0, eps=0.01, bias_correction=corrected) for corrected in (True, False))
    run = ut.descend(noise, start, optimiser=adam, steps=200, **settings)
    late = {"v": jnp.maximum(second_moment(noise, start), 1e-12)}
    states = (None, late)
    right, without = (ut.diffuse(noise, start, optimiser=adam, optimiser_state=s, time=1.0, **settings) for s in states)
    mean, right_mean, without_mean = (np.asarray(x.params).mean(axis=0) for x in (run, right, without))
    path = np.linalg.norm(mean - start)
    assert np.linalg.norm(right_mean - mean) < 0.04 * path
    assert np.linalg.norm(without_mean - mean) > 0.5 * path
    given = [ut.diffuse(noise, start, optimiser=o, optimiser_state=late, time=0.1, **settings) for o in (adam, plain)]
    np.testing.assert_array_equal(given[0].params, given[1].params)


def test_the_diffusion_of_adam_stays_near_adam_where_a_gradient_is_zero_at_the_start(x64):
    """A metric of the old v = 0 would move the first parameter by g/eps in the second substep."""
    noise = ut.Minibatch(ut.Problem(lambda p, s: (p[0] * p[1] - s) ** 2 / 2, jnp.array([0.0, 2.0])), batch_size=1)
    settings = {"step_size": 1e-3, "seeds": 200, "optimiser": ut.Adam()}
    run = ut.diffuse(noise, jnp.array([1.0, 0.0]), time=0.5, key=0, **settings)
    steps = ut.descend(noise, jnp.array([1.0, 0.0]), steps=500, key=1, **settings)
    assert np.abs(run.params).max() < 2
    np.testing.assert_allclose(run.params.mean(axis=0), steps.params.mean(axis=0), atol=0.05)
