"""Sums over the entries of parameters along their axes, for the charges of a step and their change.

The step of an entry is theta+ = kept theta - d. In the metric S of the optimiser (W = 1/S, after the step) a charge
changes by sums of W theta d, W d^2 and W theta^2, and by those of theta^2 (W - W_before). For SGD the metric is 1. For
Adam W = sqrt(v)/sqrt(1 - b2^t) + eps, and d = eta m/(1 - b1^t)/W, with m and v after the step, which follow from the
gradient and the state before it.

Parameters of the same shape and settings are computed together, as sums without factors (`stacks.RAW`). Numbers of each
parameter, such as step sizes and bias corrections, are the same for all entries and enter these sums.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.arrays import Array, as_array, joined_array, namespace, number_table, stacked
from undertow.torch.monitor.settings import ADAM, SGD, StepRule
from undertow.torch.monitor.stacks import RAW, Slot, Stack, stack_sums
from undertow.torch.monitor.tensors import joined, on_device

__all__ = ["FIELDS", "RawColumns", "StepColumns"]

FIELDS = (
    "weight", "gradient", "before", "after", "pull", "drive", "inverse", "first", "second", "decayed", "plain_first",
    "plain_second", "plain_decayed",
)  # fmt: skip
"""Sums over entries, with x the parameter plus its shift: x^2, g^2, W_before x^2, W x^2, W theta x, v/W, W (both 0
for SGD), W kept x d, W d^2, W ((kept x)^2 - x^2), and the last three with W = 1."""
GPU_ENTRIES, CPU_ENTRIES = 2**23, 2**17
"""Entries that are computed at once, about ten numbers for each. On a CPU, tensors that fit in its cache are faster."""
GPU_STACKS = 16
"""A GPU computes more entries at once for a model of more than so many stacks of `GPU_ENTRIES`."""
MOST_LAYOUTS = 4
"""Places of the sums that are kept: parameters without a gradient change them from step to step."""


class StepColumns:
    """The sums of `FIELDS` for some slots, at the steps of an optimiser."""

    def __init__(self, slots: Sequence[Slot]):
        self._slots = tuple(slots)
        self._by_parameter: dict[str, list[Slot]] = {}
        for slot in slots:
            self._by_parameter.setdefault(slot.parameter, []).append(slot)
        self._layouts: dict[tuple, _Layout] = {}
        self._newest: tuple[dict[str, tuple], list[Stack], _Layout] | None = None
        """The kinds of the parameters at the last step, with the stacks and the layout that follow from them."""

    @torch.no_grad()
    def gather(
        self, parameters: Mapping[str, nn.Parameter], rules: Mapping[str, StepRule], plain: frozenset[str]
    ) -> "RawColumns":
        """Return what the sums for all slots follow from, after which parameters, gradients and state may change.

        The last three fields are computed for the parameters in `plain`, and are 0 for others.
        """
        kinds = {name: _kind(parameters[name], rules[name], name in plain) for name in self._by_parameter}
        if self._newest is None or self._newest[0] != kinds:
            stacks = list(self._stacks(kinds, parameters, rules, plain))
            self._newest = kinds, stacks, self._layout_of(stacks)
        _, stacks, layout = self._newest
        settings, parts = _Settings(stacks, rules, layout), []
        for place, stack in enumerate(stacks):
            parts += stack_sums(stack, rules, parameters, settings.unbias(stack)[place])
        return RawColumns(parts, settings.table, layout)

    def _layout_of(self, stacks: Sequence[Stack]) -> "_Layout":
        """Return where the sums of the stacks are, computed once for stacks of the same form."""
        device = stacks[0].device
        key = device, tuple((stack.names, stack.places, stack.fields, stack.plain) for stack in stacks)
        if key not in self._layouts:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = self._new_layout(stacks, device)
        return self._layouts[key]

    def _stacks(
        self,
        kinds: Mapping[str, tuple],
        parameters: Mapping[str, nn.Parameter],
        rules: Mapping[str, StepRule],
        plain: frozenset[str],
    ) -> Iterator[Stack]:
        groups: dict[tuple, list[str]] = {}
        for name, own in self._by_parameter.items():
            groups.setdefault((*kinds[name], *((s.axis, s.matrices, s.shift) for s in own)), []).append(name)
        total = sum(parameters[name].numel() for name in kinds)
        for (device, entries, dtype, unused, *_), names in groups.items():
            single = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
            limit = max(GPU_ENTRIES, total // GPU_STACKS) if device.type == "cuda" else CPU_ENTRIES
            most, own = max(1, limit // max(1, entries)), self._by_parameter[names[0]]
            rows = None
            if entries > limit and all(slot.matrices == 1 for slot in own):
                rows = max(1, limit * len(parameters[names[0]]) // entries)
            for start in range(0, len(names), most):
                for shift in dict.fromkeys(slot.shift for slot in own):
                    places = tuple(k for k, slot in enumerate(own) if slot.shift == shift)
                    slots, some = tuple(own[k] for k in places), tuple(names[start : start + most])
                    rule, in_plain = rules[names[0]], names[0] in plain
                    yield Stack(some, rule, places, slots, device, single, not unused, in_plain, rows)

    def _new_layout(self, stacks: Sequence[Stack], device: torch.device) -> "_Layout":
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
        owner = np.repeat(np.arange(len(stacks)), [len(stack.names) for stack in stacks])
        flat = torch.as_tensor(places, dtype=dtype).flatten()
        moved = [as_array(on_device(x, device)) for x in (flat, *map(torch.as_tensor, (parameter, owner, shift)))]
        return _Layout(device, *moved[:3], moved[3] if shift.any() else None)


class _Layout(NamedTuple):
    """Where the sums of `RAW` are among those of all stacks, and to what they belong."""

    device: torch.device
    places: Array
    """(fields * columns,)."""
    parameter: Array
    """Place of the parameter of each column in the order of the stacks."""
    stack: Array
    """The stack of each parameter."""
    shift: Array | None
    """The shift of each column; None where there is none."""


class RawColumns(NamedTuple):
    """Sums over the entries of all stacks, and the numbers of their parameters."""

    parts: list[Tensor]
    table: Array
    """`_Settings.table`."""
    layout: _Layout

    def sums(self) -> Array:
        """Return the sums for all slots, one after the other: (fields, sum of lengths)."""
        flat = joined_array([*self.parts, self.parts[0].new_zeros(1)], self.layout.device)
        raw = flat[self.layout.places].reshape(len(RAW), -1)
        settings = self.table[:, self.layout.parameter]
        return _fields(dict(zip(RAW, raw, strict=True)), settings, self.layout.shift)


class _Settings:
    """Numbers of each parameter, in the order of the stacks."""

    def __init__(self, stacks: Sequence[Stack], rules: Mapping[str, StepRule], layout: _Layout):
        shared = [
            (rule.step_size, _fresh(rule) * rule.weight_decay * stack.moves, rule.eps if rule.kind == ADAM else 1.0,
             float(stack.moves), *rule.betas)
            for stack in stacks for rule in [stack.rule]
        ]  # fmt: skip
        table = number_table(list(zip(*shared, strict=True)), layout.device)
        eta, decay, base, moves, b1, b2 = table[:, layout.stack]
        self._sizes = [len(stack.names) for stack in stacks]
        self._unbias: dict[tuple, tuple[Tensor, ...]] = {}
        bias = self._bias(stacks, rules, layout.device, stacked([moves, b1, b2]))
        roots = bias[:2] ** -0.5
        self._roots = roots[1]
        self.table = stacked([base, *roots, 1 - eta * decay, eta / bias[2]])
        """The part of the metric that is the same for all entries, 1/sqrt(1 - b2^t) before and after the step, what
        weight decay leaves of a parameter, and the factor of the direction."""

    def _bias(
        self, stacks: Sequence[Stack], rules: Mapping[str, StepRule], device: torch.device, table: Array
    ) -> Array:
        """Return 1 - b2^t before and after the step, and 1 - b1^t after it; 1 for parameters without such a factor."""
        xp, (moves, b1, b2) = namespace(table), table
        if all(stack.rule.kind != ADAM for stack in stacks):
            return xp.ones_like(table)
        own = [rules[name] for stack in stacks for name in stack.names]
        steps = [rule.state.get("step") if rule.state and rule.kind == ADAM else None for rule in own]
        known = next((step for step in steps if step is not None), None)
        count = xp.zeros_like(moves)
        if known is not None:
            zero = torch.zeros_like(known)
            joint = joined([zero if step is None else step for step in steps], known.device)
            count = as_array(on_device(joint, device))
        counts = stacked([count, count + moves, count + moves])
        # 1 before the first step
        return xp.where(counts > 0, 1 - stacked([b2, b2, b1]) ** counts, 1.0)

    def unbias(self, stack: Stack) -> tuple[Tensor, ...]:
        """Return 1/sqrt(1 - b2^t) after the step for the parameters of all stacks, as tensors like those of one."""
        key = stack.device, stack.dtype
        if key not in self._unbias:
            self._unbias[key] = torch.as_tensor(self._roots).to(*key).split(self._sizes)
        return self._unbias[key]


def _kind(p: nn.Parameter, rule: StepRule, in_plain: bool) -> tuple:
    """Return what parameters of one stack have in common."""
    return p.device, p.numel(), p.dtype, p.grad is None, p.shape, rule.shared, in_plain


def _fresh(rule: StepRule) -> float:
    """Return the factor of a new gradient in a step of SGD; 1 for others."""
    if rule.kind != SGD or not rule.momentum:
        return 1.0
    share = 1 - rule.dampening if "momentum_buffer" in (rule.state or {}) else 1.0  # a first step has no dampening
    return 1 + rule.momentum * share if rule.nesterov else share


def _fields(raw: dict[str, Array], settings: Array, shift: Array | None) -> Array:
    """Return the sums of `FIELDS` from those of `RAW` and the settings of the parameter of each column.

    Decay acts on the parameter without its shift: kept x stands for kept x + (1 - kept) shift.
    """
    xp = namespace(settings)
    base, old_unbias, unbias, kept, size = settings
    weight = base * raw["weight"]
    before, after = weight + raw["old_root"] * old_unbias, weight + raw["root"] * unbias
    loss, sized = kept**2 - 1, size**2
    first, decayed, pull = kept * raw["product"], loss * after, after
    if shift is not None:
        lost = (1 - kept) * shift
        first = first + lost * raw["direction"]
        decayed = decayed + 2 * kept * lost * raw["lever"] + lost**2 * raw["metric"]
        pull = xp.where(shift == 0, after, raw["pull"])
    fields = {
        "weight": raw["weight"],
        "gradient": raw["gradient"],
        "before": before,
        "after": after,
        "pull": pull,
        "drive": raw["drive"] * unbias**2,
        "inverse": raw["inverse"],
        "first": size * first,
        "second": sized * raw["square"],
        "decayed": decayed,
        "plain_first": size * kept * raw["plain_product"],
        "plain_second": sized * raw["plain_square"],
        "plain_decayed": loss * raw["plain_weight"],
    }
    return stacked([fields[name] for name in FIELDS])
