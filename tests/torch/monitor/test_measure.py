"""Charges, their exact change, flow and distance under SGD, Adam and AdamW, with settings of each parameter."""

import copy
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import undertow as ut
from tests.torch.flows import linear_pair, move_to_equilibrium
from tests.torch.oracle import census_of, relu, relu_census, sample_gradients_by_vmap, square
from tests.torch.products import Products, product_census, train_products
from undertow.symmetry.metric_charge import charge_change
from undertow.torch import Axis, Census, NoiseMonitor, Symmetry, census
from undertow.torch.census.axes import unfold

pytestmark = pytest.mark.torch

PARTS = ("first_order", "second_order", "decay", "metric")


def halves(model, **second):
    """Return two parameter groups with different step sizes and decays, one for each side of a symmetry."""
    parameters = list(model.parameters())
    k = len(parameters) // 2
    return [{"params": parameters[:k], "lr": 0.01}, {"params": parameters[k:], "lr": 0.03, **second}]


OPTIMISERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.05),
    "heavy ball": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05),
    "Nesterov": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05, nesterov=True),
    "dampening": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, dampening=0.3, maximize=True),
    "SGD groups": lambda net: torch.optim.SGD(halves(net, weight_decay=0.2), momentum=0.5),
    "fused SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05, fused=True),
    "Adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1),
    "fused": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, fused=True),
    "foreach": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, foreach=True),
    "tensor": lambda net: torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01, dtype=torch.float64)),
    "maximize": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, maximize=True),
    "eps": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, eps=0.1, betas=(0.8, 0.9)),
    "AdamW groups": lambda net: torch.optim.AdamW(halves(net, weight_decay=0.2, betas=(0.5, 0.99)), weight_decay=0.0),
}


def train(model, symmetries, optimizer, steps=4, dtype=torch.float64, clip=None, loss=square):
    """Return the monitor of some steps on fresh data."""
    torch.manual_seed(3)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, torch.randn(8, 5, dtype=dtype)).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return monitor


def assert_exact_change(monitor, tolerance):
    """Assert that the parts of the change add up to the difference of the charges of consecutive steps."""
    for place in range(len(monitor.census)):
        rows = monitor.rows[place :: len(monitor.census)]
        for one, two in itertools.pairwise(rows):
            size = sum(abs(one[name]) for name in PARTS)
            assert size > 0
            assert abs(two["charge"] - one["charge"] - one["change"]) < tolerance * size
            assert one["change"] == pytest.approx(sum(one[name] for name in PARTS))


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


def adamw_amount(values, model, optimizer, symmetry, step_size, decay):
    """Return the amounts to AdamW's equilibrium by the formula, from v of the optimiser after a step."""

    def sums(side):
        total = 0
        for axis in side:
            state = optimizer.state[model.get_parameter(axis.parameter)]
            root = (state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt()
            entries = root, root * values[axis.parameter].square()
            total = total + torch.stack([unfold(x, axis).sum((1, 2)) for x in entries])
        return total

    (b_plus, a_plus), (b_minus, a_minus) = sums(symmetry.plus), sums(symmetry.minus)
    ratio = (decay * a_minus + step_size / 2 * b_plus) / (decay * a_plus + step_size / 2 * b_minus)
    return ratio.log().numpy() / 2


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_amount_to_the_equilibrium_of_adamw(decay):
    """e^(2s) = (lambda a_minus + eta/2 b_plus)/(lambda a_plus + eta/2 b_minus), also for the scales of a GL."""
    for build in (relu, linear_pair):
        model = build()
        symmetries = relu_census() if build is relu else census_of(model, torch.randn(4, 5, dtype=torch.float64))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
        train(model, symmetries, optimizer, steps=3)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        (reading,) = train(model, symmetries, optimizer, steps=1).last
        expected = adamw_amount(before, model, optimizer, reading.symmetry, 0.01, decay)
        np.testing.assert_allclose(reading.amount, expected, rtol=1e-5)
        assert reading.row["distance"] == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-5)
        assert reading.row["farthest"] == pytest.approx(np.abs(expected).max(), rel=1e-5)


