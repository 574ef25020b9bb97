"""Step size, weight decay and momentum with which an optimiser steps the parameters of a symmetry."""

import inspect
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

__all__ = ["SGDSettings", "common_settings", "optimizer_settings"]


class SGDSettings(NamedTuple):
    """Settings of SGD for one parameter, in the convention of `torch.optim.SGD`."""

    step_size: float
    weight_decay: float
    momentum: float = 0.0
    dampening: float = 0.0

    @property
    def effective_step(self) -> float:
        """h = eta (1 - dampening)/(1 - beta), the total displacement that one unit gradient causes over all steps.

        Nesterov momentum has the same sum, 1 + beta/(1 - beta).
        """
        return self.step_size * (1 - self.dampening) / (1 - self.momentum) if self.momentum else self.step_size


def optimizer_settings(
    optimizers: Sequence[torch.optim.Optimizer], name: str, parameter: nn.Parameter
) -> SGDSettings | str:
    """Return how the first of the optimisers that has the parameter steps it, or why the theory does not apply."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(p is parameter for p in group["params"]):
                if not _is_sgd(optimizer):
                    return f"no flow or equilibrium is known for {type(optimizer).__name__}: the theory is for SGD"
                # `maximize` only changes the sign of the gradient, and noise enters squared
                return SGDSettings(
                    float(group["lr"]),
                    float(group["weight_decay"]),
                    float(group["momentum"]),
                    float(group["dampening"]) if group["momentum"] else 0.0,
                )
    return f"the step size of {name} is not known"


def _is_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the steps are those of `torch.optim.SGD`; a subclass with another `step` method does not count."""
    plain = lambda kind: inspect.unwrap(kind.step)  # PyTorch wraps the method when the first optimiser is created
    return isinstance(optimizer, torch.optim.SGD) and plain(type(optimizer)) is plain(torch.optim.SGD)


def common_settings(settings: Sequence[SGDSettings | str]) -> tuple[SGDSettings | None, str]:
    """Return the settings that all parameters of a symmetry share, or None and the reason why there are none."""
    known = [one for one in settings if not isinstance(one, str)]
    reasons = [one for one in settings if isinstance(one, str)]
    if reasons:
        return None, reasons[0]
    if len(set(known)) > 1:
        return None, "its parameters have different step sizes, momenta or weight decays"
    return known[0], ""
