"""Copies of a network in another precision or with random weights, and forward passes that record the outputs."""

import copy
import random
import warnings
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from undertow._validate import kind_of
from undertow.torch._random_weights import is_norm, randomise

__all__ = [
    "Batch",
    "Loss",
    "OnePrecision",
    "cast_batch",
    "cast_model",
    "forward",
    "loss_bypasses_outputs",
    "model_copy",
    "norm_epsilon",
    "observe_random_numbers",
    "on_host",
    "random_projection",
    "randomise",
    "trainable",
    "unwrap",
    "visit_gradients",
]

Batch = Any
"""Whatever the user's `loss(model, batch)` takes: a tensor, a tuple, a dict, a tokenizer's batch."""
Loss = Callable[[nn.Module, Batch], Tensor]

NOT_CALLED = "`loss(model, batch)` did not call the model that it was given: call `model(...)` inside it."

GRADIENT_RTOL = 1e-9
"""Differences of gradients above this, relative to the largest gradient, exceed rounding in double precision."""

EPSILON_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "layer_norm_epsilon")
"""Attribute names under which norms store the number added to the variance."""


class OnePrecision(TorchFunctionMode):
    """Replace casts to other precisions inside a model (common in norms and softmax) by casts to one precision.

    New tensors are in this precision too: masks are filled with the least number of a precision.
    """

    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__()
        self._dtype = dtype
        real, imaginary = (Tensor.double, Tensor.cdouble) if dtype == torch.float64 else (Tensor.float, Tensor.cfloat)
        self._casts: dict[Callable, Callable] = {
            **dict.fromkeys((Tensor.half, Tensor.bfloat16, Tensor.float, Tensor.double), real),
            **dict.fromkeys((Tensor.chalf, Tensor.cfloat, Tensor.cdouble), imaginary),
        }

    def __enter__(self) -> "OnePrecision":
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        torch.set_default_dtype(self._default)

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        # this runs at every operation of every pass: look before anything is copied. A check of the type of elements at
        # run time would draw from Python's generator, and every network would seem to draw random numbers
        if torch.dtype in map(type, args):
            args = tuple(self._replaced(a) for a in args)
        function = self._casts.get(function, function)
        if not kwargs:
            return function(*args)
        return function(*args, **{name: self._replaced(value) for name, value in kwargs.items()})

    def _replaced(self, value: object) -> object:
        return _corresponding_dtype(value, self._dtype) if isinstance(value, torch.dtype) else value


def _corresponding_dtype(dtype: torch.dtype, real: torch.dtype) -> torch.dtype:
    """Return the dtype that replaces `dtype` in a copy of precision `real`; complex dtypes stay complex."""
    if dtype.is_complex:
        return real.to_complex()
    return real if dtype.is_floating_point else dtype


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile`, `DataParallel` and `DistributedDataParallel`, after validation."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            break
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` is a {type(model).__name__}; give a `torch.nn.Module`.")
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
    """Return the trainable parameters by name. A tied parameter appears once, under its first name."""
    with torch._C.DisableTorchFunction():  # every attribute of a parameter would pass through `OnePrecision`
        return {name: p for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}