class SquaredReLU(nn.Module):
    """A layer, relu^2, a layer: the outgoing weights scale twice as fast."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x):
        return self.second(self.first(x).relu().square())


KINDS = {
    "SGD": lambda net: torch.optim.SGD(halves(net, weight_decay=0.3)),
    "AdamW": lambda net: torch.optim.AdamW(halves(net, weight_decay=0.3), weight_decay=0.1, eps=0.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [relu, SquaredReLU])
def test_flow_and_distance_vanish_at_the_equilibrium_of_groups(kind, build):
    """The amount leads to the point where the flow of every generator is 0, for any powers and settings of the sides.

    In the first step v is the square of the gradient, so that it moves along the orbit with the parameters.
    """
    torch.manual_seed(0)
    model = build()
    symmetries = relu_census() if build is relu else census(model, torch.randn(6, 5), square)
    assert {abs(axis.power) for s in symmetries for axis in s.axes} == ({1} if build is relu else {1, 2})
    distances = []
    for _ in range(2):
        own = copy.deepcopy(model)
        (reading,) = train(own, symmetries, KINDS[kind](own), steps=1).last
        assert (reading.row["infinite"], reading.row["dead"]) == (0, 0)
        distances.append((reading.row["distance"], abs(reading.row["flow"])))
        move_to_equilibrium(model, reading)
    assert distances[0][0] > 0.1
    assert distances[0][1] > 1e-6
    assert distances[1][0] < 1e-7
    assert distances[1][1] < 1e-8 * distances[0][1] + 1e-12


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


def test_one_sided_scales():
    """Where nothing scales the other way, decay alone balances the noise: h/2 noise = lambda |theta|^2."""
    model = relu()
    axis = Axis("0.weight", 0, np.arange(8)[:, None], 8)
    symmetries = Census((Symmetry("claimed", (axis,), (), 1, True, 0.0),), (), (), (), (), ())
    (reading,) = train(model, symmetries, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.05), steps=1).last
    weight = relu()[0].weight.detach().square().sum(1).numpy()
    np.testing.assert_allclose(reading.amount, np.log(0.05 * reading.noise_plus / (0.05 * weight)) / 4, rtol=1e-10)
    (reading,) = train(model, symmetries, torch.optim.SGD(model.parameters(), lr=0.1), steps=1).last
    assert reading.row["infinite"] == 8
    assert "no generator has a finite equilibrium" in reading.row["note"]


GROUPS = {"lr_u": 0.02, "lr_w": 0.08, "decay_u": 0.05, "decay_w": 0.0}


def sides(model, lr_u, lr_w, decay_u, decay_w):
    return [
        {"params": [model.u], "lr": lr_u, "weight_decay": decay_u},
        {"params": [model.w], "lr": lr_w, "weight_decay": decay_w},
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_sgd_with_groups_goes_to_the_predicted_ratio(momentum):
    """A simulation of pairs u w with different step sizes and decays ends where the flow is 0, within its error.

    At the equilibrium (h_u/2 s + lambda_w) w^2 = (h_w/2 s + lambda_u) u^2, with s the variance of the mean residual.
    """
    torch.manual_seed(0)
    pairs = 200
    model = Products(pairs)
    groups = GROUPS | {name: GROUPS[name] * (1 - momentum) for name in ("lr_u", "lr_w")}
    optimizer = torch.optim.SGD(sides(model, **groups), momentum=momentum)
    train_products(model, optimizer, 3000, sigma=8**0.5, samples=16)
    with NoiseMonitor(model, product_census(pairs), every=1) as monitor:
        train_products(model, optimizer, 1, sigma=8**0.5, samples=16)
    amount = monitor.last[0].amount
    assert abs(amount.mean()) < 4 * amount.std() / pairs**0.5 + 0.02
    ratio = (model.u / model.w).detach().log().numpy()
    predicted = np.log((0.01 * 0.5) / (0.04 * 0.5 + 0.05)) / 2
    assert predicted < -1.3  # the start is 0, and the prediction without decay is -0.69
    assert abs(ratio.mean() - predicted) < 4 * ratio.std() / pairs**0.5 + 0.03


@pytest.mark.slow
def test_adamw_with_groups_goes_to_the_predicted_ratio():
    torch.manual_seed(0)
    pairs = 300
    model = Products(pairs)
    optimizer = torch.optim.AdamW(sides(model, 0.01, 0.02, 0.2, 0.05), betas=(0.9, 0.9995))
    train_products(model, optimizer, 14_000)
    with NoiseMonitor(model, product_census(pairs), every=1) as monitor:
        train_products(model, optimizer, 1)
    amount, ratio = monitor.last[0].amount, (model.u / model.w).detach().log().numpy()
    assert ratio.mean() < -1.2  # the start is 0
    assert abs(amount.mean()) < 4 * amount.std() / pairs**0.5 + 0.005


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


def test_a_dead_generator_under_adam_is_counted():
    """A neuron without gradients for a long time has the v of long ago: it is dead."""
    model = relu()
    with torch.no_grad():
        model[0].bias[0] = -100.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer.zero_grad()
    square(model, torch.randn(8, 5, dtype=torch.float64) * 100).backward()  # the neuron is alive in one step
    optimizer.step()
    monitor = train(model, relu_census(), optimizer, steps=40)
    assert monitor.rows[-1]["dead"] == 1
    assert monitor.last[0].amount[0] == 0
