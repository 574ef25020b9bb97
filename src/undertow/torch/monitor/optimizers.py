"""The optimisers that step the parameters of a model, and which of them counts the steps."""

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.torch.monitor.settings import StepRule, optimizer_rules

__all__ = ["OptimizerTracker", "StepArguments", "call_before_steps", "followed_once"]

StepArguments = tuple[tuple, dict[str, object]]
"""Arguments of the `step()` of an optimiser."""


def call_before_steps(
    method: Callable[[torch.optim.Optimizer, tuple, dict[str, object]], StepArguments | None],
) -> torch.utils.hooks.RemovableHandle:
    """Call a method before the steps of all optimisers, as long as its object exists."""
    weak = weakref.WeakMethod(method)  # the global registry of hooks must not keep the object alive

    def before_step(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict[str, object]) -> StepArguments | None:
        method = weak()
        return None if method is None else method(optimizer, args, kwargs)

    return register_optimizer_step_pre_hook(before_step)


def followed_once(closure: Callable[..., object], follow: Callable[[], object]) -> Callable[[], object]:
    """Return a closure that calls `follow` after its first evaluation."""
    waiting = True

    def evaluate() -> object:
        nonlocal waiting
        value = closure()
        if waiting:
            waiting = False
            follow()
        return value

    return evaluate


class OptimizerTracker:
    """The optimisers that have stepped these parameters.

    Where several optimisers share the parameters, the first one counts the steps as long as it makes any.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]):
        self._parameters = parameters
        self._ours: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        """Whether an optimiser has one of the parameters."""
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None
        self._steps_without_leader = 0

    def counts(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the step that an optimiser begins counts as a step of the model."""
        if optimizer not in self._ours:
            ours = set(map(id, self._parameters.values()))
            self._ours[optimizer] = any(id(p) in ours for group in optimizer.param_groups for p in group["params"])
        if not self._ours[optimizer]:
            return False
        leader = None if self._leader is None else self._leader()
        self._steps_without_leader = 0 if leader is optimizer else self._steps_without_leader + 1
        if leader is None or self._steps_without_leader > len(self._ours):
            self._leader, self._steps_without_leader = weakref.ref(optimizer), 0
            return True
        return leader is optimizer

    def rules(self, parameters: Mapping[str, nn.Parameter] | None = None) -> dict[str, StepRule]:
        """Return how the optimisers step parameters, by default all of these; the leader's rule comes first."""
        leader = None if self._leader is None else self._leader()
        optimizers = sorted((one for one, ours in self._ours.items() if ours), key=lambda one: one is not leader)
        return optimizer_rules(optimizers, self._parameters if parameters is None else parameters)
