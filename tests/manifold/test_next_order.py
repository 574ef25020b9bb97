"""The next order of the moments of SGD, against the exact moments of Markov chains, closed forms and SGD."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import map_coordinates, spline_filter

import undertow as ut
from tests.manifold.test_limit_regime import MODELS, hyperbola
from undertow.manifold.averaged import solve_average, velocity
from undertow.manifold.next_order import cheap, follow_moments, next_moments, next_order, strides, too_large


def identity(x):
    return x


def chebyshev(count, radius):
    """Return the Chebyshev points of [-radius, radius] and their barycentric weights."""
    k = np.arange(count + 1)
    weights = (-1.0) ** k
    weights[[0, -1]] /= 2
    return radius * np.cos(np.pi * k / count), weights


def interpolation(points, weights, at):
    """Return the matrix from values at the points to values at other points."""
    gap = at[:, None] - points[None]
    same = np.abs(gap) < 1e-14
    matrix = weights / np.where(same, 1, gap)
    matrix /= matrix.sum(1, keepdims=True)
    hit = same.any(1)
    matrix[hit] = same[hit]
    return matrix


def exact_moments(problem, eta, start, steps, *, count, radius=2.2):
    """Return the first three moments of SGD with single samples, to the accuracy of polynomials on a box.

    The expectation of a function after a step is a linear map of its values at Chebyshev points.
    """
    dimension = len(start)
    axis, weights = chebyshev(count, radius)
    grid = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), -1).reshape(-1, dimension)

    def spread(at):
        rows = [interpolation(axis, weights, at[:, d]) for d in range(dimension)]
        matrix = rows[0]
        for row in rows[1:]:
            matrix = (matrix[:, :, None] * row[:, None]).reshape(len(at), -1)
        return matrix

    gradients = jax.vmap(problem.sample_gradients)(jnp.asarray(grid))  # points, samples, dimension
    after = grid[:, None] - eta * np.asarray(gradients)
    assert np.abs(after).max() <= radius  # nothing leaves the box
    chain = sum(spread(after[:, i]) for i in range(problem.size)) / problem.size
    law = spread(np.asarray(start)[None])[0] @ np.linalg.matrix_power(chain, steps)
    mean = law @ grid
    centred = grid - mean
    covariance = np.einsum("g,gi,gj->ij", law, centred, centred)
    return mean, covariance, np.einsum("g,gi,gj,gk->ijk", law, centred, centred, centred)


def skewed(dimension):
    """Samples of which one is far from the others: the noise is skewed, and its covariance depends on the point."""
    samples = jnp.array([[-2.0, 0.3], [0.5, 0.0], [0.5, -0.6], [0.3, 0.8], [0.4, 1.0]])[:, :dimension]

    def loss(w, y):
        gap = w - y
        product = gap[0] * gap[-1] if dimension > 1 else 0.0
        return jnp.sqrt(3 + jnp.sum(gap**2) + 0.8 * product) + 0.3 * jnp.sum(w**2)

    return ut.Problem(loss, samples)


@pytest.mark.parametrize("dimension", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_stationary_state_against_the_exact_chain(dimension, x64):
    """At the exact mean the mean step is zero: the averaged flow is off by eta^2, the next order by eta^3."""
    problem = skewed(dimension)
    noise = ut.Minibatch(problem, 1)
    forever, rest = jnp.asarray(1e9), []
    for eta in (0.2, 0.1, 0.05):
        start = np.full(dimension, 0.1)
        steps = round(60 / eta)
        mean, covariance, cumulant = exact_moments(problem, eta, start, steps, count=28)
        at = jnp.asarray(mean)
        step, predicted, third = next_moments(noise, identity, at, jnp.asarray(eta))
        flow = velocity(noise, at, identity, forever, jnp.asarray(eta), "averaged_noise")
        rest.append([np.linalg.norm(flow), np.linalg.norm(step), np.linalg.norm(predicted - covariance)])
    orders = np.log2(np.divide(rest[:-1], rest[1:]))
    np.testing.assert_allclose(orders[-1], [2, 3, 3], atol=0.4)
    assert np.linalg.norm(third - cumulant) < 0.03 * np.linalg.norm(cumulant)


def test_the_variance_of_an_anharmonic_well(x64):
    """L = x^2/2 + a x^3/6 has the density exp(-L/T), T = eta sigma^2/2, and the variance T (1 + a^2 T + ...).

    Half of the correction is that of the curvature at the mean, -a T/2; half comes from the third cumulant, -a T^2.
    """
    a, eta = 0.6, 1e-3
    well = ut.Problem(lambda w, _: w[0] ** 2 / 2 + a * w[0] ** 3 / 6, jnp.zeros(1))
    temperature = eta / 2
    _, covariance, cumulant = next_moments(
        ut.Isotropic(well, 1.0), identity, jnp.array([-a * temperature / 2]), jnp.asarray(eta)
    )
    np.testing.assert_allclose(cumulant[0, 0, 0], -a * temperature**2, rtol=3e-3)
    step = 1 / (1 - eta / 2)  # of the finite step, X = 1/(2h - eta h^2)
    np.testing.assert_allclose(covariance[0, 0] / temperature / step - 1, a**2 * temperature, rtol=0.02)


def follow(noise, start, eta, steps):
    return follow_moments(noise, identity, start, jnp.asarray(eta), jnp.asarray(strides(float(steps))))


@pytest.mark.parametrize("dimension", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_displacement_on_the_way_against_the_exact_chain(dimension, x64):
    """From a start away from the minimum: the mean minus the flow is the error of the flow, within 15 %."""
    problem, eta = skewed(dimension), 0.05
    noise, start = ut.Minibatch(problem, 1), jnp.full(dimension, 1.5)
    for steps in (6, 40):
        mean, _, _ = exact_moments(problem, eta, np.asarray(start), steps, count=28)
        times = jnp.asarray([0.0, eta * steps])
        arguments = jnp.asarray(eta), {}, "averaged_noise", jnp.asarray(1e-9), 10_000
        end = np.asarray(solve_average(noise, start, times, *arguments).points[-1])
        predicted = np.asarray(follow(noise, start, eta, steps).mean[-1])
        assert np.linalg.norm(predicted - mean) < 0.15 * np.linalg.norm(mean - end)


def test_strides_against_single_steps(x64):
    """Steps that are taken together against the same map step by step."""
    noise, start = hyperbola()
    eta, steps = 0.075, 350
    together = follow(noise, start, eta, steps)
    single = follow_moments(noise, identity, start, jnp.asarray(eta), jnp.ones(steps))
    way = np.linalg.norm(single.mean[-1] - start)
    assert len(together.mean) < steps / 2
    assert np.linalg.norm(together.mean[-1] - single.mean[-1]) < 1e-4 * way
    np.testing.assert_allclose(together.covariance[-1], single.covariance[-1], atol=1e-3 * single.covariance[-1].max())


@pytest.mark.slow
@pytest.mark.parametrize("eta", [0.075, 0.0375])
def test_the_covariance_on_a_manifold_against_sgd(eta, x64):
    """Across u v = 1 the variance is right; along it the fourth cumulant, which is left out, has the same order."""
    noise, start = hyperbola()
    steps, seeds = round(2 / eta**2), 20_000
    predicted = np.asarray(follow(noise, start, eta, steps).covariance[-1])
    run = ut.descend(noise, start, step_size=eta, steps=steps, seeds=seeds, key=0)
    points = np.asarray(run.params)
    covariance = np.cov(points.T)
    across = points.mean(0)[::-1] / np.linalg.norm(points.mean(0))
    along = np.array([-across[1], across[0]])
    ratios = [d @ predicted @ d / (d @ covariance @ d) for d in (across, along)]
    print(f"step {eta}: predicted / measured variance {ratios[0]:.3f} across, {ratios[1]:.2f} along")
    np.testing.assert_allclose(ratios[0], 1, atol=4 * np.sqrt(2 / seeds))
    assert 1 < ratios[1] < 10


def test_runs_that_move_apart_have_no_estimate(x64):
    """At a saddle the fluctuations grow until the expansion fails."""
    saddle = ut.Isotropic(ut.Problem(lambda p, _: (p[0] * p[1] - 1) ** 2 / 2, jnp.zeros(1)), 0.1)
    start = jnp.array([0.1, -0.1])
    result = next_order(saddle, start, jnp.zeros(2), 0.05, 20.0)
    assert result.distance is None
    assert not result.spread < 1


@pytest.mark.parametrize("steps", [0.5, 3.0, 20.7, 1e6])
def test_strides_start_with_one_step_and_end_at_the_time(steps):
    lengths = strides(steps)
    np.testing.assert_allclose(lengths.sum(), steps)
    assert lengths[0] == min(1.0, steps)
    assert lengths.max() <= max(1.0, steps / 150)


def test_large_problems_are_refused(x64):
    wide = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.zeros(3))
    assert "101" in too_large(ut.Minibatch(wide, 1), jnp.zeros(101))
    assert too_large(ut.Minibatch(wide, 1), jnp.zeros(100)) is None
    many = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.zeros(1001))
    assert "1001" in too_large(ut.Minibatch(many, 1), jnp.zeros(2))


@pytest.mark.parametrize(
    ("size", "samples", "expected"), [(41, 1, True), (42, 1, False), (20, 375, True), (20, 376, False)]
)
def test_few_parameters_and_samples_are_cheap(size, samples, expected, x64):
    """D^3 max(D, n) is at most 3,000,000; samples count without noise of their own as well."""
    task = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.zeros(samples))
    assert cheap(ut.Minibatch(task, 1), jnp.zeros(size)) is expected
    assert cheap(ut.Isotropic(task, 0.1), jnp.zeros(size)) is expected


def exact_mean(noise, start, eta, steps, count):
    """Return the mean of SGD on u v = 1 with labels +-strength, by E f(p_n+1) = mean over draws of f(p - eta g).

    f, at first u or v, is a cubic spline on a square that all but a negligible part of the runs stay in.
    """
    low, high = start - 2.0, start + 2.0
    axes = [np.linspace(a, b, count) for a, b in zip(low, high, strict=True)]
    u, v = np.meshgrid(*axes, indexing="ij")
    places = []
    for x, y in zip(*map(np.asarray, noise.problem.data), strict=True):
        for label in (-float(noise.strength), float(noise.strength)):
            residual = (u * v * x - y - label) * x
            after = np.stack([u - eta * residual * v, v - eta * residual * u], axis=-1)
            places.append(((np.clip(after, low, high) - low) / 4 * (count - 1)).transpose(2, 0, 1))
    mean = []
    for values in (u, v):
        for _ in range(steps):
            spline = spline_filter(values)
            values = np.mean([map_coordinates(spline, at, prefilter=False, mode="mirror") for at in places], axis=0)
        middle = np.full((2, 1), (count - 1) / 2)
        mean.append(map_coordinates(spline_filter(values), middle, prefilter=False, mode="mirror")[0])
    return np.array(mean)


SEEDS = {"linear, 20 unknowns": 60_000, "linear, 40 unknowns": 400_000, "motor": 100_000}


def measured_mean(name, noise, start, eta, steps):
    """Return the mean of SGD and its error."""
    if name == "hyperbola":  # seeds would resolve the error of the flow only by the ten million
        coarse, fine = (exact_mean(noise, np.asarray(start), eta, steps, count) for count in (101, 201))
        return fine, np.linalg.norm(fine - coarse)
    seeds = SEEDS.get(name, 10_000)
    block = min(seeds, 20_000)
    ends, squares = [], []
    for key in range(seeds // block):
        run = ut.descend(noise, start, step_size=eta, steps=steps, seeds=block, key=key, progress=False)
        last = np.asarray(jax.vmap(lambda p: jax.flatten_util.ravel_pytree(p)[0])(run.params))
        ends.append(last.mean(0))
        squares.append(last.var(0, ddof=1).sum())
    return np.mean(ends, axis=0), np.sqrt(np.mean(squares) / seeds)


def test_the_exact_mean_against_runs(x64):
    noise, start = hyperbola()
    mean = exact_mean(noise, np.asarray(start), 0.075, 20, 101)
    run = np.asarray(ut.descend(noise, start, step_size=0.075, steps=20, seeds=4000, key=0).params)
    assert (np.abs(run.mean(0) - mean) < 4 * run.std(0) / np.sqrt(len(run))).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_estimated_error_against_sgd(name, x64):
    """Within a factor of 3 of the distance of SGD's mean to the flow, at a tenth of the largest stable step."""
    make, slow_time = MODELS[name]
    noise, start = make()
    point, unravel = jax.flatten_util.ravel_pytree(start)
    hessian = jax.hessian(lambda x: noise.problem.loss(unravel(x)))(point)
    eta = 0.2 / float(jnp.linalg.eigvalsh(hessian)[-1])
    steps = round(slow_time / eta**2)
    flow = ut.average(noise, start, step_size=eta, time=eta * steps, estimate_error=True)
    mean, error = measured_mean(name, noise, start, eta, steps)
    end = np.asarray(jax.flatten_util.ravel_pytree(flow.params)[0])
    way = np.linalg.norm(end - np.asarray(point))
    measured, error = np.linalg.norm(mean - end) / way, error / way
    estimated = flow.regime.estimated_error
    print(f"{name}: step {eta:.3g}, measured {measured:.5f} +- {error:.5f}, estimated {estimated:.5f}")
    assert measured > 5 * error
    assert measured / 3 < estimated < measured * 3
