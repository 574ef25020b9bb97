"""`Limit` with an optimiser: SGD on a transformed problem, effective step sizes, and error messages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from undertow._trees import ravel
from undertow.execution.compiling import compilations
from undertow.manifold.metric_limit import chosen_corrections, has_metric, start_value
from undertow.papers.optimisers.models.adam_probe import draw_probe
from undertow.papers.zero_loss.models.curves import circle

PROBE_KEY = 3


def test_the_drift_is_that_of_sgd_on_a_transformed_problem(x64):
    """phi = S^(-1/2) theta, with the transformed predictions written out; the noise has all three parts."""
    columns = jnp.array([[1.0, 0.3], [0.2, 0.7]])
    loss = lambda x, _: (1 + x[0] / 2) * (jnp.sum(x**2) - 1) ** 2 / 8
    v, point = jnp.array([0.3, 2.0]), jnp.array([0.6, 0.8])
    root = (jnp.sqrt(v) + 0.1) ** -0.5
    hand = ut.Additive(ut.Problem(lambda y, _: loss(root * y, _), jnp.zeros(1)), lambda _: root[:, None] * columns)
    noise = ut.Additive(ut.Problem(loss, jnp.zeros(1)), lambda _: columns)
    limit = ut.Limit(noise, optimiser=ut.RMSProp(eps=0.1))
    expected = ut.Limit(hand).parts(point / root)
    for part, other in zip(limit.parts(point, state={"v": v}), expected, strict=True):
        np.testing.assert_allclose(part, root * other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(limit.drift(point, state={"v": v}), root * expected.total, rtol=1e-9, atol=1e-12)


def test_momentum_multiplies_the_step_size(x64):
    probe = draw_probe(jax.random.key(PROBE_KEY))
    plain = ravel(ut.Limit(probe.noise).drift(probe.start))
    heavy = ravel(ut.Limit(probe.noise, optimiser=ut.SGD(momentum=0.9)).drift(probe.start))
    np.testing.assert_allclose(heavy, 100 * plain, rtol=1e-8, atol=1e-9)
    assert not has_metric(ut.SGD())
    assert has_metric(ut.SGD(weight_decay=0.1))
    assert has_metric(ut.Adam())


def test_a_solution_has_its_clocks_v_kappa_and_the_sizes_of_the_corrections(x64):
    probe, eta = draw_probe(jax.random.key(PROBE_KEY)), 0.01
    limit = ut.Limit(probe.noise, optimiser=probe.adam(0.0, 1 - 50 * eta**2))
    path = limit.solve(probe.start, slow_time=0.02, step_size=eta, num_saves=2)
    assert path.step[-1] == pytest.approx(200)
    assert path.facts["kappa"] == pytest.approx(50)
    assert [leaf.shape for leaf in jax.tree.leaves(path.observed["v"])] == [(3, 20), (3, 20)]
    names = {p.name: p.value for p in path.regime.parameters}
    least = probe.least_curvature(probe.start)
    np.testing.assert_allclose(names["(1 - b2)/(eta lambda)"], 50 * eta / least, rtol=1e-6)
    assert 0 < names["fluctuating metric / limit"] < 1
    assert 0 < names["finite step / limit"] < 1
    quasi = limit.solve(probe.start, slow_time=0.02, quasi_static=True, corrections=False, num_saves=1)
    moment = [np.mean((2 * x) ** 2 * 2 * np.ones(20)) for x in np.asarray(ravel(quasi.params)).reshape(2, 20)]
    np.testing.assert_allclose([np.mean(leaf[-1]) for leaf in quasi.observed["v"]], moment, rtol=1e-5)


@pytest.mark.parametrize("kappa", [50.0, 500.0])
def test_the_default_tolerance_is_far_below_the_error_of_the_theory(kappa, x64):
    """The theory is off by about 1 % of the way; records between the steps of the solver are interpolated."""
    probe, eta = draw_probe(jax.random.key(PROBE_KEY)), 0.004
    limit = ut.Limit(probe.noise, optimiser=probe.adam(0.9, 1 - kappa * eta**2))
    far_from_equilibrium = {"v": jax.tree.map(lambda p: 2 * p**2 + 1, probe.start)}
    observe = {"p": ravel}
    solve = lambda **settings: limit.solve(
        probe.start, slow_time=0.1, step_size=eta, state=far_from_equilibrium, observe=observe, **settings
    )
    path, tight = solve(), solve(tolerance=1e-10)
    way = np.linalg.norm(tight.observed["p"][-1] - tight.observed["p"][0])
    assert np.linalg.norm(path.observed["p"] - tight.observed["p"], axis=1).max() < 5e-4 * way
    ratios = [np.log(a / b) for a, b in zip(path.observed["v"], tight.observed["v"], strict=True)]
    assert np.abs(ratios).max() < 5e-3
    assert path.observed["distance"].max() < 1e-6


def test_other_numbers_compile_nothing_new(x64):
    probe, observe = draw_probe(jax.random.key(PROBE_KEY)), {"p": ravel}

    def solve(eta, b2, start):
        limit = ut.Limit(probe.noise, optimiser=probe.adam(0.5, b2))
        return limit.solve(start, slow_time=10 * eta, step_size=eta, observe=observe, num_saves=2)

    end = solve(0.001, 0.9999, probe.start).params
    with compilations() as compiled:
        solve(0.002, 0.9995, end)
    assert not compiled


def negated(params):
    return jax.tree.map(jnp.negative, params)


MISTAKES = {
    "optax": (lambda p: ut.Limit(p.noise, optimiser=optax.adam(1e-3)), "metric of an optax transformation"),
    "a class": (lambda p: ut.Limit(p.noise, optimiser=ut.Adam), "give an instance"),
    "no step size": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).solve(p.start, slow_time=1.0), r"kappa.*give `step_size=`",
    ),
    "decay without a step size": (
        lambda p: ut.Limit(p.noise, optimiser=ut.AdamW()).drift(p.start), r"decay/step_size; give `step_size=`",
    ),
    "a state without v": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).drift(p.start, state=p.start), r'`state` is the dict \{"v"',
    ),
    "a state of another shape": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).drift(p.start, state={"v": p.start[0]}), "make them match",
    ),
    "a state for SGD": (
        lambda p: ut.Limit(p.noise, optimiser=ut.SGD(momentum=0.5)).drift(p.start, state={"v": p.start}),
        "constant and has no state",
    ),
    "v = 0": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).drift(p.start, state=ut.Adam().init(p.start)),
        "is 0 for 40 parameters.*leave `state` out",
    ),
    "negative v": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).drift(p.start, state={"v": negated(p.start)}),
        "its values are finite and at least 0",
    ),
    "a finite step": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).drift(p.start, finite_step=0.1), "takes `step_size=`",
    ),
    "an unknown correction": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).drift(p.start, step_size=0.1, corrections=("metric",)),
        '"finite_step" and "fluctuating_metric"',
    ),
    "the name of the state": (
        lambda p: ut.Limit(p.noise, optimiser=ut.Adam()).solve(
            p.start, slow_time=0.1, step_size=0.1, observe={"v": lambda q: q[0]}
        ),
        "'v' is recorded",
    ),
    "nesterov": (
        lambda p: ut.Limit(p.noise, optimiser=ut.SGD(momentum=0.5, nesterov=True)).drift(p.start, step_size=0.1),
        "give `corrections=False`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_raise(mistake, as_a_user, x64):
    call, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError), match=message):
        call(draw_probe(jax.random.key(PROBE_KEY)))


def test_a_parameter_without_gradients_needs_eps(as_a_user, x64):
    task = ut.Regression(lambda p, x: p[0] * p[1] * x + 0 * p[2], jnp.ones(1), jnp.ones(1))
    noise, point = ut.LabelNoise(task), jnp.array([2.0, 0.5, 1.0])
    with pytest.raises(ValueError, match=r"1 parameters are 0 at this point.*`eps` above 0"):
        start_value("Limit.drift", noise, ut.Adam(eps=0.0), point, None)
    np.testing.assert_allclose(start_value("Limit.drift", noise, ut.Adam(), point, None), [0.25, 4.0, 0.0])


def test_corrections_are_chosen_by_name():
    assert chosen_corrections("f", True) == ("finite_step", "fluctuating_metric")
    assert chosen_corrections("f", False) == ()
    assert chosen_corrections("f", ["fluctuating_metric"]) == ("fluctuating_metric",)


def test_a_noise_without_the_derivatives_of_the_corrections_is_an_error(x64):
    """The covariance of the noise is smooth, but the derivative of its factor |x[1]| is not defined at 0."""
    noise = ut.Additive(
        circle(), lambda x: jnp.stack([jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0]) * jnp.sqrt(x[1] ** 2)], axis=1)
    )
    limit, point = ut.Limit(noise, optimiser=ut.SGD(momentum=0.5)), jnp.array([1.0, 0.0])
    with pytest.raises(ValueError, match=r"`Limit.drift`: a derivative of the noise .* give `corrections=False`"):
        limit.drift(point, step_size=0.1)
    np.testing.assert_allclose(limit.drift(point, step_size=0.1, corrections=False), 0, atol=1e-12)
