"""Distance of a symmetry from its own equilibrium, and relaxation times there, from noise and weight moments."""

from typing import NamedTuple

import numpy as np

from undertow.torch._threads import one_thread
from undertow.torch.census.axes import Symmetry
from undertow.torch.equilibrium import closed_forms
from undertow.torch.equilibrium.charge_moments import ChargeMoments

__all__ = ["RANK_RTOL", "Amount", "Solution", "general_amount", "relaxation_times", "solve_amount"]

RANK_RTOL = 1e-10
"""Noise of a direction below this, relative to the largest, is rounding: squares of float32 gradients have 1e-14."""


class Amount(NamedTuple):
    """The logarithm of the transformation to the equilibrium, and the number of directions without one."""

    amount: np.ndarray
    """(generators,), or symmetric (blocks, block, block)."""
    infinite: int
    """Generators (directions of a GL) whose equilibrium is at infinity."""
    dead: int
    """Generators (directions of a GL) without any noise."""
    power: int = 4
    """s+/s- changes by exp(-power * amount): noise powers change by P^-2 and P^2, with P = exp(amount)."""

    @property
    @one_thread()
    def imbalance(self) -> float:
        """max |log(s+/s-)|, with s the noise of a side."""
        values = self.amount if self.amount.ndim == 1 else np.linalg.eigvalsh(self.amount)
        return float(self.power * np.abs(values).max(initial=0.0))


class Solution(NamedTuple):
    """An amount with its eigenvalues and eigenvectors."""

    amount: Amount
    logs: np.ndarray
    """(generators,), or the eigenvalues (blocks, block) of a GL."""
    vectors: np.ndarray | None
    """Eigenvectors (blocks, block, block) of a GL, None for scales."""


@one_thread()
def general_amount(
    symmetry: Symmetry, moments: ChargeMoments, step_size: float, weight_decay: float, rank_rtol: float = RANK_RTOL
) -> Amount:
    """Return the amount to the equilibrium, for moments of any rank."""
    if symmetry.block == 1:
        raw = closed_forms.rescaling_amounts(moments, step_size, weight_decay)
        # np.inf where noise is one-sided, NaN where there is none
        return Amount(np.where(np.isfinite(raw), raw, 0.0), int(np.isinf(raw).sum()), int(np.isnan(raw).sum()))
    return Amount(*closed_forms.gl_amounts(moments, step_size, weight_decay, rank_rtol))


def solve_amount(
    symmetry: Symmetry, moments: ChargeMoments, step_size: float, weight_decay: float, rank_rtol: float = RANK_RTOL
) -> Solution:
    """Return the amount to the equilibrium with its eigenvalues and eigenvectors.

    Where both sides of a GL have full rank, P is the root of the geometric mean X, at half the cost of the general
    case. Noise below `rank_rtol`, relative to the largest, counts as rounding.
    """
    if symmetry.block == 1:
        amount = general_amount(symmetry, moments, step_size, weight_decay)
        return Solution(amount, amount.amount, None)
    k = 2 * weight_decay / step_size
    a, b = moments.noise_plus + k * moments.weight_minus, moments.noise_minus + k * moments.weight_plus
    weights = moments.weight_plus, moments.weight_minus
    if all(_full_rank(x, RANK_RTOL) for x in weights) and all(_full_rank(x, rank_rtol) for x in (a, b)):
        values, vectors = closed_forms.mean_eigenpairs(a, b)
        if np.all(np.isfinite(values)) and np.all(values > 0):
            logs = np.log(values) / 2
            return Solution(Amount((vectors * logs[:, None]) @ vectors.swapaxes(1, 2), 0, 0), logs, vectors)
    amount = general_amount(symmetry, moments, step_size, weight_decay, rank_rtol)
    return Solution(amount, *np.linalg.eigh(amount.amount))


def _full_rank(matrices: np.ndarray, rtol: float) -> bool:
    """Return whether all matrices are clearly positive definite; doubtful ones take the general case."""
    try:
        pivots = np.diagonal(np.linalg.cholesky(matrices), axis1=1, axis2=2) ** 2
    except np.linalg.LinAlgError:
        return False
    return bool(np.all(pivots.min(1) > rtol * pivots.max(1)))


def relaxation_times(moments: ChargeMoments, solution: Solution, step_size: float, weight_decay: float) -> np.ndarray:
    """Return the relaxation times at the equilibrium, in steps, from moments at another point of the orbit.

    They are 1/(eta (2 lambda + eta rate)), with rates the eigenvalues of the noise of both sides relative to their
    weights (`undertow.symmetry.forecast`).
    """
    logs, vectors = solution.logs, solution.vectors
    if vectors is None:
        rotated, factor = (lambda x: x), np.exp(2 * logs)
    else:
        rotated, factor = (lambda x: vectors.swapaxes(1, 2) @ x @ vectors), np.exp(logs[:, :, None] + logs[:, None])
    noise = rotated(moments.noise_plus) / factor + rotated(moments.noise_minus) * factor
    weight = rotated(moments.weight_plus) * factor + rotated(moments.weight_minus) / factor
    return closed_forms.relaxation_times(noise, weight, step_size, weight_decay)
