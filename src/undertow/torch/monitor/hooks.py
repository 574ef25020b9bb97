"""Hooks that hear what the layers of a network receive and what comes back to them, while somebody else trains it.

Hooks are on the modules only while a step is listened to. Signals of one backward pass belong together, sample by
sample, whatever number of times a layer was used; another backward pass brings other samples (gradient accumulation).
"""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.signals import Dense, Outer, Request, Ways, fetched, moments, per_sample, probe_of, replayed

__all__ = ["Heard", "Listener"]

HOLDERS = (nn.ParameterList, nn.ParameterDict)
"""Modules that are never called: whoever holds them is."""
PLAIN = {
    f"{step}Backward0"
    for step in (
        "Add", "Addmm", "Clone", "Div", "Gelu", "Linear", "Mm", "Mul", "NativeLayerNorm", "Permute", "Relu", "Sigmoid",
        "Silu", "Slice", "Squeeze", "Sub", "T", "Tanh", "ToCopy", "Transpose", "UnsafeView", "Unsqueeze", "View",
    )
}  # fmt: skip
"""Steps of a graph that hide no tensor they depend on and make no copies for samples, as `expand` does."""
FOLLOWED = 256
"""Steps of a graph that are looked at before nothing is said of it."""


class Heard:
    """Sums over all samples heard since the last step."""

    def __init__(self) -> None:
        self.samples = 0
        self.sums: dict[Request, Tensor] = {}
        self.probes: dict[str, Tensor] = {}
        self.overflowed = False
        """A backward pass was left out: its signals were not finite."""
        self.half: set[str] = set()
        """Parameters whose signals came in half precision."""
        self.flipped: dict[str, bool | None] = {}
        """How to make the same picture of the whole gradient; None: it is the gradient."""

    def add(self, other: "Heard") -> None:
        """The samples of another backward pass."""
        self.samples += other.samples
        self.sums = _added(self.sums, other.sums)
        self.probes = _added(self.probes, other.probes)
        self.flipped |= other.flipped
        self.half |= other.half

    @property
    def finite(self) -> bool:
        """Whether no signal overflowed."""
        return all(map(np.isfinite, fetched([value.sum() for value in self.sums.values()])))


def _added(mine: dict, theirs: dict) -> dict:
    return mine | {key: mine[key] + value if key in mine else value for key, value in theirs.items()}


class _Site:
    """A module that uses parameters of interest."""

    def __init__(self, name: str, module: nn.Module, leaves: dict[str, str]):
        self.name, self.module = name, module
        self.leaves = leaves
        """What the module calls them, and what the model does."""


class _Call:
    """One use of a site: what it received, and what has come back."""

    def __init__(self, site: _Site, args: tuple, kwargs: dict, outputs: int, samples: int, period: int):
        self.site, self.args, self.kwargs, self.samples = site, args, kwargs, samples
        self.back: list[Tensor | None] = [None] * outputs
        self.period = period
        """Which step it was made in."""
        self.trouble: str | None = None
        """Why what comes back will say nothing of samples."""
        self.precision: Callable[[], Any] = contextlib.nullcontext
        """The autocast that it ran under."""


class _Silent:
    """What a copied or saved model has in the place of a hook."""

    def __call__(self, *_: Any) -> None:
        return None


