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
    "RandomWeights",
    "cast_batch",
    "cast_model",
    "convolution_kernels",
    "draws_random_numbers",
    "fill_random",
    "forward",
    "loss_bypasses_outputs",
    "model_copy",
    "norm_epsilon",
    "norm_gains",
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

LARGE_PARAMETER = 2**16
"""Number of entries from which random values are uniform numbers of 16 bits."""

EPSILON_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "layer_norm_epsilon")
"""Attribute names under which norms store the number added to the variance."""


class DoublePrecision(TorchFunctionMode):
    """Replace casts to lower precision inside a model (common in norms and softmax) by casts to double precision."""

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: tuple = (), kwargs: dict[str, object] | None = None
    ) -> object:
        # this runs at every operation of every pass: look before anything is copied
        if torch.dtype in map(type, args):
            args = tuple(_widened(a) for a in args)
        function = WIDE_CASTS.get(function, function)
        if not kwargs:
            return function(*args)
        return function(*args, **{name: _widened(value) for name, value in kwargs.items()})


WIDE_CASTS: dict[Callable, Callable] = {
    **dict.fromkeys((Tensor.float, Tensor.half, Tensor.bfloat16), Tensor.double),
    **dict.fromkeys((Tensor.cfloat, Tensor.chalf), Tensor.cdouble),
}


def _widened(value: object) -> object:
    return _corresponding_dtype(value, torch.float64) if isinstance(value, torch.dtype) else value


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
    """Return a copy in another precision and in training mode (dropout, batch statistics in batch norms).

    Parameters are copied into the other precision at once: a copy in their own precision first would take more memory.
    """
    cast = lambda tensor: tensor.detach().to(_corresponding_dtype(tensor.dtype, dtype), copy=True)
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


