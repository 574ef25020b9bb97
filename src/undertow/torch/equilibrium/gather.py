"""The noise of training: gradients of minibatches, gathered for the parameters of some symmetries at a time."""

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undertow.estimate import Estimate
from undertow.torch._copies import Loss, forward, trainable
from undertow.torch.census.axes import Axis, Relation, unfold

__all__ = [
    "Component",
    "components",
    "gathered",
    "grams",
    "groups",
    "in_stack",
    "noise_power",
    "shown",
    "squares",
    "undisturbed",
]

MEMORY = 2**30
"""Bytes of gradients held at once; more parameters take another pass over the batches."""


@dataclass(frozen=True)
class Component:
    """Parameters linked by relations: what happens to them does not change the gradients of any others."""

    parameters: tuple[str, ...]
    relations: tuple[Relation, ...]


def noise_power(gram: np.ndarray) -> Estimate:
    """Tr Sigma = sum_b |g_b - mean|^2/(K - 1) from the inner products of K gradients.

    The standard error is that of the mean of the K squared distances. Two gradients are equally far from their mean:
    their distances say nothing of the spread, and the standard error is NaN.
    """
    count = len(gram)
    centre = np.eye(count) - 1 / count
    away = np.diag(centre @ gram @ centre) * count / (count - 1)
    error = away.std(ddof=1) / count**0.5 if count > 2 else np.nan
    return Estimate(float(away.mean()), float(error), count)


def shown(estimate: Estimate) -> str:
    """An estimate with its standard error."""
    return f"{estimate.value:.3g} ± {estimate.standard_error:.1g}"


def components(relations: Sequence[Relation], names: Sequence[str]) -> list[Component]:
    """Relations that share parameters, together; parameters without one on their own."""
    label = {name: name for name in names}

    def root(name: str) -> str:
        while label[name] != name:
            name = label[name]
        return name

    for relation in relations:
        first, *rest = (root(name) for name in relation.parameters)
        for other in rest:
            label[other] = first
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(root(name), []).append(name)
    return [
        Component(tuple(inside), tuple(r for r in relations if r.parameters[0] in inside))
        for inside in members.values()
    ]


def groups(parts: list[Component], params: dict[str, nn.Parameter], batches: int) -> list[list[Component]]:
    """Components in groups whose gradients fit in memory."""
    found: list[list[Component]] = [[]]
    used = 0
    for part in parts:
        size = sum(params[name].numel() * params[name].element_size() for name in part.parameters) * batches
        if found[-1] and used + size > MEMORY:
            found.append([])
            used = 0
        found[-1].append(part)
        used += size
    return found


def _rounding() -> list[Any]:
    """Where float32 may be rounded to 10 bits or fewer inside products: more than a proof on outputs allows."""
    cuda, cudnn, host = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    return [cuda.matmul, cudnn.conv, cudnn.rnn, host.matmul, host.conv, host.rnn]


@contextmanager
def full_precision() -> Generator[None]:
    """Products in all the digits of their type meanwhile."""
    kept = [(place, place.fp32_precision) for place in _rounding()]
    try:
        for place, _ in kept:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, before in kept:
            place.fp32_precision = before


@contextmanager
def undisturbed(model: nn.Module, seed: int) -> Generator[None]:
    """Random numbers from a seed, no TF32, and buffers (running means, caches) as they were afterwards."""
    buffers = [(m, dict(m._buffers), {k: b.detach().clone() for k, b in _held(m)}) for m in model.modules()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    others = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices), full_precision():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach GPUs that are not put back
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            with torch.no_grad():
                for module, held, before in buffers:
                    module._buffers.clear()
                    module._buffers.update(held)
                    for name, buffer in _held(module):
                        buffer.copy_(before[name])
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002


def _held(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]


def gathered(
    model: nn.Module, loss: Loss, batches: Sequence[Any], names: Sequence[str], seed: int
) -> dict[str, Tensor]:
    """The gradient of every batch, stacked: (batches, *shape) for each name."""
    params = trainable(model)
    chosen = [params[name] for name in names]
    found = [torch.empty((len(batches), *(p.shape or (1,))), dtype=p.dtype, device=p.device) for p in chosen]
    with undisturbed(model, seed):
        for row, batch in enumerate(batches):
            value, _ = forward(model, loss, batch)
            gradients = torch.autograd.grad(value, chosen, allow_unused=True)
            for stack, gradient in zip(found, gradients, strict=True):
                stack[row] = 0.0 if gradient is None else gradient.detach().to_dense().reshape(stack.shape[1:])
    if not all(bool(torch.isfinite(stack).all()) for stack in found):
        raise ValueError("`equilibrate`: a gradient is not finite; the model diverged or a batch is broken.")
    return dict(zip(names, found, strict=True))


def squares(stacked: Tensor, axis: Axis) -> np.ndarray:
    """Sums of squares for each generator, over batches if there are any in front."""
    return unfold(stacked, axis).double().square().sum(dim=(1, 2)).numpy(force=True)


def grams(stacked: Tensor, axis: Axis, block: int) -> np.ndarray:
    """Inner products of the indices inside each block: (blocks, block, block)."""
    rows = unfold(stacked, axis).double().reshape(axis.size // block, block, -1)
    return (rows @ rows.mT).numpy(force=True)


def in_stack(axis: Axis) -> Axis:
    """The same axis of tensors with batches in front."""
    return replace(axis, axis=axis.axis + 1)
