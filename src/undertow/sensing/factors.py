"""Moments of a growth factor |1 + x|: E log|1 + x| and log E|1 + x|^power, for x of a given law, in double precision.

Both integrands are singular at x = -1, so quadratures for smooth functions do not converge if the density is positive
there.
"""

import math

import numpy as np
from jaxtyping import Float

__all__ = [
    "gaussian_log_moment",
    "gaussian_mean_log",
    "log_factor",
    "uniform_log_moment",
    "uniform_mean_log",
]

NODES = 2048
"""Points of the trapezoidal rule. It has at least six points per width of the peak and has converged."""
DROP = 45.0
"""The rule is cut off where the logarithm of the integrand is this much below its maximum; exp(-45) is 3e-20."""


def log_factor(x: np.ndarray | float) -> np.ndarray:
    """Return log|1 + x|, precise for small x; minus infinity at x = -1."""
    x = np.asarray(x, np.float64)
    with np.errstate(divide="ignore"):
        return np.where(x > -1, np.log1p(np.maximum(x, -1)), np.log(np.abs(1 + x)))


def uniform_mean_log(low: float, high: float) -> float:
    """Return E log|1 + x|, x uniform on [low, high]."""
    if low == high:
        return float(log_factor(low))
    centre, half = 1 + (low + high) / 2, (high - low) / 2
    if 2 * half >= abs(centre):
        whole = lambda y: y * math.log(abs(y)) - y if y else 0.0
        return (whole(1 + high) - whole(1 + low)) / (high - low)
    # the closed form suffers from cancellation on a short interval; the mean of log(1 + v) and log(1 - v) does not
    points, weights = np.polynomial.legendre.leggauss(24)
    pairs = np.log1p(-((half / centre * points) ** 2)) / 2
    return float(log_factor((low + high) / 2) + weights @ pairs / 2)


def uniform_log_moment(low: float, high: float, power: float) -> float:
    """Return log E|1 + x|^power, x uniform on [low, high], by the antiderivative y|y|^power/(power + 1), y = 1 + x."""
    near, far = sorted((low, high), key=lambda x: abs(1 + x))
    scale = power * float(log_factor(far))
    if near == far:
        return scale
    width = (high - low) / abs(1 + far)
    # 1 - r|r|^power of the ratio r = (1 + near)/(1 + far) = 1 - width
    part = -math.expm1((power + 1) * math.log1p(-width)) if width < 1 else 1 + (width - 1) ** (power + 1)
    return scale + math.log(part / ((power + 1) * width))


def gaussian_mean_log(mean: float, deviation: float) -> float:
    """Return E log|1 + x|, x ~ N(mean, deviation^2)."""
    if deviation == 0:
        return float(log_factor(mean))
    logs, weights, scale = _rule(mean, deviation, 0.0)
    shares = np.exp(weights)
    return scale + float(logs @ shares / shares.sum())


def gaussian_log_moment(mean: float, deviation: float, power: float) -> float:
    """Return log E|1 + x|^power, x ~ N(mean, deviation^2)."""
    if deviation == 0:
        return power * float(log_factor(mean))
    _, weights, scale = _rule(mean, deviation, power)
    top = weights.max()
    return power * scale + float(top + np.log(np.exp(weights - top).sum()))


def _rule(
    mean: float, deviation: float, power: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], float]:
    """Return points t, log weights and log c with E[|1 + x|^power f(|1 + x|)] = c^power sum exp(weights) f(c exp(t)).

    In t = log(|1 + x|/c) the integrand exp((power + 1) t) phi(z(t)) has no singularity and decays at both ends, so the
    trapezoidal rule converges exponentially. Factors with the sign of 1 + mean and with the other sign are separate
    branches.
    """
    centre = abs(1 + mean)
    unit = max(centre, deviation)
    logs, weights = [], []
    for sign in (1.0, -1.0):
        # sign * z; unit expm1(t) + (unit - centre) is unit exp(t) - centre without its cancellation
        z = lambda t, sign=sign: (unit * np.expm1(t) + (unit - sign * centre)) / deviation
        height = lambda t, z=z: (power + 1) * t - z(t) ** 2 / 2
        root = math.hypot(centre, 2 * math.sqrt(power + 1) * deviation)
        # the maximum solves y (y - sign centre) = (power + 1) deviation^2
        y = (root + centre) / 2 if sign > 0 else 2 * (power + 1) * deviation**2 / (root + centre)
        peak = math.log(y / unit)
        width = deviation / math.hypot(y, math.sqrt(power + 1) * deviation)
        ends = []
        for side in (-1.0, 1.0):
            reach = width
            while height(peak + side * reach) > height(peak) - DROP:
                reach *= 2
            ends.append(peak + side * reach)
        t, step = np.linspace(ends[0], ends[1], NODES, retstep=True)
        logs.append(t)
        weights.append(height(t) + math.log(step * unit / deviation) - math.log(2 * math.pi) / 2)
    scale = float(log_factor(mean)) if unit == centre else math.log(unit)
    return np.concatenate(logs), np.concatenate(weights), scale
