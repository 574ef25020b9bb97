"""Hooks that record the inputs of layers and the derivatives of their outputs while a training step is recorded.

The derivatives of one backward pass belong together, sample by sample, however often a layer was used. Another backward
pass brings other samples (gradient accumulation).
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.call_queue import CallQueue
from undertow.torch.monitor.eager import EAGER_MODE
from undertow.torch.monitor.gains import GainLayers
from undertow.torch.monitor.layer_queue import LayerQueue, Waiting
from undertow.torch.monitor.layers import SharedCast, is_known, layer_gradients
from undertow.torch.monitor.replay import NotSeparableError, replayed_gradients
from undertow.torch.monitor.sample_gradients import SampleGradients
from undertow.torch.monitor.sites import (
    Call,
    Site,
    autocast_now,
    batch_norm_problem,
    depends_on_parameters_only,
    find_sites,
    in_backward,
    unrecordable,
)
from undertow.torch.monitor.statistics import Autotuner, StatisticRequest
from undertow.torch.monitor.tensors import detached, tensors_in
from undertow.torch.monitor.transient import TransientHook

__all__ = ["GradientRecorder"]


def _record_errors(hook: Callable[..., None]) -> Callable[..., None]:
    """Record hook errors instead of raising them inside the user's forward or backward pass."""

    @functools.wraps(hook)
    def wrapped(self: "GradientRecorder", *args: object) -> None:
        try:
            hook(self, *args)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    return wrapped