def cast_batch(batch: Batch, dtype: torch.dtype) -> Batch:
    """Return the batch with its floating-point tensors in another precision."""
    if isinstance(batch, Tensor):
        return batch.to(_corresponding_dtype(batch.dtype, dtype))
    if isinstance(batch, Mapping):
        values = {key: cast_batch(value, dtype) for key, value in batch.items()}
        if isinstance(batch, dict) or not isinstance(batch, MutableMapping):
            return values
        other = copy.copy(batch)  # a tokenizer's batch is also read by attributes
        other.update(values)
        return other
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(cast_batch(value, dtype) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(cast_batch(value, dtype) for value in batch)
    return batch


def model_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy in another precision and in training mode (dropout, batch statistics in batch norms).

    Parameters are copied into the other precision at once: a copy in their own precision first would take more memory.
    """
    cast = lambda tensor: tensor.detach().to(
        _corresponding_dtype(tensor.dtype, dtype), copy=True, memory_format=torch.contiguous_format
    )
    copies: dict[int, object] = {
        id(p): nn.Parameter(cast(p), requires_grad=p.requires_grad)
        for p in model.parameters()
        if type(p) is nn.Parameter
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            twin = copy.deepcopy(model, copies)
        except RuntimeError as error:
            raise ValueError(f"`census` works on a copy of the model, and copying it failed: {error}") from error
    twin._apply(lambda tensor: tensor.to(_corresponding_dtype(tensor.dtype, dtype))).train()
    for module in twin.modules():
        module._compiled_call_impl = None
        if getattr(module, "gradient_checkpointing", False):
            module.gradient_checkpointing = False
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
        config = getattr(module, "config", None)
        if getattr(config, "_experts_implementation", None) not in (None, "eager"):
            setattr(config, "_experts_implementation", "eager")  # noqa: B010 - grouped products have no kernel in double precision
    return twin


@torch.no_grad()
def cast_model(twin: nn.Module, model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model in another precision, in place, with the weights and buffers that the model has now.

    A parameter stays in the memory that it has, where that is large enough: new memory would leave gaps in the old one.
    """
    for parameter, own in zip(twin.parameters(), model.parameters(), strict=True):
        kind, storage = _corresponding_dtype(parameter.dtype, dtype), parameter.untyped_storage()
        if type(parameter) is nn.Parameter and storage.nbytes() >= kind.itemsize * parameter.numel():
            parameter.data = torch.empty(0, dtype=kind, device=own.device).set_(storage, 0, parameter.shape)
        else:
            parameter.data = parameter.to(kind)
        parameter.copy_(own)
    twin._apply(lambda tensor: tensor.to(_corresponding_dtype(tensor.dtype, dtype)))
    original = dict(model.named_buffers())
    for name, buffer in twin.named_buffers():
        if name in original:
            buffer.copy_(original[name])
    return twin


@contextmanager
def norm_epsilon(model: nn.Module, value: float | None) -> Generator[None]:
    """Set the eps of every norm to `value` inside the context; None changes nothing."""
    original = []
    for module in model.modules() if value is not None else ():
        for name in EPSILON_NAMES if is_norm(module) else ():
            if isinstance(getattr(module, name, None), float):
                original.append((module, name, getattr(module, name)))
                setattr(module, name, value)
            elif name == "eps" and isinstance(module, nn.RMSNorm) and module.eps is None:
                original.append((module, name, None))
                module.eps = value
    try:
        yield
    finally:
        for module, name, before in original:
            setattr(module, name, before)


def seed_all(seed: int) -> None:
    """Seed the global generators of PyTorch, NumPy and Python; networks draw from all of them."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a traceback for every device that is not used
    for backend in (torch.cuda, torch.xpu):
        if backend.is_initialized():
            backend.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def observe_random_numbers(model: nn.Module, loss: Loss) -> tuple[Loss, list[bool]]:
    """Return the loss, and a list that gets whether its first evaluation draws random numbers.

    Dropout and stochastic depth do. They are recognised by the states of the generators.
    """
    devices = {p.device for p in model.parameters() if p.is_cuda}
    states = lambda: (
        [torch.get_rng_state().tolist(), *(torch.cuda.get_rng_state(device).tolist() for device in devices)],
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
    )
    changed: list[bool] = []

    def observed_loss(model: nn.Module, batch: Batch) -> Tensor:
        if changed:
            return loss(model, batch)
        before = states()
        value = loss(model, batch)
        changed.append(states() != before)
        return value

    return observed_loss, changed


def forward(model: nn.Module, batch: Batch, loss: Loss, seed: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the loss, and the outputs of the model during its evaluation as one vector.

    With `seed` the global generators are seeded first, so that dropout draws the same units each time.
    """
    value, tensors = _run(model, batch, loss, seed)
    return value, torch.cat([t.reshape(-1) for t in tensors])


def _run(model: nn.Module, batch: Batch, loss: Loss, seed: int | None) -> tuple[Tensor, list[Tensor]]:
    if seed is not None:
        seed_all(seed)
    outputs: list[object] = []
    handle = model.register_forward_hook(lambda module, args, out: outputs.append(out))
    try:
        value = loss(model, batch)
    except RuntimeError as error:
        if not outputs and not _modules_in_traceback(error, model):
            raise ValueError(f"{NOT_CALLED} It failed with: {error}") from error
        raise
    finally:
        handle.remove()
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else kind_of(value)
        raise TypeError(f"`loss(model, batch)` returns {what}; return one number, as a tensor with its graph.")
    if not outputs:
        raise ValueError(NOT_CALLED)
    tensors = [t for out in outputs for t in _output_tensors(out)]
    if not tensors:
        raise TypeError(f"the model returns a {type(outputs[-1]).__name__} without floating-point tensors.")
    if not any(t.numel() for t in tensors):
        raise ValueError("the model returns no numbers on this batch: it is empty.")
    return value.reshape(()), tensors


def on_host(tensors: Sequence[Tensor]) -> np.ndarray:
    """Return tensors as one vector of doubles on the host, with one transfer where they are on one device."""
    if len({tensor.device for tensor in tensors}) > 1:
        tensors = [tensor.cpu() for tensor in tensors]
    return torch.cat([t.reshape(-1) for t in tensors]).double().numpy(force=True) if tensors else np.zeros(0)


def visit_gradients(model: nn.Module, value: Tensor, visit: Callable[[str, Tensor, Tensor], None]) -> None:
    """Call `visit(name, parameter, gradient)` for every trainable parameter with a gradient, and drop the gradient."""

    def hook(name: str, parameter: Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                visit(name, parameter.detach(), gradient)

    with torch._C.DisableTorchFunction():
        handles = [
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: hook(name, p))
            for name, parameter in trainable(model).items()
        ]
    try:
        value.backward()
    finally:
        for handle in handles:
            handle.remove()


def loss_bypasses_outputs(model: nn.Module, batch: Batch, loss: Loss, seed: int, gradient_size: float) -> bool:
    """Return whether the loss depends on parameters other than through the outputs, by a penalty on weights say.

    If every path from the loss to a parameter in the graph of derivatives leads through an output, it does not.
    Otherwise the derivatives of the loss with respect to the outputs are subtracted at the outputs: what is left of the
    gradient bypasses them. It is compared with `gradient_size`, the norm of the largest gradient of a parameter. Where
    one output is computed from another the answer may be True although nothing bypasses the outputs.
    """
    value, tensors = _run(model, batch, loss, seed)
    if not _reaches_parameter(value, tensors):
        return False
    tensors = [t for t in tensors if t.requires_grad]
    signals = torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True) if tensors else ()
    for tensor, signal in zip(tensors, signals, strict=True):
        if signal is not None:
            value = value - (tensor * signal).sum()
    norms: list[Tensor] = []
    visit_gradients(model, value, lambda name, weight, gradient: norms.append(gradient.norm()))
    return max(map(float, norms), default=0.0) > GRADIENT_RTOL * gradient_size


