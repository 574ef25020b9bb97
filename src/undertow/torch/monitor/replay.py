"""Per-sample gradients of layers of any kind: the layer is run again on each sample."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from undertow.torch.monitor.sample_gradients import GPU_CHUNK_BYTES, Dense
from undertow.torch.monitor.tensors import at_least_single, tensors_in

__all__ = ["NotSeparableError", "replayed_gradients"]

MAX_BYTES = 2**31
"""Limit on the bytes of per-sample gradients of a layer that is run again, which are all held at once."""


class NotSeparableError(ValueError):
    """The gradients of a layer cannot be separated by sample."""


def replayed_gradients(
    module: nn.Module, args: tuple, kwargs: dict[str, object], back: Sequence[Tensor | None], samples: int,
    batch_axis: int, leaves: Sequence[str], precision: AbstractContextManager,
) -> dict[str, Dense]:  # fmt: skip
    """Return per-sample gradients of any module, by vmap of its own backward pass over the samples.

    `back` are the derivatives of the loss with respect to the outputs. `precision` is the autocast context that the
    module ran under.
    """
    values = {leaf: module.get_parameter(leaf).detach() for leaf in leaves}
    size = sum(v.numel() for v in values.values())
    if 4 * samples * size > MAX_BYTES:
        raise ValueError(
            f"its per-sample gradients would take {4 * samples * size / 2**30:.1f} GiB; use smaller batches"
        )
    rest = {n: p.detach() for n, p in [*module.named_parameters(), *module.named_buffers()] if n not in values}
    flat, structure = torch.utils._pytree.tree_flatten((args, kwargs))
    axes = [_sample_axis(x, samples, batch_axis) if isinstance(x, Tensor) else None for x in flat]
    if all(k is None for k in axes):
        raise NotSeparableError(f"none of its inputs has the {samples} samples of the batch along an axis")
    inputs = [x.detach() for x, k in zip(flat, axes, strict=True) if k is not None]
    used = [k for k, b in enumerate(back) if b is not None]
    signals = [b for b in back if b is not None]
    signal_axes = [_sample_axis(b, samples, batch_axis) for b in signals]
    if any(k is None for k in signal_axes):
        raise NotSeparableError(f"one of its outputs does not have the {samples} samples of the batch along an axis")

    def outputs(params: dict[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        given, filled = iter(inputs), list(flat)
        for position, k in enumerate(axes):
            if k is not None:
                filled[position] = next(given).unsqueeze(k)
        args, kwargs = torch.utils._pytree.tree_unflatten(filled, structure)
        tensors = tensors_in(torch.func.functional_call(module, {**rest, **params}, args, kwargs))
        return [tensors[k] for k in used]

    def one_sample(inputs: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        _, pull = torch.func.vjp(lambda params: outputs(params, inputs), values)
        return pull([b.unsqueeze(k) for b, k in zip(cotangents, signal_axes, strict=True)])[0]

    in_axes = [k for k in axes if k is not None], signal_axes
    chunk = max(1, GPU_CHUNK_BYTES // max(1, 4 * size))
    all_samples = torch.vmap(one_sample, in_dims=in_axes, chunk_size=chunk, randomness="different")
    with precision, warnings.catch_warnings():  # vmap warns where it loops over samples
        warnings.filterwarnings("ignore", message="There is a performance drop")
        gradients = all_samples(inputs, signals)
    return {leaf: Dense(at_least_single(gradients[leaf])) for leaf in leaves}


def _sample_axis(x: Tensor, samples: int, batch_axis: int) -> int | None:
    """Return the axis with as many entries as samples, the batch axis before the first; None if there is none."""
    return next((k for k in (batch_axis, 0) if x.ndim > k and x.shape[k] == samples), None)
