"""Symmetries are told from broken ones against rounding, in each precision, and the weights are restored."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.transfers import network
from undertow.torch import Axis, Symmetry, census
from undertow.torch.census.batches import mean_square, random_batch
from undertow.torch.census.rounding import TOLERANCE, prove

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    model = network("Llama", num_hidden_layers=3)
    batch = random_batch(model)
    return model, batch, census(model, batch, mean_square)


PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_true_symmetries_change_outputs_as_rounding_does(llama, dtype):
    model, batch, symmetries = llama
    model = copy.deepcopy(model).to(dtype)
    for seed in range(3):
        verdict = prove(model, batch, mean_square, symmetries.symmetries, seed=seed)
        assert not verdict.failures
        assert verdict.rounding / TOLERANCE < verdict.change < TOLERANCE * verdict.rounding
        assert 0.1 * torch.finfo(dtype).eps < verdict.rounding < 30 * torch.finfo(dtype).eps
        assert verdict.control > 0.3


def broken(symmetries, kind):
    """Return the symmetries with one of a kind broken: one of its parameters does not move."""
    first = next(s for s in symmetries if s.kind == kind)
    false = replace(first, plus=first.plus[1:]) if len(first.plus) > 1 else replace(first, minus=())
    return [false if s is first else s for s in symmetries], false


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("kind", ["QK on RoPE pairs", "OV", "up against down", "gain against readers"])
def test_one_broken_symmetry_among_many_is_named(llama, dtype, kind):
    model, batch, symmetries = llama
    model = copy.deepcopy(model).to(dtype)
    changed, false = broken(symmetries.symmetries, kind)
    verdict = prove(model, batch, mean_square, changed)
    assert [failure.symmetry for failure in verdict.failures] == [false]
    assert verdict.failures[0].change > TOLERANCE * verdict.failures[0].rounding


def test_a_wrong_layout_is_found(llama):
    """Neighbours instead of halves as RoPE pairs."""
    model, batch, symmetries = llama
    pairs = next(s for s in symmetries if s.kind == "QK on RoPE pairs")
    other = lambda axis: replace(axis, index=axis.index.reshape(-1).reshape(axis.index.shape, order="F"))
    wrong = replace(pairs, plus=tuple(map(other, pairs.plus)), minus=tuple(map(other, pairs.minus)))
    assert not prove(model, batch, mean_square, [pairs]).failures
    assert prove(copy.deepcopy(model).bfloat16(), batch, mean_square, [wrong]).failures


def state(model):
    return {k: v.clone() for k, v in model.state_dict().items()}, [m.training for m in model.modules()]


def assert_unchanged(model, before):
    weights, training = before
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == training


def test_weights_and_generators_are_restored(llama):
    model, batch, symmetries = llama
    model = copy.deepcopy(model).bfloat16().eval()
    model.model.norm.train()
    before, generator = state(model), torch.get_rng_state()
    prove(model, batch, mean_square, symmetries.symmetries)
    assert_unchanged(model, before)
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("call", [0, 2, 5, 9])
def test_weights_are_restored_after_an_error(llama, call):
    model, batch, symmetries = llama
    before, calls = state(model), []

    def loss(model, batch):
        calls.append(None)
        if len(calls) > call:
            raise KeyboardInterrupt
        return mean_square(model, batch)

    with pytest.raises(KeyboardInterrupt):
        prove(model, batch, loss, symmetries.symmetries)
    assert_unchanged(model, before)


def test_a_penalty_in_the_loss_breaks_symmetries(llama):
    model, batch, symmetries = llama
    penalised = lambda model, batch: mean_square(model, batch) + sum(p.square().sum() for p in model.parameters())
    assert prove(model, batch, penalised, symmetries.symmetries).failures
    assert not prove(model, batch, penalised, symmetries.symmetries, by_loss=False).failures


def square(model, x):
    return model(x).square().mean()


def neurons(size: int) -> Symmetry:
    axis = lambda name, k, dimensions: Axis(name, k, np.arange(size)[:, None], size, dimensions)
    written = (axis("0.weight", 0, 2), axis("0.bias", 0, 1))
    return Symmetry("rescaling", (axis("2.weight", 1, 2),), written, 1, True, 0.0)


def test_a_limit_that_only_the_weights_of_the_model_reach():
    """At random weights the network does not reach its limits and is linear; at its own weights it does."""
    torch.manual_seed(0)
    net, batch = nn.Sequential(nn.Linear(5, 6), nn.Hardtanh(-100, 100), nn.Linear(6, 3)), torch.randn(4, 5)
    assert not prove(net, batch, square, [neurons(6)]).failures
    with torch.no_grad():
        net[0].weight.mul_(1000)
    assert prove(net, batch, square, [neurons(6)]).failures


def test_a_network_that_amplifies_rounding_too_far():
    layers = [module for _ in range(20) for module in (nn.Linear(24, 24), Steep())]
    net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 24), *layers).bfloat16()
    with pytest.raises(ValueError, match=r"bfloat16 changes the outputs by .*model.float\(\)"):
        prove(net, torch.randn(4, 5).bfloat16(), square, [neurons(24)])


class Steep(nn.Module):
    def forward(self, x):
        return torch.sin(9 * x)


def test_dropout_drops_the_same_units():
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3), nn.Dropout(0.5))
    assert not prove(net, torch.randn(4, 5), square, [neurons(6)]).failures
