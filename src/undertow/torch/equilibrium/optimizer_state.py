"""The state of a PyTorch optimiser that moves with the parameters along an orbit."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

__all__ = ["OptimizerState", "adamw_state", "sgd_state"]


@dataclass(frozen=True)
class OptimizerState:
    """Tensors of an optimiser by the name of their parameter."""

    linear: list[dict[str, Tensor]] = field(default_factory=list)
    """Tensors that move like a gradient: by exp(-s) where the parameter moves by exp(s). Momentum, and m of Adam."""
    squared: list[dict[str, Tensor]] = field(default_factory=list)
    """Tensors that move like a squared gradient, by exp(-2 s): v of Adam."""
    second_moment: Callable[[str], Tensor] | None = None
    """Returns the present v of a parameter with the bias correction; None if the optimiser has none."""

    def tensors(self, names: list[str]) -> list[Tensor]:
        """Return the tensors of these parameters."""
        return [part[name] for part in (*self.linear, *self.squared) for name in names if name in part]

    def of(self, names: tuple[str, ...]) -> list[dict[str, Tensor]]:
        """Return the tensors of some parameters as tensors that move like gradients: the roots of squares."""
        own = lambda part: {name: part[name] for name in names if name in part}
        return [*map(own, self.linear), *({k: v.double().sqrt() for k, v in own(p).items()} for p in self.squared)]

    @torch.no_grad()
    def update(self, moved: list[dict[str, Tensor]]) -> None:
        """Write moved tensors back, which are given as `of` returns them."""
        for place, (part, values) in enumerate(zip((*self.linear, *self.squared), moved, strict=True)):
            for name, value in values.items():
                value = value if place < len(self.linear) else value.square()
                part[name].copy_(value.reshape(part[name].shape))


def sgd_state(optimizer: torch.optim.Optimizer | None, params: dict[str, nn.Parameter]) -> OptimizerState:
    """Return the momentum of SGD; raise for optimisers whose state cannot be moved."""
    if optimizer is None:
        return OptimizerState()
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(
            f"`equilibrate(optimizer=...)`: {type(optimizer).__name__} rescales every entry separately, so that its "
            'equilibrium differs from that of SGD; for Adam and AdamW give `optimiser="adamw"` too.'
        )
    return OptimizerState([_tensors(optimizer, params, "momentum_buffer")])


def adamw_state(optimizer: torch.optim.Optimizer | None, params: dict[str, nn.Parameter]) -> OptimizerState:
    """Return m and v of AdamW; an optimiser that has made no step has none."""
    if optimizer is None:
        return OptimizerState()
    if not isinstance(optimizer, torch.optim.Adam):
        raise TypeError(
            f'`equilibrate(optimiser="adamw", optimizer=...)`: the optimiser is {type(optimizer).__name__}; give a '
            "`torch.optim.AdamW` or leave `optimizer` out."
        )
    coupled = [g for g in optimizer.param_groups if g["weight_decay"] and not g.get("decoupled_weight_decay")]
    if coupled and not isinstance(optimizer, torch.optim.AdamW):
        raise ValueError(
            f'`equilibrate(optimiser="adamw", optimizer=...)`: `torch.optim.Adam` with weight_decay='
            f"{coupled[0]['weight_decay']} adds the decay to the gradient, which has another equilibrium; use "
            "`torch.optim.AdamW`."
        )
    first, second = (_tensors(optimizer, params, key) for key in ("exp_avg", "exp_avg_sq"))
    if not first:
        return OptimizerState()
    missing = [name for name in params if name not in second]
    if missing:
        raise ValueError(
            f'`equilibrate(optimiser="adamw", optimizer=...)`: the optimiser has no v for {missing[0]}; let it train '
            "all parameters for some steps, or leave `optimizer` out."
        )
    largest = _tensors(optimizer, params, "max_exp_avg_sq")  # amsgrad
    present = second | largest
    corrected = lambda name: present[name] / _bias_correction(optimizer, params[name])
    return OptimizerState([first], [second, largest] if largest else [second], corrected)


def _tensors(optimizer: torch.optim.Optimizer, params: dict[str, nn.Parameter], key: str) -> dict[str, Tensor]:
    buffers = {name: optimizer.state.get(p, {}).get(key) for name, p in params.items()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def _bias_correction(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> float:
    groups = optimizer.param_groups
    (beta,) = (g["betas"][1] for g in groups if any(p is parameter for p in g["params"]))
    return 1 - float(beta) ** float(optimizer.state[parameter]["step"])
