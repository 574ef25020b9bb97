"""Start a monitor at the first forward pass of a training loop, with a census taken from the batch of this pass."""

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow import _validate as validate
from undertow.torch._copies import trainable
from undertow.torch.census.census import Census, census
from undertow.torch.monitor.eager import EAGER_MODE
from undertow.torch.monitor.monitor import NoiseMonitor
from undertow.torch.monitor.output import Writer, layer_scalars, scalars
from undertow.torch.monitor.tensors import tensors_in

__all__ = ["FirstPass", "MonitorOptions"]

MOST_PARAMETERS = 100_000_000
"""Largest model of which a census is taken without being asked for: it takes about 60 bytes per parameter."""
CENSUS_SAMPLES = 4
"""Samples of the first batch that the census uses."""

Call = tuple[tuple, dict[str, object]]
"""Positional and keyword arguments of a forward pass."""


@dataclass(frozen=True)
class MonitorOptions:
    """Arguments of a callback, which are those of `NoiseMonitor`."""

    every: int = 50
    census: Census | None = None
    """The census; None: take it from the first batch."""
    symmetries: bool = True
    """Whether to measure symmetries; otherwise only the noise scale."""
    batch_axis: int = 0
    window: int = 50
    writer: Writer | str | Path | None = None
    report: str | Path | None = None
    """Where to write the page about the run when training ends."""
    details: bool = False
    """Whether to log the noise scale of every layer."""

    def __post_init__(self) -> None:
        validate.positive_integer("NoiseCallback", "every", self.every)
        validate.positive_integer("NoiseCallback", "window", self.window)


