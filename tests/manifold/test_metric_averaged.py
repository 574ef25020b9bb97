"""The averaged flow of optimisers with a metric, against SGD's, gradient descent and runs of Adam."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow._trees import ravel, zeros_like
from undertow.manifold.averaged import velocity
from undertow.manifold.metric_averaged import AveragedMotion, least_relaxed
from undertow.noise.additive import noiseless
from undertow.noise.base import second_moment
from undertow.papers.optimisers.models.adam_probe import draw_probe


def test_a_metric_of_one_gives_the_velocity_of_sgd(x64):
    probe, eta, age = draw_probe(jax.random.key(3)), jnp.asarray(0.01), jnp.asarray(5.0)
    flat, unravel = jax.flatten_util.ravel_pytree(probe.model.start(0.8))
    for closure in ("finite_step", "averaged_noise"):
        motion = AveragedMotion(probe.noise, ut.SGD(momentum=0.0), eta, unravel, closure)
        expected = velocity(probe.noise, flat, unravel, age, eta, closure)
        np.testing.assert_allclose(motion.velocity((flat, None), age)[0], expected, rtol=1e-6, atol=1e-9)


def test_without_noise_the_flow_passes_the_points_of_the_discrete_steps(x64):
    """With momentum on a quadratic loss the error is of second order; the momentum starts near its mean value."""
    matrix, start = jnp.array([[1.0, 0.3], [0.3, 0.5]]), jnp.ones(2)
    noise = noiseless(ut.Problem(lambda x, _: x @ matrix @ x / 2, jnp.zeros(1)))
    optimiser, errors = ut.SGD(momentum=0.5), []
    for eta in (0.02, 0.01):
        moving = {"optimiser": optimiser, "optimiser_state": matrix @ start / (1 - 0.5)}
        run = ut.descend(noise, start, **moving, step_size=eta, steps=round(2 / eta), key=0)
        flow = ut.average(noise, start, optimiser=optimiser, step_size=eta, time=2.0, tolerance=1e-9)
        errors.append(np.linalg.norm(run.params - flow.params))
    assert np.log2(errors[0] / errors[1]) > 1.8


def test_the_least_curvature_is_that_of_the_metric(x64):
    probe = draw_probe(jax.random.key(3))
    unravel = jax.flatten_util.ravel_pytree(probe.start)[1]
    motion = AveragedMotion(probe.noise, probe.adam(0.0, 0.99), jnp.asarray(0.01), unravel, "averaged_noise")
    v = ravel(second_moment(probe.noise, probe.start))
    np.testing.assert_allclose(
        least_relaxed(motion, probe.start, v, 100.0), probe.least_curvature(probe.start), rtol=1e-6
    )
    assert least_relaxed(motion, probe.start, v, 1e-6) == np.inf


def test_the_sizes_of_the_corrections(x64):
    """The one for finite steps is linear in eta, and the gain linear in 1 - b2 while v hardly follows."""
    probe, age = draw_probe(jax.random.key(3)), jnp.asarray(50.0)
    point, unravel = jax.flatten_util.ravel_pytree(probe.start)
    logarithm = jnp.log(ravel(second_moment(probe.noise, probe.start)))

    def sizes(eta, memory):
        motion = AveragedMotion(probe.noise, probe.adam(0.0, 1 - memory), jnp.asarray(eta), unravel, "finite_step")
        return np.asarray(motion.sizes((point, logarithm), age))

    whole, half, shorter = sizes(2e-3, 1e-7), sizes(1e-3, 1e-7), sizes(2e-3, 2e-7)
    np.testing.assert_allclose(whole[0] / half[0], 2, rtol=0.05)
    np.testing.assert_allclose(shorter[1] / whole[1], 2, rtol=0.05)
    np.testing.assert_allclose(shorter[0], whole[0], rtol=1e-12)


@pytest.mark.slow
def test_the_sizes_are_in_the_regime(x64):
    probe = draw_probe(jax.random.key(3))
    flow = ut.average(probe.noise, probe.start, optimiser=probe.adam(0.0, 0.999), step_size=0.004, time=1.0)
    names = [parameter.name for parameter in flow.regime.parameters]
    assert names[-3:] == ["(1 - b2)/(eta lambda)", "finite step / drift", "metric / drift"]
    assert all(0 < parameter.value < 1 for parameter in flow.regime.parameters[-2:])


@pytest.mark.slow
@pytest.mark.parametrize("b1", [0.0, 0.9])
def test_the_mean_of_adam_from_a_start_off_the_manifold(b1, x64):
    """At kappa = 200 over slow time 0.1; the flow for small steps is off by a tenth of the way."""
    probe, eta, seeds = draw_probe(jax.random.key(0)), 0.004, 400
    start, adam = probe.model.start(0.8), probe.adam(b1, 1 - 200 * 0.004**2)
    state = {"m": zeros_like(start), "v": second_moment(probe.noise, start)}
    run = ut.descend(
        probe.noise, start, optimiser=adam, optimiser_state=state, step_size=eta, steps=6250, seeds=seeds, key=0
    )
    points, v = (np.asarray(jax.vmap(ravel)(x)) for x in (run.params, run.optimiser_state["v"]))
    length = np.linalg.norm(points.mean(axis=0) - np.asarray(ravel(start)))
    error = np.sqrt(points.var(axis=0, ddof=1).sum() / seeds)
    far = {}
    for closure in ("small_step", "averaged_noise"):
        flow = ut.average(
            probe.noise, start, optimiser=adam, optimiser_state=state, step_size=eta, time=25.0, closure=closure,
            num_saves=1,
        )  # fmt: skip
        far[closure] = np.linalg.norm(np.asarray(ravel(flow.params)) - points.mean(axis=0))
    assert far["averaged_noise"] < 0.01 * length + 2 * error
    assert far["small_step"] > 0.05 * length + 2 * error
    predicted = np.concatenate([np.asarray(leaf[-1]) for leaf in flow.observed["v"]])
    assert np.linalg.norm(predicted - v.mean(axis=0)) < 0.01 * np.linalg.norm(predicted)


X, Y = jnp.array([1.0, 2.0, 0.5]), jnp.array([1.0, 2.1, 0.4])


def product(predict):
    """Return single samples of a regression that no parameters fit."""
    return ut.Minibatch(ut.Regression(predict, X, Y), batch_size=1)


@pytest.mark.parametrize("start", [[0.0, 1.0], [3.0, 1.0]])
@pytest.mark.parametrize(
    "kind", [lambda eta: ut.Adam(b1=0.0, b2=1 - 0.2 * eta, eps=0.01), lambda eta: ut.RMSProp(b2=1 - 4 * eta, eps=0.01)]
)
def test_the_flow_follows_an_optimiser_from_its_first_step(start, kind, x64):
    """The error falls with eta. That of a flow with a v after many steps does not.

    The memory of Adam's v is five times the run, that of RMSProp's a quarter. From [0, 1], one gradient is zero at the
    start.
    """
    noise, start, errors = product(lambda p, x: p[0] * p[1] * x), jnp.array(start), []
    state = {"v": jnp.maximum(second_moment(noise, start), 1e-12)}
    for eta in (0.005, 0.0025):
        settings = {"optimiser": kind(eta), "step_size": eta}
        run = ut.descend(noise, start, steps=round(1 / eta), seeds=2000, key=0, **settings)
        flows = [ut.average(noise, start, time=1.0, optimiser_state=s, **settings).params for s in (None, state)]
        mean = run.params.mean(axis=0)
        errors.append([np.linalg.norm(flow - mean) / np.linalg.norm(mean - start) for flow in flows])
    (near, far), (nearer, _) = errors
    assert near < 0.03
    assert nearer < 0.8 * near
    assert far > 0.1


def test_parameters_without_gradients_change_nothing(x64):
    """v is 0 for one that the loss does not use."""
    start, settings = jnp.array([0.5, 1.0]), {"step_size": 0.01, "time": 5.0, "optimiser": ut.AdamW(eps=0.01)}
    alone = ut.average(product(lambda p, x: p[0] * p[1] * x), start, **settings)
    more = ut.average(product(lambda p, x: p[0] * p[1] * x), jnp.array([0.5, 1.0, 3.0]), **settings)
    assert not more.diverged
    np.testing.assert_allclose(more.params[:2], alone.params, rtol=1e-3)
    assert more.observed["v"][-1, 2] == 0
