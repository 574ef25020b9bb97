"""The monitor's equilibrium: the flow vanishes there, for every setting of SGD; other optimisers have none."""

import copy

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from tests.torch.oracle import found_in, of_relu, relu, square
from undertow.torch import NoiseMonitor, equilibrate, gamma_of
from undertow.torch.census.axes import move, unfold
from undertow.torch.equilibrium.curvature import largest_curvature, trace_of_hessian
from undertow.torch.equilibrium.gather import noise_power

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
    moved_to_equilibrium(model, reading)
    (there,) = watched(model, found, x, DECAY, **SETTINGS[name]).last
    noise = displacement(SETTINGS[name]) / 2 * (there.noise_plus - there.noise_minus)
    decay = -4 * gamma_of(DECAY) * there.charge
    assert np.abs(noise).max() > 1e-5  # two forces that balance, not two zeros
    np.testing.assert_allclose(noise + decay, 0, atol=1e-9 * np.abs(noise).max())
    assert there.row["distance"] < 1e-8
    assert there.row["farthest"] < 1e-8
    assert np.abs(there.amount).max() < 1e-8


def moved_to_equilibrium(model, reading):
    amount = torch.as_tensor(np.array(reading.amount))
    transform = amount.exp() if amount.ndim == 1 else torch.linalg.matrix_exp(amount)
    with torch.no_grad():
        for key, value in move(dict(model.named_parameters()), reading.symmetry, transform).items():
            model.get_parameter(key).copy_(value)


def weights(model, symmetry):
    """Sums of squares, or Gram matrices, of both sides together."""
    rows = [unfold(model.get_parameter(axis.parameter).detach(), axis).flatten(1) for axis in symmetry.axes]
    return sum(r.square().sum(1) if symmetry.block == 1 else r @ r.mT for r in rows).numpy()


@pytest.mark.parametrize("name", ["plain", "heavy ball"])
def test_relaxation_of_neurons_by_differences_of_the_flow(name):
    """Near the equilibrium a step of the charge off it comes back at the rate -d flow/d charge."""
    model, x = relu(), torch.randn(20, 5, dtype=torch.float64)
    h, gamma = displacement(SETTINGS[name]), gamma_of(DECAY)
    (reading,) = watched(model, of_relu(), x, DECAY, **SETTINGS[name]).last
    total = weights(model, reading.symmetry)
    plus, minus = total / 2 + reading.charge, total / 2 - reading.charge

    def at(amount):
        up, down = np.exp(2 * amount), np.exp(-2 * amount)
        charge = (plus * up - minus * down) / 2
        return charge, h * (-4 * gamma * charge + h / 2 * (reading.noise_plus * down - reading.noise_minus * up))

    (before, slower), (after, faster) = (at(reading.amount + away) for away in (-1e-5, 1e-5))
    times = -(after - before) / (faster - slower)
    assert reading.row["relaxation"] == pytest.approx(np.median(times), rel=1e-7)
    assert reading.row["slowest"] == pytest.approx(times.max(), rel=1e-7)
    assert reading.row["distance"] == pytest.approx(np.sqrt(np.mean(reading.amount**2)), rel=1e-12)
    assert reading.row["farthest"] == pytest.approx(np.abs(reading.amount).max(), rel=1e-12)


@pytest.mark.parametrize("name", ["plain", "heavy ball"])
def test_relaxation_of_a_linear_pair(name):
    """The rates at the equilibrium are the eigenvalues of the noise against the weights, both sides added."""
    model, x = linear_pair(), torch.randn(20, 5, dtype=torch.float64)
    found, h = found_in(model, x[:4]), displacement(SETTINGS[name])
    (reading,) = watched(model, found, x, DECAY, **SETTINGS[name]).last
    logs = np.linalg.eigvalsh(reading.amount[0])
    assert reading.row["distance"] == pytest.approx(np.sqrt(np.mean(logs**2)), rel=1e-9)
    assert reading.row["farthest"] == pytest.approx(np.abs(logs).max(), rel=1e-9)
    moved_to_equilibrium(model, reading)
    (there,) = watched(model, found, x, DECAY, **SETTINGS[name]).last
    noise = there.noise_plus[0] + there.noise_minus[0]
    rates = scipy.linalg.eigh(noise, weights(model, there.symmetry), eigvals_only=True)
    times = 1 / (h * (4 * gamma_of(DECAY) + h * rates))
    for row in (reading.row, there.row):
        assert row["relaxation"] == pytest.approx(np.median(times), rel=1e-6)
        assert row["slowest"] == pytest.approx(times.max(), rel=1e-6)


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