@dataclass
class FirstPass:
    """A monitor that starts at the first forward pass of a model in training mode. No error stops the training."""

    options: MonitorOptions
    monitor: NoiseMonitor | None = None
    problem: str | None = None
    """Why there is no monitor, or no census."""
    _handles: list[torch.utils.hooks.RemovableHandle] = field(default_factory=list)
    _logged: int = -1
    """The newest step whose numbers were returned."""

    def wait_for(self, modules: Iterable[nn.Module], whole: nn.Module, *, distributed: bool = False) -> None:
        """Wait for the first forward pass of one of these modules, which are parts of the model `whole`."""

        def before(module: nn.Module, args: tuple, kwargs: dict[str, object]) -> None:
            if self._handles and torch.is_grad_enabled() and whole.training:
                self._remove_hooks()
                self._start(module, whole, (args, kwargs), distributed)

        EAGER_MODE.acquire()  # a hook inside compiled code would be traced, with the census in it
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        for module in modules:
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict[str, object]
    ) -> tuple[tuple, dict[str, object]] | None:
        """End the first step where its forward pass is inside a closure: the hook of the monitor is not there yet."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None
        waiting = True

        def evaluate() -> object:
            nonlocal waiting
            value = closure()
            if waiting and self.monitor is not None:
                waiting = False
                self.monitor.end_step(optimizer)
            return value

        return (args[0], evaluate), {name: value for name, value in kwargs.items() if name != "closure"}

    def _remove_hooks(self) -> None:
        if self._handles:
            EAGER_MODE.release()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _start(self, module: nn.Module, whole: nn.Module, call: Call, distributed: bool) -> None:
        """Take the census and start the monitor before this forward pass runs."""
        has_all = set(map(id, trainable(whole).values())) <= set(map(id, trainable(module).values()))
        model = module if has_all else whole
        symmetries = self.options.census
        if symmetries is None and self.options.symmetries:
            several = None, SEVERAL.format(type(module).__name__)
            symmetries, self.problem = _census_of(model, call) if has_all else several
            if self.problem is not None:
                warnings.warn(f"`NoiseCallback` measures the noise scale only: {self.problem}.", stacklevel=2)
        options = self.options
        try:
            self.monitor = NoiseMonitor(
                model, symmetries, options.every, batch_axis=options.batch_axis, window=options.window,
                writer=options.writer, on_error="warn", distributed=distributed,
            )  # fmt: skip
        except (ValueError, TypeError, ImportError) as error:
            self.problem = str(error).removesuffix(".")
            warnings.warn(f"`NoiseCallback` measures nothing: {self.problem}.", stacklevel=2)
            return
        self.monitor.start_pass(*call)  # hooks that are attached in a forward pass run from the next one on

    def close(self) -> None:
        """Remove all hooks, and write the report if one was asked for."""
        self._remove_hooks()
        if self.monitor is None:
            return
        self.monitor.close()
        if self.options.report is not None and self.monitor.steps and self.monitor.noise_scale.history:
            self.monitor.report(self.options.report)

    def restarted(self) -> "FirstPass":
        """Close this one and return a new one with the same options, for another run of training."""
        self.close()
        return FirstPass(self.options)

    def new_scalars(self) -> dict[str, float]:
        """Return the numbers of the newest measurement that a training loop logs, {} if they were returned before."""
        if self.monitor is None or self.monitor.noise_scale.newest_step == self._logged:
            return {}
        scales = self.monitor.noise_scale
        self._logged = scales.newest_step
        return scalars(scales) | (layer_scalars(scales.layers) if self.options.details else {})


SEVERAL = (
    "the training step calls {} first, which does not hold all parameters that train; give `NoiseCallback(census=...)` "
    "for the whole model"
)


def _census_of(model: nn.Module, call: Call) -> tuple[Census | None, str | None]:
    """Return the census of a model on some samples of a forward pass, or why there is none."""
    if any(hasattr(p, "full_tensor") for p in model.parameters()):
        return None, "a model that is sharded cannot be copied; take a census before it is and give it as `census=`"
    size = sum(p.numel() for p in model.parameters())
    if size > MOST_PARAMETERS:
        return None, (
            f"a census of {size:,} parameters takes {60 * size / 2**30:.0f} GiB; take it from a narrow twin "
            "(`undertow.torch.narrow_twin`, `Census.transfer`) and give it as `census=`"
        )
    try:
        device = next(model.parameters()).device.type
        with torch.enable_grad(), torch.autocast(device, enabled=False), _without_wrapper(model):
            symmetries = census(model, _few_samples(call), _outputs_loss)
            return symmetries, None if len(symmetries) else "the census of the model has no exact symmetry"
    except Exception as error:
        return None, f"no census could be taken from the first batch ({type(error).__name__}: {error})"


@contextmanager
def _without_wrapper(model: nn.Module) -> Generator[None]:
    """Remove the autocast that accelerate puts around a forward pass: symmetries are proved in full precision."""
    wrapped = vars(model).get("forward")
    original = vars(model).get("_original_forward")
    if wrapped is None or original is None:
        yield
        return
    model.forward = original
    try:
        yield
    finally:
        model.forward = wrapped


def _few_samples(call: Call) -> Call:
    """Return the arguments with the first samples of each tensor that counts samples by its first axis."""
    sizes = [x.shape[0] for x in tensors_in(call) if x.ndim]
    cut: Callable[[object], object] = lambda x: (
        x.detach()[:CENSUS_SAMPLES] if isinstance(x, Tensor) and x.ndim and x.shape[0] == sizes[0] else x
    )
    return torch.utils._pytree.tree_map(cut, call)


def _outputs_loss(model: nn.Module, call: Call) -> Tensor:
    """Return the loss of a model that computes it, else the mean square of its outputs, which has their symmetries."""
    args, kwargs = call
    out = model(*args, **kwargs)
    loss = out.get("loss") if hasattr(out, "get") else None
    if isinstance(loss, Tensor) and loss.ndim == 0:
        return loss
    tensors = tensors_in(dict(out) if isinstance(out, Mapping) else out)
    squares = [x.square().mean() for x in tensors if x.is_floating_point()]
    return torch.stack(squares).sum()
