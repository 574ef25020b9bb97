"""Readings of symmetries against per-sample gradients and against the theory."""

import copy
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import undertow as ut
from tests.torch.flows import DECAY, SETTINGS, STEP, displacement, linear_pair, monitored, move_to_equilibrium
from tests.torch.oracle import (
    assert_noise,
    census_of,
    monitored_step,
    relu,
    relu_census,
    sample_gradients_by_vmap,
    square,
)
from undertow.torch import NoiseMonitor

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", SETTINGS)
def test_the_flow_uses_the_total_displacement(name):
    """Each gradient moves the parameter by h over many steps, so that gradients without a mean add h^2/2 to C."""
    x = torch.randn(8, 5, dtype=torch.float64)
    (row,) = monitored(relu(), relu_census(), x, **SETTINGS[name]).rows
    half = displacement(SETTINGS[name]) ** 2 / 2
    assert row["flow"] == pytest.approx(half * (row["noise_plus"] - row["noise_minus"]), rel=1e-9)


@pytest.mark.parametrize("build", [relu, linear_pair])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_flow_vanishes_at_the_equilibrium(name, build):
    """After a move by `Reading.amount` every flow is 0, for the step sizes measured on the optimiser."""
    model = build()
    x = torch.randn(20, 5, dtype=torch.float64)
    symmetries = relu_census() if build is relu else census_of(model, x[:4])
    (reading,) = monitored(model, symmetries, x, DECAY, **SETTINGS[name]).last
    assert reading.row["distance"] > 0.05
    assert (reading.row["infinite"], reading.row["dead"]) == (0, 0)
    move_to_equilibrium(model, reading)
    (at_equilibrium,) = monitored(model, symmetries, x, DECAY, **SETTINGS[name]).last
    noise = displacement(SETTINGS[name]) / 2 * (at_equilibrium.noise_plus - at_equilibrium.noise_minus)
    decay = -2 * DECAY * at_equilibrium.charge
    assert np.abs(noise).max() > 1e-5  # noise and weight decay balance and are not both zero
    np.testing.assert_allclose(noise + decay, 0, atol=1e-9 * np.abs(noise).max())
    assert at_equilibrium.row["distance"] < 1e-8
    assert at_equilibrium.row["farthest"] < 1e-8
    assert np.abs(at_equilibrium.amount).max() < 1e-8


def test_a_step_size_of_zero():
    """A warm-up starts with a step size of 0: without weight decay the equilibrium does not depend on the step size."""
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    rows = {}
    for step, decay in ((0.0, 0.0), (STEP, 0.0), (0.0, DECAY)):
        with NoiseMonitor(copy.deepcopy(model), relu_census(), every=1) as monitor:
            square(monitor.model, x).backward()
            monitor.step(step, decay, momentum=0.9)
        (rows[step, decay],) = monitor.rows
    assert rows[0.0, 0.0]["distance"] == pytest.approx(rows[STEP, 0.0]["distance"], rel=1e-12)
    assert rows[0.0, 0.0]["distance"] > 0.01
    assert rows[0.0, 0.0]["flow"] == 0.0
    assert rows[0.0, 0.0]["relaxation"] is None
    assert rows[0.0, DECAY]["distance"] is None
    assert "the step size is 0" in rows[0.0, DECAY]["note"]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_noise_of_a_network_against_per_sample_gradients(dtype, tolerance):
    model, x = relu(dtype), torch.randn(32, 5, dtype=dtype)
    monitor, before = monitored_step(model, relu_census(), square, x)
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), tolerance)


def test_the_noise_scales_with_the_reduction_of_the_loss():
    """The reduction of the loss need not be declared: the noise is that of the gradient in the step."""
    x = torch.randn(16, 5, dtype=torch.float64)
    symmetries = relu_census()
    total = lambda net, s: 16 * square(net, s)
    mean, _ = monitored_step(relu(), symmetries, square, x)
    summed, _ = monitored_step(relu(), symmetries, total, x)
    np.testing.assert_allclose(summed.last[0].noise_plus, 256 * mean.last[0].noise_plus, rtol=1e-12)


def test_the_covariance_is_centred():
    """Equal samples have no noise, whatever their gradient."""
    x = torch.randn(1, 5, dtype=torch.float64).expand(8, 5).clone()
    monitor, _ = monitored_step(relu(), relu_census(), square, x)
    assert monitor.last[0].gradient.max() > 1e-3
    assert monitor.last[0].noise_plus.max() < 1e-12


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_change_is_the_exact_change_of_the_charge(decay):
    model, symmetries = relu(), relu_census()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=decay)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            square(model, torch.randn(8, 5, dtype=torch.float64)).backward()
            optimizer.step()
    rows = monitor.rows
    for one, two in itertools.pairwise(rows):
        assert two["charge"] - one["charge"] == pytest.approx(one["change"], rel=1e-9)