class _Tap:
    """A hook. Copies of the model do not report to the monitor of the original."""

    def __init__(self, function: Any, *facts: Any):
        self.function, self.facts = function, facts

    def __call__(self, *args: Any) -> None:
        self.function(*self.facts, *args)

    def __deepcopy__(self, memo: dict) -> _Silent:
        return _Silent()

    def __reduce__(self) -> tuple:
        return _Silent, ()


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def _precision(device: str) -> Callable[[], Any]:
    """The autocast that is on now, to be put on again later."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext
    dtype, on = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return lambda: torch.autocast(device, dtype, on, cache_enabled=False)


def _of_parameters(x: Tensor, parameters: dict[int, nn.Parameter]) -> bool:
    """Whether a tensor is certainly made of these parameters alone; their copies for each sample do not count."""
    if x.grad_fn is None:
        return id(x) in parameters
    nodes: list[Any] = [x.grad_fn]
    for followed, node in enumerate(nodes):
        if followed == FOLLOWED or node is None:  # None: a tensor that needs no gradient, the batch for one
            return False
        if node.name() in PLAIN:
            nodes += [further for further, _ in node.next_functions if further not in nodes]
        elif node.name() != "torch::autograd::AccumulateGrad" or id(node.variable) not in parameters:
            return False
    return True


class _AsWritten:
    """Compiled code has no hooks in it: while anybody listens, code runs as written."""

    def __init__(self) -> None:
        self.listeners = 0
        self.stance: Any = None

    def begin(self) -> None:
        self.listeners += 1
        if self.stance is None and "torch._dynamo" in sys.modules:
            self.stance = torch.compiler.set_stance("force_eager")

    def end(self) -> None:
        self.listeners -= 1
        if self.listeners == 0 and self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None


AS_WRITTEN = _AsWritten()
"""Of the whole process, as what it sets is."""


def _contained(hook: Callable) -> Callable:
    """A hook out of which no error comes into somebody else's pass: it is the trouble of the step."""

    @functools.wraps(hook)
    def contained(self: "Listener", *given: Any) -> None:
        try:
            hook(self, *given)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    return contained


