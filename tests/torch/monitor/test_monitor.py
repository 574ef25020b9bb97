"""The noise monitor in training loops, and on models of transformers."""

import copy
import dataclasses
import functools
import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch.flows import hooks_on
from tests.torch.oracle import (
    Block,
    assert_noise,
    census_of,
    monitored_step,
    relu,
    relu_census,
    sample_gradients_by_vmap,
    sample_gradients_in_a_loop,
    square,
)
from tests.torch.zoo import KNOWN
from undertow.torch import NoiseMonitor, census
from undertow.torch.monitor.symmetry_meter import GatheredStep

pytestmark = pytest.mark.torch


def test_monitoring_does_not_change_training():
    x = torch.randn(8, 5, dtype=torch.float64)
    ends = []
    for monitored in (False, True):
        model = relu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        monitor = NoiseMonitor(model, relu_census(), every=1) if monitored else None
        for _ in range(3):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
        ends.append(model)
        if monitor:
            monitor.close()
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in ends), strict=True))


def test_a_deleted_monitor_removes_its_hooks():
    model = relu()
    monitor = NoiseMonitor(model, relu_census(), every=1)
    assert hooks_on(model) > 0
    del monitor
    gc.collect()
    assert hooks_on(model) == 0


def test_a_monitor_prints_its_noise_scales_with_the_layers_in_the_order_of_the_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    x = torch.randn(8, 4, dtype=torch.float64)
    loss = lambda net, batch: net(batch).square().mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, census(model, x, loss), every=1) as monitor:
        assert "nothing was measured yet; train a step first" in str(monitor)
        loss(model, x).backward()
        optimizer.step()
    assert list(monitor.noise_scale.layers) == ["0", "2", "4"]
    assert str(monitor) == str(monitor.noise_scale)
    assert [line[0] for line in str(monitor).splitlines()[-3:]] == ["0", "2", "4"]
    assert monitor._repr_html_() == monitor.noise_scale._repr_html_()


def test_a_step_with_a_closure_is_measured():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    symmetries, before = relu_census(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        value = square(model, x)
        value.backward()
        return value

    with NoiseMonitor(model, symmetries, every=1) as monitor:
        first = optimizer.step(closure)
        assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)
        optimizer.step(closure=closure)
    assert first.item() == pytest.approx(square(before, x).item())
    assert len(monitor.rows) == 2


@pytest.mark.parametrize("every", [1, 2, 3])
def test_closures_that_clear_gradients_after_the_forward_pass_are_measured(every):
    """Lightning's order: forward pass, `zero_grad`, backward pass, all inside the closure of `step`."""
    model = relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(7, 8, 5, dtype=torch.float64)
    with NoiseMonitor(model, relu_census(), every=every) as monitor:
        for x in batches:
            before = copy.deepcopy(model)

            def closure(x=x):
                value = square(model, x)
                optimizer.zero_grad()
                value.backward()
                return value

            optimizer.step(closure)
            if monitor.rows[-1]["step"] == monitor.steps - 1:
                assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)
    assert [row["step"] for row in monitor.rows] == list(range(0, 7, every))
    assert all(row["samples"] == 8 for row in monitor.rows)
    assert not monitor.skipped


def test_an_error_after_the_first_measurement_does_not_stop_the_training(monkeypatch):
    """Each reason gives one warning, and all steps are listed."""

    def fails(*_, **__):
        raise ZeroDivisionError("no such thing")

    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        square(model, x).backward()
        optimizer.step()

    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        step()
        monkeypatch.setattr("undertow.torch.monitor.symmetry_meter.read_step", fails)
        step()
        with pytest.warns(UserWarning, match="step 1: ZeroDivisionError: no such thing"):
            assert len(monitor.rows) == 1
        step()  # without another warning, which would be an error
    assert [number for number, _ in monitor.skipped] == [1, 2]
    with NoiseMonitor(model, relu_census(), every=1), pytest.raises(RuntimeError, match="no such thing"):
        step()


def test_a_first_measurement_that_is_impossible_may_warn(as_a_user):
    model, x = relu(), torch.randn(1, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, every=1, on_error="warn") as monitor:
        square(model, x).backward()
        with pytest.warns(UserWarning, match="one sample per step"):
            optimizer.step()
    assert monitor.noise_scale.newest_step == -1
    with pytest.raises(ValueError, match="on_error='never'"):
        NoiseMonitor(model, on_error="never")


def test_a_loop_without_an_optimiser_is_measured():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    symmetries, before = relu_census(), copy.deepcopy(model)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        square(model, x).backward()
        monitor.step(step_size=0.1)
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)
    assert monitor.rows[0]["step_size"] == 0.1


def test_a_second_optimiser_is_followed():
    """The first optimiser makes no more steps, although it is still referenced."""
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 0.01)]
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        for optimizer in [optimizers[0], *[optimizers[1]] * 6]:
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    sizes = [row["step_size"] for row in monitor.rows]
    assert sizes[0] == 0.1
    assert sizes[-1] == 0.01
    assert len(sizes) >= 4


