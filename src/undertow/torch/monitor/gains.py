"""Per-sample gradients of layers that multiply a function of their input by a vector, such as norms of transformers.

The output w * n(x) or (1 + w) * n(x) is linear in w, and n(x) is the output at w = 1 or at w = 0. One call on the whole
batch then takes the place of one for each sample. Whether a layer has this form is tested on its first input, with
weights of different signs and sizes, and on one sample alone. Where n is the root-mean-square norm of PyTorch, that
one takes the place of the call: it is one operation on a GPU.
"""

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.torch.monitor.layers import samples_first
from undertow.torch.monitor.sample_gradients import Dense
from undertow.torch.monitor.tensors import at_least_single

__all__ = ["GainLayers"]

LINEAR_RTOL = {torch.bfloat16: 0.03, torch.float16: 4e-3, torch.float32: 1e-5, torch.float64: 1e-12}
"""Tolerated difference of outputs from a linear function of the weights, relative to the largest output."""


class _Gain(NamedTuple):
    """A layer of this form."""

    unit: float
    """The weight at which the output is n(x)."""
    eps: float | None
    """The eps with which n is the root-mean-square norm; None if it is another function."""


class GainLayers:
    """The layers that were found to have this form."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[nn.Module, _Gain | None] = weakref.WeakKeyDictionary()

    def is_norm(self, module: nn.Module) -> bool:
        """Return whether a layer was found to be the root-mean-square norm, so that it is not called again."""
        gain = self._known.get(module)
        return gain is not None and gain.eps is not None

    @torch.no_grad()
    def gradients(
        self, module: nn.Module, args: tuple, kwargs: dict[str, object], back: Sequence[Tensor | None], samples: int,
        batch_axis: int, leaves: Sequence[str], precision: AbstractContextManager,
    ) -> dict[str, Dense] | None:  # fmt: skip
        """Return the per-sample gradients, None for a layer of another form; the arguments are those of a replay."""
        signal = back[0]
        if kwargs or len(args) != 1 or len(back) != 1 or signal is None or len(leaves) != 1:
            return None
        x, leaf = args[0], leaves[0]
        if not isinstance(x, Tensor) or x.shape != signal.shape:
            return None
        if module not in self._known:
            with precision:
                unit = _unit_weight(module, leaf, x, samples)
            self._known[module] = None if unit is None else _Gain(unit, _norm_eps(module, leaf, x, unit))
        gain = self._known[module]
        if gain is None:
            return None
        if gain.eps is None:
            with precision:
                output = _output(module, leaf, x, torch.full_like(module.get_parameter(leaf), gain.unit))
        else:
            output = functional.rms_norm(at_least_single(x), x.shape[-1:], eps=gain.eps)
        signal, output = (samples_first(t, samples, batch_axis) for t in (signal, output))
        if signal is None or output is None:
            return None
        products = at_least_single(signal) * at_least_single(output)
        if products.ndim != 3:
            products = products.reshape(samples, -1, products.shape[-1])
        return {leaf: Dense(products.sum(1))}


def _output(module: nn.Module, leaf: str, x: Tensor, weight: Tensor) -> Tensor:
    """Return the output of a layer with another weight; hooks on the layer do not run."""
    own = module._parameters[leaf]
    module._parameters[leaf] = weight
    try:
        return module.forward(x)
    finally:
        module._parameters[leaf] = own


def _unit_weight(module: nn.Module, leaf: str, x: Tensor, samples: int) -> float | None:
    """Return the weight at which the output is the function n(x) that the weight multiplies, None if there is none."""
    alone = len(list(module.parameters())) == 1 and not any(True for _ in module.buffers())
    if not alone or leaf not in module._parameters:
        return None
    weight = module.get_parameter(leaf).detach()
    if weight.ndim != 1 or x.shape[-1:] != weight.shape or x.shape[0] != samples or samples < 2:
        return None
    at = lambda value: at_least_single(_output(module, leaf, x, value))
    places = torch.arange(len(weight), device=weight.device, dtype=torch.float64)
    uneven = (1.5 * torch.cos(1.7 * places + 0.3)).to(weight)
    zero, one, other = at(torch.zeros_like(weight)), at(torch.ones_like(weight)), at(uneven)
    first = at_least_single(_output(module, leaf, x[:1], uneven))
    tolerance = max(LINEAR_RTOL.get(dtype, 0.0) for dtype in (x.dtype, weight.dtype)) * other.abs().max()
    close = lambda a, b: bool(((a - b).abs() <= tolerance).all())
    if other.shape != x.shape or not close(first, other[:1]) or not close(other, zero + uneven * (one - zero)):
        return None
    if close(zero, torch.zeros_like(zero)):
        return 1.0
    return 0.0 if close(one, 2 * zero) else None


def _norm_eps(module: nn.Module, leaf: str, x: Tensor, unit: float) -> float | None:
    """Return the eps, a number that the layer holds, with which n(x) is the root-mean-square norm; None if none is.

    Inputs in single precision at least, and so small ones too that eps is most of the denominator, decide. Autocast is
    off where this is called with a layer in half precision: its parameters would round the outputs.
    """
    weight = module.get_parameter(leaf).detach()
    if weight.dtype in (torch.float16, torch.bfloat16):
        return None
    x, dtype = at_least_single(x), at_least_single(x).dtype
    for eps in {value for value in vars(module).values() if isinstance(value, float) and 0 < value < 1}:
        small = x * (eps / x.square().mean().clamp_min(torch.finfo(dtype).tiny)).sqrt()
        agree = True
        for one in (x, small):
            with torch.autocast(x.device.type, enabled=False):
                output = _output(module, leaf, one, torch.full_like(weight, unit))
            expected = functional.rms_norm(one, one.shape[-1:], eps=eps)
            close = (output - expected).abs() <= LINEAR_RTOL[dtype] * expected.abs().max()
            agree = agree and output.shape == one.shape and bool(close.all())
        if agree:
            return eps
    return None
