"""Amounts and relaxation times in PyTorch, against roots, ordinary differential equations and the closed forms."""

import numpy as np
import pytest
import torch

from undertow.symmetry.relaxation import metric_relaxation
from undertow.torch import Axis, Symmetry
from undertow.torch.equilibrium.amounts import relaxation_times, solve_amount
from undertow.torch.equilibrium.charge_moments import ChargeMoments
from undertow.torch.monitor.balance import adam_times, block_solution, diagonal_amounts

pytestmark = pytest.mark.torch


def test_amounts_of_one_power():
    up, down = torch.tensor([[4.0, 1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    amount = diagonal_amounts(up, down, torch.tensor([1.0]), torch.tensor([1.0, 1.0, 2.0, 2.0]))
    assert amount[0] == pytest.approx(np.log(4) / 2)
    assert amount[1:3].tolist() == [float("inf"), -float("inf")]
    assert amount[3].isnan()


def test_amounts_of_several_powers_are_roots():
    torch.manual_seed(0)
    up, down = torch.rand(2, 2, 50, dtype=torch.float64) * torch.logspace(-6, 6, 50)
    powers, exponent = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.ones(50, dtype=torch.float64) * 2
    up[0, 0], down[1, 1] = 0.0, 0.0
    amount = diagonal_amounts(up, down, powers, exponent)
    rates = powers[:, None] * exponent
    rising, falling = (up * (-rates * amount).exp()).sum(0), (down * (rates * amount).exp()).sum(0)
    np.testing.assert_allclose(rising, falling, rtol=1e-9)


def test_times_of_adam_equal_those_of_jax():
    """With one step size, rate = eta (lambda + eta noise/(2 weight)) and following the same with the entries of v."""
    noise, weight, eta, decay, forgetting = np.array([1.0, 4.0]), np.array([2.0, 0.5]), 0.01, 0.3, 1e-3
    expected = metric_relaxation(noise, weight, 0.9 * noise, 0.9 * weight, eta, decay, forgetting)
    rate = torch.as_tensor(eta * (decay + eta * noise / (2 * weight)))
    found = adam_times(rate, 0.9 * rate, torch.tensor(forgetting, dtype=torch.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_times_of_adam_are_those_of_the_slow_mode():
    rate, following, forgetting = 0.01, 0.008, 0.002
    matrix = np.array([[-2 * rate, following], [forgetting, -forgetting]])
    slow = -1 / np.linalg.eigvals(matrix).max()
    found = adam_times(*(torch.tensor([x], dtype=torch.float64) for x in (rate, following, forgetting)))
    assert found.item() == pytest.approx(slow, rel=1e-10)


def positive(count, size, generator):
    root = torch.randn(count, size, size + 2, dtype=torch.float64, generator=generator)
    return root @ root.mT


def test_blocks_equal_the_closed_form_of_one_step_size():
    generator = torch.Generator().manual_seed(0)
    noise, weight = ([positive(3, 4, generator) for _ in range(2)] for _ in range(2))
    eta, decay = 0.1, 0.02
    up, down = eta / 2 * noise[0] + decay * weight[1], eta / 2 * noise[1] + decay * weight[0]
    rtol = torch.full((3,), 1e-10, dtype=torch.float64)
    found = block_solution(up, down, tuple(weight), tuple(w / eta for w in weight), rtol)
    assert found.regular.all()
    axis = Axis("weight", 0, np.arange(12)[:, None], 12)
    symmetry = Symmetry("GL", (axis,), (axis,), 4, True, 0.0)
    moments = ChargeMoments(*(x.numpy() for x in (*noise, *weight)))
    expected = solve_amount(symmetry, moments, eta, decay)
    amount = (found.vectors * found.logs[:, None]) @ found.vectors.mT
    np.testing.assert_allclose(amount, expected.amount.amount, atol=1e-10)
    times = relaxation_times(moments, expected, eta, decay)
    np.testing.assert_allclose(np.sort(found.times.flatten()), np.sort(times.flatten()), rtol=1e-8)


def test_blocks_without_full_rank_are_marked():
    generator = torch.Generator().manual_seed(0)
    good, flat = positive(2, 3, generator), positive(2, 3, generator)
    flat[1] = 0.0
    broken = good.clone()
    broken[0, 0, 0] = torch.nan
    rtol = torch.full((2,), 1e-10, dtype=torch.float64)
    assert block_solution(good, flat, (good, good), (good, good), rtol).regular.tolist() == [True, False]
    assert block_solution(good, good, (good, flat), (good, good), rtol).regular.tolist() == [True, False]
    found = block_solution(broken, good, (good, good), (good, good), rtol)
    assert found.regular.tolist() == [False, True]
    assert found.logs.isfinite().all()
