"""The limiting diffusion against exact solutions and SGD, and its error messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.manifold.losses import LOSSES, flat
from undertow.execution.compiling import compilations
from undertow.manifold.geometry import frame_at
from undertow.manifold.smoothness import kinks
from undertow.papers.zero_loss.models import curves
from undertow.papers.zero_loss.models.linear import LinearModel

KEY = jax.random.key(5)


def params_of(p):
    return p


def test_the_flow_against_its_exact_solution(x64):
    model = LinearModel.draw(jax.random.key(0), d=20, n=10, sparsity=3, dtype=jnp.float64)
    start = model.settle(model.start(1.0))
    path = ut.Limit(ut.LabelNoise(model.problem, 1.0)).solve(
        start, slow_time=5.0, observe={"p": params_of}, num_saves=10
    )
    assert path.clock == "slow_time"
    assert path.facts["motion"] == "flow"
    for k, t in enumerate(path.slow_time):
        exact = model.settle(model.decayed(model.start(1.0), t, 1.0))
        for mine, theirs in zip((leaf[k] for leaf in path.observed["p"]), exact, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert np.all(path.observed["distance"] < 1e-9)
    data = path.to_xarray()
    assert data["distance"].dims == ("slow_time",)


def test_the_generic_flow_equals_the_fast_one(x64):
    """The same label noise is given by its explicit factor, so that the general algorithm is used."""
    model = LinearModel.draw(jax.random.key(0), d=8, n=4, sparsity=2, dtype=jnp.float64)
    start = model.settle(model.start(1.0))
    labels = lambda p: ut.LabelNoise(model.problem, 0.8).covariance(p).parts[0].factor()
    slow = ut.Limit(ut.Additive(model.problem, labels)).solve(start, slow_time=1.0, num_saves=2)
    fast = ut.Limit(ut.LabelNoise(model.problem, 0.8)).solve(start, slow_time=1.0, num_saves=2)
    np.testing.assert_allclose(flat(slow.params), flat(fast.params), atol=1e-5)
    assert fast.diverged_at == -1


def test_brownian_motion_on_the_circle(x64):
    """Isotropic noise on the circle: E cos(angle) = exp(-t/2)."""
    noise = ut.Isotropic(curves.circle(), 1.0)
    path = ut.Limit(noise).solve(
        jnp.array([1.0, 0.0]), slow_time=1.0, key=KEY, seeds=4000, steps=200, num_saves=2, observe={"x": params_of}
    )
    assert path.facts["motion"] == "diffusion"
    x = path.observed["x"][:, :, 0]
    for k in (1, 2):
        expected, error = np.exp(-path.slow_time[k] / 2), x[:, k].std() / np.sqrt(4000)
        assert abs(x[:, k].mean() - expected) < 4.5 * error + 0.003
    assert path.observed["distance"].max() < 1e-3


@pytest.mark.slow
def test_isotropic_noise_on_the_ellipse(x64):
    """E x^2 = 2 in equilibrium; it would be 1.680 without the normal part and 2.338 with -1/2 for -1/4."""
    path = ut.Limit(curves.isotropic_ellipse()).solve(
        jnp.array([0.0, 1.0]), slow_time=16.0, key=KEY, seeds=2000, steps=3200, num_saves=8, observe={"x": params_of}
    )
    late = (path.observed["x"][:, 4:, 0] ** 2).mean(1)
    assert abs(late.mean() - 2) < 4.5 * late.std() / np.sqrt(2000) + 0.02


def test_the_motor_rotates(x64):
    start = jnp.array([1.0, 0.0, 0.0, 0.0, 0.0])
    path = ut.Limit(curves.motor(3)).solve(start, slow_time=4.0, num_saves=4, observe={"angle": curves.motor_angle})
    np.testing.assert_allclose(path.observed["angle"], path.slow_time * 3 / 8, atol=1e-4)


def test_finite_steps_increase_the_speed_of_the_motor_as_in_sgd(x64):
    """SGD rotates faster than the limit by O(step_size); `finite_step` predicts the mean difference over a turn."""
    eta, time = 0.1, 8.0
    at = lambda angle: jnp.array([np.cos(angle), np.sin(angle), 0.0, 0.0, 0.0])
    run = ut.descend(
        curves.motor(3), at(0.0), step_size=eta, steps=round(time / eta**2), key=KEY, every=20,
        observe={"angle": curves.motor_angle}, seeds=400,
    )  # fmt: skip
    angle = np.unwrap(run.observed["angle"], axis=1)[:, -1]
    speed, error = angle.mean() / time, angle.std() / np.sqrt(400) / time
    limit = ut.Limit(curves.motor(3))
    slowness = []
    for a in np.linspace(0, 2 * np.pi, 24, endpoint=False):
        drift = limit.drift(at(a), finite_step=eta)
        slowness.append(1 / float(drift[1] * np.cos(a) - drift[0] * np.sin(a)))
    plain, corrected = float(limit.drift(at(0.0))[1]), 1 / np.mean(slowness)
    assert plain == pytest.approx(0.375)
    assert speed - plain > 4 * error
    assert abs(speed - corrected) < 4 * error + 0.1 * eta * plain


def test_minibatch_noise_vanishes_at_interpolation(x64):
    problem, point = LOSSES["tanh network"]()
    limit = ut.Limit(ut.Minibatch(problem, 1))
    np.testing.assert_array_equal(flat(limit.drift(point)), 0)
    with pytest.warns(UserWarning, match="null drift"):
        path = limit.solve(point, slow_time=3.0, observe={"p": flat})
    np.testing.assert_allclose(path.observed["p"][-1], flat(point), atol=1e-9)
    assert path.facts["motion"] == "none"


def test_a_flow_with_tangent_noise_at_its_end_raises(x64):
    """The noise has no tangent part at the start, but has one later."""
    ellipse, start = curves.ellipse(), jnp.array([2 * np.cos(1.0), np.sin(1.0)])

    def factor(x):
        normal = jnp.array([x[0] / 4, x[1]]) / jnp.sqrt(x[0] ** 2 / 16 + x[1] ** 2)
        tangent = jnp.array([-normal[1], normal[0]])
        return jnp.stack([normal, (x[0] - start[0]) * tangent], axis=1)

    with pytest.raises(ValueError, match=r"at the start, but one at the end.*not a flow"):
        ut.Limit(ut.Additive(ellipse, factor)).solve(start, slow_time=1.0, num_saves=1)


def test_solving_again_compiles_nothing(x64):
    problem, point = LOSSES["linear model"]()
    solve = lambda strength, time: ut.Limit(ut.LabelNoise(problem, strength)).solve(point, slow_time=time, num_saves=3)
    solve(1.0, 1.0)
    with compilations() as compiled:
        solve(0.5, 2.0)
    assert compiled == []


def test_kinks_raise_unless_piecewise_is_given(x64):
    x = jax.random.normal(jax.random.key(0), (3, 4), jnp.float64)
    params = {"inner": jax.random.normal(jax.random.key(1), (6, 4), jnp.float64), "outer": jnp.ones(6)}
    for name, activation in {"relu": jax.nn.relu, "leaky_relu": jax.nn.leaky_relu, "abs": jnp.abs}.items():
        predict = lambda p, z, a=activation: p["outer"] @ a(p["inner"] @ z)
        task = ut.Regression(predict, x, jax.vmap(lambda z, f=predict: f(params, z))(x))
        with pytest.raises(ValueError, match=f"kinks .{name}.*almost everywhere.*piecewise=True"):
            ut.Limit(ut.LabelNoise(task)).drift(params)
        drift = ut.Limit(ut.LabelNoise(task), piecewise=True).drift(params)
        trace = lambda p, t=task: jnp.sum(jax.vmap(lambda z: flat(jax.grad(t.predict)(p, z)) ** 2)(x)) / 3
        frame = frame_at(task, params)
        np.testing.assert_allclose(flat(drift), -frame.project(flat(jax.grad(trace)(params))) / 4, atol=1e-9)
    for smooth in (jnp.tanh, jax.nn.gelu, jax.nn.softplus, jax.nn.softmax, jax.nn.swish):
        task = ut.Regression(lambda p, z, a=smooth: p["outer"] @ a(p["inner"] @ z), x, jnp.ones(3))
        assert kinks(task, params) == []


def test_a_flow_into_a_crossing_raises(x64):
    # u v = 0, two lines that cross: on v = 0 the flow is u = exp(-t/2), into the crossing, where H vanishes
    crossing = ut.Regression(lambda p, z: p[0] * p[1] * z, jnp.array([1.0]), jnp.array([0.0]))
    limit = ut.Limit(ut.LabelNoise(crossing))
    assert float(limit.solve(jnp.array([1.0, 0.0]), slow_time=10.0).params[0]) == pytest.approx(np.exp(-5.0), rel=1e-3)
    with pytest.raises(ValueError, match=r"rank of the Hessian falls below its 1 .* by slow time 30,"):
        limit.solve(jnp.array([1.0, 0.0]), slow_time=40.0, num_saves=40)


SQUARE = ut.Regression(lambda w, z: w @ z, jnp.eye(2), jnp.ones(2))

MISTAKES = {
    "a point off the manifold": (
        lambda p, x: ut.Limit(ut.LabelNoise(p)).drift(jax.tree.map(lambda a: a + 0.1, x)),
        r"away from the manifold.*ut\.settle",
    ),
    "as many equations as parameters": (
        lambda p, x: ut.Limit(ut.LabelNoise(SQUARE)).drift(jnp.ones(2)),
        "2 equations .* for 2 parameters",
    ),
    "a factor of the wrong shape": (lambda p, x: ut.second_derivative(p, x, x), "one extra trailing axis"),
    "time backwards": (
        lambda p, x: ut.Limit(ut.LabelNoise(p)).solve(x, slow_time=-1.0), "`slow_time` must be a finite number",
    ),
    "the old name of slow_time": (
        lambda p, x: ut.Limit(ut.LabelNoise(p)).solve(x, time=1.0), r"called `slow_time` now.*solve\(slow_time=",
    ),
    "the old name of num_saves": (
        lambda p, x: ut.Limit(ut.LabelNoise(p)).solve(x, slow_time=1.0, looks=3), "called `num_saves` now",
    ),
    "a diffusion without a key": (lambda p, x: ut.Limit(ut.Isotropic(p)).solve(x, slow_time=1.0), "give `key=`"),
    "a problem where a noise is meant": (lambda p, x: ut.Limit(p), "give a noise"),
    "a finite step that diverges": (
        lambda p, x: ut.Limit(ut.LabelNoise(p)).drift(x, finite_step=1e3),
        r"`Limit\.drift\(finite_step=1000\.0\)`: SGD diverges.*give less than",
    ),
    "a negative finite step": (lambda p, x: ut.Limit(ut.LabelNoise(p)).drift(x, finite_step=-0.1), "`finite_step`"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_input_raises(mistake, as_a_user, x64):
    problem, point = LOSSES["linear model"]()
    call, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError), match=message):
        call(problem, point)


def test_the_parts_are_half_of_those_of_the_second_derivative(x64):
    """The noise has a tangent, a normal and a mixed part, and the normal curvature changes along the circle."""
    problem = ut.Problem(lambda x, _: (1 + x[0] / 2) * (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    point, columns = jnp.array([0.6, 0.8]), jnp.array([[1.0, 0.3], [0.2, 0.7]])
    parts = ut.Limit(ut.Additive(problem, lambda _: columns)).parts(point)
    twice = ut.second_derivative(problem, point, columns)
    for part, derivative in zip(parts, twice, strict=True):
        assert np.linalg.norm(derivative) > 1e-2
        np.testing.assert_allclose(part, derivative / 2, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("optimiser", [None, ut.SGD(momentum=0.9), ut.Adam()])
def test_the_limit_is_computed_in_double_precision_where_it_is_on(dtype, optimiser, x64):
    task = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.ones(1, dtype), jnp.ones(1, dtype))
    limit, point = ut.Limit(ut.LabelNoise(task, 0.7), optimiser=optimiser), jnp.array([2.0, 0.5])
    for evaluate in (limit.drift, lambda p: limit.solve(p, slow_time=0.01, step_size=0.01, num_saves=1).params):
        np.testing.assert_allclose(evaluate(point.astype(jnp.float32)), evaluate(point), rtol=1e-9)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_diffusion_is_computed_in_double_precision_where_it_is_on(dtype, x64):
    task = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.ones(1, dtype), jnp.ones(1, dtype))
    solve = lambda p: ut.Limit(ut.Isotropic(task, 0.1)).solve(p, slow_time=0.01, key=0, seeds=2).params
    point = ut.settle(task, jnp.array([2.0, 0.3], jnp.float32)).params
    assert point.dtype == jnp.float64
    np.testing.assert_allclose(solve(point.astype(jnp.float32)), solve(point), atol=1e-6)