class Quadratic(nn.Module):
    """x'theta^2 with a coupling: the Hessian is diag(2 x) and the coupling beside it."""

    def __init__(self, coupling=0.0):
        super().__init__()
        self.theta, self.coupling = nn.Parameter(torch.ones(4, dtype=torch.float64)), coupling

    def forward(self, x):
        return x * self.theta.square().sum() / 2 + self.coupling * self.theta[0] * self.theta[1]


def test_the_standard_error_of_a_trace():
    """Curvatures 1, 2 and 6 in all four directions: the estimate of each batch is exact, and they scatter."""
    batches = [torch.tensor(value, dtype=torch.float64) for value in (1.0, 2.0, 6.0)]
    value = lambda net, x: net(x)
    found = trace_of_hessian(Quadratic(), value, batches, 0)
    expected = np.array([4.0, 8.0, 24.0])
    assert found.value == pytest.approx(expected.mean())
    assert found.standard_error == pytest.approx(expected.std(ddof=1) / 3**0.5)
    sharp = largest_curvature(Quadratic(), value, batches, 0)
    assert sharp.value == pytest.approx(3.0, rel=1e-3)
    assert sharp.standard_error == pytest.approx(expected.std(ddof=1) / 4 / 3**0.5, rel=1e-3)


def test_every_batch_has_signs_of_its_own():
    """Equal batches: what scatters is the coupling between directions, by the signs."""
    batches = [torch.ones((), dtype=torch.float64)] * 16
    found = trace_of_hessian(Quadratic(coupling=1.0), lambda net, x: net(x), batches, 0)
    assert found.standard_error == pytest.approx(2 / 4, rel=0.3)  # +-2 with a chance of one half each, over 16
    assert found.value == pytest.approx(4.0, abs=4 * found.standard_error)


def test_what_is_measured_before_and_after_the_move():
    """Noise, imbalance, cost and the balance afterwards from the gradients of the batches, by hand."""
    model, step, decay = relu(), 0.2, 0.03
    batches = list(torch.randn(12, 6, 5, dtype=torch.float64))

    def variances():
        params = dict(model.named_parameters())
        rows = [torch.autograd.grad(square(model, batch), list(params.values())) for batch in batches]
        return {name: torch.stack(g).var(0).numpy() for name, g in zip(params, zip(*rows, strict=True), strict=True)}

    def sides(found):
        return found["2.weight"].sum(0), found["0.weight"].sum(1) + found["0.bias"]

    variance = variances()
    power = sum(v.sum() for v in variance.values())
    penalty = sum(float(p.detach().square().sum()) for p in model.parameters())
    out, into = sides(variance)
    done = equilibrate(copy.deepcopy(model), of_relu(), batches, square, step_size=step)
    assert done.noise[0].value == pytest.approx(power, rel=1e-9)
    assert done.moved[0].imbalance[0] == pytest.approx(np.abs(np.log(out / into)).max(), rel=1e-9)
    for sharp, largest in zip(done.curvature, done.largest_step, strict=True):
        assert largest.value == pytest.approx(2 / sharp.value)
        assert largest.standard_error / largest.value == pytest.approx(sharp.standard_error / sharp.value)
    done = equilibrate(model, of_relu(), batches, square, step_size=step, weight_decay=decay)
    assert done.cost[0].value == pytest.approx(step / 4 * power + decay / 2 * penalty, rel=1e-9)
    assert done.cost[0].standard_error == pytest.approx(step / 4 * done.noise[0].standard_error, rel=1e-9)
    noise = np.subtract(*sides(variances()))
    charge = np.subtract(*sides({name: p.detach().numpy() ** 2 for name, p in model.named_parameters()})) / 2
    np.testing.assert_allclose(step / 2 * noise, 4 * gamma_of(decay) * charge, atol=1e-6 * np.abs(noise).max())
