"""One environment per step on w = u^2 - v^2: the growth of each variable of grouped data, in two phases.

A step on group e multiplies u_j by 1 - 2 eta g_ej and v_j by 1 + 2 eta g_ej, with g_e = Sigma_e w - c_e. While w is
small, log u_j typically grows by lam0 = E_e log|1 + 2 eta c_ej| per step; E_e weights groups by their rows. Once the
lasting variables are fitted it grows by lam* = E_e log|1 + 2 eta s_ej|, s_ej the mean of x_j (y - x.w*) in group e. So
at step T, with t1 the step at which they are fitted, and for variables that stay small,

    log u_j(T) = log alpha + t1 lam0_j + (T - t1) lam*_j.

Two values s = m +- M at the step size theta/(2(m + M)), theta <= 1: filtered iff M > m (1 + 2/theta), so at best iff
M > 3 m. If all s_ej have one sign, no step size filters the variable.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow.grouped.data import Moments
from undertow.noise.environments import Environments
from undertow.problem import Problem

__all__ = ["Phases", "growth_phases", "moment_noise"]


@dataclass(frozen=True)
class Phases:
    """The steps at which lasting variables arrive, and the growth of the others before and after. Rows: u, then v."""

    first: Float[np.ndarray, "2 d"]
    """lam0, the growth per step while w is small."""
    last: Float[np.ndarray, "2 d"]
    """lam*, the growth per step once w* is fitted."""
    arrival: Float[np.ndarray, " d"]
    """The step at which each variable of w* reaches its size; infinite if not within the run, NaN outside w*."""
    end: Float[np.ndarray, "2 d"]
    """Predicted log u and log v at the last step."""

    @property
    def t1(self) -> float:
        """The step at which all of w* is fitted."""
        known = self.arrival[~np.isnan(self.arrival)]
        return float(known.max()) if known.size else 0.0

    def two_phase(self, alpha: float, steps: int) -> Float[np.ndarray, "2 d"]:
        """Return log alpha + t1 lam0 + (T - t1) lam*, which is exact for a single lasting variable."""
        t1 = min(self.t1, steps)
        return math.log(alpha) + t1 * self.first + (steps - t1) * self.last


def _rates(moments: Moments, w: np.ndarray, step_size: float) -> np.ndarray:
    """Return E_e log|1 -+ 2 eta g_e|, for u and for v."""
    g = moments.gradients(w)
    with np.errstate(divide="ignore"):
        each = np.log(np.abs(np.stack([1 - 2 * step_size * g, 1 + 2 * step_size * g])))
    return np.tensordot(each, moments.shares, axes=(1, 0))


def growth_phases(
    moments: Moments, w: Float[np.ndarray, " d"], *, step_size: float, steps: int, alpha: float = 1e-3
) -> Phases:
    """Return the growth of every variable if the lasting coefficients are w (in standardised units).

    Several lasting variables arrive one after the other, with one phase for each. Variables that have arrived are at
    their least-squares values, and all growth rates change at each arrival. A variable of w stays at log sqrt|w_j| once
    it has arrived. For a single lasting variable this is the two-phase law.

    >>> import numpy as np
    >>> from undertow.grouped.data import moments_of
    >>> from undertow.grouped.two_phase import growth_phases
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("flip", seed=0, causes=1)
    >>> moments, _, _ = moments_of("fit", design.X, design.y, design.groups)
    >>> truth = design.truth * moments.scale[:-1] / moments.scale[-1]
    >>> phases = growth_phases(moments, truth, step_size=0.3, steps=60)
    >>> print(0 < phases.t1 < 60, np.allclose(phases.end[:, 1:], phases.two_phase(1e-3, 60)[:, 1:]))
    True True
    """
    lasting = w != 0
    side = np.where(w < 0, 1, 0)
    columns = np.arange(len(w))
    size = np.log(np.sqrt(np.abs(np.where(lasting, w, 1.0))))
    logs = np.full((2, len(w)), math.log(alpha))
    arrival = np.where(lasting, np.inf, np.nan)
    active = np.zeros(len(w), bool)
    now = 0.0
    while now < steps:
        fitted = np.zeros(len(w))
        if active.any():
            inside = np.ix_(active, active)
            fitted[active] = np.linalg.lstsq(moments.pooled_second[inside], moments.pooled_cross[active], rcond=None)[0]
        if (active == lasting).all():
            fitted = w
        rates = _rates(moments, fitted, step_size)
        rates[side[active], columns[active]] = 0.0
        growing = lasting & ~active & (rates[side, columns] > 0)
        wait = np.full(len(w), np.inf)
        wait[growing] = np.maximum(size - logs[side, columns], 0.0)[growing] / rates[side, columns][growing]
        ahead = min(float(wait.min()), steps - now)
        logs = logs + ahead * rates
        now += ahead
        if wait.min() <= ahead:
            active[wait.argmin()] = True
            arrival[wait.argmin()] = now
    return Phases(_rates(moments, np.zeros(len(w)), step_size), _rates(moments, w, step_size), arrival, logs)


def _moment_loss(params: PyTree, sample: PyTree) -> Float[Array, ""]:
    u, v = params
    second, cross, power = sample
    w = u**2 - v**2
    return jnp.vdot(w, second @ w) / 2 - jnp.vdot(cross, w) + power / 2


def moment_noise(moments: Moments, dtype: np.dtype | type | None = None) -> Environments:
    """Return the noise of one environment per step on half the mean squared error of w = u^2 - v^2, for `descend`.

    Params are (u, v). The samples of its problem are the groups, because a step depends only on their moments.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.grouped.data import moments_of
    >>> from undertow.grouped.two_phase import moment_noise
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("iid", seed=0, n=200, d=8)
    >>> moments, _, _ = moments_of("fit", design.X, design.y, design.groups)
    >>> start = (jnp.full(8, 0.1), jnp.full(8, 0.1))
    >>> u, v = ut.descend(moment_noise(moments), start, step_size=0.1, steps=200, key=0).params
    >>> print(abs(u**2 - v**2)[:4].min() > 0.1)
    True
    """
    dtype = jnp.result_type(float) if dtype is None else dtype
    data = tuple(jnp.asarray(x, dtype) for x in (moments.second, moments.cross, moments.power))
    return Environments(Problem(_moment_loss, data), np.arange(len(moments.sizes)), moments.shares)
