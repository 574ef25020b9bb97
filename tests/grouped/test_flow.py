"""The heterogeneity flow against the same algorithm on rows, and its threshold."""

import numpy as np
import pytest

from undertow.grouped import flow
from undertow.grouped.data import moments_of
from undertow.grouped.flow import heterogeneity_flow, step_size

SIZES = (40, 150, 70)


def data(seed=0):
    """Three groups of unequal size with their own slopes, noise and scale of x."""
    rng = np.random.default_rng(seed)
    slopes = np.array([[1.0, -0.3, 0.0], [0.4, 0.5, 0.1], [0.9, 0.2, -0.4]])
    parts = []
    for e, n in enumerate(SIZES):
        x = rng.normal(0.3 * e, 1 + 0.4 * e, (n, 3))
        parts.append((x, x @ slopes[e] + (0.5 + e) * rng.normal(size=n)))
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return X, y, np.repeat(np.arange(3), SIZES)


def by_rows(X, y, groups, rho, warm, steps, alpha, ramp):
    """Return the coefficients by the algorithm on rows, for one penalty `rho`.

    The penalty uses the slopes of the residual on each column alone, less their squared standard errors.
    """
    x, t = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    second, cross = x.T @ x / len(t), x.T @ t / len(t)
    ridge = np.linalg.solve(second + 0.02 * np.eye(3), cross)
    half = np.sqrt(np.abs(ridge))
    eta = min(0.25, 0.5 / (2 * max(np.abs(cross).max(), np.linalg.norm(np.diag(half) @ second @ np.diag(half), 2))))
    u, v = np.full(3, alpha), np.full(3, alpha)
    if warm:
        u, v = np.maximum(np.sqrt(np.maximum(ridge, 0)), alpha), np.maximum(np.sqrt(np.maximum(-ridge, 0)), alpha)
    for step in range(steps):
        residual = t - x @ (u**2 - v**2)
        slopes, squares = [], []
        for e in range(3):
            rows, r = x[groups == e], residual[groups == e]
            energy = np.sum(rows**2, axis=0)
            slopes.append(rows.T @ r / energy)
            squares.append(np.mean(r**2) / energy)
        spread = np.maximum(np.var(slopes, axis=0, ddof=1) - np.mean(squares, axis=0), 0.0)
        growing = min(1.0, eta * step / ramp) if warm else 1.0
        shrinkage = np.exp(-np.minimum(2 * eta * rho * growing * spread, 0.5))
        pull = 2 * eta * x.T @ residual / len(t)
        assert (np.abs(pull) < 0.9).all()
        u, v = np.maximum(u * (1 + pull) * shrinkage, alpha), np.maximum(v * (1 - pull) * shrinkage, alpha)
    return u**2 - v**2


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("alpha", [1e-3, 0.3])
def test_the_flow_equals_the_algorithm_on_rows(steps, alpha, monkeypatch):
    X, y, groups = data()
    moments = moments_of("fit", X, y, groups)[0]
    monkeypatch.setattr(flow, "TIME", (steps - 0.5) * step_size(moments, moments.ridge(0.02)))
    monkeypatch.setattr(flow, "RAMP", 0.8)
    rho, warm = np.array([0.0, 0.3, 2.0, 50.0] * 2), np.repeat([False, True], 4)
    coefficients = heterogeneity_flow(moments, rho, warm, alpha=alpha)
    exact = [by_rows(X, y, groups, r, h, steps, alpha, 0.8) for r, h in zip(rho, warm, strict=True)]
    np.testing.assert_allclose(coefficients, exact, rtol=1e-9, atol=1e-14)


def test_step_size_is_stable_at_the_start_and_at_the_end():
    X, y, groups = data()
    moments = moments_of("fit", X, y, groups)[0]
    w = moments.least_squares()
    half = np.diag(np.sqrt(np.abs(w)))
    largest = np.linalg.norm(half @ moments.pooled_second @ half, 2)
    strongest = np.abs(moments.pooled_cross).max()
    assert step_size(moments, w) == pytest.approx(min(0.25, 0.25 / max(strongest, largest)))
    assert step_size(moments, 100 * w) == pytest.approx(0.25 / (100 * largest))
    assert step_size(moments, 0 * w) == pytest.approx(min(0.25, 0.25 / strongest))


def test_without_heterogeneity_the_flow_is_least_squares():
    """At rho = 0 gradient flow on u^2 - v^2 ends at least squares for all coefficients that had time to grow."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(3000, 3))
    y = X @ np.array([1.0, -0.7, 0.5]) + 0.5 * rng.normal(size=3000)
    moments = moments_of("fit", X, y, np.repeat([0, 1, 2], 1000))[0]
    w = heterogeneity_flow(moments, np.zeros(2), np.array([False, True]))
    np.testing.assert_allclose(w, np.stack([moments.least_squares()] * 2), atol=1e-6)


def test_a_coefficient_stays_small_below_the_threshold():
    """A single column stays small iff |gbar| < rho V at w = 0, where V is the stated variance."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4000, 1))
    groups = np.repeat([0, 1, 2, 3], 1000)
    y = x[:, 0] * np.array([-0.2, 0.6, 0.2, 0.8])[groups] + rng.normal(size=4000)
    moments = moments_of("fit", x, y, groups)[0]
    curvature = moments.second[:, 0, 0]
    spread = np.var(moments.cross[:, 0] / curvature, ddof=1) - np.mean(moments.power / (1000 * curvature))
    edge = abs(moments.pooled_cross[0]) / spread
    w = heterogeneity_flow(moments, edge * np.array([0.8, 1.25]), np.array([False, False]))
    assert abs(w[0, 0]) > 0.01
    assert abs(w[1, 0]) < 1e-5


def test_a_step_that_overshoots_keeps_the_factors_positive(monkeypatch):
    """y = x from u = v = 2 at eta = 1/4, by hand: w = 3^2 - 2^2 = 5 after one step, where the pull would be 2.

    It is cut to 0.9, so that u = max(0.1 * 3, 2) = 2 and v = 1.9 * 2 after the second step.
    """
    monkeypatch.setattr(flow, "TIME", 0.5)
    x = np.array([1.0, -1.0, 1.0, -1.0])
    moments = moments_of("fit", x[:, None], x, np.array([0, 0, 1, 1]))[0]
    w = heterogeneity_flow(moments, np.zeros(1), np.array([False]), alpha=2.0)
    np.testing.assert_allclose(w, [[2.0**2 - 3.8**2]])