def neurons_in_both(decay, step):
    """Monitor one step on one batch of all N samples. Return the monitor and the same noise in JAX.

    With replacement the covariance in JAX is (N - 1)/N of the unbiased one. A batch size of N - 1 compensates this.
    """
    model, x = relu(), torch.randn(12, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=step, weight_decay=decay)
    params = {n.replace(".", "_"): jnp.asarray(p.detach().numpy().copy()) for n, p in model.named_parameters()}
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()

    def one(p, s):
        return jnp.sum((p["2_weight"] @ jax.nn.relu(p["0_weight"] @ s + p["0_bias"]) + p["2_bias"]) ** 2)

    noise = ut.Minibatch(ut.Problem(one, jnp.asarray(x.numpy())), 11)
    symmetry = ut.Rescaling(lambda p: p["2_weight"], lambda p: (p["0_weight"], p["0_bias"]), neurons=True)
    return monitor, noise, symmetry, params


def test_the_flow_equals_that_of_jax(x64):
    decay, step = 0.02, 0.1
    monitor, noise, symmetry, params = neurons_in_both(decay, step)
    flow = ut.noether_flow(noise, params, symmetry, step_size=step, weight_decay=decay)
    (row,), (reading,) = monitor.rows, monitor.last
    np.testing.assert_allclose(reading.charge, flow.charge, rtol=1e-10)
    np.testing.assert_allclose(reading.noise_plus - reading.noise_minus, flow.noise, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(reading.gradient, flow.gradient, rtol=1e-9, atol=1e-12)
    assert row["flow"] == pytest.approx(step * float(flow.rate.sum()), rel=1e-9)


@pytest.mark.slow
def test_relaxation_times_of_neurons_equal_those_of_jax(x64):
    decay, step = 0.02, 0.1
    monitor, noise, symmetry, params = neurons_in_both(decay, step)
    (row,), (reading,) = monitor.rows, monitor.last
    at_equilibrium = ut.equilibrium(noise, params, symmetry, step_size=step, weight_decay=decay)
    np.testing.assert_allclose(reading.amount, at_equilibrium.amount[0], rtol=1e-8, atol=1e-10)
    times = at_equilibrium.relaxation_steps[0]
    assert row["slowest"] == pytest.approx(times.max(), rel=1e-7)
    assert row["relaxation"] == pytest.approx(np.median(times), rel=1e-7)


def test_momentum_multiplies_the_flow():
    x = torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census()
    rows = []
    for momentum in (0.0, 0.9):
        model = relu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        with NoiseMonitor(model, symmetries, every=1) as monitor:
            square(model, x).backward()
            optimizer.step()
        rows += monitor.rows
    assert rows[1]["flow"] == pytest.approx(100 * rows[0]["flow"])


def test_the_distance_uses_the_effective_step():
    """With decay the balance depends on eta/(1 - beta): momentum 0.9 is as 10 times the step size without it."""
    x = torch.randn(8, 5, dtype=torch.float64)
    distances = {}
    for momentum, step, nesterov in ((0.0, 0.1, False), (0.0, 0.01, False), (0.9, 0.01, False), (0.9, 0.01, True)):
        model = relu()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=step, momentum=momentum, nesterov=nesterov, weight_decay=DECAY
        )
        with NoiseMonitor(model, relu_census(), every=1) as monitor:
            square(model, x).backward()
            optimizer.step()
        distances[momentum, step, nesterov] = monitor.rows[0]["distance"]
    assert distances[0.9, 0.01, False] == pytest.approx(distances[0.0, 0.1, False], rel=1e-9)
    assert distances[0.9, 0.01, True] == pytest.approx(distances[0.0, 0.1, False], rel=1e-9)
    assert abs(distances[0.0, 0.01, False] - distances[0.0, 0.1, False]) > 1e-3


def test_every_empty_number_has_a_note():
    """Numbers that the theory should give are there, or the note says why not."""
    for step, momentum in ((0.1, 0.9), (0.0, 0.0), (0.1, 0.0)):
        model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
        with NoiseMonitor(model, relu_census(), every=1) as monitor:
            square(model, x).backward()
            monitor.step(step, momentum=momentum)
        (row,) = monitor.rows
        empty = [name for name, value in row.items() if value is None and name not in ("memory", "eps_share", "regime")]
        assert bool(empty) == bool(row["note"])


def test_readings_without_full_rank_use_the_general_form():
    """An adapter with B = 0 has no finite equilibrium: every direction is counted, and nothing moves."""
    model = linear_pair()
    with torch.no_grad():
        model[1].weight.zero_()
    symmetries = census_of(linear_pair(), torch.randn(4, 5, dtype=torch.float64))
    loss = lambda net, s: (net(s) - s[:, :4]).square().sum(1).mean()
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        loss(model, torch.randn(8, 5, dtype=torch.float64)).backward()
        torch.optim.SGD(model.parameters(), lr=STEP).step()
    (reading,) = monitor.last
    assert (reading.row["infinite"], reading.row["dead"], reading.row["distance"]) == (3, 0, 0.0)
    assert "no generator has a finite equilibrium" in reading.row["note"]
    np.testing.assert_array_equal(reading.amount, 0.0)
