"""Comparison of the recorded gradients with the gradients in `.grad`."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.sample_gradients import gradient_probe
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.tensors import at_least_single, to_numpy

__all__ = ["Comparison", "compare_gradients"]

GRADIENT_RTOL = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Tolerated difference between the gradient in `.grad` and the recorded one, by dtype of the parameter."""
HALF_RTOL = 5e-2
"""The same in half precision, which rounds by a percent."""
ZERO_SUM_RTOL = 1e-5
"""A sum of gradients below this, relative to the gradients of the samples, is rounding."""
NOT_FINITE = "the gradient is not finite"
CAUSES = (
    "the parameter is used outside its module, or `.grad` held something before the backward pass (call "
    "`zero_grad()`), or was changed, or a layer that had to be run again draws random numbers (dropout)"
)


class Comparison(NamedTuple):
    """The factor between `.grad` and the recorded gradients, or the reason why they cannot be compared."""

    scale: float
    """A factor common to all parameters comes from gradient scaling or clipping."""
    problem: str | None = None


class _Probes(NamedTuple):
    """Projections of the recorded gradient and of `.grad`, for one parameter."""

    recorded: Tensor
    actual: Tensor


def compare_gradients(
    sums: BatchSums,
    parameters: Mapping[str, nn.Parameter],
    requests: Mapping[str, Sequence[StatisticRequest]],
) -> Comparison:
    """Compare the recorded gradients with those in `.grad`, by probes."""
    if problem := _without_noise(sums):
        return Comparison(1.0, problem)
    probes = _probes(sums, parameters)
    if isinstance(probes, str):
        return Comparison(1.0, probes)
    traces = [[_trace(sums.sums[r]) for r in requests[name] if r in sums.sums] for name in probes]
    products = [(p.recorded * p.actual).sum() for p in probes.values()]
    squares = [p.recorded.square().sum() for p in probes.values()]
    numbers = iter(map(float, to_numpy([*products, *squares, *itertools.chain(*traces)])))
    product, size = (sum(itertools.islice(numbers, len(probes))) for _ in range(2))
    if not math.isfinite(product) or not math.isfinite(size):
        return Comparison(1.0, NOT_FINITE)
    spreads = {name: sum(itertools.islice(numbers, len(parts))) for name, parts in zip(probes, traces, strict=True)}
    cancelled = size <= ZERO_SUM_RTOL**2 * sum(spreads.values())  # at a minimum there is nothing left to compare
    scale = 1.0 if cancelled else product / size
    if not 0 < scale < 1 + HALF_RTOL:
        return Comparison(1.0, f"the gradients in `.grad` are {scale:.3g} times those that were recorded: {CAUSES}")
    norms = to_numpy([x.norm() for p in probes.values() for x in (p.actual, scale * p.recorded - p.actual)])
    for name, norm, error in zip(probes, norms[::2], norms[1::2], strict=True):
        rtol = HALF_RTOL if name in sums.half else GRADIENT_RTOL.get(parameters[name].dtype, HALF_RTOL)
        if error > rtol * (norm + scale * spreads[name] ** 0.5):
            return Comparison(1.0, f"the gradient of {name} is not the one that was recorded: {CAUSES}")
    return Comparison(1.0 if abs(scale - 1) < 1e-3 else scale)


def _without_noise(sums: BatchSums) -> str | None:
    """Return why the recorded samples show no noise, None if they do."""
    if sums.samples == 0 and sums.overflowed:
        return NOT_FINITE
    if sums.samples == 0:
        return (
            "the hooks recorded no backward pass since the last step: check that this model is the one that trains. "
            "Compile a model before the monitor is created, and use non-reentrant activation checkpoints"
        )
    if sums.samples < 2:
        return "one sample per step does not show noise: use batches of at least 2"
    return None


def _probes(sums: BatchSums, parameters: Mapping[str, nn.Parameter]) -> dict[str, _Probes] | str:
    """Return the probes by parameter, or why a gradient is not available."""
    probes: dict[str, _Probes] = {}
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            return f"{name} does not train any more: take a new census"
        gradient = parameter.grad
        if gradient is None and name not in sums.probes:
            continue  # not used in this step
        if gradient is None or gradient.is_sparse:
            return f"the gradient of {name} is not in its `.grad` as a dense tensor: use `loss.backward()`"
        actual = gradient_probe(at_least_single(gradient), sums.flipped.get(name))
        recorded = sums.probes.get(name)
        probes[name] = _Probes(torch.zeros_like(actual) if recorded is None else recorded.to(actual), actual)
    return probes


def _trace(sums: Tensor) -> Tensor:
    return sums.sum() if sums.ndim == 1 else torch.einsum("bii->", sums)
