"""Points that are not on a smooth manifold of minimisers, and paths that reach such a point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.manifold import paths
from undertow.manifold.minimum import frame_of_minimum
from undertow.papers.zero_loss.models import curves


def alone(loss):
    return ut.Problem(lambda x, _: loss(x), jnp.zeros(1))


def regression(predict, targets):
    return ut.Regression(lambda p, k: jnp.stack(predict(p))[k], jnp.arange(len(targets)), jnp.asarray(targets))


REFUSED = {
    "a saddle": (alone(lambda x: (x[0] ** 2 - x[1] ** 2) / 2 + 0 * x[2]), "is a saddle.*eigenvalue .* is -1 "),
    "a slight saddle": (alone(lambda x: (x[0] ** 2 - 1e-5 * x[1] ** 2) / 2 + 0 * x[2]), "is a saddle.*-1e-05"),
    "a maximum": (alone(lambda x: -(x[0] ** 2) - x[1] ** 2 + 0 * x[2]), "is a maximum"),
    "no curvature": (alone(lambda x: jnp.sum(x**4)), "Hessian is zero"),
    "a constant loss": (alone(lambda x: 0 * jnp.sum(x)), "Hessian is zero"),
    "two lines that cross": (alone(lambda x: (x[0] * x[1]) ** 2 / 2), "Hessian is zero.*cross"),
    "two surfaces that cross": (alone(lambda x: (x[0] * x[1]) ** 2 / 2 + x[2] ** 2), r"loses rank here \(rank 1\)"),
    "two curved ones": (
        alone(lambda x: ((x[0] + x[2] ** 2) * (x[1] - x[0] ** 2)) ** 2 / 2 + (x[2] - x[0] ** 2) ** 2), "loses rank here"
    ),
    "a minimum of the fourth order": (alone(lambda x: x[0] ** 4 + x[1] ** 2 + 0 * x[2]), "loses rank here"),
    "no minimum in the third order": (alone(lambda x: x[0] ** 3 + x[1] ** 2 + 0 * x[2]), "loses rank here"),
    "an isolated minimum": (alone(lambda x: jnp.sum(x**2)), "full rank, 3.*no manifold"),
    "a regression at a crossing": (regression(lambda p: (p[0] * p[1], p[2]), [0.0, 0.0]), "loses rank here"),
    "a regression without curvature": (regression(lambda p: (p[0] * p[1],), [0.0]), "Hessian is zero"),
    "a regression at its saddle": (regression(lambda p: (p[0] * p[1] + 0 * p[2], p[2]), [1.0, 0.0]), "is a saddle"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_points_without_a_manifold_of_minimisers_raise(name, x64):
    problem, message = REFUSED[name]
    with pytest.raises(ValueError, match="`Limit.drift`.*" + message):
        ut.Limit(ut.Isotropic(problem)).drift(jnp.zeros(3))


def test_every_function_raises_at_such_points(x64):
    crossing, origin = REFUSED["two lines that cross"][0], jnp.zeros(2)
    limit = ut.Limit(ut.Isotropic(crossing))
    with pytest.raises(ValueError, match=r"`Limit\.parts`.*Hessian is zero"):
        limit.parts(origin)
    with pytest.raises(ValueError, match=r"`Limit\.solve`.*Hessian is zero"):
        limit.solve(origin, slow_time=1.0, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"`second_derivative`.*Hessian is zero"):
        ut.second_derivative(crossing, origin, jnp.ones((2, 1)))
    labels = regression(lambda p: (p[0] * p[1], p[2]), [0.0, 0.0])
    with pytest.raises(ValueError, match=r"`Limit\.drift`.*loses rank here"):
        ut.Limit(ut.LabelNoise(labels)).drift(jnp.zeros(3))


@pytest.mark.parametrize("distance", [0.0, 1e-9, 1e-7, 1e-6, 1e-5])
def test_a_point_a_little_off_the_manifold(distance, x64):
    """Off the circle the tangent curvature is of the size of the distance and must not count as normal curvature."""
    drift = ut.Limit(ut.Isotropic(curves.circle())).drift(jnp.array([1 + distance, 0.0]))
    np.testing.assert_allclose(drift, [-0.5, 0.0], atol=1e-6)


def test_single_precision_after_settling():
    circle = curves.circle()
    point = ut.settle(circle, jnp.array([0.9, 1.2])).params
    drift = ut.Limit(ut.Isotropic(circle)).drift(point)
    np.testing.assert_allclose(drift, [-0.3, -0.4], atol=1e-3)


@pytest.mark.parametrize("kind", ["problem", pytest.param("regression", marks=pytest.mark.slow)])
def test_absorption_at_a_crossing(kind, x64):
    """On (u v)^2/2 with isotropic noise u is a Bessel process of dimension 0: P(absorbed by t) = exp(-1/2t).

    The share at two times is within 4 standard errors; a correct solver fails for one of 8,000 keys. A solver whose
    runs jump across the crossing absorbs none of them.
    """
    crossing = alone(lambda x: (x[0] * x[1]) ** 2 / 2)
    if kind == "regression":
        crossing = regression(lambda p: (p[0] * p[1],), [0.0])
    seeds = 400
    observe = {"u": lambda p: p[0], "positive": lambda p: p[0] > 0}
    with pytest.warns(UserWarning, match=rf"of {seeds} runs stop where the rank of the Hessian falls below its 1 "):
        path = ut.Limit(ut.Isotropic(crossing)).solve(
            jnp.array([1.0, 0.0]),
            slow_time=4.0,
            key=jax.random.key(1),
            seeds=seeds,
            steps=200,
            num_saves=8,
            observe=observe,
        )
    for time in (0.5, 4.0):
        expected = np.exp(-1 / (2 * time))
        absorbed = np.mean(path.diverged & (path.diverged_at <= time))
        assert abs(absorbed - expected) < 4 * np.sqrt(expected * (1 - expected) / seeds)
    # NaN after the absorption only; no path has jumped across
    u, dead = path.observed["u"], path.slow_time >= np.where(path.diverged, path.diverged_at, np.inf)[:, None]
    np.testing.assert_array_equal(np.isnan(u), dead)
    assert np.all(u[~dead] > 0)
    assert np.all(path.observed["positive"][~dead] == 1)
    np.testing.assert_array_equal(path.diverged_at[~path.diverged], -1)
    assert np.all(np.abs(path.params[path.diverged][:, 0]) < 1e-3)


def test_a_single_run_stops_at_the_crossing(x64):
    crossing = alone(lambda x: (x[0] * x[1]) ** 2 / 2)
    with pytest.warns(UserWarning, match="1 of 1 runs stop .* the first at slow time "):
        path = ut.Limit(ut.Isotropic(crossing)).solve(
            jnp.array([0.1, 0.0]),
            slow_time=4.0,
            key=jax.random.key(0),
            steps=10,
            num_saves=2,
            observe={"u": lambda p: p[0]},
        )
    assert path.diverged
    assert 0 < path.diverged_at < 4
    assert np.isnan(path.observed["u"][-1])
    assert "diverged_at" in path.to_xarray()


def test_mixed_noise_adds_a_drift_to_the_angle(x64):
    """sigma = t + rho n on the circle: the mixed part gives the Brownian motion of the angle the drift -rho.

    E exp(i angle) = exp(i t/2 - t/2) at rho = -1/2. Both coordinates are within 4 standard errors; a correct
    solver fails for one of 8,000 keys. Without the mixed part E sin(angle) is 0, 10 standard errors away.
    """
    path = ut.Limit(curves.mixed_circle(-0.5)).solve(
        jnp.array([1.0, 0.0]),
        slow_time=1.0,
        key=jax.random.key(3),
        seeds=500,
        steps=100,
        num_saves=1,
        observe={"x": lambda x: x},
    )
    x = path.observed["x"][:, -1]
    expected = np.exp(-0.5) * np.array([np.cos(0.5), np.sin(0.5)])
    error = x.std(axis=0, ddof=1) / np.sqrt(500)
    assert expected[1] > 8 * error[1]
    assert np.all(np.abs(x.mean(axis=0) - expected) < 4 * error)
    assert not path.diverged.any()


def test_the_distance_is_relative_to_the_size_of_the_params(x64):
    """5e-6 off the manifold at |params| = 1,000 is exact to 5e-9, so that a curvature of 1e-5 is distinct from zero."""
    valley = alone(lambda x: ((x[0] - 1000) ** 2 + 1e-5 * x[1] ** 2) / 2 + 0 * x[2])
    frame = frame_of_minimum("f", valley, jnp.array([1000 + 5e-6, 0.0, 0.0]))
    assert int(frame.rank) == 2


def test_the_distance_of_small_params_is_absolute(x64):
    """Params of size 1e-5 are 1e-5 off the manifold: close enough relative to 1 + |params|."""
    valley = alone(lambda x: x[0] ** 2 * (1 + x[1]) / 2)
    frame = frame_of_minimum("f", valley, jnp.array([1e-5, 0.0]))
    assert int(frame.rank) == 1
    np.testing.assert_allclose(frame.point, 0.0, atol=1e-9)


def test_a_slope_along_the_valley_counts_relative_to_the_curvature(x64):
    """The slope 1e-7 is a tenth of the curvature 1e-6: the point is on no manifold of minimisers."""
    slope = alone(lambda x: 1e-6 * x[0] ** 2 / 2 + 1e-7 * x[1])
    with pytest.raises(ValueError, match="away from the manifold of minimisers"):
        frame_of_minimum("f", slope, jnp.zeros(2))


def test_a_diffusion_that_needs_more_steps_than_allowed_stops(x64, monkeypatch):
    """One step towards the crossing resolves less than the time asked for."""
    monkeypatch.setattr(paths, "MOST_STEPS", 0)
    crossing = alone(lambda x: (x[0] * x[1]) ** 2 / 2)
    with pytest.warns(UserWarning, match="1 of 1 runs stop"):
        path = ut.Limit(ut.Isotropic(crossing)).solve(
            jnp.array([1.0, 0.0]), slow_time=1.0, key=jax.random.key(0), steps=1, num_saves=1
        )
    assert path.diverged
    assert path.diverged_at < 1


def test_single_precision_on_the_manifold_and_off_it():
    limit = ut.Limit(ut.Isotropic(curves.circle()))
    np.testing.assert_allclose(limit.drift(jnp.array([0.6, 0.8])), [-0.3, -0.4], atol=1e-5)
    with pytest.raises(ValueError, match="away from the manifold"):
        limit.drift(jnp.array([0.9, 1.2]))


def test_a_change_of_the_loss_along_the_kernel_counts_at_large_params(x64):
    """A loss 1e-4 t^3 along the kernel, at |params| = 1e5: large beside 1/|params|, the scale of third derivatives."""
    point = jnp.array([1e5, 0.0, 0.0])
    slide = alone(lambda x: 1e-4 * (x[0] - 1e5) ** 3 + x[1] ** 2 / 2 + 0 * x[2])
    with pytest.raises(ValueError, match="loses rank here"):
        frame_of_minimum("f", slide, point)
    flat = alone(lambda x: x[1] ** 2 / 2 + 0 * x[0] * x[2])
    assert int(frame_of_minimum("f", flat, point).rank) == 1
