"""The measurement of one symmetry at one step: charge, noise, flow, distance to equilibrium, relaxation times."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from undertow.torch._renamed import Renamed
from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.equilibrium.amounts import RANK_RTOL, relaxation_times, solve_amount
from undertow.torch.equilibrium.charge_moments import ChargeMoments
from undertow.torch.monitor.requests import Requests, StepMoments
from undertow.torch.monitor.settings import SGDSettings

__all__ = ["COLUMNS", "Reading", "Row", "read_symmetry"]

Row = dict[str, int | float | str | None]
"""One symmetry at one step in numbers, by column; None where the theory does not apply."""
COLUMNS = (
    "step", "symmetry", "kind", "generators", "samples", "step_size", "charge", "noise_plus", "noise_minus", "flow",
    "change", "distance", "farthest", "relaxation", "slowest", "infinite", "dead", "note",
)  # fmt: skip
"""Columns of a row."""
SINGLE_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Reading:
    """One symmetry at one step, generator by generator: (generators,), or (blocks, block, block) of a GL."""

    symmetry: Symmetry
    charge: np.ndarray
    """C = (plus plus' - minus minus')/2."""
    noise_plus: np.ndarray
    """Covariance of the gradient of the step on the side plus."""
    noise_minus: np.ndarray
    """Covariance of the gradient of the step on the side minus."""
    gradient: np.ndarray
    """G'A G of the gradient G of the step."""
    amount: np.ndarray
    """Amount to the symmetry's own equilibrium; 0 where the equilibrium is at infinity, NaN where the theory does not
    cover the optimiser (`row["note"]` says why)."""
    row: Row
    """Totals over the generators."""

    relation = Renamed("symmetry")


class _Moments(NamedTuple):
    """Second moments on one side of a symmetry."""

    noise: np.ndarray
    gradient: np.ndarray
    weight: np.ndarray


def read_symmetry(
    symmetry: Symmetry,
    requests: Requests,
    moments: StepMoments,
    parameters: dict[str, nn.Parameter],
    *,
    samples: int,
    scale: float,
    step: int,
    settings: SGDSettings | None,
    note: str,
) -> Reading:
    """Return the reading of one symmetry.

    `scale` is the factor between `.grad` and the recorded gradients. `settings` are None where the theory does not
    apply, and `note` says why.
    """
    plus, minus = (
        _side_moments(side, symmetry, requests, moments, samples, scale) for side in (symmetry.plus, symmetry.minus)
    )
    charge, gradient = (plus.weight - minus.weight) / 2, plus.gradient - minus.gradient
    if settings is not None and symmetry.shifted and settings.weight_decay > 0:
        settings, note = None, "weight decay acts on the parameter, but the layer uses 1 + parameter"
    if settings is not None and settings.effective_step <= 0 < settings.weight_decay:
        settings, note = None, "the step size is 0: the balance of noise and weight decay is not defined"
    row: Row = dict.fromkeys(COLUMNS)
    row |= {
        "step": step,
        "symmetry": symmetry.name,
        "kind": symmetry.kind,
        "generators": symmetry.generators,
        "samples": samples,
        "charge": _trace(charge),
        "noise_plus": _trace(plus.noise),
        "noise_minus": _trace(minus.noise),
        "note": note,
    }
    amount = np.full_like(charge, np.nan)
    if settings is not None:
        sides = ChargeMoments(plus.noise, minus.noise, plus.weight, minus.weight)
        rounding = max(torch.finfo(parameters[name].dtype).eps for name in symmetry.parameters)
        # half precision is summed in single precision
        rank_rtol = max(RANK_RTOL, 8 * symmetry.block * min(rounding, SINGLE_EPS))
        amount = _fill_theory(row, symmetry, sides, _trace(gradient), settings, rank_rtol)
    return Reading(symmetry, charge, plus.noise, minus.noise, gradient, amount, row)


def _trace(moments: np.ndarray) -> float:
    return float(moments.sum() if moments.ndim == 1 else np.einsum("bii->", moments))


def _side_moments(
    axes: tuple[Axis, ...], symmetry: Symmetry, requests: Requests, moments: StepMoments, samples: int, scale: float
) -> _Moments:
    """Return noise, gradient and weight of one side, summed over its axes."""
    block = symmetry.block
    zero = np.zeros(symmetry.size if block == 1 else (symmetry.size // block, block, block))
    noise, gradient, weight = zero, zero, zero
    for axis in axes:
        request = requests.of(axis, symmetry)
        along = lambda x, axis=axis: x[axis.index].sum(1) if block == 1 else x
        weight = weight + along(moments.weight(request, axis.shift))
        recorded = moments.samples_and_gradient(request)
        if recorded is not None:
            second, whole = along(recorded[0]) * scale**2, along(recorded[1])
            covariance = (second - whole / samples) * samples / (samples - 1)
            noise = noise + (np.maximum(covariance, 0) if block == 1 else (covariance + covariance.swapaxes(1, 2)) / 2)
            gradient = gradient + whole
    return _Moments(noise, gradient, weight)


def _fill_theory(
    row: Row, symmetry: Symmetry, sides: ChargeMoments, gradient: float, settings: SGDSettings, rank_rtol: float
) -> np.ndarray:
    """Add flow, change, distance and relaxation times to a row; return the amount to the equilibrium."""
    eta, decay, effective = settings.step_size, settings.weight_decay, settings.effective_step
    charge = _trace((sides.weight_plus - sides.weight_minus) / 2)
    noise = _trace(sides.noise_plus) - _trace(sides.noise_minus)
    moves = effective > 0
    # without weight decay the step size does not matter: a first step of size 0 has a distance too
    solution = solve_amount(symmetry, sides, effective if moves else 1.0, decay, rank_rtol)
    times = relaxation_times(sides, solution, effective, decay) if moves else np.zeros(0)
    change = -2 * eta * decay * (1 - eta * decay / 2) * charge + eta**2 / 2 * gradient
    row |= {
        "step_size": eta,
        "flow": effective * (-2 * decay * charge + effective / 2 * noise),
        "change": None if settings.momentum else change,
        "distance": float(np.sqrt(np.mean(solution.logs**2))),
        "farthest": float(np.abs(solution.logs).max(initial=0.0)),
        "relaxation": float(np.median(times)) if times.size else None,
        "slowest": float(times.max()) if times.size else None,
        "infinite": solution.amount.infinite,
        "dead": solution.amount.dead,
    }
    return solution.amount.amount