def _reaches_parameter(value: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Return whether the graph of derivatives of a value has a path to a parameter that avoids all outputs."""
    passed, left = {output.grad_fn for output in outputs}, [value.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in passed:
            continue
        if hasattr(node, "variable"):
            return True
        passed.add(node)
        left += [following for following, _ in node.next_functions]
    return False


def random_projection(loss: Loss, seed: int) -> Loss:
    """Return a loss that is a random linear function of the outputs of the model."""

    def value(model: nn.Module, batch: Batch) -> Tensor:
        outputs = forward(model, batch, loss)[1]
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (outputs * weights.to(outputs)).mean()

    return value


def _modules_in_traceback(error: RuntimeError, model: nn.Module) -> list[nn.Module]:
    """Return the modules of the model whose code the traceback of an error passes through."""
    modules, trace = set(map(id, model.modules())), error.__traceback__
    passed = []
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if id(owner) in modules:
            passed.append(owner)
        trace = trace.tb_next
    return passed


def _output_tensors(out: object) -> list[Tensor]:
    """Return the floating-point tensors of a model's output; complex ones as pairs of real numbers."""
    if isinstance(out, Tensor):
        if out.is_complex():
            return [torch.view_as_real(out.resolve_conj())]
        return [out] if out.is_floating_point() else []
    if isinstance(out, Mapping):
        for name in ("logits", "last_hidden_state"):  # caches and losses beside them do not count as outputs
            if isinstance(out.get(name), Tensor):
                return [out[name]]
        plain = [value for value in out.values() if not isinstance(value, Mapping)]
        tensors = [t for value in plain for t in _output_tensors(value)]
        if tensors:  # outputs of parts of the model beside them, as those of an encoder, do not count
            return tensors
        return [t for value in out.values() for t in _output_tensors(value)]
    if isinstance(out, list | tuple):
        return [t for value in out for t in _output_tensors(value)]
    return []
