"""`average`: agreement with SGD and with `Limit`, its trajectory and regime, and mistakes."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from tests.mistakes import assert_explained
from undertow.dynamics import average as module
from undertow.execution.compiling import compilations
from undertow.papers.zero_loss.models.curves import circle
from undertow.papers.zero_loss.models.linear import LinearModel


def scale(p, x):
    return p[0] * p[1] * x


def product(dtype=None):
    """Return u v = 1 as a regression with two parameters, of which label noise balances the size."""
    one = jnp.ones(1, dtype)
    return ut.Regression(scale, one, one)


def test_the_flow_is_the_mean_of_sgd(x64):
    """From a start off the manifold: within four standard errors and 2 % of the way."""
    noise, start = ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.1])
    flow = ut.average(noise, start, step_size=0.02, time=60.0, observe={"p": lambda p: p})
    run = ut.descend(noise, start, step_size=0.02, steps=3000, every=150, seeds=512, key=0, observe={"p": lambda p: p})
    assert run.observed["p"].shape[1:] == flow.observed["p"].shape
    np.testing.assert_allclose(run.time, flow.time)
    mean = np.asarray(run.observed["p"]).mean(0)
    error = np.asarray(run.observed["p"]).std(0) / np.sqrt(512)
    moved = np.linalg.norm(flow.observed["p"][-1] - np.asarray(start))
    assert moved > 0.5
    assert (np.abs(flow.observed["p"] - mean) <= 4 * error + 0.02 * moved).all()
    # the loss at the mean is almost zero: the mean loss is that of the fluctuations
    losses = np.asarray(jax.vmap(noise.problem.loss)(run.params))
    predicted = flow.observed["mean_loss"][-1]
    assert abs(losses.mean() - predicted) < 4 * losses.std() / np.sqrt(512) + 0.05 * predicted


def test_params_named_v_are_not_taken_for_the_state_of_adam(x64):
    """SGD with decay or momentum has a velocity with the names of params."""
    task, arrays = ut.Regression(lambda p, x: p["u"] * p["v"] * x, jnp.ones(1), jnp.ones(1)), jnp.array([2.0, 0.1])
    named, sgd = {"u": arrays[0], "v": arrays[1]}, ut.SGD(weight_decay=0.01, momentum=0.5)
    flow = ut.average(ut.LabelNoise(task, 1.0), named, step_size=0.02, time=5.0, optimiser=sgd)
    same = ut.average(ut.LabelNoise(product(), 1.0), arrays, step_size=0.02, time=5.0, optimiser=sgd)
    np.testing.assert_allclose([flow.params["u"], flow.params["v"]], same.params, rtol=1e-10)
    run = ut.diffuse(ut.LabelNoise(task, 1.0), named, step_size=0.02, time=0.2, optimiser=sgd, key=0)
    assert set(run.params) == {"u", "v"}


def test_another_length_compiles_nothing_new_for_adam(x64):
    solve = lambda eta, time: ut.average(
        ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.6]), step_size=eta, time=time, optimiser=ut.Adam()
    )
    solve(0.002, 1.0)
    with compilations() as compiled:
        solve(0.003, 2.0)
    assert compiled == []


def test_the_flow_tends_to_the_limit_for_small_steps(x64):
    """From a point of the manifold, at the same slow time: the distance falls in proportion to the step size."""
    noise, start = ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.5])
    slow_time = 0.4
    limit = ut.Limit(noise).solve(start, slow_time=slow_time, tolerance=1e-10).params
    distances = []
    for eta in (0.02, 0.01, 0.005):
        flow = ut.average(noise, start, step_size=eta, time=slow_time / eta, tolerance=1e-8)
        distances.append(np.linalg.norm(flow.params - limit))
    np.testing.assert_allclose(np.divide(distances[:-1], distances[1:]), 2, rtol=0.15)
    assert distances[-1] < 0.02 * np.linalg.norm(limit - start)


def test_the_trajectory_has_its_clocks_and_facts(x64):
    noise, start = ut.LabelNoise(product(), 0.5), {"u": jnp.array(2.0), "v": jnp.array(0.1)}
    task = ut.Regression(lambda p, x: p["u"] * p["v"] * x, jnp.ones(1), jnp.ones(1))
    noise = ut.LabelNoise(task, 0.5)
    flow = ut.average(noise, start, step_size=0.1, time=2.0, num_saves=4, closure="finite_step")
    np.testing.assert_allclose(flow.time, [0, 0.5, 1, 1.5, 2])
    np.testing.assert_allclose(flow.step, flow.time / 0.1)
    np.testing.assert_allclose(flow.slow_time, flow.time * 0.1)
    assert flow.params["u"].shape == ()
    assert not flow.diverged
    assert float(flow.diverged_at) == -1
    assert flow.facts["made_by"] == "average"
    assert flow.facts["closure"] == "finite_step"
    assert flow.facts["solver_steps"] >= 4
    assert set(flow.observed) == {"loss", "excess_loss", "mean_loss"}
    assert "regime" in str(flow)


def test_the_regime_has_the_largest_values_along_the_path(x64):
    """At (2, 1/2) the curvature u^2 + v^2 is 4.25, and it falls from there."""
    flow = ut.average(ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.5]), step_size=0.1, time=50.0)
    values = {parameter.name: parameter.value for parameter in flow.regime.parameters}
    assert values["eta * lambda_max"] == pytest.approx(0.425, rel=1e-6)
    assert flow.regime.valid
    assert 0 < values["spread / |params|"] < 0.3


@pytest.mark.parametrize(("step_size", "name"), [(0.6, "eta * lambda_max"), (0.4, "growth")])
def test_steps_that_are_too_large_are_outside_the_theory(step_size, name, x64):
    """At curvature 4.25 gradient descent diverges above the step size 2/4.25; the moments of two samples do earlier."""
    if name == "growth":
        task = ut.Regression(scale, jnp.array([0.0, 2**0.5]), jnp.array([0.0, 2**0.5]))
    else:
        task = product()
    flow = ut.average(ut.LabelNoise(task, 0.1), jnp.array([2.0, 0.5]), step_size=step_size, time=1.0)
    assert not flow.regime.valid
    assert name in {parameter.name for parameter in flow.regime.parameters if not parameter.valid}


def test_the_estimated_error_is_the_distance_to_the_mean_of_sgd(x64):
    """The closure "small_step" is far off at a large step; other seeds measure its error independently."""
    noise, start, eta, steps = ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.5]), 0.2, 50
    flow = ut.average(noise, start, step_size=eta, time=eta * steps, closure="small_step", check_seeds=2048)
    run = ut.descend(noise, start, step_size=eta, steps=steps, seeds=4096, key=7)
    gap = np.asarray(run.params).mean(0) - flow.params
    measured = np.linalg.norm(gap) / np.linalg.norm(flow.params - start)
    assert flow.regime.estimated_error == pytest.approx(measured, rel=0.3)
    assert f"estimated error {100 * flow.regime.estimated_error:.2g}%" in str(flow)
    assert "simulated spread / |params|" in {parameter.name for parameter in flow.regime.parameters}


def test_the_flow_of_a_linear_model_has_no_error_that_runs_resolve(x64):
    """The averaged flow is exact there, apart from the second order of the discretisation."""
    task = ut.Regression(lambda w, x: w * x, jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0]))
    flow = ut.average(ut.Minibatch(task, 1), jnp.array(3.0), step_size=0.1, time=50.0, check_seeds=256)
    assert flow.regime.estimated_error is None
    assert "The error is below" in str(flow)


def test_the_reason_for_a_missing_estimate_is_a_note(x64):
    noise = ut.LabelNoise(product(), 0.1)
    flow = ut.average(noise, jnp.array([2.0, 0.5]), step_size=0.1, time=1.0, estimate_error=False)
    assert flow.regime.estimated_error is None
    assert "check_seeds=" in flow.regime.notes[0]
    # gradient descent diverges at this step size, the flow does not
    far = ut.average(noise, jnp.array([4.0, 1.0]), step_size=0.5, time=50.0, check_seeds=64)
    assert far.regime.estimated_error is None
    assert "diverged" in far.regime.notes[0]
    assert not far.regime.valid


def test_the_estimated_error_comes_from_the_next_order(x64):
    """At a large step "small_step" is far off: the estimate against runs of SGD; other results do not change."""
    noise, start = ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.5])
    settings = {"step_size": 0.1, "time": 10.0, "closure": "small_step", "num_saves": 3, "tolerance": 1e-7}
    flow = ut.average(noise, start, **settings)  # small enough for the estimate by default
    run = ut.descend(noise, start, step_size=0.1, steps=100, seeds=20_000, key=7)
    measured = np.linalg.norm(np.asarray(run.params).mean(0) - flow.params) / np.linalg.norm(flow.params - start)
    assert measured > 0.02
    assert flow.regime.estimated_error == pytest.approx(measured, rel=0.3)
    assert "from the next order" in str(flow)
    plain = ut.average(noise, start, **settings, estimate_error=False)
    assert plain.regime.estimated_error is None
    np.testing.assert_allclose(flow.params, plain.params, atol=1e-5)
    np.testing.assert_allclose(flow.observed["loss"], plain.observed["loss"], atol=1e-5)
    np.testing.assert_array_equal(flow.time, plain.time)


def wide(size):
    """Return label noise on one linear equation with `size` unknowns."""
    task = ut.Regression(lambda w, x: w @ x, jnp.ones((1, size)), jnp.ones(1))
    return ut.LabelNoise(task, 0.1), jnp.zeros(size)


@pytest.mark.parametrize("wanted", [None, True])
def test_too_many_parameters_for_the_next_order_are_a_note(wanted, x64):
    flow = ut.average(*wide(101), step_size=0.001, time=0.1, estimate_error=wanted)
    assert flow.regime.estimated_error is None
    assert "at most 100 parameters" in flow.regime.notes[0]
    assert "check_seeds=64" in str(flow)


def test_an_expensive_estimate_is_made_on_request_only(x64):
    noise, start = wide(60)
    flow = ut.average(noise, start, step_size=0.001, time=0.1)
    assert flow.regime.estimated_error is None
    assert "60 parameters: give `estimate_error=True`" in str(flow)


def test_divergence_is_data(x64):
    """d w/dt = w^2 from 1 reaches infinity at the time 1."""
    task = ut.Problem(lambda w, _: -(w[0] ** 3) / 3, jnp.zeros(1))
    settings = {"time": 2.0, "num_saves": 7, "closure": "small_step"}
    flow = ut.average(ut.Isotropic(task, 1e-3), jnp.ones(1), step_size=1e-3, **settings)
    assert bool(flow.diverged)
    assert float(flow.diverged_at) == pytest.approx(8 / 7 / 1e-3)  # the first observation after the time 1
    assert np.isfinite(flow.params).all()
    np.testing.assert_array_equal(np.isnan(flow.observed["loss"]), flow.time > 1.0)


@pytest.mark.parametrize(
    ("optimiser", "closure"),
    [(None, "finite_step"), (ut.SGD(momentum=0.5), "finite_step"), (ut.Adam(eps=0.1), "small_step")],
)
def test_a_start_without_a_velocity_is_an_error(optimiser, closure, x64):
    """The covariance 1 + x[1]^2 of the noise is smooth, but its factor |x[1]| has no derivative at 0."""
    noise = ut.Additive(
        circle(), lambda x: jnp.stack([jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0]) * jnp.sqrt(x[1] ** 2)], axis=1)
    )
    start, settings = jnp.array([1.0, 0.0]), {"step_size": 0.1, "time": 1.0, "optimiser": optimiser}
    with pytest.raises(ValueError, match=f"a derivative of the noise is not finite at these params.*{closure}"):
        ut.average(noise, start, **settings)
    assert not ut.average(noise, start, closure=closure, **settings).diverged
    kink = ut.Problem(lambda w, _: jnp.sqrt(jnp.sum(w**2)), jnp.zeros(1))
    what = "the mean of the squared gradients" if isinstance(optimiser, ut.Adam) else "a derivative of the loss"
    with pytest.raises(ValueError, match=f"{what} is not finite at these params"):
        ut.average(ut.Isotropic(kink, 0.1), jnp.zeros(2), **settings)


def test_a_flow_without_noise_from_zero_is_inside_the_theory(x64):
    noise = ut.LabelNoise(ut.Regression(lambda w, x: w * x, jnp.array([1.0]), jnp.array([2.0])), strength=0.0)
    regime = ut.average(noise, jnp.array(0.0), step_size=0.05, time=1.0).regime
    assert regime.valid
    assert regime.estimated_error < 0.01


@pytest.mark.parametrize("optimiser", [ut.SGD(weight_decay=0.5), ut.SGD(momentum=0.5, weight_decay=0.5)])
def test_weight_decay_is_that_of_the_loss(optimiser, x64):
    """The means and variances with the penalty in the loss, for a loss that is not quadratic."""
    samples = jnp.array([-1.0, 0.0, 2.0])
    loss = lambda w, s: 0.1 * w**2 / 2 + w**3 / 6 - w * s
    penalised = ut.Problem(lambda w, s: loss(w, s) + 0.25 * w**2, samples)
    without = ut.SGD(momentum=optimiser.momentum or 0.0)
    settings = {"step_size": 0.1, "time": 8.0, "observe": {"w": lambda w: w, "square": lambda w: w**2}}
    flow = ut.average(ut.Minibatch(ut.Problem(loss, samples), 1), jnp.array(1.0), optimiser=optimiser, **settings)
    same = ut.average(ut.Minibatch(penalised, 1), jnp.array(1.0), optimiser=without, estimate_error=False, **settings)
    assert same.observed["excess_square"][-1] > 0.05
    for name in ("w", "mean_w", "excess_square"):
        np.testing.assert_allclose(flow.observed[name], same.observed[name], rtol=1e-3, atol=1e-5)


def test_the_memory_of_momentum_is_compared_with_the_fastest_relaxation(x64):
    """With the curvatures 0.1 and 4: eta 4/(1 - beta)^2."""
    bowl = ut.Problem(lambda w, s: (0.1 * w[0] ** 2 + 4 * w[1] ** 2) / 2 + s * w[1], jnp.array([-1.0, 1.0]))
    settings = {"step_size": 0.002, "time": 20.0, "optimiser": ut.SGD(momentum=0.9)}
    rows = {row.name: row for row in ut.average(ut.Minibatch(bowl, 1), jnp.ones(2), **settings).regime.parameters}
    assert rows["eta lambda/(1 - beta)^2"].value == pytest.approx(0.8)
    assert "finite step / drift" not in rows  # the drift by noise is 0 for a quadratic loss
    nesterov = settings | {"optimiser": ut.SGD(momentum=0.9, nesterov=True)}
    assert "not Nesterov's" in str(ut.average(ut.Minibatch(bowl, 1), jnp.ones(2), **nesterov).regime)


def long_product():
    return ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.5]), {"step_size": 0.0025, "time": 800.0}


def long_sparse():
    model = LinearModel.draw(jax.random.key(3), d=30, n=12, sparsity=3, dtype=jnp.float64)
    return ut.LabelNoise(model.problem, 1.0), model.start(1.0), {"step_size": 0.002, "time": 400.0}


def long_adam():
    return ut.LabelNoise(product(), 1.0), jnp.array([2.0, 0.5]), {
        "step_size": 0.002, "time": 20.0, "optimiser": ut.Adam(b2=0.99)
    }  # fmt: skip


@pytest.mark.parametrize("make", [long_product, long_sparse, long_adam])
def test_the_error_of_the_solver_does_not_add_up(make, x64):
    """In both precisions, within a thousandth of the path; a tolerance of 1e-4 was off by 0.6 %, 1e-3 by 6 %."""
    noise, start, settings = make()
    flat = lambda p: jax.flatten_util.ravel_pytree(p)[0]
    solve = lambda *problem, **options: ut.average(*problem, **settings, observe={"p": flat}, num_saves=4, **options)
    double = solve(noise, start)
    with jax.enable_x64(False):
        single = solve(*jax.tree.map(lambda x: jnp.asarray(np.asarray(x)) if eqx.is_array(x) else x, (noise, start)))
    assert (flat(double.params).dtype, flat(single.params).dtype) == (jnp.float64, jnp.float32)
    exact = solve(noise, start, tolerance=1e-8).observed["p"]
    length = np.linalg.norm(np.diff(exact, axis=0), axis=1).sum()
    for flow in (double, single):
        assert np.linalg.norm(flow.observed["p"] - exact, axis=1).max() < 1e-3 * length


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("optimiser", [None, ut.Adam()])
def test_the_flow_is_computed_in_double_precision_where_it_is_on(dtype, optimiser, x64):
    """Data and params in single precision stopped the solver with a message of JAX."""
    start, settings = jnp.array([2.0, 0.1]), {"step_size": 0.1, "time": 1.0, "optimiser": optimiser}
    double = ut.average(ut.LabelNoise(product(jnp.float64), 0.5), start, **settings)
    mixed = ut.average(ut.LabelNoise(product(dtype), 0.5), start.astype(jnp.float32), **settings)
    assert mixed.params.dtype == jnp.float64
    np.testing.assert_allclose(mixed.params, double.params, rtol=1e-6)


def test_whole_numbers_of_the_user_are_floats(x64):
    noise = ut.LabelNoise(product(), 0.5)
    flow = ut.average(noise, jnp.array([2.0, 0.5]), step_size=np.float32(0.125), time=4)
    same = ut.average(noise, jnp.array([2.0, 0.5]), step_size=0.125, time=4.0)
    np.testing.assert_array_equal(flow.params, same.params)


MISTAKES = {
    "no noise": (lambda n, p: ut.average(n.problem, p, step_size=0.1, time=1.0), "give a noise"),
    "step size": (lambda n, p: ut.average(n, p, step_size=0.0, time=1.0), "step_size=0.*above 0"),
    "time": (lambda n, p: ut.average(n, p, step_size=0.1, time=-1.0), "time=-1"),
    "closure": (lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, closure="exact"), '"small_step", "finite_step"'),
    "saves": (lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, num_saves=0), "num_saves"),
    "steps": (lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, max_steps=0), "max_steps"),
    "runs": (lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, check_seeds=1), "check_seeds=1.*at least 2"),
    "tolerance": (lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, tolerance=float("nan")), "tolerance"),
    "optax": (
        lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, optimiser=optax.adam(1e-3)),
        "the metric of an optax transformation is not known",
    ),
    "runs of Adam": (
        lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, optimiser=ut.Adam(), check_seeds=4),
        "known for SGD alone",
    ),
    "a state of another shape": (
        lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, optimiser=ut.Adam(), optimiser_state={"v": jnp.ones(1)}),
        r'state\["v"\]',
    ),
    "the name of the state": (
        lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, optimiser=ut.Adam(), observe={"v": jnp.sum}),
        "'v' is recorded",
    ),
    "name": (
        lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, observe={"excess_loss": lambda q: q[0]}),
        "'excess_loss' is recorded by `average` itself",
    ),
    "another name": (
        lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, observe={"a": jnp.sum, "excess_a": jnp.sum}),
        "'excess_a' is recorded",
    ),
    "name of a mean": (
        lambda n, p: ut.average(n, p, step_size=0.1, time=1.0, observe={"a": jnp.sum, "mean_a": jnp.sum}),
        "'mean_a' is recorded",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    call, message = MISTAKES[mistake]
    assert_explained(lambda: call(ut.LabelNoise(product(), 0.5), jnp.array([2.0, 0.5])), message)


def test_a_population_is_refused(as_a_user):
    people = ut.Population(lambda w, x: jnp.sum((w - x) ** 2), lambda key: jax.random.normal(key, (2,)))
    call = lambda: ut.average(ut.Isotropic(people, 0.1), jnp.ones(2), step_size=0.1, time=1.0)
    assert_explained(call, r"population\.sample")


def test_large_problems_without_structure_are_refused(as_a_user, monkeypatch):
    monkeypatch.setattr(module, "DENSE_LIMIT", 1)
    task = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.zeros(3))
    call = lambda: ut.average(ut.Minibatch(task, 1), jnp.ones(2), step_size=0.1, time=1.0)
    assert_explained(call, "2 parameters.*the limit is 1")
    ut.average(ut.LabelNoise(product(), 0.5), jnp.array([2.0, 0.5]), step_size=0.1, time=1.0)
