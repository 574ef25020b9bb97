"""Comparison of the recorded gradients with the gradients in `.grad`."""

import itertools
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
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
    "`zero_grad()`), or was changed, or a layer that had to be run again draws random numbers (dropout), or the model "
    "is inside DistributedDataParallel (give the monitor the wrapper)"
)


class Comparison(NamedTuple):
    """The factor between `.grad` and the recorded gradients, or the reason why they cannot be compared."""

    scale: float
    """A factor common to all parameters comes from gradient scaling or clipping."""
    problem: str | None = None
    unmatched: Mapping[str, str] = MappingProxyType({})
    """Parameters that are not required and whose gradients do not agree, with the reason."""


class _Probes(NamedTuple):
    """Projections of the recorded gradient and of `.grad`, for one parameter."""

    recorded: Tensor
    actual: Tensor
    dtype: torch.dtype


class _Sizes(NamedTuple):
    """Numbers of one parameter: products of its probes, and the sum of squares over samples."""

    product: float
    size: float
    spread: float


def compare_gradients(
    sums: BatchSums,
    parameters: Mapping[str, nn.Parameter],
    requests: Mapping[str, Sequence[StatisticRequest]],
    required: AbstractSet[str] | None = None,
) -> Comparison:
    """Compare the recorded gradients with those in `.grad`, by probes.

    A parameter of `required` (by default all) whose gradients do not agree is a problem; others are listed.
    """
    if problem := _without_noise(sums):
        return Comparison(1.0, problem)
    required = set(parameters) if required is None else required
    probes: dict[str, _Probes] = {}
    unmatched: dict[str, str] = {}
    for name, parameter in parameters.items():
        probe = _probe(name, parameter, sums)
        if isinstance(probe, str) and name in required:
            return Comparison(1.0, probe)
        if isinstance(probe, str):
            unmatched[name] = probe
        elif probe is not None:
            probes[name] = probe
    sizes = _sizes(sums, probes, requests)
    if not all(math.isfinite(x.product) and math.isfinite(x.size) for x in sizes.values()):
        return Comparison(1.0, NOT_FINITE)
    fitted = [name for name in sizes if name in required] or list(sizes)
    # rounding in half precision would give a factor that parameters in full precision do not have
    fitted = [name for name in fitted if name not in sums.half and sizes[name].size > 0] or fitted
    scale = _common_scale([sizes[name] for name in fitted], bool(required))
    if not 0 < scale < 1 + HALF_RTOL:
        return Comparison(1.0, f"the gradients in `.grad` are {scale:.3g} times those that were recorded: {CAUSES}")
    norms = to_numpy([x.norm() for p in probes.values() for x in (p.actual, scale * p.recorded - p.actual)])
    for name, norm, error in zip(probes, norms[::2], norms[1::2], strict=True):
        rtol = HALF_RTOL if name in sums.half else GRADIENT_RTOL.get(probes[name].dtype, HALF_RTOL)
        if error > rtol * (norm + scale * sizes[name].spread ** 0.5):
            problem = f"the gradient of {name} is not the one that was recorded: {CAUSES}"
            if name in required:
                return Comparison(1.0, problem)
            unmatched[name] = problem
    if unmatched and not set(probes) - set(unmatched):
        return Comparison(1.0, next(iter(unmatched.values())))
    return Comparison(1.0 if abs(scale - 1) < 1e-3 else scale, None, unmatched)


def _sizes(
    sums: BatchSums, probes: Mapping[str, _Probes], requests: Mapping[str, Sequence[StatisticRequest]]
) -> dict[str, _Sizes]:
    """Return the numbers of each parameter, with one transfer."""
    traces = [[_trace(sums.sums[r]) for r in requests[name] if r in sums.sums] for name in probes]
    products = [(p.recorded * p.actual).sum() for p in probes.values()]
    squares = [p.recorded.square().sum() for p in probes.values()]
    numbers = iter(map(float, to_numpy([*products, *squares, *itertools.chain(*traces)])))
    product, size = (list(itertools.islice(numbers, len(probes))) for _ in range(2))
    spread = [sum(itertools.islice(numbers, len(parts))) for parts in traces]
    return {name: _Sizes(*each) for name, each in zip(probes, zip(product, size, spread, strict=True), strict=True)}


def _common_scale(sizes: Sequence[_Sizes], agree: bool) -> float:
    """Return the factor between `.grad` and the recorded gradients, 1 if these cancel over the samples.

    Where all parameters have to `agree` it is the least-squares factor, else a weighted median, which some parameters
    that do not agree leave as it is.
    """
    size = sum(x.size for x in sizes)
    if size <= ZERO_SUM_RTOL**2 * sum(x.spread for x in sizes):  # at a minimum there is nothing left to compare
        return 1.0
    if agree:
        return sum(x.product for x in sizes) / size
    # weights are squares of `.grad` along the recorded gradients, because some of the latter may be wrong
    ratios = sorted((x.product / x.size, x.product**2 / x.size) for x in sizes if x.size > 0)
    below = list(itertools.accumulate(weight for _, weight in ratios))
    return next(ratio for (ratio, _), weight in zip(ratios, below, strict=True) if weight >= below[-1] / 2)


def _without_noise(sums: BatchSums) -> str | None:
    """Return why the recorded samples show no noise, None if they do."""
    if sums.samples == 0 and sums.overflowed:
        return NOT_FINITE
    if sums.samples == 0:
        return (
            "the hooks recorded no backward pass since the last step: check that this model is the one that trains. "
            "Compile a model before the monitor is created"
        )
    if sums.samples < 2:
        return "one sample per step does not show noise: use batches of at least 2"
    return None


def _probe(name: str, parameter: nn.Parameter, sums: BatchSums) -> _Probes | str | None:
    """Return the probes of a parameter, why there are none, or None if it was not used in this step."""
    if not parameter.requires_grad:
        return f"{name} does not train any more: take a new census"
    gradient = parameter.grad
    if gradient is None and name not in sums.probes:
        return None
    if gradient is None or gradient.is_sparse:
        return f"the gradient of {name} is not in its `.grad` as a dense tensor: use `loss.backward()`"
    actual = gradient_probe(at_least_single(gradient), sums.flipped.get(name))
    recorded = sums.probes.get(name)
    probe = torch.zeros_like(actual) if recorded is None else recorded.to(actual)
    return _Probes(probe, actual, parameter.dtype)


def _trace(sums: Tensor) -> Tensor:
    return sums.sum() if sums.ndim == 1 else torch.einsum("bii->", sums)
