"""Per-sample gradients of layers of known kinds, from their inputs and the derivatives of their outputs."""

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.torch.monitor.dense_sums import DenseSums
from undertow.torch.monitor.sample_gradients import Dense, Outer, SampleGradients, Scattered, probe_vector
from undertow.torch.monitor.tensors import at_least_single

__all__ = ["SharedCast", "is_known", "layer_gradients", "samples_first"]


class SharedCast:
    """The newest input in the precision of its derivatives: layers that share an input share the copy."""

    def __init__(self) -> None:
        self._newest: tuple[tuple, Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor in another precision."""
        if x.dtype == dtype or type(x) is not Tensor or x.is_inference():  # others have no address or no version
            return x.to(dtype)
        key = x.data_ptr(), x.shape, x.stride(), x.dtype, x.device, x._version, dtype
        if self._newest is None or self._newest[0] != key:
            self._newest = key, x, x.to(dtype)  # the memory of an input that is held is not used for another one
        return self._newest[2]


def samples_first(x: Tensor, samples: int, batch_axis: int) -> Tensor | None:
    """Return a tensor with the axis of samples first, None where it cannot be identified by its length.

    The last axis never counts samples. (samples * k, ...) becomes (samples, k, ...); for a model with samples on the
    second axis, (k * samples, ...) does.
    """
    if x.ndim > batch_axis + 1 and x.shape[batch_axis] == samples:
        return x.movedim(batch_axis, 0) if batch_axis else x
    if x.ndim and x.shape[0] == samples:
        return x
    if x.ndim > 1 and x.shape[0] and x.shape[0] % samples == 0:
        each = x.shape[0] // samples
        if batch_axis == 1:
            return x.reshape(each, samples, *x.shape[1:]).movedim(1, 0)
        return x.reshape(samples, each, *x.shape[1:])
    return None


def layer_gradients(
    module: nn.Module, received: Tensor, back: Tensor, samples: int, batch_axis: int, leaves: Sequence[str],
    cast: Callable[[Tensor, torch.dtype], Tensor] = Tensor.to,
) -> dict[str, SampleGradients] | None:  # fmt: skip
    """Return per-sample gradients by parameter for a layer of a known kind, None for others.

    Known are dense layers, embeddings, norms and convolutions.

    `received` is the input of the layer and `back` the derivative of the loss with respect to its output.
    """
    gradients_of = _gradients_of(module, back)
    if gradients_of is None:
        return None
    received = cast(received, back.dtype) if received.is_floating_point() else received  # as autocast did
    first = _tokens_first if gradients_of is _embedding else samples_first
    a, b = first(received, samples, batch_axis), samples_first(back, samples, batch_axis)
    if a is None or b is None:
        raise ValueError(
            f"no axis of its input of shape {tuple(received.shape)} can be identified as that of the {samples} samples"
        )
    precise = _product_precision if gradients_of is _dense else at_least_single
    gradients = gradients_of(module, precise(a), precise(b))
    return {leaf: gradients[leaf]() for leaf in leaves} if set(leaves) <= set(gradients) else None


HALF_PRODUCTS = ("cuda",)
"""Devices that multiply matrices in bfloat16 fast, and add up the products in single precision."""


def _product_precision(x: Tensor) -> Tensor:
    """Return a factor of a matrix product in the precision in which it is multiplied."""
    return x if x.dtype == torch.bfloat16 and x.device.type in HALF_PRODUCTS else at_least_single(x)


_Gradients = dict[str, Callable[[], SampleGradients]]
"""Functions that return the per-sample gradients, by the name of the parameter in its module."""


_Rule = Callable[[nn.Module, Tensor, Tensor], _Gradients]
_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Rule | None] = weakref.WeakKeyDictionary()
"""The function for each layer that was met."""


def is_known(module: nn.Module, back: Tensor) -> bool:
    """Return whether a layer is of a known kind; `back` is the derivative of the loss with respect to its output."""
    return _gradients_of(module, back) is not None


def _gradients_of(module: nn.Module, back: Tensor) -> _Rule | None:
    """Return the function for the kind of a layer, None for an unknown kind."""
    if module not in _KNOWN:
        _KNOWN[module] = _find_rule(module)
    rule = _KNOWN[module]
    return None if rule is _convolution and back.ndim != module.weight.ndim else rule


def _find_rule(module: nn.Module) -> _Rule | None:
    if _is_transposed(module) or _runs_as(module, nn.Linear):
        return _dense
    if _runs_as(module, nn.LayerNorm, nn.RMSNorm):
        return _norm
    if _plain_convolution(module):
        return _convolution
    if _runs_as(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq:
        return _embedding
    return None


def _is_transposed(module: nn.Module) -> bool:
    """Return whether a module is the `Conv1D` of transformers: a dense layer with a weight (inputs, outputs)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _dense(module: nn.Module, a: Tensor, b: Tensor) -> _Gradients:
    samples = len(b)
    out, into = (x if x.ndim == 3 else x.reshape(samples, -1, x.shape[-1]) for x in (b, a))
    shape = tuple(module.weight.shape)
    dtype = torch.float32 if out.dtype == torch.bfloat16 else None
    if out.shape[1] == 1 and out.device.type == "cpu":
        sums = DenseSums(out[:, 0], into[:, 0], probe_vector(into.shape[2], into.dtype, into.device))
        return {
            "weight": lambda: Outer(out, into, shape, _is_transposed(module), sums=sums),
            "bias": lambda: Dense(out[:, 0], sums=sums),
        }
    return {
        "weight": lambda: Outer(out, into, shape, _is_transposed(module)),
        "bias": lambda: Dense(out.sum(1, dtype=dtype)),
    }


def _embedding(module: nn.Module, a: Tensor, b: Tensor) -> _Gradients:
    tokens, out = a.reshape(len(b), -1), b.reshape(len(b), -1, b.shape[-1])
    if module.padding_idx is not None:
        out = out * (tokens != module.padding_idx)[..., None]
    return {"weight": lambda: Scattered(tokens, out, tuple(module.weight.shape))}


def _tokens_first(tokens: Tensor, samples: int, batch_axis: int) -> Tensor:
    """Return tokens with the axis of samples first. Positions 0, 1, 2, ... without another axis are not samples."""
    axis = batch_axis if tokens.ndim > 1 else 0
    if tokens.ndim and tokens.shape[axis] == samples:
        counted = torch.arange(samples, device=tokens.device, dtype=tokens.dtype)
        if tokens.ndim > 1 or not torch.equal(tokens, counted):
            return tokens.movedim(axis, 0)
    raise ValueError(
        f"its input of shape {tuple(tokens.shape)} is not one row of tokens for each of the {samples} samples, so that "
        "the gradients of the samples are summed before they reach it"
    )


def _convolution(module: nn.Module, a: Tensor, b: Tensor) -> _Gradients:
    out = b.flatten(2).mT
    shape = tuple(module.weight.shape)
    return {"weight": lambda: Outer(out, _patches(module, a), shape), "bias": lambda: Dense(out.sum(1))}


def _norm(module: nn.Module, a: Tensor, b: Tensor) -> _Gradients:
    last = tuple(module.normalized_shape)
    normalise = functional.layer_norm if isinstance(module, nn.LayerNorm) else functional.rms_norm
    total = lambda x: Dense(x.reshape(len(b), -1, *last).sum(1))
    return {"weight": lambda: total(b * normalise(a, last, eps=module.eps)), "bias": lambda: total(b)}


def _runs_as(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return whether a module is of one of these kinds and has its forward pass; a subclass may have another one."""
    same = lambda kind: all(
        getattr(type(module), f, None) is getattr(kind, f, None) for f in ("forward", "_conv_forward")
    )
    return "forward" not in vars(module) and any(isinstance(module, kind) and same(kind) for kind in kinds)


def _plain_convolution(module: nn.Module) -> bool:
    return (
        _runs_as(module, nn.Conv1d, nn.Conv2d)
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _patches(module: nn.Module, image: Tensor) -> Tensor:
    """Return the inputs of each output position of a convolution: (samples, positions, channels * kernel)."""
    sizes = [module.kernel_size, module.dilation, module.padding, module.stride]
    if isinstance(module, nn.Conv1d):
        image = image[:, :, None]
        sizes = [(fill, *given) for fill, given in zip((1, 1, 0, 1), sizes, strict=True)]
    return functional.unfold(image, *sizes).mT
