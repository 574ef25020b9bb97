"""Sums over the entries of parameters along their axes, for the charges of a step and their change.

The step of an entry is theta+ = kept theta - d. In the metric S of the optimiser (W = 1/S, after the step) a charge
changes by sums of W theta d, W d^2 and W theta^2, and by those of theta^2 (W - W_before). For SGD the metric is 1. For
Adam W = sqrt(v)/sqrt(1 - b2^t) + eps, and d = eta m/(1 - b1^t)/W, with m and v after the step, which follow from the
gradient and the state before it.

Parameters of the same shape and settings are stacked. A stack has only products of entries and one sum for each axis
(`RAW`); what is one number for each parameter, such as step sizes and bias corrections, enters the sums of all stacks
at once, because the host of a GPU needs longer to start an operation than the GPU needs for a small one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.settings import ADAM, SGD, StepRule
from undertow.torch.monitor.tensors import joined, number_table, on_device

__all__ = ["FIELDS", "Slot", "StepColumns", "reduce_to_axis"]

FIELDS = (
    "weight", "gradient", "before", "after", "pull", "drive", "inverse", "first", "second", "decayed", "plain_first",
    "plain_second", "plain_decayed",
)  # fmt: skip
"""Sums over entries, with x the parameter plus its shift: x^2, g^2, W_before x^2, W x^2, W theta x, v/W, W (both 0
for SGD), W kept x d, W d^2, W ((kept x)^2 - x^2), and the last three with W = 1."""
RAW = (
    "weight", "gradient", "old_root", "root", "inverse", "drive", "product", "square", "plain_product", "plain_square",
    "plain_weight", "pull", "lever", "metric", "direction",
)  # fmt: skip
"""Sums over entries without factors, with the direction u = m or the step of SGD over its size: x^2, g^2,
sqrt(v_before) x^2, sqrt(v) x^2, W, v/W, x u, u^2/W, x u/W, (u/W)^2, x^2 of plain charges, and for parameters with a
shift W theta x, W x, W, u."""
GPU_ENTRIES, CPU_ENTRIES = 2**23, 2**16
"""Entries that are computed at once, about ten numbers for each. On a CPU, tensors that fit in its cache are faster."""
GPU_STACKS = 16
"""A GPU computes more entries at once for a model of more than so many stacks of `GPU_ENTRIES`."""
MOST_LAYOUTS = 4
"""Places of the sums that are kept: parameters without a gradient change them from step to step."""


class Slot(NamedTuple):
    """An axis of a parameter, whose indices have one sum each."""

    parameter: str
    axis: int
    matrices: int
    """Number of matrices if each has indices of its own, else 1."""
    shift: float
    length: int


class _Stack(NamedTuple):
    """Parameters of the same shape and settings, whose axes have one shift."""

    names: tuple[str, ...]
    rule: StepRule
    places: tuple[int, ...]
    """Which slots of each parameter."""
    slots: tuple[Slot, ...]
    """These slots of the first parameter."""
    used: bool
    """Whether the parameters have gradients."""
    plain: bool

    @property
    def shift(self) -> float:
        """What the layer adds to the parameters."""
        return self.slots[0].shift

    @property
    def moves(self) -> bool:
        """Whether the step of the parameters is known, and not 0."""
        return self.used and self.rule.kind in (SGD, ADAM) and self.rule.state is not None

    @property
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

    @property
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


class StepColumns:
    """The sums of `FIELDS` for some slots, at the steps of an optimiser."""

    def __init__(self, slots: Sequence[Slot]):
        self._slots = tuple(slots)
        self._by_parameter: dict[str, list[Slot]] = {}
        for slot in slots:
            self._by_parameter.setdefault(slot.parameter, []).append(slot)
        self._layouts: dict[tuple, _Layout] = {}

    @torch.no_grad()
    def sums(
        self, parameters: Mapping[str, nn.Parameter], rules: Mapping[str, StepRule], plain: frozenset[str]
    ) -> Tensor:
        """Return the sums for all slots, one after the other: (fields, sum of lengths).

        The last three fields are computed for the parameters in `plain`, and are 0 for others.
        """
        device = parameters[self._slots[0].parameter].device
        stacks = list(self._stacks(parameters, rules, plain))
        settings = _Settings([(rules[name], stack.moves) for stack in stacks for name in stack.names], device)
        parts, at = [], 0
        for stack in stacks:
            products = _products(stack, rules, parameters, settings, slice(at, at := at + len(stack.names)))
            rows = products.flatten(0, 1)
            parts += [reduce_to_axis(rows, slot.axis, slot.matrices) for slot in stack.slots]
        key = device, tuple((stack.names, stack.places, stack.fields, stack.plain) for stack in stacks)
        if key not in self._layouts:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = self._layout(stacks, device)
        layout = self._layouts[key]
        raw = joined([*parts, parts[0].new_zeros(1)], device).index_select(0, layout.places).view(len(RAW), -1)
        return _fields(dict(zip(RAW, raw.unbind(), strict=True)), settings.table[:, layout.parameter], layout.shift)

    def _stacks(
        self, parameters: Mapping[str, nn.Parameter], rules: Mapping[str, StepRule], plain: frozenset[str]
    ) -> Iterator[_Stack]:
        groups: dict[tuple, list[str]] = {}
        total = 0
        for name, own in self._by_parameter.items():
            p, rule = parameters[name], rules[name]
            axes = tuple((s.axis, s.matrices, s.shift) for s in own)
            key = p.is_cuda, p.numel(), p.shape, p.dtype, p.device, p.grad is None, axes, rule.shared, name in plain
            groups.setdefault(key, []).append(name)
            total += p.numel()
        for (cuda, entries, *_), names in groups.items():
            most = max(1, (max(GPU_ENTRIES, total // GPU_STACKS) if cuda else CPU_ENTRIES) // max(1, entries))
            own, used = self._by_parameter[names[0]], parameters[names[0]].grad is not None
            for start in range(0, len(names), most):
                for shift in dict.fromkeys(slot.shift for slot in own):
                    places = tuple(k for k, slot in enumerate(own) if slot.shift == shift)
                    slots, some = tuple(own[k] for k in places), tuple(names[start : start + most])
                    yield _Stack(some, rules[names[0]], places, slots, used, names[0] in plain)

    def _layout(self, stacks: Sequence[_Stack], device: torch.device) -> "_Layout":
        """Return where the sums of the stacks are among those of all slots."""
        starts = dict(zip(self._slots, np.cumsum([0, *(slot.length for slot in self._slots)]).tolist(), strict=False))
        columns = sum(slot.length for slot in self._slots)
        places, parameter, shift = np.full((len(RAW), columns), -1), np.zeros(columns, int), np.zeros(columns)
        at = first = 0
        for stack in stacks:
            for place, slot in zip(stack.places, stack.slots, strict=True):
                rows = {name: k for k, name in enumerate(stack.fields)}
                rows |= {name: rows[other] for name, other in stack.same.items()}
                for row, name in enumerate(stack.names):
                    start = starts[self._by_parameter[name][place]]
                    own = slice(start, start + slot.length)
                    parameter[own], shift[own] = first + row, stack.shift
                    for field, k in rows.items():
                        places[RAW.index(field), own] = (
                            at + (k * len(stack.names) + row) * slot.length + np.arange(slot.length)
                        )
                at += len(stack.fields) * len(stack.names) * slot.length
            first += len(stack.names)
        places[places < 0] = at  # a zero follows the sums
        dtype = torch.int32 if at < 2**31 else torch.int64
        tensors = torch.as_tensor(places, dtype=dtype).flatten(), torch.as_tensor(parameter), torch.as_tensor(shift)
        moved = [on_device(x, device) for x in tensors]
        return _Layout(moved[0], moved[1], moved[2] if shift.any() else None)


class _Layout(NamedTuple):
    """Where the sums of `RAW` are among those of all stacks, and to what they belong."""

    places: Tensor
    """(fields * columns,)."""
    parameter: Tensor
    """Place of the parameter of each column in the order of the stacks."""
    shift: Tensor | None
    """The shift of each column; None where there is none."""


class _Settings:
    """Numbers of each parameter, in the order of the stacks."""

    def __init__(self, rules: Sequence[tuple[StepRule, bool]], device: torch.device):
        eta, decay, base, moves, b1, b2 = number_table(
            [
                [rule.step_size for rule, _ in rules],
                [_fresh(rule) * rule.weight_decay * moves for rule, moves in rules],
                [rule.eps if rule.kind == ADAM else 1.0 for rule, _ in rules],
                [float(moves) for _, moves in rules],
                [rule.betas[0] for rule, _ in rules],
                [rule.betas[1] for rule, _ in rules],
            ],
            device,
        ).unbind()
        steps = [(rule.state or {}).get("step") if rule.kind == ADAM else None for rule, _ in rules]
        known = next((step for step in steps if step is not None), None)
        count = torch.zeros_like(eta)
        if known is not None:
            zero = torch.zeros_like(known)
            count = on_device(joined([zero if step is None else step for step in steps], known.device), device)
        counts = torch.stack([count, count + moves, count + moves])
        # 1 before the first step
        bias = torch.where(counts > 0, 1 - torch.stack([b2, b2, b1]) ** counts, 1.0)
        roots = bias[:2].rsqrt()
        self._unbias = roots[1]
        self._cast: dict[tuple, Tensor] = {}
        self.table = torch.stack([base, *roots.unbind(), 1 - eta * decay, eta / bias[2]])
        """The part of the metric that is the same for all entries, 1/sqrt(1 - b2^t) before and after the step, what
        weight decay leaves of a parameter, and the factor of the direction."""

    def unbias(self, part: slice, like: Tensor) -> Tensor:
        """Return 1/sqrt(1 - b2^t) of some parameters, to be multiplied with (parameters, *shape)."""
        key = like.device, like.dtype
        if key not in self._cast:
            self._cast[key] = self._unbias.to(*key)
        return self._cast[key][part].view(-1, *(1,) * (like.ndim - 1))


def _fresh(rule: StepRule) -> float:
    """Return the factor of a new gradient in a step of SGD; 1 for others."""
    if rule.kind != SGD or not rule.momentum:
        return 1.0
    share = 1 - rule.dampening if "momentum_buffer" in (rule.state or {}) else 1.0  # a first step has no dampening
    return 1 + rule.momentum * share if rule.nesterov else share


def _products(
    stack: _Stack,
    rules: Mapping[str, StepRule],
    parameters: Mapping[str, nn.Parameter],
    settings: _Settings,
    part: slice,
) -> Tensor:
    """Return the entries of the fields of a stack: (fields, parameters, *shape)."""
    own, states = [parameters[name] for name in stack.names], [rules[name].state or {} for name in stack.names]
    half = own[0].dtype in (torch.float16, torch.bfloat16)
    like = torch.float32 if half else own[0].dtype
    entries = own[0].new_empty(len(stack.fields), len(own), *own[0].shape, dtype=like)
    of = dict(zip(stack.fields, entries.unbind(), strict=True))
    theta = torch.stack(own, out=torch.empty_like(of["weight"]))
    values = theta + stack.shift if stack.shift else theta
    torch.mul(values, values, out=of["weight"])
    state = {key: [one[key] for one in states] for key in states[0] if key != "step"}
    gradients = [p.grad for p in own if p.grad is not None]
    if stack.rule.kind == ADAM:
        _adam_products(of, stack.rule, values, gradients, state, settings.unbias(part, values))
    elif gradients:
        _sgd_products(of, stack.rule, values, gradients, state)
    if stack.shift:
        _shifted_products(of, theta, values)
    return entries


def _loaded(gradients: Sequence[Tensor], rule: StepRule, out: Tensor) -> Tensor:
    """Return the gradients as the optimiser sees them, in `out`."""
    torch.stack(gradients, out=out)
    return out if rule.grad_scale is None else out.div_(rule.grad_scale.to(out))


def _sgd_products(
    of: dict[str, Tensor], rule: StepRule, values: Tensor, gradients: list[Tensor], state: dict[str, list[Tensor]]
) -> None:
    gradient = _loaded(gradients, rule, of["gradient"])
    if "product" in of:
        if rule.sign < 0:
            gradient.neg_()
        step = gradient if "square" not in of else _momentum_step(rule, gradient, state, of["square"])
        torch.mul(values, step, out=of["product"])
        if "direction" in of:
            of["direction"].copy_(step)
        if step is not gradient:
            step.square_()
    gradient.square_()


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


def _fields(raw: dict[str, Tensor], settings: Tensor, shift: Tensor | None) -> Tensor:
    """Return the sums of `FIELDS` from those of `RAW` and the settings of the parameter of each column.

    Decay acts on the parameter without its shift: kept x stands for kept x + (1 - kept) shift.
    """
    base, old_unbias, unbias, kept, size = settings.unbind()
    weight = base * raw["weight"]
    before, after = torch.addcmul(weight, raw["old_root"], old_unbias), torch.addcmul(weight, raw["root"], unbias)
    loss, sized = kept.square() - 1, size.square()
    first, decayed, pull = kept * raw["product"], loss * after, after
    if shift is not None:
        lost = (1 - kept) * shift
        first = first + lost * raw["direction"]
        decayed = decayed + 2 * kept * lost * raw["lever"] + lost**2 * raw["metric"]
        pull = torch.where(shift == 0, after, raw["pull"])
    fields = {
        "weight": raw["weight"],
        "gradient": raw["gradient"],
        "before": before,
        "after": after,
        "pull": pull,
        "drive": raw["drive"] * unbias.square(),
        "inverse": raw["inverse"],
        "first": size * first,
        "second": sized * raw["square"],
        "decayed": decayed,
        "plain_first": size * kept * raw["plain_product"],
        "plain_second": sized * raw["plain_square"],
        "plain_decayed": loss * raw["plain_weight"],
    }
    return torch.stack([fields[name] for name in FIELDS])
