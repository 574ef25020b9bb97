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
from undertow.torch import Axis, Symmetry
from undertow.torch.equilibrium.amounts import relaxation_times, solve_amount
from undertow.torch.equilibrium.charge_moments import ChargeMoments, ExponentMoments

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


def with_powers(seed=0):
    """Return moments of six generators with the exponents -1, 2 and 3, and a symmetry that they may belong to."""
    generator = np.random.default_rng(seed)
    draw = lambda: np.exp(generator.standard_normal(6))
    parts = tuple(ExponentMoments(exponent, draw(), draw()) for exponent in (-1, 2, 3))
    side = lambda name, sign: sum(abs(p.exponent) * getattr(p, name) for p in parts if sign * p.exponent > 0)
    moments = ChargeMoments(side("noise", 1), side("noise", -1), side("weight", 1), side("weight", -1), parts)
    index = np.arange(6)[:, None]
    return Symmetry("", (Axis("u", 1, index, 6, power=2),), (Axis("w", 0, index, 6),), 1, True, 0.0), moments


def test_the_flow_vanishes_at_the_amount_of_axes_with_powers():
    """C = sum_e e w_e exp(2 e s)/2, and its flow is h (-2 lambda C + h/2 sum_e e n_e exp(-2 e s))."""
    symmetry, moments = with_powers()
    solution = solve_amount(symmetry, moments, 0.1, DECAY)

    def at(amount):
        parts = [(p.exponent, p.noise, p.weight) for p in moments.by_exponent]
        charge = sum(e * w * np.exp(2 * e * amount) for e, _, w in parts) / 2
        return charge, 0.1 * (-2 * DECAY * charge + 0.05 * sum(e * n * np.exp(-2 * e * amount) for e, n, _ in parts))

    _, flow = at(solution.logs)
    np.testing.assert_allclose(flow, 0, atol=1e-12)
    np.testing.assert_allclose(at(0.0)[0], (moments.weight_plus - moments.weight_minus) / 2)
    (before, slower), (after, faster) = (at(solution.logs + away) for away in (-1e-5, 1e-5))
    times = -(after - before) / (faster - slower)
    np.testing.assert_allclose(relaxation_times(moments, solution, 0.1, DECAY), times, rtol=1e-6)
    k = 2 * DECAY / 0.1
    up, down = moments.noise_plus + k * moments.weight_minus, moments.noise_minus + k * moments.weight_plus
    assert solution.amount.imbalance == pytest.approx(np.abs(np.log(up / down)).max(), rel=1e-9)


def test_one_sided_and_dead_generators_with_powers():
    symmetry, moments = with_powers()
    zero = lambda x, *places: np.where(np.isin(np.arange(6), places), 0.0, x)
    parts = [
        part._replace(noise=zero(part.noise, *((0, 1) if part.exponent < 0 else (1,)))) for part in moments.by_exponent
    ]
    solution = solve_amount(symmetry, moments._replace(by_exponent=tuple(parts)), 0.1, 0.0)
    assert (solution.amount.infinite, solution.amount.dead) == (1, 1)
    assert np.all(solution.logs[:2] == 0)
    assert np.all(solution.logs[2:] != 0)
