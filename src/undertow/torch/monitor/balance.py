"""Amounts to the equilibrium and relaxation times for many generators at once.

Along the orbit of a diagonal generator, noise on entries with A_i = p > 0 and decay on entries with A_i = -p push the
charge up by terms that change by exp(-q p s) with the amount s, the others push it down by terms that change by
exp(q p s). q is 2 for SGD, where variances and squared weights change, and 1 for Adam, where noise enters as sqrt(v)
and weights as sqrt(v) theta^2. The equilibrium is where both are equal. For GL(d) of SGD it is the geometric mean of
two matrices.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from undertow.torch.equilibrium.amounts import RANK_RTOL
from undertow.torch.monitor.arrays import Array, namespace, nonnegative

__all__ = ["BlockSolution", "adam_times", "block_solution", "diagonal_amounts"]

CONTRACTIONS, NEWTON_STEPS = 40, 6
"""Steps of the root finder for axes of several powers: with the largest slope, then by Newton's method."""


def diagonal_amounts(up: Array, down: Array, powers: Array, exponent: Array) -> Array:
    """Return s with sum_p up_p exp(-q p s) = sum_p down_p exp(q p s), for each generator.

    `up` and `down` are (powers, generators), `exponent` q is (generators,). The amount is infinite where one of them is
    zero, NaN where both are.

    >>> import torch
    >>> from undertow.torch.monitor.balance import diagonal_amounts
    >>> two = torch.tensor([2.0])
    >>> print(diagonal_amounts(torch.tensor([[4.0, 1.0]]), torch.tensor([[1.0, 0.0]]), torch.ones(1), two))
    tensor([0.3466,    inf])
    """
    xp = namespace(up)
    logs = xp.log(up), xp.log(down)
    if len(powers) == 1:
        return (logs[0][0] - logs[1][0]) / (2 * powers[0] * exponent)
    up, down = map(torch.as_tensor, logs)
    rates = torch.as_tensor(powers)[:, None] * torch.as_tensor(exponent)
    amount = torch.zeros_like(rates[0])
    for step in range(CONTRACTIONS + NEWTON_STEPS):
        rising, falling = up - rates * amount, down + rates * amount
        difference = rising.logsumexp(0) - falling.logsumexp(0)
        slope = 2 * rates[-1]
        if step >= CONTRACTIONS:
            slope = (rising.softmax(0) * rates).sum(0) + (falling.softmax(0) * rates).sum(0)
        amount = amount + torch.where(difference.isfinite(), difference / slope, difference)
    return amount if xp is torch else amount.numpy()


def adam_times(rate: Array, following: Array, forgetting: Array) -> Array:
    """Return the relaxation times under Adam in steps, of the slower of two modes.

    Let the parameters be moved by the amount s from the equilibrium, and v be that of the amount q. Then per step
    s' = -(2 rate s - following q) and q' = forgetting (s - q), with forgetting = 1 - b2
    (`undertow.symmetry.relaxation.metric_relaxation`, with a step size of each parameter).
    """
    both = 2 * rate + forgetting
    product = forgetting * (2 * rate - following)
    xp = namespace(rate)
    speed = 2 * product / (both + xp.sqrt(nonnegative(both**2 - 4 * product)))
    return xp.where(speed > 0, 1 / speed, torch.inf)


class BlockSolution(NamedTuple):
    """The equilibria of blocks of GL(d) under SGD."""

    logs: Tensor
    """Eigenvalues of the amounts, (blocks, d)."""
    vectors: Tensor
    """Eigenvectors of the amounts, (blocks, d, d)."""
    times: Tensor
    """Relaxation times in steps, (blocks, d)."""
    regular: Tensor
    """Whether both sides of a block clearly have full rank; other blocks need the general case."""


def block_solution(
    up: Tensor, down: Tensor, weights: tuple[Tensor, Tensor], inertia: tuple[Tensor, Tensor], rank_rtol: Tensor
) -> BlockSolution:
    """Return the amounts to X^(1/2) with X down X = up, and the relaxation times there.

    `up` is h/2 times the noise of the side plus and lambda times the weights of the side minus, `down` the other two.
    `inertia` are the weights of both sides over h: the charge is half their difference, in units of a common step
    size. The times are 1/eigenvalues of 2 (up + down) relative to the inertia, at the equilibrium.
    """
    full = torch.full_like(rank_rtol, RANK_RTOL)
    regular = _full_rank(up, rank_rtol) & _full_rank(down, rank_rtol)
    for weight in weights:
        regular = regular & _full_rank(weight, full)
    one = torch.eye(up.shape[-1], dtype=up.dtype, device=up.device)
    up, down = (torch.where(regular[:, None, None], x, one) for x in (up, down))
    plus, minus = (torch.where(regular[:, None, None], x, one) for x in inertia)
    factor = torch.linalg.cholesky_ex(down)[0]
    values, vectors = torch.linalg.eigh(factor.mT @ up @ factor)
    half = torch.linalg.solve_triangular(factor.mT, vectors * values.clamp_min(0).pow(0.25)[:, None], upper=True)
    values, vectors = torch.linalg.eigh(half @ half.mT)
    regular = regular & (values > 0).all(1)
    logs = values.clamp_min(torch.finfo(values.dtype).tiny).log() / 2
    scale = (logs[:, :, None] + logs[:, None]).exp()
    rotated = lambda x: vectors.mT @ x @ vectors
    push = rotated(up) / scale + rotated(down) * scale
    times = _times(2 * push, rotated(plus) * scale + rotated(minus) / scale)
    return BlockSolution(logs, vectors, times, regular)


def _times(push: Tensor, inertia: Tensor) -> Tensor:
    """Return 1/eigenvalues of one matrix relative to another positive definite one."""
    factor, info = torch.linalg.cholesky_ex(inertia)
    whitened = torch.linalg.solve_triangular(factor, push, upper=False)
    whitened = torch.linalg.solve_triangular(factor, whitened.mT, upper=False)
    one = torch.eye(push.shape[-1], dtype=push.dtype, device=push.device)
    usable = (info == 0) & whitened.isfinite().all(-1).all(-1)
    rates = torch.linalg.eigvalsh(torch.where(usable[:, None, None], (whitened + whitened.mT) / 2, one))
    floor = max(RANK_RTOL, 8 * push.shape[-1] * torch.finfo(push.dtype).eps) * rates[:, -1:]
    return torch.where(usable[:, None] & (rates > floor), 1 / rates, torch.inf)


def _full_rank(matrices: Tensor, rtol: Tensor) -> Tensor:
    """Return whether each matrix is clearly positive definite."""
    factor, info = torch.linalg.cholesky_ex(matrices)
    pivots = factor.diagonal(dim1=1, dim2=2).square()
    clear = pivots.amin(1) > rtol * pivots.amax(1)
    return (info == 0) & clear & pivots.isfinite().all(1)
