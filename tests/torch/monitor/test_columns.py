"""Sums over entries along axes, against the entries themselves and the optimiser's own step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from undertow.torch.monitor import columns as columns_module
from undertow.torch.monitor.columns import FIELDS, StepColumns
from undertow.torch.monitor.settings import optimizer_rules
from undertow.torch.monitor.stacks import Slot

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("arrays_and_tensors")]


OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2, eps=0.01),
}


def inverse_metric(optimizer, parameter):
    """Return 1/S of the optimiser's state: 1 for SGD."""
    state = optimizer.state[parameter]
    if "exp_avg_sq" not in state:
        return (
            torch.ones_like(parameter) if isinstance(optimizer, torch.optim.SGD) else torch.full_like(parameter, 0.01)
        )
    return (state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt() + 0.01


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_columns_describe_the_step_of_the_optimiser(name, steps, shift):
    """W x+^2 - W x^2 is decay, twice the first and the second order, for parameters that are computed together."""
    torch.manual_seed(0)
    parameters = {name: nn.Parameter(torch.randn(4, 3, dtype=torch.float64)) for name in "abc"}
    optimizer = OPTIMISERS[name](list(parameters.values()))
    for step in range(steps + 1):
        for p in parameters.values():
            p.grad = torch.randn(4, 3, dtype=torch.float64)
        if step < steps:
            optimizer.step()
    parameters["c"].grad = None  # not used in this step
    slots = [Slot(name, axis, 1, shift, (4, 3)[axis]) for name in "abc" for axis in (0, 1)]
    columns = StepColumns(slots).gather(parameters, optimizer_rules([optimizer], parameters), frozenset()).sums()
    parts = dict(zip(FIELDS, columns, strict=True))
    total = lambda entries: np.concatenate([x.sum(1 - axis).numpy() for x in entries for axis in (0, 1)])
    values = lambda: [p.detach() + shift for p in parameters.values()]
    before, metric_before = values(), [inverse_metric(optimizer, p).detach() for p in parameters.values()]
    thetas = [p.detach().clone() for p in parameters.values()]
    optimizer.step()
    after, metric = values(), [inverse_metric(optimizer, p).detach() for p in parameters.values()]
    close = lambda name, expected: np.testing.assert_allclose(parts[name], total(expected), rtol=1e-9, atol=1e-12)
    close("weight", [x**2 for x in before])
    close("before", [w * x**2 for w, x in zip(metric_before, before, strict=True)])
    close("after", [w * x**2 for w, x in zip(metric, before, strict=True)])
    close("pull", [w * x * t for w, x, t in zip(metric, before, thetas, strict=True)])
    change = parts["decayed"] - 2 * parts["first"] + parts["second"]
    moved = [w * (y**2 - x**2) for w, x, y in zip(metric, before, after, strict=True)]
    np.testing.assert_allclose(change, total(moved), rtol=1e-9, atol=1e-12)
    assert abs(change[-7:]).max() == 0


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_size_on_the_device_stays_there(name):
    """A capturable optimiser has its step size as a tensor; the columns are the same as for the number."""
    torch.manual_seed(0)
    parameters = {name: nn.Parameter(torch.randn(4, 3, dtype=torch.float64)) for name in "ab"}
    optimizer = OPTIMISERS[name](list(parameters.values()))
    for _ in range(2):
        for p in parameters.values():
            p.grad = torch.randn(4, 3, dtype=torch.float64)
        optimizer.step()
    slots = [Slot(name, axis, 1, 0.0, (4, 3)[axis]) for name in "ab" for axis in (0, 1)]
    rules = optimizer_rules([optimizer], parameters)
    size = torch.tensor(0.1, dtype=torch.float64)
    on_device = {name: replace(rule, step_size=size) for name, rule in rules.items()}
    columns = [StepColumns(slots).gather(parameters, own, frozenset("ab")).sums() for own in (rules, on_device)]
    np.testing.assert_allclose(*columns, rtol=1e-14)
    assert abs(columns[0][FIELDS.index("first")]).max() > 0


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_parameters_of_one_shape_have_the_columns_that_each_has_alone(name, dtype):
    """Numbers of steps, gradients, shifts and plain charges differ between parameters that are stacked."""
    torch.manual_seed(0)
    shapes = {"a": (4, 3), "b": (4, 3), "c": (4, 3), "d": (5,), "e": (5,), "f": (), "g": (6, 2, 3)}
    parameters = {name: nn.Parameter(torch.randn(shape).to(dtype)) for name, shape in shapes.items()}
    optimizer = OPTIMISERS[name](list(parameters.values()))
    for unused in ("ad", "c", "b"):  # a and d miss the first step, c the second
        for own, p in parameters.items():
            p.grad = None if own in unused else torch.randn_like(p)
        if unused != "b":
            optimizer.step()
    rules = optimizer_rules([optimizer], parameters)
    axes = [(own, axis) for own, shape in shapes.items() for axis in range(max(1, len(shape)))]
    slots = [Slot(own, axis, 1, float(own in "ce" and axis == 0), (*shapes[own], 1)[axis]) for own, axis in axes]
    slots.append(Slot("g", 1, 3, 0.0, 6))  # three matrices of two rows, with columns of their own
    plain = frozenset("abg")
    together = StepColumns(slots).gather(parameters, rules, plain).sums()
    alone = [StepColumns([slot]).gather(parameters, rules, plain).sums() for slot in slots]
    np.testing.assert_allclose(
        together, np.concatenate(alone, 1), rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=1e-9
    )
    assert np.isfinite(np.asarray(together)).all()
    assert (abs(together[FIELDS.index("plain_second")]).max() > 0) == (name == "AdamW")


@pytest.mark.parametrize(("shape", "axes"), [((7, 3, 2), (0,)), ((7, 3, 2), (1,)), ((7, 3, 2), (0, 2)), ((42,), (0,))])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_large_parameters_are_computed_in_parts(monkeypatch, name, shape, axes):
    """Parts of a parameter give the sums of the whole, along its rows and along other axes."""
    torch.manual_seed(0)
    parameters = {"a": nn.Parameter(torch.randn(shape, dtype=torch.float64))}
    optimizer = OPTIMISERS[name](list(parameters.values()))
    sums = []
    for step in range(2):
        parameters["a"].grad = torch.randn(shape, dtype=torch.float64)
        optimizer.step() if step == 0 else None
    rules = optimizer_rules([optimizer], parameters)
    slots = [Slot("a", axis, 1, 0.0, shape[axis]) for axis in axes]
    for most in (100, 13, 1):
        monkeypatch.setattr(columns_module, "CPU_ENTRIES", most)
        sums.append(np.asarray(StepColumns(slots).gather(parameters, rules, frozenset()).sums()))
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-12)
    np.testing.assert_allclose(sums[2], sums[0], rtol=1e-12)
    assert (sums[0][FIELDS.index("first")] != 0).all()
