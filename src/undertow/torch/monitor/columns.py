"""Sums over the entries of parameters along their axes, for the charges of a step and their change.

The step of an entry is theta+ = kept theta - d. In the metric S of the optimiser (W = 1/S, after the step) a charge
changes by sums of W theta d, W d^2 and W theta^2, and by those of theta^2 (W - W_before). For SGD the metric is 1. For
Adam W = sqrt(v)/sqrt(1 - b2^t) + eps, and d = eta m/(1 - b1^t)/W, with m and v after the step, which follow from the
gradient and the state before it. Parameters of the same shape and settings are computed together.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch.monitor.settings import ADAM, SGD, StepRule
from undertow.torch.monitor.tensors import at_least_single, on_device

__all__ = ["FIELDS", "Slot", "reduce_to_axis", "step_columns"]

FIELDS = (
    "weight", "gradient", "before", "after", "pull", "drive", "inverse", "first", "second", "decayed", "plain_first",
    "plain_second", "plain_decayed",
)  # fmt: skip
"""Sums over entries, with x the parameter plus its shift: x^2, g^2, W_before x^2, W x^2, W theta x, v/W, W (both 0
for SGD), W kept x d, W d^2, W ((kept x)^2 - x^2), and the last three with W = 1."""
GPU_ENTRIES, CPU_ENTRIES = 2**24, 2**16
"""Entries that are computed at once, up to ten numbers for each. On a CPU, tensors that fit in its cache are faster."""


class Slot(NamedTuple):
    """An axis of a parameter, whose indices have one sum each."""

    parameter: str
    axis: int
    matrices: int
    """Number of matrices if each has indices of its own, else 1."""
    shift: float
    length: int


class _Stack(NamedTuple):
    """Parameters of the same shape and settings, with their gradients; None for parameters without one."""

    names: list[str]
    rule: StepRule
    values: Tensor
    gradients: Tensor | None
    state: dict[str, Tensor]


class _Axes(NamedTuple):
    """Axes of one parameter that have the same shift."""

    slots: list[Slot]

    @property
    def shift(self) -> float:
        """What the layer adds to the parameter."""
        return self.slots[0].shift

    def total(self, entries: Tensor) -> Tensor:
        """Return the sums along each of the axes, one after the other: (parameters, sum of lengths)."""
        return self.totals(entries[None])[0]

    def totals(self, fields: Tensor) -> Tensor:
        """Return the same for several fields at once: (fields, parameters, sum of lengths)."""
        count, names = fields.shape[:2]
        rows = fields.flatten(0, 1)
        sums = torch.cat([reduce_to_axis(rows, slot.axis, slot.matrices) for slot in self.slots], 1)
        return sums.reshape(count, names, -1)


def reduce_to_axis(entries: Tensor, axis: int, matrices: int) -> Tensor:
    """Return the sums of (parameters, *shape) over all other axes: (parameters, length)."""
    if entries.ndim == 1:
        return entries[:, None].double()
    if matrices > 1:
        entries, kept = entries.unflatten(1, (matrices, -1)), {0, 1, axis + 2}
    else:
        kept = {0, axis + 1}
    others = [k for k in range(entries.ndim) if k not in kept]
    return (entries.sum(others) if others else entries).flatten(1).double()


@torch.no_grad()
def step_columns(
    slots: Sequence[Slot], parameters: Mapping[str, nn.Parameter], rules: Mapping[str, StepRule], plain: frozenset[str]
) -> Tensor:
    """Return the sums of `FIELDS` for all slots, one after the other: (fields, sum of lengths).

    The last three fields are computed for the parameters in `plain`, and are 0 for others.
    """
    by_parameter: dict[str, list[Slot]] = {}
    for slot in slots:
        by_parameter.setdefault(slot.parameter, []).append(slot)
    columns: dict[Slot, Tensor] = {}
    for stack in _stacks(by_parameter, parameters, rules, plain):
        first = by_parameter[stack.names[0]]
        for shift in dict.fromkeys(slot.shift for slot in first):
            places = [k for k, slot in enumerate(first) if slot.shift == shift]
            axes = _Axes([first[k] for k in places])
            parts = _sums(stack, axes, stack.names[0] in plain).split([slot.length for slot in axes.slots], 2)
            for place, part in zip(places, parts, strict=True):
                for row, name in enumerate(stack.names):
                    columns[by_parameter[name][place]] = part[:, row]
    device = next(iter(columns.values())).device
    return torch.cat([columns[slot].to(device) for slot in slots], 1)


def _stacks(
    slots: Mapping[str, list[Slot]],
    parameters: Mapping[str, nn.Parameter],
    rules: Mapping[str, StepRule],
    plain: frozenset[str],
) -> Iterator[_Stack]:
    groups: dict[tuple, list[str]] = {}
    for name, own in slots.items():
        p, rule = parameters[name], rules[name]
        axes = tuple((s.axis, s.matrices, s.shift) for s in own)
        key = p.shape, p.dtype, p.device, p.grad is None, axes, rule.shared, name in plain
        groups.setdefault(key, []).append(name)
    for names in groups.values():
        p = parameters[names[0]]
        most = max(1, (GPU_ENTRIES if p.is_cuda else CPU_ENTRIES) // max(1, p.numel()))
        for start in range(0, len(names), most):
            yield _stack(names[start : start + most], parameters, rules)


def _stack(names: list[str], parameters: Mapping[str, nn.Parameter], rules: Mapping[str, StepRule]) -> _Stack:
    rule = rules[names[0]]
    values = _stacked([parameters[name].detach() for name in names])
    gradients = [g for name in names if (g := parameters[name].grad) is not None]
    together = _stacked([g.detach() for g in gradients]) if gradients else None
    if together is not None and rule.grad_scale is not None:
        together = together / rule.grad_scale.to(together)
    states = [rules[name].state or {} for name in names]
    state = {
        key: torch.stack([one[key] for one in states]) if key == "step" else _stacked([one[key] for one in states])
        for key in states[0]
        if key in ("exp_avg", "exp_avg_sq", "momentum_buffer", "step")
    }
    return _Stack(names, rule, values, together, state)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return at_least_single(tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors)))


def _sums(stack: _Stack, axes: _Axes, plain: bool) -> Tensor:
    """Return the fields of the axes: (fields, parameters, sum of lengths)."""
    values = stack.values + axes.shift if axes.shift else stack.values
    squared = values.new_empty(2 if stack.gradients is not None else 1, *values.shape)
    torch.mul(values, values, out=squared[0])
    if stack.gradients is not None:
        torch.mul(stack.gradients, stack.gradients, out=squared[1])
    weight, *gradient = axes.totals(squared)
    zero = torch.zeros_like(weight)
    fields = dict.fromkeys(FIELDS, zero) | {"weight": weight, "before": weight, "after": weight}
    if gradient:
        fields["gradient"] = gradient[0]
    if axes.shift:
        fields["pull"] = axes.total(stack.values * values)
    if stack.rule.kind == SGD:
        fields |= _sgd_fields(stack, axes, values, fields["gradient"], weight)
    elif stack.rule.kind == ADAM:
        fields |= _adam_fields(stack, axes, values, weight, plain)
    if not axes.shift:
        fields["pull"] = fields["after"]
    return torch.stack([fields[name] for name in FIELDS])


def _sgd_fields(
    stack: _Stack, axes: _Axes, values: Tensor, gradient_squares: Tensor, weight: Tensor
) -> dict[str, Tensor]:
    rule, gradient = stack.rule, stack.gradients
    if gradient is None or rule.state is None:
        return {}
    eta, fresh, step = rule.step_size, 1.0, gradient if rule.sign > 0 else -gradient
    if rule.momentum:
        step, fresh = _momentum_step(rule, step, stack)
    kept = 1 - eta * fresh * rule.weight_decay
    second = axes.total(step.square()) if rule.momentum else gradient_squares
    first, decayed = _change(kept, axes, values, (axes.total(values * step), step), None, weight)
    return {"first": eta * first, "second": eta**2 * second, "decayed": decayed}


def _momentum_step(rule: StepRule, gradient: Tensor, stack: _Stack) -> tuple[Tensor, float]:
    """Return the step without the decay of this step, and the factor of a new gradient in it."""
    buffer = stack.state.get("momentum_buffer")
    if buffer is None:  # the first step has no dampening
        share = 1.0
        memory = gradient
    else:
        share = 1 - rule.dampening
        memory = rule.momentum * buffer + share * gradient
    if not rule.nesterov:
        return memory, share
    return gradient + rule.momentum * memory, 1 + rule.momentum * share


def _adam_fields(stack: _Stack, axes: _Axes, values: Tensor, weight: Tensor, plain: bool) -> dict[str, Tensor]:
    rule, gradient = stack.rule, stack.gradients
    (b1, b2), eps, eta = rule.betas, rule.eps, rule.step_size
    count, memory, second = _count(stack), stack.state.get("exp_avg"), stack.state.get("exp_avg_sq")
    second = torch.zeros_like(values) if second is None else second
    parts = values.new_empty((4 if gradient is None else 8 if plain else 6), *values.shape)
    before, after, inverse, drive = parts[:4]
    old_bias = bias = _correction(b2, count).sqrt()
    if gradient is None:  # the optimiser leaves the parameter as it is
        roots = second.sqrt()
    else:
        roots = (b2 * second).addcmul_(gradient, gradient, value=1 - b2).sqrt_()
        bias = _correction(b2, count + 1).sqrt()
    squares = values.square()
    torch.mul(second.sqrt(), squares, out=before)
    torch.mul(roots, squares, out=after)
    torch.div(roots, bias.to(values).reshape(-1, *(1,) * (values.ndim - 1)), out=inverse).add_(eps)
    if not eps:
        inverse.clamp_min_(torch.finfo(inverse.dtype).tiny)
    torch.div(roots.square_(), inverse, out=drive)
    mean = None
    if gradient is not None:
        gradient = gradient if rule.sign > 0 else -gradient
        mean = (1 - b1) * gradient if memory is None else torch.lerp(memory, gradient, 1 - b1)
        torch.mul(values, mean, out=parts[4])
        torch.div(mean, inverse, out=squares)
        torch.mul(mean, squares, out=parts[5])
        if plain:
            torch.mul(values, squares, out=parts[6])
            torch.mul(squares, squares, out=parts[7])
    sums = axes.totals(parts)
    fields = {
        "before": eps * weight + sums[0] / old_bias,
        "after": eps * weight + sums[1] / bias,
        "inverse": sums[2],
        "drive": sums[3] / bias.square(),
    }
    if axes.shift:
        fields["pull"] = axes.total(inverse * values * stack.values)
    if mean is None:
        return fields
    kept, size = 1 - eta * rule.weight_decay, eta / _correction(b1, count + 1)
    first, fields["decayed"] = _change(kept, axes, values, (sums[4], mean), inverse, fields["after"])
    fields["first"], fields["second"] = size * first, size**2 * sums[5]
    if plain:
        fields["plain_first"], fields["plain_second"] = size * kept * sums[6], size**2 * sums[7]
        fields["plain_decayed"] = (kept**2 - 1) * weight
    return fields


def _correction(b: float, count: Tensor) -> Tensor:
    """Return the bias corrections 1 - b^t of the parameters, (parameters, 1); 1 before the first step."""
    return torch.where(count > 0, 1 - b ** count.double(), 1.0)[:, None]


def _change(
    kept: float | Tensor, axes: _Axes, values: Tensor, direction: tuple[Tensor, Tensor], inverse: Tensor | None,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the sums of (kept x) direction and of W ((kept x)^2 - x^2).

    `direction` has the sums of x direction, and the direction itself; `weight` is the sum of W x^2. Decay acts on the
    parameter without its shift: kept x stands for kept x + (1 - kept) shift.
    """
    products, along = direction
    first, decayed = kept * products, (kept**2 - 1) * weight
    if axes.shift:
        lost = (1 - kept) * axes.shift
        metric = torch.ones_like(values) if inverse is None else inverse
        first = first + lost * axes.total(along)
        decayed = decayed + 2 * kept * lost * axes.total(metric * values) + lost**2 * axes.total(metric)
    return first, decayed


def _count(stack: _Stack) -> Tensor:
    """Return the number of steps so far of each parameter."""
    if "step" not in stack.state:
        return torch.zeros(len(stack.names), device=stack.values.device)
    return on_device(stack.state["step"].reshape(-1), stack.values.device)
