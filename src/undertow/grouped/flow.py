"""The heterogeneity flow: gradient descent on u^2 - v^2 with a penalty on gradients that differ between groups.

One environment per step and a small step size move log u_j by -2 eta gbar_j - 2 eta rho V_j, with gbar the pooled
gradient, V_j = Var_e(g_ej) and rho the step size times the squared amplification of the differences. Coordinate j
therefore decays where |gbar_j| < rho V_j: a lasso whose threshold is the variance of the gradient between environments.
"""

import numpy as np
from jaxtyping import Bool, Float

from undertow.grouped.data import Moments

__all__ = ["heterogeneity_flow"]

TIME = 64.0
"""The time eta t at the end."""
RAMP = 48.0
"""The time eta t until which rho grows linearly from zero in runs from a warm start."""
RIDGE = 0.02
"""The ridge penalty of the warm start."""
LARGEST_STEP = 0.25
LARGEST_LOSS = 0.5
"""The largest decrease of log u by the penalty in one step."""


def heterogeneity_flow(
    moments: Moments, rho: Float[np.ndarray, " runs"], warm: Bool[np.ndarray, " runs"], *, alpha: float = 1e-3
) -> Float[np.ndarray, "runs d"]:
    """Return w = u^2 - v^2 at the end of the flow for every penalty rho, from u = v = alpha or a ridge fit (warm).

    V_j is the variance over groups of the gradient in units of curvature, less what sampling alone gives:
    V_j = [Var_e(g_ej/Sigma_e,jj) - mean_e R_e/(n_e Sigma_e,jj)]_+, R_e the mean squared residual of group e.

    >>> import numpy as np
    >>> from undertow.grouped.flow import heterogeneity_flow
    >>> from undertow.grouped.data import moments_of
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("flip", seed=0)
    >>> moments, _, _ = moments_of("fit", design.X, design.y, design.groups)
    >>> w = heterogeneity_flow(moments, np.array([30.0]), np.array([False]))
    >>> print(np.flatnonzero(np.abs(w[0]) > 0.03))
    [0 1 2 3]
    """
    ridge = moments.ridge(RIDGE)
    eta = step_size(moments, ridge)
    (groups, d), runs = moments.cross.shape, len(rho)
    curvature = np.maximum(np.diagonal(moments.second, axis1=1, axis2=2), 1e-12)
    sampling = (1 / (groups * moments.sizes[:, None] * curvature)).T
    scale = 1 / (np.sqrt(groups - 1) * curvature)[:, :, None]
    # all linear functions of (w, 1) are rows of one matrix; R_e = E_e[y^2] - c_e.w + g_e.w
    gradient = np.concatenate([moments.second, -moments.cross[:, :, None]], axis=2)
    total = np.sum(scale * gradient, axis=0) / np.sqrt(groups)
    pull = -2 * eta * np.tensordot(moments.shares, gradient, 1)
    residual = sampling @ np.concatenate([moments.cross, -moments.power[:, None]], axis=1)
    functions = np.concatenate([gradient.reshape(groups * d, d + 1), total, pull, residual])
    values = np.empty((len(functions), runs))
    each = values[: groups * d].reshape(groups, d, runs)
    total, pull, residual = values[groups * d :].reshape(3, d, runs)
    scale = np.repeat(scale, runs, axis=2)
    roots = np.sqrt(np.maximum([ridge, -ridge], 0.0))
    factors = np.maximum(np.where(warm, roots[:, :, None], 0.0), alpha)
    change = np.empty_like(factors)
    inputs = np.ones((d + 1, runs))
    w = inputs[:-1]
    times = eta * np.arange(np.ceil(TIME / eta))[:, None]
    for strength in -2 * eta * rho * np.where(warm, np.minimum(1.0, times / RAMP), 1.0):
        squares = factors * factors
        np.subtract(squares[0], squares[1], out=w)
        np.matmul(functions, inputs, out=values)
        size = np.einsum("ejr,jr->er", each, w)
        each *= scale
        spread = np.einsum("ejr,ejr->jr", each, each)
        total *= total
        spread -= total
        spread -= sampling @ size
        spread += residual
        spread *= strength
        decay = np.exp(np.maximum(np.minimum(spread, 0.0, out=spread), -LARGEST_LOSS, out=spread))
        # a step may overshoot far from a minimum; the clip keeps the factors positive
        np.minimum(np.maximum(pull, -0.9, out=pull), 0.9, out=pull)
        np.add(1.0, pull, out=change[0])
        np.subtract(1.0, pull, out=change[1])
        change *= decay
        factors *= change
        np.maximum(factors, alpha, out=factors)
    return (factors[0] ** 2 - factors[1] ** 2).T


def step_size(moments: Moments, w: Float[np.ndarray, " d"]) -> float:
    """Return eta = min(1/4, 1/(4 max(|c|_inf, lambda_max(D Sigma D)))), D = diag sqrt|w|; stable at start and w."""
    half = np.sqrt(np.abs(w))
    curvature = np.linalg.eigvalsh(half[:, None] * moments.pooled_second * half[None])[-1]
    return min(LARGEST_STEP, 0.5 / (2 * max(np.abs(moments.pooled_cross).max(), curvature)))
