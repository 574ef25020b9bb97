"""How an optimiser steps the parameters: its settings and its state, parameter by parameter."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

__all__ = ["ADAM", "SGD", "UNKNOWN", "StepRule", "common_rule", "optimizer_rules"]

SGD, ADAM, UNKNOWN = "SGD", "Adam", "unknown"
"""Kinds of steps: those of `torch.optim.SGD`, those of Adam and AdamW, and all others."""


@dataclass(frozen=True)
class StepRule:
    """The settings and the state with which a parameter is stepped, in the conventions of `torch.optim`.

    A step size on a GPU stays a tensor: nothing here waits for the device.
    """

    kind: str
    step_size: float | Tensor = 0.0
    weight_decay: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.0, 0.0)
    eps: float = 0.0
    sign: float = 1.0
    """-1 for `maximize`."""
    note: str = ""
    """Why the theory does not apply, for steps of an unknown kind."""
    state: Mapping[str, Tensor] | None = field(default_factory=dict, compare=False)
    """Tensors of the optimiser before the step; None where they are not known."""
    grad_scale: Tensor | None = field(default=None, compare=False)
    """The factor that a fused optimiser divides the gradient by, under a gradient scaler."""

    @property
    def effective_step(self) -> float | Tensor:
        """h = eta (1 - dampening)/(1 - beta), the total displacement that one unit gradient causes over all steps.

        Nesterov momentum has the same sum, 1 + beta/(1 - beta), and so has m of Adam: h = eta there.
        """
        return self.step_size * (1 - self.dampening) / (1 - self.momentum) if self.momentum else self.step_size

    def inverse_metric(self) -> Tensor | None:
        """Return sqrt(v)/sqrt(1 - b2^t) + eps of Adam after its last step; None if it made none, or is another one."""
        state = self.state or {}
        if self.kind != ADAM or "exp_avg_sq" not in state:
            return None
        return (state["exp_avg_sq"] / (1 - self.betas[1] ** float(state["step"]))).sqrt() + self.eps

    def with_state(self, state: Mapping[str, Tensor]) -> "StepRule":
        """Return the rule with another state: `dataclasses.replace`, which takes long for thousands of parameters."""
        rule = object.__new__(StepRule)
        rule.__dict__.update(self.__dict__, state=state)
        return rule

    @property
    def shared(self) -> tuple:
        """What parameters must have in common to be computed together."""
        size = id(self.step_size) if isinstance(self.step_size, Tensor) else self.step_size
        rest = self.weight_decay, self.momentum, self.dampening, self.nesterov, self.betas, self.eps, self.sign
        return self.kind, size, rest, self.state is None, tuple(self.state or ()), id(self.grad_scale)


def optimizer_rules(
    optimizers: Sequence[torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]
) -> dict[str, StepRule]:
    """Return how the first of the optimisers that has a parameter steps it, for each parameter."""
    names = {id(p): name for name, p in parameters.items()}
    rules: dict[str, StepRule] = {}
    for optimizer, group in ((one, group) for one in optimizers for group in one.param_groups):
        own = [p for p in group["params"] if id(p) in names and names[id(p)] not in rules]
        if own:
            shared = _rule(optimizer, group)
            rules |= {names[id(p)]: _with_state(shared, optimizer.state.get(p, {})) for p in own}
    return {
        name: rules.get(name, StepRule(UNKNOWN, note=f"the step size of {name} is not known")) for name in parameters
    }


def _with_state(rule: StepRule, state: Mapping[str, object]) -> StepRule:
    if rule.kind == UNKNOWN:
        return rule
    return rule.with_state({key: value for key, value in state.items() if isinstance(value, Tensor)})


def _rule(optimizer: torch.optim.Optimizer, group: dict) -> StepRule:
    """Return how an optimiser steps the parameters of a group, without their state."""
    name = type(optimizer).__name__
    scale = getattr(optimizer, "grad_scale", None)
    scale = scale if isinstance(scale, Tensor) else None
    if problem := _problem(optimizer, group, name):
        return StepRule(UNKNOWN, note=problem, grad_scale=scale)
    rule = StepRule(
        SGD if isinstance(optimizer, torch.optim.SGD) else ADAM,
        _number(group["lr"]),
        float(group["weight_decay"]),
        sign=-1.0 if group.get("maximize") else 1.0,
        grad_scale=scale,
    )
    if rule.kind == SGD:
        momentum = float(group["momentum"])
        dampening = float(group["dampening"]) if momentum else 0.0
        return replace(rule, momentum=momentum, dampening=dampening, nesterov=bool(group["nesterov"]))
    first, second = group["betas"]
    return replace(rule, betas=(float(first), float(second)), eps=float(group["eps"]))


def _problem(optimizer: torch.optim.Optimizer, group: dict, name: str) -> str | None:
    """Return why no flow is known for the steps of an optimiser, None if one is."""
    if _steps_as(optimizer, torch.optim.SGD):
        return None
    if not _steps_as(optimizer, torch.optim.Adam) and not _steps_as(optimizer, torch.optim.AdamW):
        return f"the flow and the equilibrium are not known for {name}: the theory is for SGD, Adam and AdamW"
    if group.get("amsgrad"):
        return "the flow and the equilibrium are not known for amsgrad, whose metric only grows"
    if group["weight_decay"] and not _decoupled(optimizer, group):
        return (
            f"the flow and the equilibrium are not known for {name} with weight_decay={group['weight_decay']:g}, which "
            "adds the decay to the gradient: use AdamW"
        )
    return None


def _decoupled(optimizer: torch.optim.Optimizer, group: dict) -> bool:
    return bool(group.get("decoupled_weight_decay")) or isinstance(optimizer, torch.optim.AdamW)


def _number(value: float | Tensor) -> float | Tensor:
    """Return a number, or a tensor that lies on a GPU as it is: reading it would wait for the GPU."""
    return value.detach() if isinstance(value, Tensor) and value.device.type != "cpu" else float(value)


def _steps_as(optimizer: torch.optim.Optimizer, kind: type[torch.optim.Optimizer]) -> bool:
    """Return whether the steps are those of a class of PyTorch; a subclass with another `step` does not count."""
    return isinstance(optimizer, kind) and _unwrapped(type(optimizer).step) is _unwrapped(kind.step)


@functools.lru_cache(maxsize=64)
def _unwrapped(step: Callable) -> Callable:
    """Return the `step` of a class as it was before PyTorch wrapped it, when the first optimiser was created."""
    return inspect.unwrap(step)


def common_rule(rules: Sequence[StepRule]) -> tuple[str, str]:
    """Return the kind of the steps of all parameters of a symmetry, and why it is unknown if so."""
    notes = [rule.note for rule in rules if rule.kind == UNKNOWN]
    if notes:
        return UNKNOWN, notes[0]
    if len({rule.kind for rule in rules}) > 1:
        return UNKNOWN, "the flow and the equilibrium are not known for parameters that SGD and Adam train together"
    steps = [rule.effective_step for rule in rules]
    known = [step for step in steps if not isinstance(step, Tensor)]
    if any(step <= 0 for step in known) and (any(step > 0 for step in known) or len(known) < len(steps)):
        return UNKNOWN, "the step size of some of its parameters is 0: they do not take part in the flow"
    return rules[0].kind, ""