class Listener:
    """Hears the parameters of some requests: `arm()`, train a step, `take()`."""

    def __init__(self, model: nn.Module, requests: Sequence[Request], batch_axis: int = 0):
        self.model, self.batch_axis = model, batch_axis
        self.requests: dict[str, list[Request]] = {}
        for request in requests:
            self.requests.setdefault(request.parameter, []).append(request)
        self.parameters = {name: model.get_parameter(name) for name in self.requests}
        self._all = {id(p): p for p in model.parameters()}
        self.ways = Ways()
        self.sites = _sites(model, self.parameters)
        self._handles: list[Any] = []
        self._replaying = False
        self._period = 0
        self._looked: dict[tuple, int | None] = {}
        """For a site and the shapes it receives, the step in which they came first; None: look at them always."""
        self._mixing: str | None = None
        self._norms: list[tuple[str, nn.Module]] = []
        self._reset()
        self._look_for_norms()
        if trouble := self._mixes():
            raise ValueError(f"`NoiseMonitor`: {trouble}.")

    def _look_for_norms(self) -> None:
        kind = nn.modules.batchnorm._BatchNorm
        self._norms = [(name, module) for name, module in self.model.named_modules() if isinstance(module, kind)]

    def _mixes(self) -> str | None:
        """Why samples of a batch are not independent, if they are not."""
        for name, module in self._norms:
            if module.training or module.running_mean is None:
                return (
                    f"the samples of a batch are not independent: {name or 'the model'} is a {type(module).__name__} "
                    "that trains; put it in eval mode, or use LayerNorm or GroupNorm"
                )
        return None

    def _fail(self, trouble: str) -> None:
        """What went wrong first is what is said."""
        self.trouble = self.trouble or trouble

    def _reset(self) -> None:
        self.heard = Heard()
        self.trouble: str | None = None
        self._period += 1
        self._samples: int | None = None
        self._outstanding: dict[str, int] = {}
        self._abandon()

    def _abandon(self) -> None:
        """Forgets a backward pass that did not come to its end."""
        self._open: Heard | None = None
        self._pending: dict[str, list[tuple[_Call, Outer | Dense]]] = {}
        self._waiting: list[_Call] = []
        self._uses: dict[str, int] = {}

    @property
    def armed(self) -> bool:
        """Whether hooks are on the modules."""
        return bool(self._handles)

    def arm(self) -> None:
        """Puts the hooks on."""
        if self.armed:
            return
        self._look_for_norms()
        self._reset()
        self._handles.append(self.model.register_forward_pre_hook(_Tap(self._begin), with_kwargs=True, prepend=True))
        for site in self.sites:
            self._handles.append(site.module.register_forward_hook(_Tap(self._forward, site), with_kwargs=True))
        AS_WRITTEN.begin()

    def disarm(self) -> None:
        """Takes the hooks off."""
        if self.armed:
            AS_WRITTEN.end()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._reset()

    def take(self) -> tuple[Heard, str | None]:
        """What was heard since the last time, and what went wrong."""
        self._abandon()
        found = self.heard, self.trouble
        self._reset()
        return found

    @_contained
    def _begin(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """The model is called: what came before and left no gradient does not count."""
        if self._replaying or not torch.is_grad_enabled() or _in_backward():
            return
        self._abandon()
        if all(p.grad is None for p in self.parameters.values()):
            self.heard, self.trouble = Heard(), None
        self._mixing = self._mixes()
        sizes = [x.shape[self.batch_axis] for x in _tensors((args, kwargs)) if x.ndim > self.batch_axis]
        self._samples = sizes[0] if sizes else None

    @_contained
    def _forward(self, site: _Site, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        ignored = not torch.is_grad_enabled() or _in_backward() or torch._C._are_functorch_transforms_active()
        if self._replaying or ignored:
            return
        outputs = _tensors(output)
        if not any(x.requires_grad for x in outputs):
            return
        if self._samples is None:
            self._fail("the model itself was not called, only parts of it, or with no tensor: call `model(batch)`")
            return
        lone = self._lone(site, _tensors((args, kwargs)))
        detach = lambda x: x.detach() if isinstance(x, Tensor) else x
        args, kwargs = torch.utils._pytree.tree_map(detach, (args, kwargs))
        call = _Call(site, args, kwargs, len(outputs), self._samples, self._period)
        call.precision = _precision(outputs[0].device.type)
        call.trouble = self._mixing
        if lone:
            call.trouble = (
                f"{_described(site)} receives something made of parameters alone, so that what the samples add to its "
                "gradient is one sum before it comes back: `expand` it to one copy a sample before the layer"
            )
        for name in site.leaves.values():
            self._outstanding[name] = self._outstanding.get(name, 0) + 1
        for place, x in enumerate(outputs):
            if x.requires_grad:
                x.register_hook(lambda back, place=place: self._receive(call, place, back))

    def _lone(self, site: _Site, inputs: list[Tensor]) -> bool:
        """Whether what a site receives is certainly not of the batch: looked at in the step where it has new shapes."""
        key = (site.name, *(x.shape for x in inputs))
        if self._looked.setdefault(key, self._period) not in (self._period, None):
            return False
        found = bool(inputs) and all(_of_parameters(x, self._all) for x in inputs)
        if found:
            self._looked[key] = None
        return found

    @_contained
    def _receive(self, call: _Call, place: int, back: Tensor) -> None:
        if not self.armed or self.trouble is not None:
            return
        if call.trouble is not None:
            self._fail(call.trouble)
            return
        if call.period != self._period:
            self._fail("the backward pass went through a forward pass from before the last step")
            return
        if self._open is None:
            self._open = Heard()
            torch.autograd.Variable._execution_engine.queue_callback(self._close)
        if call.back[place] is not None:
            self._fail(f"{call.site.name} got two signals for one use: backward ran twice through one graph")
            return
        call.back[place] = back.detach()
        if self._open.samples not in (0, call.samples):
            self._fail("one backward pass went through batches of different sizes")
            return
        self._open.samples = call.samples
        if back.dtype in (torch.float16, torch.bfloat16):
            self._open.half |= set(call.site.leaves.values())
        if len(call.back) > 1:  # whether more comes back is known at the end
            self._waiting.append(call)
        else:
            self._understand(call)

    def _understand(self, call: _Call) -> None:
        """A use whose signals are complete, as per-sample gradients; answers requests once all uses are there."""
        site, samples = call.site, call.samples
        try:
            with torch.no_grad(), self._whole():
                found: Any = None
                inputs = _tensors((call.args, call.kwargs))
                if len(inputs) == len(call.back) == 1 and call.back[0] is not None:
                    found = per_sample(site.module, inputs[0], call.back[0], samples, self.batch_axis, [*site.leaves])
            if found is None:
                self._replaying = True
                try:
                    found = replayed(
                        site.module, call.args, call.kwargs, call.back, samples, self.batch_axis, [*site.leaves],
                        call.precision(),
                    )  # fmt: skip
                finally:
                    self._replaying = False
            for leaf, use in found.items():
                name = site.leaves[leaf]
                pending = self._pending.setdefault(name, [])
                pending.append((call, use))
                if len(pending) == self._outstanding[name]:
                    self._answer(name)
        except Exception as error:
            self._fail(f"{_described(site)}: {error}")

    def _whole(self) -> Any:
        """No autocast, should the backward pass run in one: squares of half-precision numbers overflow."""
        device = next(iter(self.parameters.values())).device.type
        on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return torch.autocast(device, enabled=False) if on else contextlib.nullcontext()

    @torch.no_grad()
    def _answer(self, name: str) -> None:
        with self._whole():
            self._sum_up(name)

    def _sum_up(self, name: str) -> None:
        pending = self._pending.pop(name)
        uses = [use for _, use in pending]
        assert self._open is not None
        self._outstanding[name] -= len(uses)
        requests = self.requests[name]
        answers = moments(uses, requests, self.ways)
        # all uses as outer products: a picture; else the whole gradient
        outer = [use for use in uses if isinstance(use, Outer)]
        flipped = outer[0].flipped if len(outer) == len(uses) else None
        if flipped is None:
            uses = [
                Dense(sum(p.formed().sum(0) for p in use.parts(math.prod(use.shape)))[None])
                if isinstance(use, Outer)
                else use
                for use in uses
            ]
        picture: Any = sum(map(probe_of, uses))
        part = Heard()
        part.sums = dict(zip(requests, answers, strict=True))
        part.probes, part.flipped = {name: picture}, {name: flipped}
        self._open.add(part)

    @_contained
    def _close(self) -> None:
        """The end of a backward pass."""
        if self._open is None:
            return
        if self.trouble is None:
            for call in self._waiting:
                self._understand(call)
            for name in list(self._pending):
                self._answer(name)
        done = self._open
        self._abandon()
        if done.finite:  # one that overflowed makes no step under a gradient scaler
            self.heard.add(done)
        else:
            self.heard.overflowed = True


def _described(site: _Site) -> str:
    return f"the layer {site.name} ({type(site.module).__name__})"


def _in_backward() -> bool:
    """Inside a backward pass a forward one repeats what was seen already (activation checkpoints)."""
    return torch._C._current_graph_task_id() != -1


def _sites(model: nn.Module, parameters: dict[str, nn.Parameter]) -> list[_Site]:
    """Every module that uses one of the parameters, under all the names that it has."""
    names = {id(p): name for name, p in parameters.items()}
    modules = dict(model.named_modules())
    found: dict[str, _Site] = {}
    for path, module in modules.items():
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in names:
                continue
            owner, inside = path, leaf
            while owner and _never_called(modules, owner):
                owner, _, last = owner.rpartition(".")
                inside = f"{last}.{inside}"
            if hasattr(modules[owner], "weight_g") and hasattr(modules[owner], "weight_v"):
                raise ValueError(
                    f"`NoiseMonitor`: {owner} has the old `weight_norm`, whose weight is no function of a call; use "
                    "`torch.nn.utils.parametrizations.weight_norm`."
                )
            site = found.setdefault(owner, _Site(owner or type(model).__name__, modules[owner], {}))
            site.leaves[inside] = names[id(parameter)]
    return list(found.values())


def _never_called(modules: dict[str, nn.Module], path: str) -> bool:
    """Lists of parameters, parametrizations, and the output layer that attention uses without calling it."""
    parent, _, last = path.rpartition(".")
    around = modules[parent]
    attention = isinstance(around, nn.MultiheadAttention) and last == "out_proj"
    return isinstance(modules[path], HOLDERS) or last == "parametrizations" or attention or (
        parent.rpartition(".")[2] == "parametrizations"
    )  # fmt: skip
