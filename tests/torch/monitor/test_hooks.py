"""Recording in training loops: accumulation, other passes, half precision, checkpoints, errors."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.flows import _raises, hooks_on, reported
from tests.torch.oracle import (
    assert_noise,
    claimed_census,
    monitored_step,
    relu,
    relu_census,
    sample_gradients_by_vmap,
    square,
)
from undertow.torch import NoiseMonitor
from undertow.torch.monitor import hooks

pytestmark = pytest.mark.torch


def test_accumulated_gradients_count_as_one_batch():
    model, x = relu(), torch.randn(12, 5, dtype=torch.float64)
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        for part in x.split(4):
            (square(model, part) / 3).backward()
        optimizer.step()
    assert monitor.last[0].row["samples"] == 12
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)


def test_two_losses_of_one_batch_are_combined():
    """If a model is called twice before one backward pass, samples are matched by their index in the batch."""
    model, x = relu(), torch.randn(6, 5, dtype=torch.float64)
    loss = lambda net, s: ((net(s) - net(2 * s)) ** 2).sum(1).mean()
    monitor, before = monitored_step(model, relu_census(), loss, x)
    assert_noise(monitor, sample_gradients_by_vmap(before, loss, x), 1e-11)


def test_passes_without_a_step_do_not_count():
    """Evaluation with and without gradients, failed passes, and discarded gradients do not count."""
    model, x = relu(), torch.randn(10, 5, dtype=torch.float64)
    symmetries = relu_census()
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        with torch.no_grad():
            model(x[:3])
        model.eval()
        model(x[:5])
        model.train()
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 4, dtype=torch.float64))
        stopped = model(x[:7])
        handle = stopped.register_hook(_raises)
        with pytest.raises(ZeroDivisionError):
            stopped.square().sum().backward()
        handle.remove()
        square(model, x[:6]).backward()
        optimizer.zero_grad()
        square(model, x).backward()
        optimizer.step()
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)
    assert monitor.last[0].row["samples"] == 10


def test_a_failed_backward_pass_does_not_count():
    model, x = relu(), torch.randn(10, 5, dtype=torch.float64)
    symmetries, before = relu_census(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        hidden = model[1].register_forward_hook(lambda m, a, out: out.register_hook(_raises) and None)
        with pytest.raises(ZeroDivisionError):
            square(model, x[:6]).backward()
        hidden.remove()
        optimizer.zero_grad()
        square(model, x).backward()
        optimizer.step()
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)


def test_half_precision_under_autocast_with_a_gradient_scaler():
    torch.manual_seed(0)
    model, x = relu(torch.float32), torch.randn(64, 5)
    symmetries, before = relu_census(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            value = model(x).float().square().sum(1).mean()
        scaler.scale(value).backward()
        scaler.step(optimizer)
    assert_noise(monitor, sample_gradients_by_vmap(before.double(), square, x.double()), 5e-2)


def test_sums_are_not_affected_by_autocast_in_the_backward_pass():
    """The sums are the same whether `backward()` runs inside or outside of the autocast block."""
    noises = []
    for inside in (False, True):
        model, x = relu(torch.float32), torch.linspace(-1, 1, 40).reshape(8, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NoiseMonitor(model, claimed_census(model, "0.weight", "2.weight"), every=1) as monitor:
            with torch.autocast("cpu", torch.bfloat16):
                value = square(model, x)
                if inside:
                    value.backward()
            if not inside:
                value.backward()
            optimizer.step()
        noises.append(np.concatenate([reading.noise_plus for reading in monitor.last]))
    np.testing.assert_allclose(*noises, rtol=1e-5)


def test_an_overflow_under_a_gradient_scaler_is_left_out():
    model, x = relu(torch.float32), torch.randn(8, 5)
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        scaler.scale(1e6 * square(model, x[:4])).backward()
        scaler.step(optimizer)
        scaler.update(1.0)
        assert monitor.steps == 0
        optimizer.zero_grad(set_to_none=False)
        square(model, x).backward()
        optimizer.step()
    assert_noise(monitor, sample_gradients_by_vmap(before.double(), square, x.double()), 1e-5)


def test_a_batch_norm_that_starts_to_train_is_reported():
    """The problem is reported when the step ends, and the step has no row."""
    x = torch.randn(8, 5)
    for steps in (0, 2):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(4, affine=False)
        model = nn.Sequential(nn.Linear(5, 4), norm, nn.Linear(4, 2)).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NoiseMonitor(model, claimed_census(model, "0.weight", "2.weight"), every=2) as monitor:
            for _ in range(steps):
                optimizer.zero_grad()
                square(model, x).backward()
                optimizer.step()
            model.train()
            optimizer.zero_grad()
            square(model, x).backward()
            with reported("1 is a BatchNorm1d that trains; put it in eval mode", measured=steps):
                optimizer.step()
            model.eval()
            for _ in range(2):
                optimizer.zero_grad()
                square(model, x).backward()
                optimizer.step()
        assert {row["step"] for row in monitor.rows} == ({0, 4} if steps else {2})


def test_a_backward_pass_through_an_old_forward_pass_is_reported():
    """Its derivatives belong to another step; later steps are measured."""
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(
        model[0].parameters(), lr=0.1
    )  # autograd allows this change: it needs the second layer only
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        late = square(model, x)
        optimizer.step()
        model.zero_grad()
        late.backward()
        with reported("forward pass from before the last step", measured=1):
            optimizer.step()
        model.zero_grad()
        before = copy.deepcopy(model)
        square(model, x).backward()
        optimizer.step()
    assert [row["step"] for row in monitor.rows] == [0, 2]
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)


@pytest.mark.parametrize("where", ["LayerQueue.compute", "layer_gradients", "tensors_in"])
@pytest.mark.parametrize("error", [KeyError, MemoryError])
def test_errors_in_hooks_do_not_reach_the_backward_pass(monkeypatch, where, error):
    def fails(*_):
        raise error("no such thing")

    x = torch.randn(8, 5, dtype=torch.float64)
    for steps in (0, 1):
        model = relu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NoiseMonitor(model, relu_census(), every=1) as monitor:
            for _ in range(steps):
                square(model, x).backward()
                optimizer.step()
            optimizer.zero_grad()
            with monkeypatch.context() as patch:
                patch.setattr(f"{hooks.__name__}.{where}", fails)
                square(model, x).backward()
            with reported("no such thing", measured=steps):
                optimizer.step()
        assert len(monitor.rows) == steps


def test_between_measurements_there_are_no_hooks():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = NoiseMonitor(model, relu_census(), every=3)
    counts = []
    for _ in range(7):
        counts.append(hooks_on(model) > 0)
        optimizer.zero_grad()
        square(model, x).backward()
        optimizer.step()
    assert counts == [True, False, False, True, False, False, True]
    assert [row["step"] for row in monitor.rows] == [0, 3, 6]
    monitor.close()
    assert hooks_on(model) == 0
    optimizer.step()
    assert monitor.steps == 7


def test_copies_and_saved_models_have_no_monitor():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        other = copy.deepcopy(model)
        square(other, x[:3]).backward()
        buffer = io.BytesIO()
        torch.save(model, buffer)
        pickle.loads(pickle.dumps(model))(x)
        square(model, x).backward()
        optimizer.step()
    assert monitor.last[0].row["samples"] == 8
    assert len(model.state_dict()) == 4


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_in_activation_checkpoints_are_recorded(reentrant):
    """Reentrant checkpoints run their layers first without gradients, then inside the backward pass."""

    class Saved(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = relu(), nn.Linear(3, 2).double()

        def forward(self, x):
            return self.head(checkpoint(self.inside, x, use_reentrant=reentrant))

    model, x = Saved(), torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    symmetries = claimed_census(model, "inside.0.weight", "inside.2.weight", "head.weight")
    monitor, before = monitored_step(model, symmetries, square, x)
    plain = copy.deepcopy(before)
    plain.forward = lambda s: plain.head(plain.inside(s))
    assert_noise(monitor, sample_gradients_by_vmap(plain, square, x.detach()), 1e-11)
