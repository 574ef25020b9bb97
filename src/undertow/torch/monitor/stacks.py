"""Parameters that are computed together, and the sums of products of their entries along their axes.

A stack has only products of entries and one sum for each axis. What is one number for each parameter, such as step
sizes and bias corrections, enters the sums of all stacks at once (`StepColumns`), because the host of a GPU needs
longer to start an operation than the GPU needs for a small one. W is the inverse metric of the optimiser, 1 for SGD.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch.monitor.settings import ADAM, SGD, StepRule

__all__ = ["RAW", "Slot", "Stack", "reduce_to_axis", "stack_sums"]

RAW = (
    "weight", "gradient", "old_root", "root", "inverse", "drive", "product", "square", "plain_product", "plain_square",
    "plain_weight", "pull", "lever", "metric", "direction",
)  # fmt: skip
"""Sums over entries without factors, with the direction u = m or the step of SGD over its size: x^2, g^2,
sqrt(v_before) x^2, sqrt(v) x^2, W, v/W, x u, u^2/W, x u/W, (u/W)^2, x^2 of plain charges, and for parameters with a
shift W theta x, W x, W, u."""


class Slot(NamedTuple):
    """An axis of a parameter, whose indices have one sum each."""

    parameter: str
    axis: int
    matrices: int
    """Number of matrices if each has indices of its own, else 1."""
    shift: float
    length: int


@dataclass(frozen=True)
class Stack:
    """Parameters of the same shape and settings, whose axes have one shift."""

    names: tuple[str, ...]
    rule: StepRule
    places: tuple[int, ...]
    """Which slots of each parameter."""
    slots: tuple[Slot, ...]
    """These slots of the first parameter."""
    device: torch.device
    dtype: torch.dtype
    """The precision of the sums."""
    used: bool
    """Whether the parameters have gradients."""
    plain: bool
    rows: int | None = None
    """Number of rows of a parameter that are computed at once; None: all."""

    @property
    def shift(self) -> float:
        """What the layer adds to the parameters."""
        return self.slots[0].shift

    @functools.cached_property
    def moves(self) -> bool:
        """Whether the step of the parameters is known, and not 0."""
        return self.used and self.rule.kind in (SGD, ADAM) and self.rule.state is not None

    @property
    def by_rows(self) -> bool:
        """Whether only sums over the rows of a matrix on a CPU are needed, under SGD without momentum."""
        rule = self.rule
        rows = {(slot.axis, slot.matrices) for slot in self.slots} == {(0, 1)}
        plain = rule.kind == SGD and not rule.momentum and rule.grad_scale is None and not self.shift
        return self.device.type == "cpu" and rows and plain and self.rows is not None

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields of `RAW` that are computed."""
        rule, adam = self.rule, self.rule.kind == ADAM
        chosen = {
            "weight": True,
            "gradient": self.used,
            "old_root": adam and "exp_avg_sq" in (rule.state or {}),
            "root": adam,
            "inverse": adam,
            "drive": adam,
            "product": self.moves,
            "square": self.moves and (adam or bool(rule.momentum)),
            "plain_product": self.moves and adam and self.plain,
            "plain_square": self.moves and adam and self.plain,
            "pull": bool(self.shift),
            "lever": bool(self.shift) and self.moves,
            "metric": bool(self.shift) and self.moves and not adam,
            "direction": bool(self.shift) and self.moves,
        }
        return tuple(name for name in RAW if chosen.get(name))

    @functools.cached_property
    def same(self) -> dict[str, str]:
        """Fields that are the same as another one."""
        if not self.moves:
            return {}
        if self.rule.kind == ADAM:
            return {"metric": "inverse"} | ({"plain_weight": "weight"} if self.plain else {})
        return {} if self.rule.momentum else {"square": "gradient"}


def reduce_to_axis(entries: Tensor, axis: int, matrices: int) -> Tensor:
    """Return the sums of (parameters, *shape) over all other axes: (parameters, length)."""
    if entries.ndim == 1:
        return entries[:, None]
    if matrices > 1:
        entries, kept = entries.unflatten(1, (matrices, -1)), {0, 1, axis + 2}
    else:
        kept = {0, axis + 1}
    others = [k for k in range(entries.ndim) if k not in kept]
    return (entries.sum(others) if others else entries).flatten(1)


