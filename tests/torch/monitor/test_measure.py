"""The exact change of charges under SGD, Adam and AdamW, with settings of each parameter."""

import copy
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import undertow as ut
from tests.torch.flows import linear_pair
from tests.torch.monitor.measured_steps import OPTIMISERS, PARTS, assert_exact_change, halves, train
from tests.torch.oracle import census_of, relu, relu_census, sample_gradients_by_vmap, square
from undertow.symmetry.metric_charge import charge_change
from undertow.torch import Axis, Census, NoiseMonitor, Symmetry

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("arrays_and_tensors")]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_parts_of_the_change_add_up(name):
    model = relu()
    assert_exact_change(train(model, relu_census(), OPTIMISERS[name](model)), 1e-10)


@pytest.mark.parametrize("name", ["SGD", "heavy ball", "AdamW groups", "AdamW"])
def test_the_parts_of_the_change_of_a_gl_add_up(name):
    """Under Adam it is the plain charge that changes."""
    model = linear_pair()
    symmetries = census_of(model, torch.randn(4, 5, dtype=torch.float64))
    monitor = train(model, symmetries, OPTIMISERS[name](model))
    assert_exact_change(monitor, 1e-10)
    if "Adam" in name:
        row = monitor.rows[-1]
        assert row["metric"] == 0
        assert row["flow"] is None
        assert "plain charge" in row["note"]
        symmetry = monitor.last[0].symmetry
        whole = lambda side: sum(float(model.get_parameter(a.parameter).detach().square().sum()) for a in side)
        after = (whole(symmetry.plus) - whole(symmetry.minus)) / 2
        assert row["charge"] + row["change"] == pytest.approx(after, rel=1e-10)


@pytest.mark.parametrize("name", ["SGD", "heavy ball", "AdamW", "AdamW groups"])
def test_the_parts_of_the_change_in_single_precision(name):
    model = relu(torch.float32)
    monitor = train(model, relu_census(), OPTIMISERS[name](model), dtype=torch.float32)
    for one, two in itertools.pairwise(monitor.rows):
        size = sum(abs(one[part]) for part in PARTS) + abs(one["charge"])
        assert abs(two["charge"] - one["charge"] - one["change"]) < 3e-6 * size


