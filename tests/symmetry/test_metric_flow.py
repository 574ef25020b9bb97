"""The flow of charges under Adam: against exact expectations over samples, SGD's momentum, and relaxation in a run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.dynamics.diffuse import EulerStep
from undertow.noise.base import second_moment
from undertow.papers.optimisers.models.rank_one import BALANCE, rank_one
from undertow.symmetry.flow import known_optimiser
from undertow.symmetry.metric_charge import metric_charge

ETA = 0.01
UNITS = ut.Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True)


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


@pytest.fixture
def factors(x64):
    x, y = double(nets.data(samples=12, inputs=4, outputs=5))
    return ut.Minibatch(ut.Problem(nets.linear_net, (x, y)), 1), double(nets.weights(U=(5, 3), W=(3, 4)))


def mean_change(noise, params, optimiser, v, charge):
    """Return the mean over all samples of the change of a charge in one step without momentum."""
    rates = optimiser.rates(jnp.asarray(0), jnp.asarray(ETA))

    def one(sample):
        after = optimiser.update(params, {"v": v, "m": params}, noise.problem.sample_gradient(params, sample), rates)
        return charge(*after) - charge(params, {"v": v})

    return jnp.mean(jax.vmap(one)(noise.problem.data), axis=0)


FROZEN = ut.AdamW(b1=0.0, b2=1 - 1e-13, eps=0.1, weight_decay=0.2, bias_correction=False)
"""An optimiser whose metric does not change in a step."""


def test_the_rate_of_a_diagonal_generator_is_the_mean_over_samples(factors):
    noise, params = factors
    v = jax.tree.map(lambda x: 1 + 0 * x + jnp.arange(float(x.size)).reshape(x.shape), params)
    flow = ut.noether_flow(noise, params, UNITS, step_size=ETA, optimiser=FROZEN, optimiser_state={"v": v})
    metric = FROZEN.metric({"v": v}, params)
    np.testing.assert_allclose(flow.charge, metric_charge(UNITS, params, metric))
    change = mean_change(noise, params, FROZEN, v, lambda p, s: metric_charge(UNITS, p, FROZEN.metric(s, p)))
    shrink = ETA * 0.2  # in one step the decay has a term of second order, and the mean gradient adds to the noise
    exact = ETA * flow.rate + ETA**2 / 2 * flow.gradient + shrink**2 * flow.charge
    np.testing.assert_allclose(change, exact, rtol=1e-5, atol=1e-8)
    assert flow.per_step is None
    assert flow.regime.parameters == ()


def test_the_rate_of_a_rotation_has_a_term_of_first_order(factors):
    noise, params = factors
    v = second_moment(noise, params)
    flow = ut.noether_flow(noise, params, nets.FACTORS, step_size=ETA, optimiser=FROZEN)
    change = mean_change(noise, params, FROZEN, v, lambda p, s: nets.FACTORS.charge(p))
    shrink = ETA * 0.2
    exact = ETA * (flow.rate - shrink * flow.breaking) + ETA**2 / 2 * flow.gradient + shrink**2 * flow.charge
    np.testing.assert_allclose(change, exact, rtol=1e-8, atol=1e-12)
    assert np.abs(flow.breaking).max() > np.abs(ETA / 2 * flow.noise).max()
    assert np.all(np.isnan(flow.relaxation_steps))
    assert flow.relaxation_steps.shape == (3,)
    assert "relaxation time" not in str(flow)


def test_a_state_that_has_not_relaxed_changes_the_charge(factors):
    """The metric term is the derivative of C_S along dv/dt = (1 - b2)/eta (E g^2 - v)."""
    noise, params = factors
    optimiser = ut.RMSProp(b2=0.99, eps=0.1)
    second = second_moment(noise, params)
    v = jax.tree.map(lambda x: 2 * x + 1, second)
    flow = ut.noether_flow(noise, params, UNITS, step_size=ETA, optimiser=optimiser, optimiser_state={"v": v})
    rate = jax.tree.map(lambda a, b: 0.01 / ETA * (a - b), second, v)
    charge = lambda w: metric_charge(UNITS, params, optimiser.metric({"v": w}, params))
    np.testing.assert_allclose(flow.metric, jax.jvp(charge, (v,), (rate,))[1], rtol=1e-10)
    assert not np.any(flow.fluctuations)
    with pytest.raises(ValueError, match=r"optimiser_state=.*has shape"):
        ut.noether_flow(noise, params, UNITS, step_size=ETA, optimiser=optimiser,
                        optimiser_state={"v": {"U": v["U"].T, "W": v["W"]}})  # fmt: skip


def test_sgd_is_the_same_through_both_arguments(factors):
    noise, params = factors
    for symmetry in (UNITS, nets.FACTORS):
        plain = ut.noether_flow(noise, params, symmetry, step_size=ETA, momentum=0.9, weight_decay=0.1)
        given = ut.SGD(momentum=0.9, weight_decay=0.1)
        flow = ut.noether_flow(noise, params, symmetry, step_size=ETA, optimiser=given)
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(flow), strict=True):
            np.testing.assert_array_equal(a, b)
        assert flow.metric is None
    exact = ut.noether_flow(noise, params, UNITS, step_size=ETA, optimiser=ut.SGD())
    assert exact.per_step is not None


def test_optimisers_without_a_known_metric_are_refused(factors):
    noise, params = factors
    with pytest.raises(TypeError, match="the metric of an optax transformation is not known"):
        known_optimiser("noether_flow", optax.adam(0.1), 0.0, 0.0)
    with pytest.raises(TypeError, match="the charges of this optimiser are not known"):
        ut.noether_flow(noise, params, UNITS, step_size=ETA, optimiser=EulerStep(noise, ut.Adam(), 1))


def test_it_can_be_compiled_and_prints(x64):
    problem, start = rank_one(jax.random.key(0), samples=32)
    noise = ut.Minibatch(problem, 1)
    rate = lambda p: ut.noether_flow(noise, p, BALANCE, step_size=ETA, optimiser=ut.Adam(), approximate=True).rate
    flow = ut.noether_flow(noise, start, BALANCE, step_size=ETA, optimiser=ut.Adam())
    np.testing.assert_allclose(jax.jit(rate)(start), flow.rate, rtol=1e-9)
    assert "relaxation time, at most" in str(flow)
    assert "(1 - b2)/(eta lambda)" in str(flow)
    assert flow.regime.parameters[0].name == "(1 - b2)/(eta lambda)"


@pytest.mark.parametrize("b2", [0.999, 0.9999])
def test_a_displaced_run_relaxes_in_the_predicted_time(x64, b2):
    """The mean amount of 64 runs over two relaxation times, from an amount of 0.15 with the v of the start.

    With b2 = 0.9999 the memory of v, 10,000 steps, is longer than the relaxation of params.
    """
    problem, start = rank_one(jax.random.key(0), samples=32)
    noise, eta = ut.Minibatch(problem, 1), 0.016
    optimiser = ut.AdamW(b1=0.0, b2=b2, weight_decay=0.02, bias_correction=False)
    end = ut.equilibrium(noise, start, BALANCE, step_size=eta, optimiser=optimiser)
    time = float(end.relaxation_steps[0])
    moved = BALANCE.orbit(end.params, 0.15)
    amount = lambda p: jnp.log(jnp.linalg.norm(p["U"]) / jnp.linalg.norm(p["W"])) / 2
    state = {"m": jax.tree.map(jnp.zeros_like, moved), "v": second_moment(noise, moved)}
    run = ut.descend(
        noise, moved, optimiser=optimiser, optimiser_state=state, step_size=eta, steps=2 * round(time),
        every=round(time), observe={"amount": amount}, seeds=64, key=0, progress=False,
    )  # fmt: skip
    away = run.observed["amount"] - float(end.expected(amount))
    mean, error = away.mean(axis=0), away.std(axis=0, ddof=1) / 8
    # from time 1 to time 2 the distance falls by e; the faster mode, and terms of second order, are gone or small
    assert mean[2] / mean[1] == pytest.approx(np.exp(-1), abs=4 * error[2] / mean[1] + 0.04)
    assert error[2] < 0.01