def stack_sums(
    stack: Stack, rules: Mapping[str, StepRule], parameters: Mapping[str, nn.Parameter], unbias: Tensor
) -> list[Tensor]:
    """Return the sums of a stack along the axis of each slot: (fields * parameters, length) each.

    `unbias` is 1/sqrt(1 - b2^t) of the parameters after the step, in the precision of the stack.
    """
    tensors = _Tensors.of(stack, rules, parameters)
    if stack.by_rows and tensors.is_plain(stack):
        return [_row_products(stack, tensors)] * len(stack.slots)
    parts = [tensors] if stack.rows is None else tensors.split(stack.rows)
    sums = []
    for part in parts:
        rows = _products(stack, part, unbias).flatten(0, 1)
        sums.append([reduce_to_axis(rows, slot.axis, slot.matrices) for slot in stack.slots])
    if len(sums) == 1:
        return sums[0]
    by_slot = zip(stack.slots, zip(*sums, strict=True), strict=True)
    return [torch.cat(own, 1) if slot.axis == 0 else torch.stack(own).sum(0) for slot, own in by_slot]


class _Tensors(NamedTuple):
    """The parameters of a stack, their gradients if they have any, and the state of the optimiser."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    state: dict[str, list[Tensor]]

    @staticmethod
    def of(stack: Stack, rules: Mapping[str, StepRule], parameters: Mapping[str, nn.Parameter]) -> "_Tensors":
        own, states = [parameters[name] for name in stack.names], [rules[name].state or {} for name in stack.names]
        gradients = [p.grad for p in own if p.grad is not None]
        state = {key: [one[key] for one in states] for key in states[0] if key != "step"}
        return _Tensors([*own], gradients, state)

    def is_plain(self, stack: Stack) -> bool:
        """Return whether this is one parameter, and it and its gradient have the precision of the sums."""
        one = len(self.parameters) == len(self.gradients) == 1
        return one and self.parameters[0].dtype == self.gradients[0].dtype == stack.dtype

    def split(self, rows: int) -> Iterator["_Tensors"]:
        """Iterate over parts of so many rows."""
        for start in range(0, len(self.parameters[0]), rows):
            some = lambda tensors, start=start: [x[start : start + rows] for x in tensors]
            state = {key: some(tensors) for key, tensors in self.state.items()}
            yield _Tensors(some(self.parameters), some(self.gradients), state)


def _row_products(stack: Stack, tensors: _Tensors) -> Tensor:
    """Return the sums over the rows of a matrix under SGD, without forming the products: (fields, rows)."""
    x, g = (one[0].reshape(len(one[0]), -1) for one in (tensors.parameters, tensors.gradients))  # also of a vector
    sums = {"weight": torch.linalg.vector_norm(x, dim=1).square()}
    sums["gradient"] = torch.linalg.vector_norm(g, dim=1).square()
    if "product" in stack.fields:
        assert stack.rows is not None
        parts = zip(x.split(stack.rows), g.split(stack.rows), strict=True)
        sums["product"] = torch.cat([torch.linalg.vecdot(*part) for part in parts]).mul_(stack.rule.sign)
    return torch.stack([sums[name] for name in stack.fields])


def _products(stack: Stack, tensors: _Tensors, unbias: Tensor) -> Tensor:
    """Return the entries of the fields of a stack: (fields, parameters, *shape)."""
    own, gradients, state = tensors
    entries = own[0].new_empty(len(stack.fields), len(own), *own[0].shape, dtype=stack.dtype)
    of = dict(zip(stack.fields, entries.unbind(), strict=True))
    theta = own[0][None] if len(own) == 1 and own[0].dtype == stack.dtype else None
    if theta is None:
        theta = torch.stack(own, out=torch.empty_like(of["weight"]))
    values = theta + stack.shift if stack.shift else theta
    torch.mul(values, values, out=of["weight"])
    if stack.rule.kind == ADAM:
        unbias = unbias.view(-1, *(1,) * (values.ndim - 1))
        _adam_products(of, stack.rule, values, gradients, state, unbias)
    elif gradients:
        _sgd_products(of, stack.rule, values, gradients, state)
    if stack.shift:
        _shifted_products(of, theta, values)
    return entries


def _loaded(gradients: Sequence[Tensor], rule: StepRule, out: Tensor) -> Tensor:
    """Return the gradients as the optimiser uses them, in `out`."""
    torch.stack(gradients, out=out)
    return out if rule.grad_scale is None else out.div_(rule.grad_scale.to(out))


def _sgd_products(
    of: dict[str, Tensor], rule: StepRule, values: Tensor, gradients: list[Tensor], state: dict[str, list[Tensor]]
) -> None:
    as_it_is = len(gradients) == 1 and rule.grad_scale is None and gradients[0].dtype == values.dtype
    gradient = gradients[0][None] if as_it_is else _loaded(gradients, rule, of["gradient"])
    if "product" in of:
        if rule.sign < 0:
            gradient = torch.neg(gradient, out=of["gradient"])
        step = gradient if "square" not in of else _momentum_step(rule, gradient, state, of["square"])
        torch.mul(values, step, out=of["product"])
        if "direction" in of:
            of["direction"].copy_(step)
        if step is not gradient:
            step.square_()
    torch.mul(gradient, gradient, out=of["gradient"])


def _momentum_step(rule: StepRule, gradient: Tensor, state: dict[str, list[Tensor]], out: Tensor) -> Tensor:
    """Return the step over its size, without the decay of this step, in `out`."""
    buffers = state.get("momentum_buffer")
    if buffers is None:
        out.copy_(gradient)
    else:
        torch.stack(buffers, out=out).mul_(rule.momentum).add_(gradient, alpha=1 - rule.dampening)
    return out.mul_(rule.momentum).add_(gradient) if rule.nesterov else out


def _adam_products(
    of: dict[str, Tensor],
    rule: StepRule,
    values: Tensor,
    gradients: list[Tensor],
    state: dict[str, list[Tensor]],
    unbias: Tensor,
) -> None:
    """Fill the fields of Adam. A field holds m, v and g before it has its own value."""
    (b1, b2), eps = rule.betas, rule.eps
    old, second, inverse, weight = of.get("old_root"), of["drive"], of["inverse"], of["weight"]
    if old is not None:
        torch.stack(state["exp_avg_sq"], out=old)
    gradient = _loaded(gradients, rule, of["square"] if "square" in of else of["gradient"]) if gradients else None
    if gradient is not None:
        torch.mul(gradient, gradient, out=of["gradient"])
    if gradient is None:  # the optimiser leaves the parameter as it is
        second.zero_() if old is None else second.copy_(old)
    elif old is None:
        torch.mul(of["gradient"], 1 - b2, out=second)
    else:
        torch.lerp(old, of["gradient"], 1 - b2, out=second)
    if old is not None:
        old.sqrt_().mul_(weight)
    torch.sqrt(second, out=inverse)
    torch.mul(inverse, weight, out=of["root"])
    inverse.mul_(unbias).add_(eps)
    if not eps:
        inverse.clamp_min_(torch.finfo(inverse.dtype).tiny)
    second.div_(inverse)
    if gradient is None or "product" not in of:
        return
    if rule.sign < 0:
        gradient.neg_()
    mean, square = of["product"], gradient
    if "exp_avg" in state:
        torch.stack(state["exp_avg"], out=mean).lerp_(gradient, 1 - b1)
    else:
        torch.mul(gradient, 1 - b1, out=mean)
    torch.div(mean, inverse, out=square)
    if "plain_square" in of:
        torch.mul(square, square, out=of["plain_square"])
        torch.mul(square, values, out=of["plain_product"])
    square.mul_(mean)
    if "direction" in of:
        of["direction"].copy_(mean)
    mean.mul_(values)


def _shifted_products(of: dict[str, Tensor], theta: Tensor, values: Tensor) -> None:
    metric = of.get("inverse")
    torch.mul(theta, values, out=of["pull"])
    if metric is not None:
        of["pull"].mul_(metric)
    if "lever" in of:
        of["lever"].copy_(values) if metric is None else torch.mul(metric, values, out=of["lever"])
    if "metric" in of:
        of["metric"].fill_(1.0)