def cast_model(twin: nn.Module, model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model in another precision, in place, with the buffers that the model has now."""
    twin._apply(lambda tensor: tensor.to(_corresponding_dtype(tensor.dtype, dtype)))
    original = dict(model.named_buffers())
    for name, buffer in twin.named_buffers():
        if name in original:
            buffer.copy_(original[name])
    return twin


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


@contextmanager
def norm_epsilon(model: nn.Module, value: float | None) -> Generator[None]:
    """Set the eps of every norm to `value` inside the context; None changes nothing."""
    original = []
    for module in model.modules() if value is not None else ():
        for name in EPSILON_NAMES if _is_norm(module) else ():
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
    RandomWeights(model).draw(seed)


def norm_gains(model: nn.Module) -> set[int]:
    """Return the ids of the parameters of norms that are not biases."""
    return {id(p) for m in model.modules() if _is_norm(m) for n, p in m.named_parameters(recurse=False) if n != "bias"}


def convolution_kernels(model: nn.Module) -> set[int]:
    """Return the ids of the weights of convolutions."""
    return {id(m.weight) for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)}


class RandomWeights:
    """Random weights for all parameters of a model, by seed. Small parameters of a device are drawn together."""

    def __init__(self, model: nn.Module):
        gains, kernels = norm_gains(model), convolution_kernels(model)
        self._small: dict[torch.device, list[nn.Parameter]] = {}
        self._large: list[tuple[nn.Parameter, float]] = []
        factors: dict[torch.device, list[Tensor]] = {}
        roots: dict[torch.device, list[Tensor]] = {}
        self._gains: dict[torch.device, list[tuple[int, int]]] = {}
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            device, gain = parameter.device, id(parameter) in gains
            factor, root = _spread(parameter, gain=gain, kernel=id(parameter) in kernels)
            if parameter.numel() >= LARGE_PARAMETER and not gain:
                self._large.append((parameter, factor / root))
                continue
            held = factors.setdefault(device, [])
            if gain:
                first = sum(map(len, held))
                self._gains.setdefault(device, []).append((first, first + parameter.numel()))
            full = lambda value, count=parameter.numel(): torch.full((count,), value, dtype=torch.float64)
            held.append(full(factor))
            roots.setdefault(device, []).append(full(root))
            self._small.setdefault(device, []).append(parameter)
        self._factors = {device: torch.cat(held).to(device) for device, held in factors.items()}
        self._roots = {device: torch.cat(held).to(device) for device, held in roots.items()}

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Give every parameter the random values of a seed."""
        devices = {*self._factors, *(parameter.device for parameter, _ in self._large)}
        generators = {device: torch.Generator(device).manual_seed(seed) for device in devices}
        with torch._C.DisableTorchFunction():  # no casts to replace here
            for device, params in self._small.items():
                sizes = [parameter.numel() for parameter in params]
                normal = torch.empty(sum(sizes), device=device)
                for part in normal.split(sizes):
                    part.normal_(generator=generators[device])
                values = normal.double().mul_(self._factors[device]).div_(self._roots[device])
                for first, last in self._gains.get(device, ()):
                    values[first:last].exp_()
                shaped = [part.view(p.shape) for part, p in zip(values.split(sizes), params, strict=True)]
                torch._foreach_copy_(params, shaped)
            for parameter, spread in self._large:
                _fill_large(parameter, generators[parameter.device], spread)


def _spread(parameter: Tensor, *, gain: bool, kernel: bool) -> tuple[float, float]:
    """Return a factor and a divisor: the standard deviation of random values, or that of the logarithm of a gain.

    A parameter with three axes that is not the weight of a convolution holds matrices, one per expert.
    """
    if gain or parameter.ndim < 2:
        return 0.3, 1.0
    return 1.0, (parameter[0].numel() if kernel else sum(parameter.shape[-2:]) / 2) ** 0.5


def _fill_large(parameter: Tensor, generator: torch.Generator, spread: float) -> None:
    """Fill a large parameter with uniform numbers of 16 bits, four from each random integer.

    At 23 million parameters this takes a third of the time of normal numbers, and any weights in general position do.
    """
    words = torch.empty(-(-parameter.numel() // 4), dtype=torch.int64, device=parameter.device)
    words.random_(-(2**63), None, generator=generator)
    parameter.copy_(words.view(torch.int16)[: parameter.numel()].view(parameter.shape))
    parameter.add_(0.5).mul_(2**-15 * 3**0.5 * spread)  # no zeros


def fill_random(parameter: Tensor, generator: torch.Generator, *, gain: bool, kernel: bool) -> None:
    """Fill a parameter with random values in place: that of a norm, of a convolution, or other."""
    factor, root = _spread(parameter, gain=gain, kernel=kernel)
    if parameter.numel() >= LARGE_PARAMETER and not gain:
        _fill_large(parameter, generator, factor / root)
        return
    drawn = factor * torch.randn(parameter.shape, generator=generator, device=parameter.device).double() / root
    parameter.copy_(drawn.exp() if gain else drawn)


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


def on_host(tensors: Sequence[Tensor]) -> np.ndarray:
    """Return tensors as one vector of doubles on the host, with one transfer where they are on one device."""
    if len({tensor.device for tensor in tensors}) > 1:
        tensors = [tensor.cpu() for tensor in tensors]
    return torch.cat([t.reshape(-1) for t in tensors]).double().numpy(force=True) if tensors else np.zeros(0)


def visit_gradients(model: nn.Module, value: Tensor, visit: Callable[[str, Tensor, Tensor], None]) -> None:
    """Call `visit(name, parameter, gradient)` for every trainable parameter with a gradient, and drop the gradient."""

    def hook(name: str, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            with torch.no_grad():
                visit(name, parameter.detach(), gradient)

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

    The derivatives of the loss with respect to the outputs are subtracted at the outputs: what is left of the gradient
    bypasses them. It is compared with `gradient_size`, the norm of the largest gradient of a parameter. Where one
    output is computed from another the answer may be True although nothing bypasses the outputs.
    """
    value, tensors = _run(model, batch, loss, seed)
    tensors = [t for t in tensors if t.requires_grad]
    signals = torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True) if tensors else ()
    for tensor, signal in zip(tensors, signals, strict=True):
        if signal is not None:
            value = value - (tensor * signal).sum()
    norms: list[Tensor] = []
    visit_gradients(model, value, lambda name, weight, gradient: norms.append(gradient.norm()))
    return max(map(float, norms), default=0.0) > GRADIENT_RTOL * gradient_size


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
        return [t for value in out.values() for t in _output_tensors(value)]
    if isinstance(out, list | tuple):
        return [t for value in out for t in _output_tensors(value)]
    return []
