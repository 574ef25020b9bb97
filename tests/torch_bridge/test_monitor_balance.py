"""The monitor's equilibrium: the flow vanishes there, for every setting of SGD; other optimisers have none."""

import copy

import numpy as np
import pytest
import torch
from oracle import found_in, of_relu, relu, square
from torch import nn

from undertow.torch import NoiseMonitor, gamma_of
from undertow.torch.axes import move
from undertow.torch.curvature import largest_curvature, trace_of_hessian
from undertow.torch.gather import noise_power

pytestmark = pytest.mark.torch

SETTINGS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.8, "nesterov": True},
    "dampening": {"momentum": 0.9, "dampening": 0.6},
    "dampening without momentum": {"dampening": 0.6},
    "maximize": {"momentum": 0.5, "maximize": True},
}
STEP, DECAY = 0.1, 0.05


def displacement(options):
    """How far one gradient of 1 moves a parameter, all steps together, by the optimiser itself."""
    parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=STEP, **options)
    for step in range(400):
        # the first gradient is 0: momentum starts from it without dampening
        parameter.grad = torch.tensor(float(step == 1), dtype=torch.float64)
        optimizer.step()
    return abs(float(parameter.detach()))


def watched(model, found, x, decay=0.0, **options):
    """A watched step of a copy."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP, weight_decay=decay, **options)
    with NoiseMonitor(model, found, every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    return monitor


@pytest.mark.parametrize("name", SETTINGS)
def test_the_flow_is_that_of_the_whole_displacement(name):
    """Gradients without a mean: after many steps each has moved the parameter by h, and C grows by h^2/2 each."""
    x = torch.randn(8, 5, dtype=torch.float64)
    (row,) = watched(relu(), of_relu(), x, **SETTINGS[name]).rows
    half = displacement(SETTINGS[name]) ** 2 / 2
    assert row["flow"] == pytest.approx(half * (row["noise_plus"] - row["noise_minus"]), rel=1e-9)


def linear_pair():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 4, bias=False)).double()


@pytest.mark.parametrize("build", [relu, linear_pair])
@pytest.mark.parametrize("name", SETTINGS)
def test_at_the_equilibrium_no_generator_flows(name, build):
    """The model moved by the monitor's own amount: there every flow is 0, by step sizes measured on the optimiser."""
    model = build()
    x = torch.randn(20, 5, dtype=torch.float64)
    found = of_relu() if build is relu else found_in(model, x[:4])
    (reading,) = watched(model, found, x, DECAY, **SETTINGS[name]).last
    assert reading.row["distance"] > 0.05
    assert (reading.row["infinite"], reading.row["dead"]) == (0, 0)
    amount = torch.as_tensor(np.array(reading.amount))
    transform = amount.exp() if amount.ndim == 1 else torch.linalg.matrix_exp(amount)
    with torch.no_grad():
        for key, value in move(dict(model.named_parameters()), reading.relation, transform).items():
            model.get_parameter(key).copy_(value)
    (there,) = watched(model, found, x, DECAY, **SETTINGS[name]).last
    noise = displacement(SETTINGS[name]) / 2 * (there.noise_plus - there.noise_minus)
    decay = -4 * gamma_of(DECAY) * there.charge
    assert np.abs(noise).max() > 1e-5  # two forces that balance, not two zeros
    np.testing.assert_allclose(noise + decay, 0, atol=1e-9 * np.abs(noise).max())
    assert there.row["distance"] < 1e-8
    assert there.row["farthest"] < 1e-8
    assert np.abs(there.amount).max() < 1e-8


class Signs(torch.optim.SGD):
    """SGD in name only."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


class Renamed(torch.optim.SGD):
    """SGD under another name."""


OTHERS = [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, Signs]
KNOWN_TO_SGD_ONLY = ("step_size", "flow", "change", "distance", "farthest", "relaxation", "slowest", "infinite", "dead")


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("build", [relu, linear_pair])
def test_other_optimisers_have_no_equilibrium(kind, build):
    model = build()
    x = torch.randn(8, 5, dtype=torch.float64)
    found = of_relu() if build is relu else found_in(model, x[:4])
    optimizer = kind(model.parameters(), lr=1e-3, weight_decay=0.1)
    with NoiseMonitor(model, found, every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    (row,), (reading,) = monitor.rows, monitor.last
    assert all(row[name] is None for name in KNOWN_TO_SGD_ONLY)
    assert row["note"] == f"no flow or equilibrium is known for {kind.__name__}: the theory is for SGD"
    assert np.isnan(reading.amount).all()
    assert reading.amount.shape == reading.charge.shape
    assert row["noise_plus"] > 0
    assert np.isfinite(row["charge"])
    monitor.plot()


def test_a_subclass_that_steps_as_sgd_is_sgd():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = Renamed(model.parameters(), lr=STEP)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # wraps the step of the instance
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    assert monitor.rows[0]["flow"] is not None


def test_different_settings_have_no_common_equilibrium():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters()}]
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        square(model, x).backward()
        torch.optim.SGD(groups, lr=STEP).step()
    (row,) = monitor.rows
    assert all(row[name] is None for name in KNOWN_TO_SGD_ONLY)
    assert row["note"] == "its parameters have different step sizes, momenta or weight decays"


def test_a_step_of_zero():
    """A warm-up starts there: without weight decay the equilibrium does not depend on the step size."""
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    rows = {}
    for step, decay in ((0.0, 0.0), (STEP, 0.0), (0.0, DECAY)):
        with NoiseMonitor(copy.deepcopy(model), of_relu(), every=1) as monitor:
            square(monitor.model, x).backward()
            monitor.step(step, decay, momentum=0.9)
        (rows[step, decay],) = monitor.rows
    assert rows[0.0, 0.0]["distance"] == rows[STEP, 0.0]["distance"] > 0.01
    assert rows[0.0, 0.0]["flow"] == 0.0
    assert rows[0.0, 0.0]["relaxation"] is None
    assert rows[0.0, DECAY]["distance"] is None
    assert "the step size is 0" in rows[0.0, DECAY]["note"]


def test_noise_power_against_the_covariance_matrix():
    gradients = np.random.default_rng(0).normal(size=(7, 30))
    power = noise_power(gradients @ gradients.T)
    assert power.value == pytest.approx(np.trace(np.cov(gradients.T)), rel=1e-12)


def test_the_standard_error_of_noise_power():
    """Over many data sets the estimates scatter by it. 500 sets of 40 batches: the ratio is known to 5 %."""
    draws = np.random.default_rng(1)
    found = [noise_power(g @ g.T) for g in draws.standard_t(10, size=(500, 40, 4))]
    scatter = np.std([power.value for power in found], ddof=1)
    assert np.sqrt(np.mean([power.standard_error**2 for power in found])) == pytest.approx(scatter, rel=0.15)


def test_two_gradients_do_not_show_how_far_noise_power_scatters():
    gradients = np.random.default_rng(0).normal(size=(2, 5))
    power = noise_power(gradients @ gradients.T)
    assert power.value == pytest.approx(np.sum((gradients[0] - gradients[1]) ** 2) / 2)
    assert np.isnan(power.standard_error)


@pytest.mark.parametrize("measure", [largest_curvature, trace_of_hessian])
def test_one_batch_has_no_standard_error(measure):
    model = linear_pair()
    batches = [torch.randn(6, 5, dtype=torch.float64) for _ in range(3)]
    one = measure(model, square, batches[:1], 0)
    assert np.isfinite(one.value)
    assert np.isnan(one.standard_error)
    assert measure(model, square, batches, 0).standard_error > 0
