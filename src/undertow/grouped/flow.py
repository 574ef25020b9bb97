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
    cross, power = moments.cross, moments.power
    groups, d = cross.shape
    stacked = moments.second.transpose(1, 0, 2).reshape(d, groups * d)
    pooled_second, pooled_cross = moments.pooled_second, moments.pooled_cross
    curvature = np.maximum(np.diagonal(moments.second, axis1=1, axis2=2), 1e-12)
    sampling = 1 / (groups * moments.sizes[:, None] * curvature)
    floor = np.log(alpha)
    log_u = np.where(warm[:, None], np.log(np.sqrt(np.maximum(ridge, alpha**2)))[None], floor)
    log_v = np.where(warm[:, None], np.log(np.sqrt(np.maximum(-ridge, alpha**2)))[None], floor)
    for step in range(int(np.ceil(TIME / eta))):
        w = np.exp(2 * log_u) - np.exp(2 * log_v)
        each = (w @ stacked).reshape(-1, groups, d) - cross
        residual = power + ((each - cross) @ w[:, :, None])[:, :, 0]
        relative = each / curvature
        total = relative.sum(1)
        variance = (np.einsum("rej,rej->rj", relative, relative) - total**2 / groups) / (groups - 1)
        spread = np.maximum(variance - residual @ sampling, 0.0)
        strength = 2 * eta * rho * np.where(warm, min(1.0, eta * step / RAMP), 1.0)
        loss = np.minimum(strength[:, None] * spread, LARGEST_LOSS)
        # a step may overshoot far from a minimum; the clip keeps the factors positive
        pull = np.clip(2 * eta * (w @ pooled_second - pooled_cross), -0.9, 0.9)
        log_u = np.maximum(log_u + np.log1p(-pull) - loss, floor)
        log_v = np.maximum(log_v + np.log1p(pull) - loss, floor)
    return np.exp(2 * log_u) - np.exp(2 * log_v)


def step_size(moments: Moments, w: Float[np.ndarray, " d"]) -> float:
    """Return eta = min(1/4, 1/(4 max(|c|_inf, lambda_max(D Sigma D)))), D = diag sqrt|w|; stable at start and w."""
    half = np.sqrt(np.abs(w))
    curvature = np.linalg.eigvalsh(half[:, None] * moments.pooled_second * half[None])[-1]
    return min(LARGEST_STEP, 0.5 / (2 * max(np.abs(moments.pooled_cross).max(), curvature)))