class GradientRecorder:
    """Statistics of per-sample gradients during training steps: `attach()`, train a step, `take()`.

    A parameter among `requests` that cannot be recorded is an error of the step. One that is only among `optional`
    ones is listed in `uncovered` with the reason, and the step is valid without it.
    """

    def __init__(
        self,
        model: nn.Module,
        requests: Sequence[StatisticRequest],
        batch_axis: int = 0,
        *,
        optional: Sequence[StatisticRequest] = (),
    ):
        self.model, self.batch_axis = model, batch_axis
        self.requests: dict[str, list[StatisticRequest]] = {}
        self.required = {request.parameter for request in requests}
        """Parameters without which a step is not measured."""
        self.uncovered = dict(unrecordable(model, {request.parameter for request in optional} - self.required))
        """Parameters that cannot be recorded, with the reason."""
        self.record(requests, optional)
        own = dict(model.named_parameters(remove_duplicate=False))
        self.parameters = {name: parameter for name, parameter in own.items() if name in self.requests}
        self._all_parameters = {id(p): p for p in model.parameters()}
        self.autotuner = Autotuner()
        self._gain_layers = GainLayers()
        device = next((p.device.type for p in self.parameters.values()), "cpu")
        self._autocast_device = device if torch.amp.is_autocast_available(device) else None
        self.sites = find_sites(model, self.parameters)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._replaying: int | None = None
        """Identifier of the thread that runs a layer again; the calls of that thread are not recorded."""
        self._calls = CallQueue(self._complete_call, self._fail)
        self._step = 0
        self._first_step: dict[tuple, int | None] = {}
        """For a site and the shapes of its inputs, the step in which they occurred first; None: check them always."""
        self._batch_norm_problem: str | None = None
        self._batch_norms: list[tuple[str, nn.Module]] = []
        self._reset()
        self._find_batch_norms()
        if problem := batch_norm_problem(self._batch_norms):
            raise ValueError(f"`NoiseMonitor`: {problem}.")

    def record(self, requests: Sequence[StatisticRequest], optional: Sequence[StatisticRequest] = ()) -> None:
        """Record these statistics, of the same parameters, from the next step on."""
        self.requests = {}
        for request in [*requests, *(r for r in optional if r.parameter not in self.uncovered)]:
            self.requests.setdefault(request.parameter, []).append(request)

    def _find_batch_norms(self) -> None:
        kind = nn.modules.batchnorm._BatchNorm
        self._batch_norms = [(name, module) for name, module in self.model.named_modules() if isinstance(module, kind)]

    def _fail(self, problem: str) -> None:
        """Keep the first error."""
        self.problem = self.problem or problem

    def _reset(self) -> None:
        self.recorded = BatchSums()
        self.problem: str | None = None
        self._step += 1
        self._samples: int | None = None
        self._open_calls: dict[str, int] = {}
        """Number of calls without derivatives so far, by parameter."""
        self._discard_pass()

    def _discard_pass(self) -> None:
        """Discard a backward pass that did not complete."""
        self._calls.discard()
        self._current: BatchSums | None = None
        self._pending: dict[str, list[SampleGradients]] = {}
        self._queue = LayerQueue(self.autotuner)
        self._cast = SharedCast()
        self._incomplete: list[Call] = []
        self._recomputed: set[str] = set()
        """Parameters used in a forward pass inside the backward pass; how often is known at the end of the pass."""

    @property
    def attached(self) -> bool:
        """Whether the hooks are attached."""
        return bool(self._handles)

    def attach(self) -> None:
        """Attach the hooks."""
        if self.attached:
            return
        self._find_batch_norms()
        self._reset()
        before = TransientHook(self._before_forward)
        self._handles.append(self.model.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        for site in self.sites:
            hook = TransientHook(self._after_forward, site)
            self._handles.append(site.module.register_forward_hook(hook, with_kwargs=True))
        EAGER_MODE.acquire()

    def detach(self) -> None:
        """Remove the hooks."""
        if self.attached:
            EAGER_MODE.release()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._reset()

    def close(self) -> None:
        """Remove the hooks and end the thread."""
        self.detach()
        self._calls.close()

    def take(self) -> tuple[BatchSums, str | None]:
        """Return the sums since the last call, and the first error, and start anew."""
        self._discard_pass()
        result = self.recorded, self.problem
        self._reset()
        return result

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict[str, object]) -> None:
        if not self._runs_again() and not in_backward():
            self.start_pass(args, kwargs)

    def _runs_again(self) -> bool:
        return self._replaying is not None and self._replaying == threading.get_ident()

    @_record_errors
    def start_pass(self, args: tuple, kwargs: dict[str, object]) -> None:
        """Start a forward pass of the model on these arguments. Earlier passes that left no gradient do not count."""
        if not torch.is_grad_enabled():
            return
        self._discard_pass()
        if self._gradients_are_clear():
            self.recorded, self.problem = BatchSums(), None
        self._batch_norm_problem = batch_norm_problem(self._batch_norms)
        sizes = [x.shape[self.batch_axis] for x in tensors_in((args, kwargs)) if x.ndim > self.batch_axis]
        self._samples = sizes[0] if sizes else None

    def _gradients_are_clear(self) -> bool:
        return all(p.grad is None for p in self.parameters.values())

    @_record_errors
    def _after_forward(
        self, site: Site, module: nn.Module, args: tuple, kwargs: dict[str, object], output: object
    ) -> None:
        """Record a call of a site, and register hooks on its outputs.

        A call inside the backward pass repeats one of the forward pass (activation checkpoints). With a reentrant
        checkpoint the first call ran without gradients, and this one gets the derivatives; otherwise it gets none.
        """
        ignored = not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
        if ignored or self._runs_again():
            return
        outputs = tensors_in(output)
        if not any(x.requires_grad for x in outputs):
            return
        if self._samples is None:
            self._fail("the model itself was not called, only parts of it, or with no tensor: call `model(batch)`")
            return
        problem = self._batch_norm_problem
        inputs = tensors_in((args, kwargs)) if kwargs else tensors_in(args)
        if self._independent_of_batch(site, inputs):
            problem = (
                f"{site} receives a tensor made of parameters alone, so that the gradients of the samples are summed "
                "before they reach it: `expand` it to one copy per sample before the layer"
            )
        args, kwargs = detached(args, kwargs)
        inputs = tensors_in((args, kwargs)) if kwargs else tensors_in(args)
        autocast = autocast_now(outputs[0].device.type)
        recomputed = in_backward()
        call = Call(site, args, kwargs, inputs, len(outputs), self._samples, self._step, autocast, problem, recomputed)
        if recomputed:
            self._open_pass()  # here, because the derivatives come in a backward pass inside of this one
        else:
            for name in site.leaves.values():
                self._open_calls[name] = self._open_calls.get(name, 0) + 1
        for place, x in enumerate(outputs):
            if x.requires_grad:
                x.register_hook(lambda back, place=place: self._receive(call, place, back))

    def _independent_of_batch(self, site: Site, inputs: list[Tensor]) -> bool:
        """Return whether the inputs certainly do not depend on the batch; checked in the first step with new shapes."""
        key = (site.name, *(x.shape for x in inputs))
        if self._first_step.setdefault(key, self._step) not in (self._step, None):
            return False
        independent = bool(inputs) and all(depends_on_parameters_only(x, self._all_parameters) for x in inputs)
        if independent:
            self._first_step[key] = None
        return independent

    @_record_errors
    def _receive(self, call: Call, place: int, back: Tensor) -> None:
        """Receive the derivative of the loss with respect to an output of a call."""
        if not self.attached or self.problem is not None:
            return
        if call.problem is not None:
            self._fail_parameters(call.site.leaves.values(), call.problem)
            return
        if call.step != self._step:
            self._fail("the backward pass went through a forward pass from before the last step")
            return
        current = self._open_pass()
        if call.back[place] is not None:
            self._fail(f"{call.site.name} got two derivatives for one call: backward ran twice through one graph")
            return
        call.back[place] = back.detach() if back.requires_grad else back
        if current.samples not in (0, call.samples):
            self._fail("one backward pass went through batches of different sizes")
            return
        current.samples = call.samples
        if back.dtype in (torch.float16, torch.bfloat16):
            current.half |= set(call.site.leaves.values())
        if call.recomputed:
            self._recomputed |= set(call.site.leaves.values())
        if len(call.back) == 1:
            # to run a layer again is not safe while others run
            again = not is_known(call.site.module, back) and not self._gain_layers.is_norm(call.site.module)
            self._calls.add(call, back, alone=again)
        elif call not in self._incomplete:  # whether further outputs get derivatives is known at the end of the pass
            self._incomplete.append(call)

    def _open_pass(self) -> BatchSums:
        """Return the sums of the backward pass that runs, after it was started if necessary.

        Where all gradients are None now, `zero_grad` followed the forward pass, and earlier passes do not count.
        """
        if self._current is None:
            if self._gradients_are_clear():
                self.recorded = BatchSums()
            self._current = BatchSums()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_pass)
        return self._current

    def _fail_parameters(self, names: Iterable[str], problem: str) -> None:
        """Keep the error if one of the parameters is required, else list them as uncovered."""
        names = set(names)
        if names & self.required:
            self._fail(problem)
        else:
            self.uncovered |= dict.fromkeys(names, problem)

    def _complete_call(self, call: Call) -> None:
        """Compute the per-sample gradients of a call, and the statistics once all calls of a parameter are complete."""
        try:
            gradients = self._gradients_of_leaves(call)
            for leaf, use in gradients.items():
                name = call.site.leaves[leaf]
                pending = self._pending.setdefault(name, [])
                pending.append(use)
                if len(pending) == self._open_calls.get(name) and name not in self._recomputed:
                    self._add_statistics(name)
        except NotSeparableError as error:
            assert self._current is not None
            self._current.not_separable |= dict.fromkeys(call.site.leaves.values(), f"{call.site}: {error}")
        except Exception as error:
            self._fail_parameters(call.site.leaves.values(), f"{call.site}: {error}")

    def _gradients_of_leaves(self, call: Call) -> dict[str, SampleGradients]:
        """Return the gradients of the parameters that are not uncovered; of the required ones alone if others fail."""
        covered = [leaf for leaf, name in call.site.leaves.items() if name not in self.uncovered]
        required = [leaf for leaf in covered if call.site.leaves[leaf] in self.required]
        if not covered:
            return {}
        try:
            return self._gradients(call, covered)
        except Exception as error:
            if required in ([], covered):
                raise
            for leaf in set(covered) - set(required):
                self.uncovered[call.site.leaves[leaf]] = f"{call.site}: {error}"
            return self._gradients(call, required)

    def _gradients(self, call: Call, leaves: Sequence[str]) -> dict[str, SampleGradients]:
        site, samples = call.site, call.samples
        inputs = call.inputs
        if len(inputs) == len(call.back) == 1 and call.back[0] is not None:
            with self._without_autocast():
                rest = samples, self.batch_axis, leaves, self._cast
                known = layer_gradients(site.module, inputs[0], call.back[0], *rest)
            if known is not None:
                return known
        rest = call.args, call.kwargs, call.back, samples, self.batch_axis, leaves
        self._replaying = threading.get_ident()
        try:
            known = self._gain_layers.gradients(site.module, *rest, call.autocast())
            return {**(replayed_gradients(site.module, *rest, call.autocast()) if known is None else known)}
        finally:
            self._replaying = None

    def _without_autocast(self) -> AbstractContextManager:
        """Switch autocast off if the backward pass runs under it: squares of half-precision numbers overflow.

        Gradients are switched off too, which a backward pass with `create_graph=True` leaves on.
        """
        device = self._autocast_device
        on = device is not None and torch.is_autocast_enabled(device)
        if not on and not torch.is_grad_enabled():
            return contextlib.nullcontext()
        contexts = contextlib.ExitStack()
        contexts.enter_context(torch.no_grad())
        if on:
            contexts.enter_context(torch.autocast(device, enabled=False))
        return contexts

    def _add_statistics(self, name: str) -> None:
        """Add a parameter to the queue, from all its calls, and compute the statistics if the queue is full."""
        uses = self._pending.pop(name)
        assert self._current is not None
        if name in self._current.probes or name in self._queue:
            self._fail(f"{name} is used inside and outside of a reentrant checkpoint: use the non-reentrant kind")
            return
        if name in self._open_calls:
            self._open_calls[name] -= len(uses)
        self._queue.add(Waiting(name, uses, self.requests[name]))
        if self._queue.full:
            self._compute_queue()

    def _compute_queue(self) -> None:
        """Add the statistics and the probes of all parameters in the queue to those of the pass."""
        assert self._current is not None
        with self._without_autocast():
            for group in self._queue.take():
                try:
                    self._current.add(self._queue.compute(group))
                except Exception as error:
                    self._fail_parameters([one.name for one in group], f"{group[0].name}: {error}")

    @_record_errors
    def _finish_pass(self) -> None:
        """Add the sums of a complete backward pass."""
        if self._current is None:
            return
        self._calls.finish()
        if self.problem is None:
            for call in self._incomplete:
                self._complete_call(call)
            for name in list(self._pending):
                self._add_statistics(name)
            self._compute_queue()
        current = self._current
        self._discard_pass()
        self.recorded.add(current.if_finite())
