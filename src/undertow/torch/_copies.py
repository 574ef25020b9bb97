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

__all__ = [
    "Batch",
    "DoublePrecision",
    "Loss",
    "cast_batch",
    "convolution_kernels",
    "draws_random_numbers",
    "forward",
    "loss_bypasses_outputs",
    "model_copy",
    "norm_epsilon",
    "norm_gains",
    "random_projection",
    "random_values",
    "randomise",
    "trainable",
    "unwrap",
]

Batch = Any
"""Whatever the user's `loss(model, batch)` takes: a tensor, a tuple, a dict, a tokenizer's batch."""
Loss = Callable[[nn.Module, Batch], Tensor]

NOT_CALLED = "`loss(model, batch)` did not call the model that it was given: call `model(...)` inside it."

GRADIENT_RTOL = 1e-9
"""Differences of gradients above this, relative to the largest gradient, exceed rounding in double precision."""

EPSILON_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "layer_norm_epsilon")
"""Attribute names under which norms store the number added to the variance."""


class DoublePrecision(TorchFunctionMode):
    """Replace casts to lower precision inside a model (common in norms and softmax) by casts to double precision.

    New tensors are in double precision too: masks are filled with the least number of a precision.
    """

    def __enter__(self) -> "DoublePrecision":
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        torch.set_default_dtype(self._default)

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: tuple = (), kwargs: dict[str, object] | None = None
    ) -> object:
        widened = lambda x: _corresponding_dtype(x, torch.float64)
        args = tuple(widened(a) if isinstance(a, torch.dtype) else a for a in args)
        kwargs = {k: widened(v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        if function in (Tensor.float, Tensor.half, Tensor.bfloat16):
            function = Tensor.double
        elif function in (Tensor.cfloat, Tensor.chalf):
            function = Tensor.cdouble
        return function(*args, **kwargs)


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
    """Return a copy in another precision and in training mode (dropout, batch statistics in batch norms)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            twin = copy.deepcopy(model)
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


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


@contextmanager
def norm_epsilon(model: nn.Module, value: float | None) -> Generator[None]:
    """Set the eps of every norm to `value` inside the context; None changes nothing."""
    original = []
    for module in model.modules():
        for name in EPSILON_NAMES if _is_norm(module) and value is not None else ():
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


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draw random weights that keep activations of moderate size, without zero biases or factors and unit gains."""
    generators: dict[torch.device, torch.Generator] = {}
    gains = norm_gains(model)
    kernels = convolution_kernels(model)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            gain, kernel, device = id(parameter) in gains, id(parameter) in kernels, parameter.device
            generator = generators.setdefault(device, torch.Generator(device).manual_seed(seed))
            parameter.copy_(random_values(parameter, generator, gain=gain, kernel=kernel))


def norm_gains(model: nn.Module) -> set[int]:
    """Return the ids of the parameters of norms that are not biases."""
    return {id(p) for m in model.modules() if _is_norm(m) for n, p in m.named_parameters(recurse=False) if n != "bias"}


def convolution_kernels(model: nn.Module) -> set[int]:
    """Return the ids of the weights of convolutions."""
    return {id(m.weight) for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)}


def random_values(parameter: Tensor, generator: torch.Generator, *, gain: bool, kernel: bool) -> Tensor:
    """Return random values for a parameter, on the device of the generator: that of a norm, of a convolution, or other.

    A parameter with three axes that is not the weight of a convolution holds matrices, one per expert.
    """
    drawn = torch.randn(parameter.shape, generator=generator, device=generator.device).double()
    if gain:
        return (0.3 * drawn).exp()
    if parameter.ndim < 2:
        return 0.3 * drawn
    fan = parameter[0].numel() if kernel else sum(parameter.shape[-2:]) / 2
    return drawn / fan**0.5


def seed_all(seed: int) -> None:
    """Seed the global generators of PyTorch, NumPy and Python; networks draw from all of them."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def draws_random_numbers(model: nn.Module, batch: Batch, loss: Loss) -> bool:
    """Return whether a forward pass draws random numbers (dropout, stochastic depth), by the generators' states."""
    devices = {p.device for p in model.parameters() if p.is_cuda}
    states = lambda: (
        [torch.get_rng_state().tolist(), *(torch.cuda.get_rng_state(device).tolist() for device in devices)],
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
    )
    changed = []

    def observed_loss(model: nn.Module, batch: Batch) -> Tensor:
        before = states()
        value = loss(model, batch)
        changed.append(states() != before)
        return value

    with torch.no_grad():
        forward(model, batch, observed_loss)
    return any(changed)


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
        raise TypeError("`loss(model, batch)` must return one number, as a tensor with its graph.")
    if not outputs:
        raise ValueError(NOT_CALLED)
    tensors = [t for out in outputs for t in _output_tensors(out)]
    if not tensors:
        raise TypeError(f"the model returns a {type(outputs[-1]).__name__} without floating-point tensors.")
    if not any(t.numel() for t in tensors):
        raise ValueError("the model returns no numbers on this batch: it is empty.")
    return value.reshape(()), tensors


def loss_bypasses_outputs(model: nn.Module, batch: Batch, loss: Loss, seed: int) -> bool:
    """Return whether the loss depends on parameters other than through the outputs, by a penalty on weights say.

    The gradient through the outputs is compared with the full gradient. Where one output is computed from another the
    answer may be True although nothing bypasses the outputs.
    """
    params = list(trainable(model).values())
    value, tensors = _run(model, batch, loss, seed)
    tensors = [t for t in tensors if t.requires_grad]
    full = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
    signals = torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True) if tensors else ()
    used = [(t, s) for t, s in zip(tensors, signals, strict=True) if s is not None]
    through: Sequence[Tensor | None] = [None] * len(params)
    if used:
        through = torch.autograd.grad([t for t, _ in used], params, [s for _, s in used], allow_unused=True)
    zero = torch.zeros((), dtype=torch.float64)
    difference, size = 0.0, 0.0
    for a, b in zip(full, through, strict=True):
        difference = max(difference, float(((zero if a is None else a) - (zero if b is None else b)).norm()))
        size = max(size, 0.0 if a is None else float(a.norm()))
    return difference > GRADIENT_RTOL * size


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