def test_at_most_keep_measurements_are_stored(tmp_path):
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, relu_census(), every=1, keep=3) as monitor:
        for _ in range(5):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    assert [row["step"] for row in monitor.rows] == [2, 3, 4]


def test_a_loss_averaged_over_tokens_has_sequences_as_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 11)).double()
    ids = torch.randint(0, 11, (5, 8))
    loss = lambda net, s: F.cross_entropy(net(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())
    monitor, before = monitored_step(model, census_of(model, ids[:2], loss), loss, ids)
    assert_noise(monitor, sample_gradients_by_vmap(before, loss, ids), 1e-11)
    assert monitor.last[0].row["samples"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Qwen3", "Gemma", "LoRA", "BERT"])
def test_noise_of_models_of_transformers(name):
    """The reference uses one backward pass per sequence, because vmap does not support these models."""
    torch.manual_seed(0)
    known = KNOWN[name]
    model = known.build().double().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if name == "LoRA":
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_()
    drawn = torch.randint(0, 40, (4, 7))
    loss = lambda net, ids: net(input_ids=ids, labels=ids, use_cache=False).loss
    if name == "BERT":
        loss = lambda net, ids: net(input_ids=ids, labels=ids).loss
    symmetries = census(model, drawn[:2], loss)
    monitor, before = monitored_step(model, symmetries, loss, drawn)
    # Gemma's norms compute in single precision
    assert_noise(monitor, sample_gradients_in_a_loop(before, loss, drawn), 1e-5 if name == "Gemma" else 1e-9)


class Transfers(TorchDispatchMode):
    """Counts of what reads a tensor on the host; on a GPU each of these waits for it."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero")

    def __init__(self, monkeypatch):
        super().__init__()
        self.calls = []
        for name in ("cpu", "numpy", "tolist"):
            monkeypatch.setattr(torch.Tensor, name, self.counted(name, getattr(torch.Tensor, name)))
        self.on_host = False
        monkeypatch.setattr(GatheredStep, "read", self.not_counted(GatheredStep.read))

    def counted(self, name, method):
        def call(tensor, *args, **kwargs):
            if not self.on_host:
                self.calls.append(name)
            return method(tensor, *args, **kwargs)

        return call

    def not_counted(self, method):
        """Return the method without counting: it gets arrays that are on the host already."""

        def call(gathered, measurement, values, *args):
            assert isinstance(values, np.ndarray)
            self.on_host = True
            try:
                return method(gathered, measurement, values, *args)
            finally:
                self.on_host = False

        return call

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in self.READS and not self.on_host:
            self.calls.append(name)
        return function(*args, **(kwargs or {}))


@functools.cache
def text_model():
    """Return a small transformer with symmetries of all shapes, its census, tokens and loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), Block(), nn.Linear(8, 11))
    ids = torch.randint(0, 11, (5, 8))
    loss = lambda net, s: F.cross_entropy(net(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())
    return model, census(model, ids[:2], loss), ids, loss


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "fused"])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_measurement_is_one_transfer(monkeypatch, kind):
    """Hooks, comparison and readings leave all numbers on the device until the rows are made."""
    model, symmetries, ids, loss = text_model()
    model = copy.deepcopy(model)
    assert any(symmetry.block > 1 for symmetry in symmetries)
    if kind == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=kind == "fused")
    with NoiseMonitor(model, symmetries, every=2) as monitor:
        counts = []
        for step in range(6):
            optimizer.zero_grad()
            measured = len(monitor.rows)
            with monkeypatch.context() as patch, Transfers(patch) as transfers:
                loss(model, ids).backward()
                optimizer.step()
            counts.append(len(transfers.calls))
            assert (len(monitor.rows) > measured) == (step % 2 == 0)
    plain = counts[3]  # calls of the model and the optimiser themselves
    assert counts[2] - plain == counts[4] - plain == 1, counts
    assert np.isfinite(monitor.last[0].charge).all()


def test_numbers_of_many_symmetries_do_not_mix():
    """A census of one symmetry gives the same row as the census of all."""
    model, symmetries, ids, loss = text_model()
    for optimiser in (torch.optim.SGD, torch.optim.AdamW):
        rows = []
        for chosen in (symmetries.symmetries, *((one,) for one in symmetries)):
            own = copy.deepcopy(model)
            optimizer = optimiser(own.parameters(), lr=0.01)
            with NoiseMonitor(own, dataclasses.replace(symmetries, symmetries=chosen), every=1) as monitor:
                for _ in range(2):
                    optimizer.zero_grad()
                    loss(own, ids).backward()
                    optimizer.step()
            rows.append(monitor.rows[-len(chosen) :])
        for together, (alone,) in zip(rows[0], rows[1:], strict=True):
            for name, value in alone.items():
                # sums of single precision in another order
                same = pytest.approx(value, rel=1e-3, abs=1e-9) if isinstance(value, float) else value
                assert together[name] == same, name
