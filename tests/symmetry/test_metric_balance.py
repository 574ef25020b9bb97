"""Equilibria under Adam: closed forms, convexity, eps, coupled generators, and generators without an equilibrium."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from tests.symmetry.test_equilibrium import COMBINED, fields
from undertow.noise.base import second_moment
from undertow.papers.optimisers.models.rank_one import BALANCE, rank_one
from undertow.symmetry import metric_balance
from undertow.symmetry.equilibrium import NoFiniteEquilibrium, VanishingNoiseError

ETA = 0.01


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


@pytest.fixture
def single(x64):
    problem, start = rank_one(jax.random.key(0), samples=32)
    return ut.Minibatch(problem, 1), start


@pytest.fixture
def relu(x64):
    return ut.Minibatch(ut.Problem(nets.relu_net, double(nets.data())), 4), double(nets.relu_params())


def deviations(noise, params):
    """Return the sum of the standard deviations of all entries of the gradient."""
    variance = noise.covariance(params).moment(lambda g: jax.tree.map(jnp.square, g))
    return sum(float(jnp.sum(jnp.sqrt(v))) for v in jax.tree.leaves(variance))


@pytest.mark.parametrize("decay", [0.0, 0.003, 0.05])
def test_a_rescaling_has_the_closed_form(single, decay):
    noise, start = single
    optimiser = ut.AdamW(eps=0.0, weight_decay=decay)
    end = ut.equilibrium(noise, start, BALANCE, step_size=ETA, optimiser=optimiser, corrected=False)
    root = jax.tree.map(jnp.sqrt, second_moment(noise, start))
    b = {name: jnp.sum(v) for name, v in root.items()}
    a = {name: jnp.sum(v * start[name] ** 2) for name, v in root.items()}
    ratio = (decay * a["W"] + ETA / 2 * b["U"]) / (decay * a["U"] + ETA / 2 * b["W"])
    np.testing.assert_allclose(end.amount[0], np.log(ratio) / 2, atol=1e-10)
    np.testing.assert_allclose(noise.problem.loss(end.params), noise.problem.loss(start), rtol=1e-12)
    assert end.residual < 1e-10
    assert end.optimiser == "AdamW"
    assert end.regime.notes == ("Fluctuations are not computed.",)
    assert end.offset is None


def test_coupled_layers_have_the_least_sum_of_standard_deviations(relu):
    """At the minimum over both layers, no move of a neuron lowers the sum, and the mean gradient is left out."""
    noise, params = relu
    end = ut.equilibrium(noise, params, nets.RELU_LAYERS, step_size=ETA, optimiser=ut.Adam(eps=0.0), corrected=False)
    assert end.residual < 1e-8
    gradient = noise.mean(end.params)
    variance = noise.covariance(end.params).moment(lambda g: jax.tree.map(jnp.square, g))
    power = jax.tree.map(lambda v, g: v / jnp.maximum(jnp.sqrt(v + g**2), 1e-30), variance, gradient)

    def function(amounts):
        logs = [s.logs(end.params, a) for s, a in zip(nets.RELU_LAYERS, amounts, strict=True)]
        parts = jax.tree.map(lambda b, one, two: jnp.sum(b * jnp.exp(-one - two)), power, *logs)
        return sum(jax.tree.leaves(parts))

    zero = [jnp.zeros(5), jnp.zeros(4)]
    np.testing.assert_allclose(np.concatenate(jax.grad(function)(zero)), 0, atol=1e-8 * float(function(zero)))
    rng = np.random.default_rng(0)
    for _ in range(5):
        move = [jnp.asarray(0.1 * rng.standard_normal(x.shape)) for x in zero]
        assert function(move) > function(zero)
    assert deviations(noise, end.params) < deviations(noise, params)


def test_a_large_eps_is_sgd(single):
    """S = 1/eps: SGD with the step size eta/eps and the weight decay lambda eps."""
    noise, start = single
    eps, decay = 1e5, 0.3 * ETA / 1e10
    adam = ut.equilibrium(
        noise, start, BALANCE, step_size=ETA, optimiser=ut.AdamW(eps=eps, weight_decay=decay), corrected=False
    )
    sgd = ut.equilibrium(noise, start, BALANCE, step_size=ETA / eps, weight_decay=decay * eps)
    np.testing.assert_allclose(adam.amount[0], sgd.amount[0], atol=1e-4)
    assert abs(float(sgd.amount[0])) > 0.05


@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_eps_is_exact(single, eps):
    """At the equilibrium the flow without fluctuations vanishes, for any eps."""
    noise, start = single
    optimiser = ut.AdamW(eps=eps, weight_decay=0.003)
    end = ut.equilibrium(noise, start, BALANCE, step_size=ETA, optimiser=optimiser, corrected=False)
    flow = ut.noether_flow(noise, end.params, BALANCE, step_size=ETA, optimiser=optimiser)
    leading = flow.rate - flow.metric - flow.fluctuations
    np.testing.assert_allclose(leading, 0, atol=1e-10 * ETA * float(abs(flow.charge)))


def test_the_corrected_equilibrium_has_no_flow(single):
    noise, start = single
    optimiser = ut.AdamW(b2=0.999, weight_decay=0.003)
    end = ut.equilibrium(noise, start, BALANCE, step_size=ETA, optimiser=optimiser)
    plain = ut.equilibrium(noise, start, BALANCE, step_size=ETA, optimiser=optimiser, corrected=False)
    flow = ut.noether_flow(noise, end.params, BALANCE, step_size=ETA, optimiser=optimiser)
    assert abs(float(flow.rate)) < 1e-9 * float(abs(flow.metric))
    assert 1e-3 < abs(float(end.amount[0] - plain.amount[0])) < 0.1
    np.testing.assert_allclose(end.relaxation_steps[0], flow.relaxation_steps, rtol=1e-8)
    ratio, step, memory = end.regime.parameters
    assert end.regime.valid
    assert 0.05 < ratio.value < 0.5
    assert step.value + memory.value == pytest.approx(abs(float(end.amount[0] - plain.amount[0])), rel=1)
    assert "(1 - b2)/(eta lambda)" in str(end)


def test_coupled_generators_are_corrected_together(x64):
    """Three neurons of a linear network at its minimum share no parameter, but they share the fluctuations."""
    x, y = double(nets.data(samples=40, inputs=4, outputs=5))
    problem = ut.Problem(nets.linear_net, (x, y))
    left, sizes, right = jnp.linalg.svd(jnp.linalg.lstsq(x, y)[0].T, full_matrices=False)
    start = {"U": left * jnp.sqrt(sizes)[None], "W": jnp.sqrt(sizes)[:, None] * right}
    units = ut.Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True)
    noise, optimiser = ut.Minibatch(problem, 1), ut.Adam(b2=0.9999)
    end = ut.equilibrium(noise, start, units, step_size=0.002, optimiser=optimiser)
    assert end.residual < 1e-6
    flow = ut.noether_flow(noise, end.params, units, step_size=0.002, optimiser=optimiser)
    assert np.abs(flow.rate).max() < 1e-6 * np.abs(flow.noise).max()


def test_scale_invariant_weights_have_a_norm_in_proportion_to_the_root_of_step_size_over_decay(x64):
    """|w|^2 = (eta/(2 lambda)) sum sqrt(v) |w|^2/sum sqrt(v) w^2 in the metric (Kosson et al., 2305.17212)."""
    noise = ut.Minibatch(ut.Problem(nets.normalised, double(nets.data())), 4)
    params = double(nets.weights(w=(3, 2), u=(2, 3)))
    lengths = []
    for decay in (0.02, 0.005):
        optimiser = ut.AdamW(eps=0.0, weight_decay=decay)
        end = ut.equilibrium(noise, params, nets.SCALE, step_size=ETA, optimiser=optimiser, corrected=False)
        lengths.append(float(jnp.sum(end.params["w"] ** 2)))
    assert lengths[1] / lengths[0] == pytest.approx(4, rel=1e-8)


def test_an_equilibrium_at_infinity_is_that_of_sgd(x64):
    noise = ut.Minibatch(ut.Problem(nets.normalised, double(nets.data())), 4)
    params = double(nets.weights(w=(3, 2), u=(2, 3)))
    with pytest.warns(NoFiniteEquilibrium):
        end = ut.equilibrium(noise, params, nets.SCALE, step_size=ETA, optimiser=ut.Adam())
    assert end.infinite == (1,)
    assert np.isposinf(end.amount[0])
    np.testing.assert_array_equal(end.params["w"], params["w"])


@pytest.mark.parametrize("kind", ["rescalings", "diagonal generators"])
def test_a_combination_at_infinity_is_that_of_sgd(x64, kind):
    noise, params = fields()
    for alone in COMBINED[kind]:
        single = ut.equilibrium(noise, params, alone, step_size=ETA, optimiser=ut.Adam(), corrected=False)
        assert single.residual < 1e-9
    with pytest.warns(NoFiniteEquilibrium, match="first, 1 of 1 direction at infinity together with second"):
        result = ut.equilibrium(noise, params, COMBINED[kind], step_size=ETA, optimiser=ut.Adam())
    assert result.infinite == (1, 1)
    assert result.together == ((0, 1),)


def test_vanishing_noise_and_dead_neurons_have_the_outcome_of_sgd(relu):
    noise, params = relu
    dead = params | {"w1": params["w1"].at[0].set(0.0), "b1": params["b1"].at[0].set(-1.0)}
    end = ut.equilibrium(noise, dead, nets.RELU_LAYERS[0], step_size=ETA, optimiser=ut.Adam(), corrected=False)
    sgd = ut.equilibrium(noise, dead, nets.RELU_LAYERS[0], step_size=ETA)
    assert end.excluded == sgd.excluded == ((0,),)
    exact = ut.Minibatch(ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2, jnp.ones(3)), 1)
    with pytest.raises(VanishingNoiseError):
        ut.equilibrium(exact, jnp.array([2.0, 0.5]), ut.Rescaling(lambda p: p[0], lambda p: p[1]), step_size=ETA,
                       optimiser=ut.Adam())  # fmt: skip


def test_generators_that_the_metric_breaks_are_refused(x64):
    x, y = double(nets.data(samples=40, inputs=4, outputs=5))
    noise = ut.Minibatch(ut.Problem(nets.linear_net, (x, y)), 4)
    params = double(nets.weights(U=(5, 3), W=(3, 4)))
    with pytest.raises(ValueError, match=r"GL\(3\).*conserves no quadratic charge.*Rescaling"):
        ut.equilibrium(noise, params, nets.FACTORS, step_size=ETA, optimiser=ut.Adam())


def test_momentum_of_sgd_is_a_longer_step(single):
    noise, start = single
    momentum = ut.SGD(momentum=0.9, weight_decay=0.01)
    end = ut.equilibrium(noise, start, BALANCE, step_size=ETA, optimiser=momentum)
    longer = ut.equilibrium(noise, start, BALANCE, step_size=10 * ETA, weight_decay=0.01)
    np.testing.assert_allclose(end.amount[0], longer.amount[0], rtol=1e-9)
    with pytest.raises(TypeError, match=r"weight_decay=0\.1, optimiser"):
        ut.equilibrium(noise, start, BALANCE, step_size=ETA, weight_decay=0.1, optimiser=momentum)


def test_a_short_memory_is_outside_and_large_models_have_no_fluctuations(single, monkeypatch):
    noise, start = single
    end = ut.equilibrium(noise, start, BALANCE, step_size=ETA, optimiser=ut.RMSProp(b2=0.9))
    assert not end.regime.valid
    monkeypatch.setattr(metric_balance, "LIMIT", 5)
    end = ut.equilibrium(noise, start, BALANCE, step_size=ETA, optimiser=ut.Adam())
    assert end.offset is None
    assert end.regime.notes == ("Fluctuations are computed for at most 5 parameters.",)


def test_a_point_that_is_no_minimum_is_noted(relu):
    noise, params = relu
    end = ut.equilibrium(noise, params, nets.RELU_LAYERS, step_size=1e-4, optimiser=ut.Adam(b2=0.99999))
    assert any("negative curvature" in note for note in end.regime.notes)
