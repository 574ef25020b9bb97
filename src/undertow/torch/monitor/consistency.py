"""Comparison of the recorded gradients with the gradients in `.grad`."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.sample_gradients import gradient_probe
from undertow.torch.monitor.tensors import at_least_single, joined, on_device

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


class _Probes(NamedTuple):
    """Projections of the recorded gradient and of `.grad`, for one parameter."""

    recorded: Tensor
    actual: Tensor


class Comparison:
    """Recorded gradients beside those in `.grad`, as numbers on the device of the model.

    `scale` is the factor between `.grad` and the recorded gradients, which comes from gradient scaling or clipping.
    `problem(values)` returns why they do not agree, from `numbers` on the host.
    """

    def __init__(
        self,
        sums: BatchSums,
        parameters: Mapping[str, nn.Parameter],
        probes: dict[str, _Probes],
        spreads: Tensor,
    ):
        self._names = list(probes)
        self._rtol = [_rtol(name, sums, parameters) for name in self._names]
        device = spreads.device
        recorded, actual = (joined([getattr(p, side) for p in probes.values()], device) for side in _Probes._fields)
        sizes = torch.tensor([p.recorded.numel() for p in probes.values()])
        owner = on_device(torch.arange(len(probes)).repeat_interleave(sizes), device)
        by_parameter = lambda values: values.new_zeros(len(probes)).index_add_(0, owner, values)
        product, size = (recorded * actual).sum(), recorded.square().sum()
        cancelled = size <= ZERO_SUM_RTOL**2 * spreads.sum()  # at a minimum there is nothing left to compare
        scale = torch.where(cancelled, 1.0, product / size)
        self.scale = torch.where((scale - 1).abs() < 1e-3, 1.0, scale)
        self.samples = torch.as_tensor(sums.counted, device=device).double()
        norms = by_parameter(actual.square()).sqrt()
        errors = by_parameter((scale * recorded - actual).square()).sqrt()
        places = [k for k, name in enumerate(parameters) if name in probes]
        used = spreads if len(places) == len(parameters) else spreads[on_device(torch.tensor(places), device)]
        self.numbers = torch.cat([torch.stack([self.samples, product, size, scale]), norms, errors, used])

    def problem(self, values: np.ndarray) -> str | None:
        """Return why the gradients do not agree, None if they do."""
        (samples, product, size, scale), rest = values[:4], values[4:]
        if samples == 0 or not np.isfinite([product, size]).all():
            return NOT_FINITE
        if samples < 2:
            return "one sample per step does not show noise: use batches of at least 2"
        if not 0 < scale < 1 + HALF_RTOL:
            return f"the gradients in `.grad` are {scale:.3g} times those that were recorded: {CAUSES}"
        for name, rtol, norm, error, spread in zip(self._names, self._rtol, *np.split(rest, 3), strict=True):
            if error > rtol * (norm + scale * spread**0.5):
                return f"the gradient of {name} is not the one that was recorded: {CAUSES}"
        return None


def compare_gradients(sums: BatchSums, parameters: Mapping[str, nn.Parameter], spreads: Tensor) -> Comparison | str:
    """Compare the recorded gradients with those in `.grad`, by probes; return why if they cannot be compared.

    `spreads` are the sums of the squared gradients of samples, in the order of the parameters.
    """
    probes = _probes(sums, parameters)
    if isinstance(probes, str) and sums.samples:
        return probes
    if sums.samples and not probes and sums.not_separable:
        return next(iter(sums.not_separable.values()))
    if sums.samples == 0 or not probes:
        return (
            "the hooks recorded no backward pass since the last step: check that this model is the one that trains. "
            "Compile a model before the monitor is created, and use non-reentrant activation checkpoints"
        )
    assert not isinstance(probes, str)
    return Comparison(sums, parameters, probes, spreads)


def _rtol(name: str, sums: BatchSums, parameters: Mapping[str, nn.Parameter]) -> float:
    return HALF_RTOL if name in sums.half else GRADIENT_RTOL.get(parameters[name].dtype, HALF_RTOL)


def _probes(sums: BatchSums, parameters: Mapping[str, nn.Parameter]) -> dict[str, _Probes] | str:
    """Return the probes by parameter, or why a gradient is not available."""
    probes: dict[str, _Probes] = {}
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            return f"{name} does not train any more: take a new census"
        if name in sums.not_separable:
            continue
        gradient = parameter.grad
        if gradient is None and name not in sums.probes:
            continue  # not used in this step
        if gradient is None or gradient.is_sparse:
            return f"the gradient of {name} is not in its `.grad` as a dense tensor: use `loss.backward()`"
        actual = gradient_probe(at_least_single(gradient), sums.flipped.get(name))
        recorded = sums.probes.get(name)
        probes[name] = _Probes(torch.zeros_like(actual) if recorded is None else recorded.to(actual), actual)
    return probes
