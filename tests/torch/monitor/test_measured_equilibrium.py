"""Flow and distance to the equilibrium under SGD, Adam and AdamW, with settings of each parameter."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.flows import linear_pair, move_to_equilibrium
from tests.torch.monitor.measured_steps import halves, train
from tests.torch.oracle import census_of, relu, relu_census, square
from tests.torch.products import Products, product_census, train_products
from undertow.torch import Axis, Census, NoiseMonitor, Symmetry, census
from undertow.torch.census.axes import unfold

pytestmark = pytest.mark.torch


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
