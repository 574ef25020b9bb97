"""Relaxation times and distances at the equilibrium, and directions without noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import undertow as ut
from tests.torch.flows import DECAY, SETTINGS, displacement, linear_pair, monitored, move_to_equilibrium, weights
from tests.torch.oracle import (
    census_of,
    monitored_step,
    relu,
    relu_census,
    square,
)

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["plain", "heavy ball"])
def test_relaxation_times_of_neurons_equal_differences_of_the_flow(name):
    """Near the equilibrium the charge relaxes at the rate -d flow/d charge."""
    model, x = relu(), torch.randn(20, 5, dtype=torch.float64)
    h = displacement(SETTINGS[name])
    (reading,) = monitored(model, relu_census(), x, DECAY, **SETTINGS[name]).last
    total = weights(model, reading.symmetry)
    plus, minus = total / 2 + reading.charge, total / 2 - reading.charge

    def at(amount):
        up, down = np.exp(2 * amount), np.exp(-2 * amount)
        charge = (plus * up - minus * down) / 2
        return charge, h * (-2 * DECAY * charge + h / 2 * (reading.noise_plus * down - reading.noise_minus * up))

    (before, slower), (after, faster) = (at(reading.amount + away) for away in (-1e-5, 1e-5))
    times = -(after - before) / (faster - slower)
    assert reading.row["relaxation"] == pytest.approx(np.median(times), rel=1e-7)
    assert reading.row["slowest"] == pytest.approx(times.max(), rel=1e-7)
    assert reading.row["distance"] == pytest.approx(np.sqrt(np.mean(reading.amount**2)), rel=1e-12)
    assert reading.row["farthest"] == pytest.approx(np.abs(reading.amount).max(), rel=1e-12)


@pytest.mark.parametrize("name", ["plain", "heavy ball"])
def test_relaxation_times_of_a_linear_pair(name):
    """The rates are the eigenvalues of the noise relative to the weights, both sides added up."""
    model, x = linear_pair(), torch.randn(20, 5, dtype=torch.float64)
    symmetries, h = census_of(model, x[:4]), displacement(SETTINGS[name])
    (reading,) = monitored(model, symmetries, x, DECAY, **SETTINGS[name]).last
    logs = np.linalg.eigvalsh(reading.amount[0])
    assert reading.row["distance"] == pytest.approx(np.sqrt(np.mean(logs**2)), rel=1e-9)
    assert reading.row["farthest"] == pytest.approx(np.abs(logs).max(), rel=1e-9)
    move_to_equilibrium(model, reading)
    (at_equilibrium,) = monitored(model, symmetries, x, DECAY, **SETTINGS[name]).last
    noise = at_equilibrium.noise_plus[0] + at_equilibrium.noise_minus[0]
    rates = scipy.linalg.eigh(noise, weights(model, at_equilibrium.symmetry), eigvals_only=True)
    times = 1 / (h * (2 * DECAY + h * rates))
    for row in (reading.row, at_equilibrium.row):
        assert row["relaxation"] == pytest.approx(np.median(times), rel=1e-6)
        assert row["slowest"] == pytest.approx(times.max(), rel=1e-6)


@pytest.mark.slow
def test_relaxation_times_of_a_linear_pair_equal_those_of_jax(x64):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 4, bias=False)).double()
    x = torch.randn(20, 5, dtype=torch.float64)
    symmetries = census_of(model, x[:4])
    params = {"W": jnp.asarray(model[0].weight.detach().numpy()), "U": jnp.asarray(model[1].weight.detach().numpy())}
    params = jax.tree.map(jnp.array, params)
    monitor, _ = monitored_step(model, symmetries, square, x)
    task = ut.Problem(lambda p, s: jnp.sum((p["U"] @ (p["W"] @ s)) ** 2), jnp.asarray(x.numpy()))
    noise, symmetry = ut.Minibatch(task, 19), ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"])
    at_equilibrium = ut.equilibrium(noise, params, symmetry, step_size=0.1)
    times = np.asarray(at_equilibrium.relaxation_steps[0])
    (row,) = monitor.rows
    assert row["slowest"] == pytest.approx(times.max(), rel=1e-5)
    assert row["farthest"] == pytest.approx(np.abs(np.linalg.eigvalsh(at_equilibrium.amount[0])).max(), rel=1e-6)


def test_directions_without_noise_are_separated_from_rounding():
    """Residuals of a cross-entropy sum to zero, so that one direction of the bottleneck has no noise on one side."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 3)).to(dtype)
        x, y = torch.randn(32, 10).to(dtype), torch.randint(0, 3, (32,))
        loss = lambda model, x, y=y: F.cross_entropy(model(x), y[: len(x)])
        monitor, _ = monitored_step(model, census_of(model, x[:4], loss), loss, x)
        (row,) = monitor.rows
        assert (row["infinite"], row["dead"]) == (3, 0)
        rows.append([row[name] for name in ("distance", "farthest", "relaxation")])
    np.testing.assert_allclose(*rows, rtol=1e-3)
