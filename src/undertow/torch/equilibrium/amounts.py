"""Distance of a symmetry from its own equilibrium, and relaxation times there, from noise and weight moments."""

from typing import NamedTuple

import numpy as np

from undertow.torch._threads import one_thread
from undertow.torch.census.axes import Symmetry
from undertow.torch.equilibrium import closed_forms
from undertow.torch.equilibrium.charge_moments import ChargeMoments
from undertow.torch.equilibrium.exponentials import minimise_exponentials

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
    log_ratio: np.ndarray | None = None
    """log(s+/s-), where the amount alone does not determine it: axes with different powers."""

    @property
    @one_thread()
    def imbalance(self) -> float:
        """max |log(s+/s-)|, with s the noise of a side; an axis of power p counts p times."""
        if self.log_ratio is not None:
            return float(np.abs(self.log_ratio).max(initial=0.0))
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
    if moments.by_exponent:
        return _amount_with_powers(moments, step_size, weight_decay)
    if symmetry.block == 1:
        raw = closed_forms.rescaling_amounts(moments, step_size, weight_decay)
        # np.inf where noise is one-sided, NaN where there is none
        return Amount(np.where(np.isfinite(raw), raw, 0.0), int(np.isinf(raw).sum()), int(np.isnan(raw).sum()))
    return Amount(*closed_forms.gl_amounts(moments, step_size, weight_decay, rank_rtol))


def _amount_with_powers(moments: ChargeMoments, step_size: float, weight_decay: float) -> Amount:
    """Return the amount where axes have different powers.

    Entries with exponent e have a noise that changes by exp(-2 e s) and squares that change by exp(2 e s), so that the
    cost is the sum over exponents of noise_e exp(-2 e s) + (2 lambda/eta) weight_e exp(2 e s), with the weight
    decay lambda.
    """
    decay_ratio = 2 * weight_decay / step_size
    parts = moments.by_exponent
    rates = np.array([-2.0 * part.exponent for part in parts] + [2.0 * part.exponent for part in parts])
    minimum = minimise_exponentials(
        rates, np.stack([*(p.noise for p in parts), *(decay_ratio * p.weight for p in parts)])
    )
    finite = np.isfinite(minimum.amount)
    infinite, dead = int(np.isinf(minimum.amount).sum()), int(np.isnan(minimum.amount).sum())
    return Amount(
        np.where(finite, minimum.amount, 0.0), infinite, dead, log_ratio=np.where(finite, minimum.log_ratio, 0.0)
    )


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
    decay_ratio = 2 * weight_decay / step_size
    a = moments.noise_plus + decay_ratio * moments.weight_minus
    b = moments.noise_minus + decay_ratio * moments.weight_plus
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


def relaxation_times(
    moments: ChargeMoments, solution: Solution | None, step_size: float, weight_decay: float
) -> np.ndarray:
    """Return the relaxation times at the equilibrium, in steps, from moments at another point of the orbit.

    Without a solution the moments are those at the equilibrium.

    They are 1/(eta (2 lambda + eta rate)), with rates the eigenvalues of the noise of both sides relative to their
    weights (`undertow.symmetry.forecast`).
    """
    logs, vectors = (np.zeros(()), None) if solution is None else (solution.logs, solution.vectors)
    if moments.by_exponent:  # the squares of the exponents are the eigenvalues of the squared generator
        scaled = [(part, part.exponent**2, np.exp(2 * part.exponent * logs)) for part in moments.by_exponent]
        noise = sum(square * part.noise / factor for part, square, factor in scaled)
        weight = sum(square * part.weight * factor for part, square, factor in scaled)
        return closed_forms.relaxation_times(np.asarray(noise), np.asarray(weight), step_size, weight_decay)
    if vectors is None:
        rotated, factor = (lambda x: x), np.exp(2 * logs)
    else:
        rotated, factor = (lambda x: vectors.swapaxes(1, 2) @ x @ vectors), np.exp(logs[:, :, None] + logs[:, None])
    noise = rotated(moments.noise_plus) / factor + rotated(moments.noise_minus) * factor
    weight = rotated(moments.weight_plus) * factor + rotated(moments.weight_minus) / factor
    return closed_forms.relaxation_times(noise, weight, step_size, weight_decay)
