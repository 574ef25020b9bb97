"""Readings of symmetries with powers, with indices of single matrices and with one side, against sums over samples."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from tests.torch.families import known_census, regression, task
from undertow.torch import NoiseMonitor, census
from undertow.torch._copies import trainable
from undertow.torch.census.axes import unfold
from undertow.torch.census.generators import signed

pytestmark = pytest.mark.torch

STEP, DECAY = 0.1, 0.05
FAMILIES = ("relu^2", "two relu^2", "LeNet", "U-Net block", "groups", "cross-attention", "RoPE", "weight norm")


def network(name):
    """Return a model, a batch of samples with targets, and its census."""
    if name != "weight norm":
        model, batches, _ = task(name)
        return model, batches[0], known_census(name)
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 2)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    return model, (x, x[:, :2].sin()), census(model, (x, x[:, :2].sin()), regression)


def contributions(model, batch):
    """Return what each sample adds to the gradient of the mean."""
    params, count = trainable(model), len(batch[0])
    rows = [
        torch.autograd.grad(regression(model, tuple(part[k : k + 1] for part in batch)), list(params.values()))
        for k in range(count)
    ]
    return {name: torch.stack(g) / count for name, g in zip(params, zip(*rows, strict=True), strict=True)}


def by_exponent(symmetry, values, parts):
    """Return noise and squared weights of each exponent, (generators,), from the contributions of samples."""
    sums = {}
    for axis, exponent in signed(symmetry):
        rows = parts[axis.parameter]
        variance = (rows - rows.mean(0)).square().sum(0) * len(rows) / (len(rows) - 1)
        noise, weight = (unfold(x, axis).sum((1, 2)).numpy() for x in (variance, values[axis.parameter].square()))
        before = sums.get(exponent, (0.0, 0.0))
        sums[exponent] = before[0] + noise, before[1] + weight
    return sums


@pytest.mark.parametrize("name", FAMILIES)
def test_charge_noise_and_distance(name):
    """Sums over samples, with the powers of the axes, and the minimum of noise and penalty along each generator."""
    model, batch, symmetries = network(name)
    values = {key: p.detach().clone() for key, p in trainable(model).items()}
    parts = contributions(model, batch)
    optimizer = torch.optim.SGD(trainable(model).values(), lr=STEP, weight_decay=DECAY)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        regression(model, batch).backward()
        optimizer.step()
    measured = [reading for reading in monitor.last if reading.symmetry.block == 1]
    assert measured
    for reading in measured:
        assert not reading.row["note"]
        assert_reading(reading, by_exponent(reading.symmetry, values, parts))


def assert_reading(reading, sums):
    """Compare a reading with the sums of each exponent."""
    zero, k = np.zeros(reading.symmetry.size), 2 * DECAY / STEP
    side = lambda place, sign: sum((abs(e) * both[place] for e, both in sums.items() if sign * e > 0), zero)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-12)
    close(reading.charge, (side(1, 1) - side(1, -1)) / 2)
    close(reading.noise_plus, side(0, 1))
    close(reading.noise_minus, side(0, -1))
    assert reading.row["charge"] == pytest.approx(float(reading.charge.sum()), rel=1e-7)
    assert reading.row["farthest"] == pytest.approx(np.abs(reading.amount).max(), rel=1e-7)
    for generator, amount in enumerate(reading.amount):
        terms = [(e, noise[generator], weight[generator]) for e, (noise, weight) in sums.items()]
        total = lambda s, terms=terms: np.log(
            sum(noise * np.exp(-2 * e * s) + k * weight * np.exp(2 * e * s) for e, noise, weight in terms)
        )
        assert amount == pytest.approx(minimize_scalar(total, bracket=(-1, 1), tol=1e-12).x, abs=1e-6)


def test_one_side_without_weight_decay_has_no_equilibrium():
    model, batch, symmetries = network("weight norm")
    (symmetry,) = symmetries
    assert not symmetry.minus
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        regression(model, batch).backward()
        optimizer.step()
    (row,) = monitor.rows
    assert row["infinite"] == symmetry.size
    assert row["noise_plus"] > 0
    assert row["noise_minus"] == 0
