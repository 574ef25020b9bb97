"""Random weights for a network, and finite moves along the orbit of a symmetry, apart from the code of the census."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch import Symmetry
from undertow.torch._copies import OnePrecision, cast_batch, forward, model_copy, norm_epsilon, trainable
from undertow.torch._isolation import isolated

__all__ = ["Change", "double_copy", "draw_weights", "moves_function", "other_data", "without_warnings"]


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore warnings inside the context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def double_copy(model: nn.Module) -> nn.Module:
    """Return a copy in double precision, in which transformers computes experts one by one (not by `grouped_mm`)."""
    twin = model_copy(model, torch.float64)
    if hasattr(twin, "set_experts_implementation"):
        twin.set_experts_implementation("eager")
    return twin


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    """Draw random weights: matrices with variance 1/fan-in, biases of size 0.6, positive gains and running statistics.

    Each parameter is multiplied by a random factor between 1 and `scale`. Where all are large together ReLU6 may
    saturate in every later layer, which hides the layers before.
    """
    generator = torch.Generator().manual_seed(seed)
    gains = {
        id(p)
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        for name, p in module.named_parameters(recurse=False)
        if "bias" not in name
    }
    for parameter in model.parameters():
        if parameter.is_floating_point():
            drawn = torch.randn(parameter.shape, generator=generator).double()
            if id(parameter) in gains and parameter.ndim < 2:
                drawn = (0.4 * drawn).exp()
            else:
                fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
                drawn = drawn * (0.6 if parameter.ndim < 2 else 1.2 / max(fan_in, 1) ** 0.5)
            parameter.copy_(scale ** torch.rand((), generator=generator).item() * drawn)
    for name, buffer in model.named_buffers():  # evaluation mode reads these
        if name.endswith(("running_mean", "running_var")):
            drawn = 0.4 * torch.randn(buffer.shape, generator=generator).double()
            buffer.copy_(drawn if name.endswith("mean") else drawn.exp())


class Change(NamedTuple):
    """Relative changes along an orbit, the largest over training and evaluation mode."""

    outputs: float
    loss: float


@torch.no_grad()
def moves_function(
    model: nn.Module, symmetry: Symmetry, batch: Any, loss: Any, *, eps: float | None = None, seed: int = 0
) -> Change:
    """Return how far outputs and loss change under a random finite group element, at other weights and on other data.

    In float64; dropout draws the same units before and after. The weights are random, once at ordinary size and twice
    at up to eight times of it.
    """
    twin = double_copy(model)
    changes = []
    with isolated(model, seed), norm_epsilon(twin, eps), OnePrecision(), without_warnings():
        for number, scale in enumerate((1.0, 8.0, 8.0)):
            draw_weights(twin, 104729 + 31 * seed + number, scale)
            data = cast_batch(other_data(batch, seed + number), torch.float64)
            original = {name: p.detach().clone() for name, p in trainable(twin).items()}
            moved = _move(original, symmetry, seed + number)
            for mode in (True, False):
                twin.train(mode)
                before = forward(twin, data, loss, seed + number)
                for name, value in moved.items():
                    trainable(twin)[name].copy_(value)
                after = forward(twin, data, loss, seed + number)
                for name, value in original.items():
                    trainable(twin)[name].copy_(value)
                pairs = zip(after, before, strict=True)
                changes.append([float((b - a).norm() / a.norm().clamp_min(1e-300)) for b, a in pairs])
    finite = np.array([pair for pair in changes if np.isfinite(pair).all()])
    value, outputs = finite.max(axis=0) if len(finite) else (np.nan, np.nan)
    return Change(float(outputs), float(value))


def _move(values: Mapping[str, Tensor], symmetry: Symmetry, seed: int) -> dict[str, Tensor]:
    """Return the parameters moved by a random group element, index by index of each axis."""
    generator = torch.Generator().manual_seed(seed)
    width = symmetry.block
    blocks = torch.randn(symmetry.size // width, width, width, generator=generator).double()
    matrix = torch.block_diag(*torch.linalg.matrix_exp(0.4 * blocks / width**0.5))
    moved = dict(values)
    for sign, side in ((1, symmetry.plus), (-1, symmetry.minus)):
        for axis in side:
            power = sign * getattr(axis, "power", 1)
            group = torch.linalg.matrix_power(matrix.T if sign > 0 else matrix, power)
            tensor = moved[axis.parameter]
            shape = tuple(tensor.shape) or (1,)
            copies = axis.matrices if getattr(axis, "by_matrix", False) else 1
            rows = (tensor + axis.shift).reshape(copies, shape[0] // copies, *shape[1:]).movedim(axis.axis + 1, 1)
            flat = rows.reshape(axis.length, -1).clone()
            for together in axis.index.T:
                flat[together] = group @ flat[together]
            rows = flat.reshape(rows.shape).movedim(1, axis.axis + 1)
            moved[axis.parameter] = rows.reshape(tensor.shape) - axis.shift
    return {name: moved[name] for name in symmetry.parameters}


def other_data(batch: Any, seed: int) -> Any:
    """Return a batch of the same shapes: other numbers, and integers in another order (masks of 0 and 1 stay)."""
    generator = torch.Generator().manual_seed(15485863 + seed)  # not the data of the same seed
    if isinstance(batch, Tensor):
        if batch.is_floating_point():
            return torch.randn(batch.shape, generator=generator).to(batch)
        if batch.dtype == torch.bool or batch.is_complex() or bool((batch <= 1).all()):
            return batch
        return batch.flatten()[torch.randperm(batch.numel(), generator=generator)].reshape(batch.shape)
    if isinstance(batch, Mapping):
        return {key: other_data(value, seed + k) for k, (key, value) in enumerate(batch.items())}
    if isinstance(batch, list | tuple):
        return type(batch)(other_data(value, seed + k) for k, value in enumerate(batch))
    return batch
