"""Copies of a network to experiment on: in double precision, with random weights. The network itself stays as it is."""

import copy
import random
import warnings
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = [
    "Precise",
    "as_double",
    "draws_numbers",
    "epsilon",
    "forward",
    "loss_beyond_outputs",
    "model_copy",
    "projected",
    "randomise",
    "trainable",
    "unwrap",
]

Loss = Callable[[nn.Module, Any], Tensor]

NOT_CALLED = "`loss(model, batch)` did not call the model that it was given: call `model(...)` inside it."

DIRECT = 1e-9
"""A difference of gradients above this, relative to the largest, is no rounding in double precision."""

EPSILONS = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "layer_norm_epsilon")
"""What norms call the number under their root."""


class Precise(TorchFunctionMode):
    """Computes in double precision where a model asks for less by name, as norms and softmax often do."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        more = lambda x: _counterpart(x, torch.float64)
        args = tuple(more(a) if isinstance(a, torch.dtype) else a for a in args)
        kwargs = {k: more(v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        if function in (Tensor.float, Tensor.half, Tensor.bfloat16):
            function = Tensor.double
        elif function in (Tensor.cfloat, Tensor.chalf):
            function = Tensor.cdouble
        return function(*args, **kwargs)


def _counterpart(dtype: torch.dtype, real: torch.dtype) -> torch.dtype:
    """The type that a copy in the precision `real` has in the place of a type: complex stays complex."""
    if dtype.is_complex:
        return real.to_complex()
    return real if dtype.is_floating_point else dtype


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
        if parameter.is_complex() and parameter.requires_grad:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"the parameter {name} is complex ({kind}): symmetries of complex parameters are not supported. Train "
                "its real and imaginary parts as real parameters (`torch.complex` joins them), or freeze it "
                "(`requires_grad_(False)`)."
            )
    return model


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that SGD moves, each once: what is tied appears under its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}


def as_double(batch: Any, dtype: torch.dtype = torch.float64) -> Any:
    """A batch with its floating-point tensors in another precision."""
    if isinstance(batch, Tensor):
        return batch.to(_counterpart(batch.dtype, dtype))
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
    twin._apply(lambda tensor: tensor.to(_counterpart(tensor.dtype, dtype))).train()
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


def seed_all(seed: int) -> None:
    """Seed the global generators of PyTorch, NumPy and Python, all of which networks draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def draws_numbers(model: nn.Module, loss: Loss, batch: Any) -> bool:
    """Whether a pass draws random numbers (dropout, stochastic depth), by the states of the generators."""
    devices = {p.device for p in model.parameters() if p.is_cuda}
    states = lambda: (
        [torch.get_rng_state().tolist(), *(torch.cuda.get_rng_state(device).tolist() for device in devices)],
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
    )
    drawn = []

    def watched(model: nn.Module, batch: Any) -> Tensor:
        before = states()
        value = loss(model, batch)
        drawn.append(states() != before)
        return value

    with torch.no_grad():
        forward(model, watched, batch)
    return any(drawn)


def forward(model: nn.Module, loss: Loss, batch: Any, seed: int | None = None) -> tuple[Tensor, Tensor]:
    """The loss, and the outputs of the model on the way to it as one vector. With a seed dropout draws the same."""
    value, tensors = _run(model, loss, batch, seed)
    return value, torch.cat([t.reshape(-1) for t in tensors])


def _run(model: nn.Module, loss: Loss, batch: Any, seed: int | None) -> tuple[Tensor, list[Tensor]]:
    if seed is not None:
        seed_all(seed)
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
    tensors = [t for out in seen for t in _tensors(out)]
    if not tensors:
        raise TypeError(f"the model returns a {type(seen[-1]).__name__} without floating-point tensors.")
    if not any(t.numel() for t in tensors):
        raise ValueError("the model returns no numbers on this batch: it is empty.")
    return value.reshape(()), tensors


def loss_beyond_outputs(model: nn.Module, loss: Loss, batch: Any, seed: int) -> bool:
    """Whether the loss depends on parameters other than through the outputs: a penalty on weights, say.

    The gradient through the outputs alone is compared with the whole one. Outputs of which one is made from another
    may give True without need.
    """
    params = list(trainable(model).values())
    value, tensors = _run(model, loss, batch, seed)
    tensors = [t for t in tensors if t.requires_grad]
    whole = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
    signals = torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True) if tensors else ()
    through = [(t, s) for t, s in zip(tensors, signals, strict=True) if s is not None]
    found: Any = [None] * len(params)
    if through:
        found = torch.autograd.grad([t for t, _ in through], params, [s for _, s in through], allow_unused=True)
    zero = torch.zeros((), dtype=torch.float64)
    apart, size = 0.0, 0.0
    for a, b in zip(whole, found, strict=True):
        apart = max(apart, float(((zero if a is None else a) - (zero if b is None else b)).norm()))
        size = max(size, 0.0 if a is None else float(a.norm()))
    return apart > DIRECT * size


def projected(loss: Loss, seed: int) -> Loss:
    """A random linear function of the outputs in the place of the loss."""

    def value(model: nn.Module, batch: Any) -> Tensor:
        outputs = forward(model, loss, batch)[1]
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (outputs * weights.to(outputs)).mean()

    return value


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
        if out.is_complex():
            return [torch.view_as_real(out.resolve_conj())]
        return [out] if out.is_floating_point() else []
    if isinstance(out, Mapping):
        for name in ("logits", "last_hidden_state"):  # caches and losses beside them are no outputs
            if isinstance(out.get(name), Tensor):
                return [out[name]]
        return [t for value in out.values() for t in _tensors(value)]
    if isinstance(out, list | tuple):
        return [t for value in out for t in _tensors(value)]
    return []