def test_a_clipped_step_is_the_one_that_is_measured():
    model = relu()
    monitor = train(model, relu_census(), OPTIMISERS["AdamW"](model), clip=0.05)
    assert_exact_change(monitor, 1e-10)
    unclipped = relu()
    free = train(unclipped, relu_census(), OPTIMISERS["AdamW"](unclipped))
    assert monitor.rows[0]["noise_plus"] < 0.5 * free.rows[0]["noise_plus"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler(fused):
    """A fused optimiser divides the gradient by the scale itself."""
    rows = []
    for scale in (1.0, 512.0):
        model = relu(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        torch.manual_seed(3)
        with NoiseMonitor(model, relu_census(), every=1) as monitor:
            for _ in range(2):
                optimizer.zero_grad()
                scaler.scale(square(model, torch.randn(8, 5))).backward()
                scaler.step(optimizer)
                scaler.update()
        rows.append(monitor.rows)
    for one, two in zip(*rows, strict=True):
        for name in ("charge", "noise_plus", "noise_minus", "change", "distance", "flow"):
            assert two[name] == pytest.approx(one[name], rel=1e-4), name


def test_an_overflow_of_a_fused_step_is_left_out():
    model = relu(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        for scale in (None, 1.0):
            optimizer.zero_grad()
            scaler.scale(1e6 * square(model, torch.randn(8, 5))).backward()
            scaler.step(optimizer)
            scaler.update(scale)
        scaler.update(1.0)
        optimizer.zero_grad()
        scaler.scale(square(model, torch.randn(8, 5))).backward()
        scaler.step(optimizer)
    assert len(monitor.rows) == 1
    assert {reason for _, reason in monitor.skipped} == {"the gradient is not finite"}


def test_the_change_equals_that_of_jax(x64):
    """The four parts of `charge_change`, from the states before and after a step of PyTorch."""
    model = relu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    names = {n: n.replace(".", "_") for n, _ in model.named_parameters()}
    params = lambda: {names[n]: jnp.asarray(p.detach().numpy().copy()) for n, p in model.named_parameters()}

    def state():
        pick = lambda p, key: jnp.asarray(optimizer.state[p][key].numpy().copy())
        return {
            letter: {names[n]: pick(p, key) for n, p in model.named_parameters()}
            for letter, key in (("m", "exp_avg"), ("v", "exp_avg_sq"))
        }

    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        for step in range(3):
            before = (params(), state()) if step else None
            optimizer.zero_grad()
            square(model, torch.randn(8, 5, dtype=torch.float64)).backward()
            optimizer.step()
    symmetry = ut.Rescaling(lambda p: p["2_weight"], lambda p: (p["0_weight"], p["0_bias"]), neurons=True)
    adamw = ut.AdamW(weight_decay=0.1)
    change = charge_change(symmetry, adamw, before, (params(), state()), step=2, step_size=0.01)
    row, sign = monitor.rows[-1], 1 if monitor.last[0].symmetry.plus[0].parameter == "2.weight" else -1
    for name, value in zip(PARTS, change, strict=True):
        assert row[name] == pytest.approx(sign * float(value.sum()), rel=1e-8), name


class Gain(nn.Module):
    """A gain 1 + w against the layer that reads it, as in Gemma."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(5, dtype=torch.float64) / 3)
        self.read = nn.Linear(5, 3, bias=False).double()

    def forward(self, x):
        return self.read(x * (1 + self.gain))


def gain_census():
    ones = np.arange(5)[:, None]
    gain, read = Axis("gain", 0, ones, 5, 1, shift=1.0, role="gain"), Axis("read.weight", 1, ones, 5)
    return Census((Symmetry("gain", (gain,), (read,), 1, True, 0.0),), (), (), (), (), ())


@pytest.mark.parametrize("name", ["SGD", "heavy ball", "AdamW"])
def test_the_change_of_a_shifted_gain(name):
    """Decay acts on w and not on 1 + w: the change is exact, and the distance is not known."""
    torch.manual_seed(0)
    model = Gain()
    monitor = train(model, gain_census(), OPTIMISERS[name](model))
    assert_exact_change(monitor, 1e-10)
    row = monitor.rows[-1]
    assert row["distance"] is None
    assert "1 + parameter" in row["note"]
    assert row["flow"] is not None


def test_a_gain_without_decay_has_a_distance():
    """Trainers put norms into a group without decay."""
    torch.manual_seed(0)
    model = Gain()
    groups = [{"params": [model.gain], "weight_decay": 0.0}, {"params": [model.read.weight], "weight_decay": 0.1}]
    monitor = train(model, gain_census(), torch.optim.AdamW(groups, lr=0.01))
    assert_exact_change(monitor, 1e-10)
    row = monitor.rows[-1]
    assert row["note"] == ""
    assert row["distance"] > 0
    assert row["relaxation"] > 0


def test_charges_stay_in_gradient_flow_with_two_step_sizes():
    """Without noise C = 1/2 sum A theta^2 h/h_i changes at second order in the step only, and the plain charge more."""
    x = torch.randn(8, 5, dtype=torch.float64)
    changes = []
    for scale in (1.0, 0.5):
        model = relu()
        groups = halves(model)
        for group in groups:
            group["lr"] *= scale
        with NoiseMonitor(model, relu_census(), every=1) as monitor:
            optimizer = torch.optim.SGD(groups)
            square(model, x).backward()
            optimizer.step()
        changes.append(monitor.rows[0]["change"] / scale)
        assert abs(monitor.rows[0]["first_order"]) < 1e-12 * abs(monitor.rows[0]["charge"])
    assert changes[1] == pytest.approx(changes[0] / 2, rel=1e-9)


def test_experts_have_scales_of_their_own():
    """Two matrices in one parameter, each with its own indices: noise, charge and change by matrix."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Parameter(torch.randn(2, 3, 5, dtype=torch.float64))
            self.down = nn.Parameter(torch.randn(2, 4, 3, dtype=torch.float64))

        def forward(self, x):
            return torch.einsum("eoh,ehi,bi->bo", self.down, self.up, x)

    torch.manual_seed(0)
    model, ones = Experts(), np.arange(6)[:, None]
    up = Axis("up", 1, ones, 6, 3, matrices=2, by_matrix=True)
    down = Axis("down", 2, ones, 6, 3, role="in", matrices=2, by_matrix=True)
    symmetries = Census((Symmetry("up against down", (down,), (up,), 1, True, 0.0),), (), (), (), (), ())
    for optimizer in (torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.AdamW(model.parameters(), lr=0.01)):
        before = copy.deepcopy(model)
        reading = train(model, symmetries, optimizer, steps=1).last[0]
        torch.manual_seed(3)
        parts = sample_gradients_by_vmap(before, square, torch.randn(8, 5, dtype=torch.float64))
        for name, noise, axis in (("up", reading.noise_minus, 2), ("down", reading.noise_plus, 3)):
            centred = (parts[name] - parts[name].mean(0)).movedim((1, axis), (0, 1))  # expert, index, sample, rest
            exact = centred.square().sum((2, 3)).flatten() * 8 / 7
            np.testing.assert_allclose(noise, exact.numpy(), rtol=1e-10)
        assert_exact_change(train(model, symmetries, optimizer), 1e-10)
