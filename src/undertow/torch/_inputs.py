"""Checks of the models, batches and losses that users give."""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from undertow._calls import check_function, noted
from undertow._validate import instance, kind_of, positive_integer, quote, shown
from undertow.torch._copies import Batch, Loss, forward

__all__ = ["check_batch", "check_inputs", "check_loss", "check_model", "check_seed", "try_loss"]

PRECISION = re.compile(r"dtype|scalar type|\bdouble\b|\bDouble\b|Float")
"""Words of PyTorch on two tensors of different precision."""


def check_model(function: str, model: object) -> None:
    """Raise unless `model` is a network without sparse parameters."""
    instance(function, "model", model, nn.Module, "a `torch.nn.Module`")
    assert isinstance(model, nn.Module)
    for name, parameter in model.named_parameters():
        if parameter.layout is not torch.strided:
            raise ValueError(
                f"`{function}(model=...)`: the parameter {name} is sparse ({parameter.layout}); convert it with "
                "`.to_dense()`."
            )


def check_seed(function: str, seed: object) -> int:
    """Return a seed, a whole number of at least 0."""
    return positive_integer(function, "seed", seed, least=0, most=2**62)


def check_loss(function: str, loss: object) -> None:
    """Raise unless `loss` can be called as `loss(model, batch)`."""
    if isinstance(loss, nn.Module):
        raise TypeError(
            f"`{function}(loss={type(loss).__name__}(...))`: `loss` is a module; give a function that is called as "
            "`loss(model, batch)`, such as `lambda model, batch: criterion(model(batch[0]), batch[1])`."
        )
    if isinstance(loss, list | tuple | dict | Tensor):  # batches, in the place of the loss
        data = "batch" if function == "census" else "batches"
        raise TypeError(
            f"{quote(function, loss=shown(loss))}: `loss` is {kind_of(loss)}; give a function that is called as "
            f"`loss(model, batch)`. The order is `{function}(model, {data}, loss)`."
        )
    check_function(function, "loss(model, batch)", loss)


def check_batch(function: str, batch: object, name: str = "batch") -> None:
    """Raise for a loader, a dataset or arrays of NumPy in the place of one batch."""
    call = quote(function, **{name: shown(batch)})
    if isinstance(batch, torch.utils.data.DataLoader | torch.utils.data.Dataset | Iterator):
        kind = type(batch).__name__
        raise TypeError(
            f"`{function}({name}={kind}(...))`: `{name}` is {kind_of(batch)}; give one batch of it, such as "
            "`next(iter(loader))`."
        )
    if isinstance(batch, str | bytes):
        raise TypeError(f"{call}: `{name}` is a string; give tensors, such as the output of a tokenizer.")
    leaves = list(_leaves(batch))
    if any(isinstance(leaf, np.ndarray) for leaf in leaves) and not any(isinstance(leaf, Tensor) for leaf in leaves):
        raise TypeError(f"{call}: `{name}` has arrays of NumPy; give tensors, `torch.as_tensor(array)`.")


def check_inputs(function: str, model: object, batch: object, loss: object, seed: object) -> int:
    """Check a model, one batch, a loss and a seed, and return the seed."""
    check_model(function, model)
    check_loss(function, loss)
    check_batch(function, batch)
    return check_seed(function, seed)


def _leaves(batch: object) -> Iterator[object]:
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else None
    if parts is None:
        yield batch
        return
    for part in parts:
        yield from _leaves(part)


def _has_loss(model: nn.Module, batch: Batch, loss: Loss, seed: int) -> bool:
    """Return whether the loss of a batch can be computed."""
    try:
        forward(model, batch, loss, seed)
    except Exception:
        return False
    return True


def try_loss(function: str, model: nn.Module, batch: Batch, loss: Loss, seed: int, *, converted: bool) -> None:
    """Raise for a loss that has no gradient, is not finite, or differs between two passes with the same seeds.

    `converted`: the model is a copy in double precision, and the batch was converted with it.
    """
    call = f"`{function}(loss=...)`"
    try:
        with noted(function, "loss(model, batch)"), torch.enable_grad():
            first, second = (forward(model, batch, loss, seed)[0] for _ in range(2))
    except Exception as error:
        if isinstance(batch, list) and batch and _has_loss(model, batch[0], loss, seed):
            raise TypeError(
                f"{call}: `loss(model, batch)` fails for a batch that is a list of length {len(batch)}, but not for "
                "the first entry of that list; give one batch, not a list of batches."
            ) from error
        if isinstance(error, RuntimeError) and converted and PRECISION.search(str(error)):
            raise ValueError(
                f"{call}: `loss` mixes tensors of several precisions. The copy of the model is in double precision, "
                "and so is "
                "the batch: data must come through `batch`, not from variables outside of the loss."
            ) from error
        raise
    if not first.requires_grad:
        raise ValueError(
            f"{call}: `loss(model, batch)` returns {float(first):g} without a gradient; leave out `.detach()`, "
            "`.item()` and "
            "`torch.no_grad()`, and return the tensor that `backward()` needs."
        )
    value, again = float(first.detach()), float(second.detach())
    if not np.isfinite(value):
        raise ValueError(f"{call}: `loss(model, batch)` returns {value}; check the batch and the weights.")
    if value != again:
        raise ValueError(
            f"{call}: `loss(model, batch)` returns {value:.9g} and then {again:.9g} with the same seeds of `torch`, "
            "`random` "
            "and `numpy.random`: a forward pass must be deterministic; draw random numbers from these generators only."
        )
