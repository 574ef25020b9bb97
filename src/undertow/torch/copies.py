"""Copies of a network to experiment on: in double precision, with random weights. The network itself stays as it is."""

import copy
import warnings
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["Precise", "as_double", "epsilon", "forward", "model_copy", "randomise", "trainable", "unwrap"]

Loss = Callable[[nn.Module, Any], Tensor]

NOT_CALLED = "`loss(model, batch)` did not call the model that it was given: call `model(...)` inside it."

EPSILONS = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "layer_norm_epsilon")
"""What norms call the number under their root."""


class Precise(TorchFunctionMode):
    """Computes in double precision where a model asks for less by name, as norms and softmax often do."""

    LESS = (torch.float32, torch.float16, torch.bfloat16)

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        more = lambda x: torch.float64 if x in self.LESS else x
        args = tuple(more(a) if isinstance(a, torch.dtype) else a for a in args)
        kwargs = {k: more(v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        if function in (Tensor.float, Tensor.half, Tensor.bfloat16):
            function = Tensor.double
        return function(*args, **kwargs)


def unwrap(model: Any) -> nn.Module:
    """The network inside `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            break
    if not isinstance(model, nn.Module):
        raise TypeError(f"got a {type(model).__name__}; give a `torch.nn.Module`.")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"the parameter {name} of a lazy module has no shape yet: run the model once on a batch first."
            )
        if parameter.is_meta:
            raise ValueError(f"the parameter {name} is on the meta device: load the weights first.")
    return model


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that SGD moves, each once: what is tied appears under its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}


def as_double(batch: Any, dtype: torch.dtype = torch.float64) -> Any:
    """A batch with its floating-point tensors in another precision."""
    if isinstance(batch, Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        found = {key: as_double(value, dtype) for key, value in batch.items()}
        if isinstance(batch, dict) or not isinstance(batch, MutableMapping):
            return found
        other = copy.copy(batch)  # a tokenizer's batch is also read by attributes
        other.update(found)
        return other
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(as_double(value, dtype) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(as_double(value, dtype) for value in batch)
    return batch


def model_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in another precision, as it trains: with dropout, and batch norms on the statistics of the batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            twin = copy.deepcopy(model)
        except RuntimeError as error:
            raise ValueError(f"the model cannot be copied, which a census needs: {error}") from error
    twin.to(dtype).train()
    for module in twin.modules():
        module._compiled_call_impl = None
        if getattr(module, "gradient_checkpointing", False):
            module.gradient_checkpointing = False
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
    return twin


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


@contextmanager
def epsilon(model: nn.Module, value: float | None) -> Generator[None]:
    """Every norm with this eps meanwhile; None leaves them as they are."""
    kept = []
    for module in model.modules():
        for name in EPSILONS if _is_norm(module) and value is not None else ():
            if isinstance(getattr(module, name, None), float):
                kept.append((module, name, getattr(module, name)))
                setattr(module, name, value)
            elif name == "eps" and isinstance(module, nn.RMSNorm) and module.eps is None:
                kept.append((module, name, None))
                module.eps = value
    try:
        yield
    finally:
        for module, name, before in kept:
            setattr(module, name, before)


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Weights in general position: no bias 0, no gain 1, no factor 0; of a size that keeps activations moderate."""
    generator = torch.Generator().manual_seed(seed)
    norms = {id(p) for m in model.modules() if _is_norm(m) for n, p in m.named_parameters(recurse=False) if n != "bias"}
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        drawn = torch.randn(parameter.shape, generator=generator).double()
        if id(parameter) in norms:
            drawn = (0.3 * drawn).exp()
        elif parameter.ndim < 2:
            drawn = 0.3 * drawn
        else:
            fan = parameter[0].numel() if parameter.ndim > 2 else sum(parameter.shape) / 2
            drawn = drawn / fan**0.5
        parameter.copy_(drawn)


def forward(model: nn.Module, loss: Loss, batch: Any, seed: int | None = None) -> tuple[Tensor, Tensor]:
    """The loss, and the outputs of the model on the way to it as one vector. With a seed dropout draws the same."""
    if seed is not None:
        torch.manual_seed(seed)
    seen: list[Any] = []
    handle = model.register_forward_hook(lambda module, args, out: seen.append(out))
    try:
        value = loss(model, batch)
    except RuntimeError as error:
        if not seen and not _called(error, model):
            raise ValueError(f"{NOT_CALLED} It failed with: {error}") from error
        raise
    finally:
        handle.remove()
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError("`loss(model, batch)` must return one number, as a tensor with its graph.")
    if not seen:
        raise ValueError(NOT_CALLED)
    flat = [t.reshape(-1) for out in seen for t in _tensors(out)]
    if not flat:
        raise TypeError(f"the model returns a {type(seen[-1]).__name__} without floating-point tensors.")
    outputs = torch.cat(flat)
    if not outputs.numel():
        raise ValueError("the model returns no numbers on this batch: it is empty.")
    return value.reshape(()), outputs


def _called(error: RuntimeError, model: nn.Module) -> list[nn.Module]:
    """The modules of the model, if any, in which an error arose."""
    inside, trace = set(map(id, model.modules())), error.__traceback__
    found = []
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if id(owner) in inside:
            found.append(owner)
        trace = trace.tb_next
    return found


def _tensors(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out] if out.is_floating_point() else []
    if isinstance(out, Mapping):
        for name in ("logits", "last_hidden_state"):  # caches and losses beside them are no outputs
            if isinstance(out.get(name), Tensor):
                return [out[name]]
        return [t for value in out.values() for t in _tensors(value)]
    if isinstance(out, list | tuple):
        return [t for value in out for t in _tensors(value)]
    return []
