"""The independent count of symmetries, on networks whose symmetries are known by hand, and its verdicts on a census."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from studies.orbits import moves_function, other_data
from studies.reference import EXACT_EPS, WITHOUT_EPS, Space, census_dimension, reference
from tests.torch.generator import penalised, square
from tests.torch.layers import Attention, Concatenated, Experts, OnePlusNorm, Residual, SquaredReLU, StochasticDepth
from undertow.torch import Axis, Symmetry, census

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def mlp(activation):
    return nn.Sequential(nn.Linear(5, 4), activation, nn.Linear(4, 6), activation, nn.Linear(6, 3))


def count(model, batch, kind="symmetric", loss=square, eps=EXACT_EPS):
    return reference(model, batch, loss, space=Space(model, kind), eps=eps).charges


vectors = lambda: torch.randn(7, 5)
tokens = lambda: torch.randn(3, 4, 6)
head = lambda width: nn.Linear(width, 2)


@pytest.mark.parametrize("kind", ["symmetric", "diagonal", "full"])
@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (nn.ReLU(), 10),
        (nn.LeakyReLU(0.2), 10),
        (SquaredReLU(), 10),
        (nn.Tanh(), 0),
        (nn.ReLU6(), 0),
        (nn.Hardtanh(), 0),
    ],
)
def test_neurons_have_one_scale_each_if_the_activation_is_homogeneous(activation, expected, kind):
    assert count(mlp(activation), vectors(), kind) == expected


@pytest.mark.parametrize(("kind", "expected"), [("symmetric", 10 + 21), ("diagonal", 4 + 6), ("full", 16 + 36)])
def test_linear_layers_have_matrices(kind, expected):
    assert count(mlp(nn.Identity()), vectors(), kind) == expected


def test_dropout_leaves_one_scale_per_unit_of_a_linear_network():
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.4), nn.Linear(4, 3))
    assert count(model, vectors()) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 2 * (2 * 10)),  # GL(4) in QK and in OV of two heads
        ({"key_heads": 1}, 2 * 10),
        ({"rope": "half"}, 2 * 2 + 2 * 10),  # two pairs in a head
        ({"rope": "interleaved"}, 2 * 2 + 2 * 10),
        ({"rope": "half", "rotary": 2}, 2 * (1 + 3) + 2 * 10),  # a pair and GL(2) of what is not rotated
        ({"layout": "groups", "key_heads": 1}, 2 * 10),
        ({"bias": True}, 2 * (2 * 10)),
        ({"norms": True}, 4 + 2 * 10),  # the gains of queries and keys
    ],
)
def test_attention(options, expected):
    facts = {"key_heads": 2, "layout": "separate", "rope": "", "rotary": 4, "bias": False} | options
    model = nn.Sequential(Attention(6, 2, facts.pop("key_heads"), 4, **facts), nn.Tanh(), head(6))
    assert count(model, tokens()) == expected


def test_norms_have_a_gain_and_up_to_eps_a_scale():
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), head(4))
    assert count(model, vectors()) == 4
    assert count(model, vectors(), eps=WITHOUT_EPS) == 4 + 1


@pytest.mark.parametrize("norm", [nn.RMSNorm, OnePlusNorm])
def test_norms_without_a_mean(norm):
    assert count(nn.Sequential(nn.Linear(5, 4), norm(4), head(4)), vectors()) == 4


def test_a_bias_that_only_training_mode_ignores_belongs_to_the_symmetry():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), head(3))
    axis = lambda name, k, dimensions: Axis(name, k, np.arange(4)[:, None], 4, dimensions)
    right = Symmetry("gain", (axis("2.weight", 1, 2),), (axis("1.weight", 0, 1), axis("1.bias", 0, 1)), 1, True, 0.0)
    found = reference(model, vectors(), square)
    assert found.compare([right]) == (4, 4, 0, 0)
    assert found.compare([replace(right, minus=right.minus[:1])]) == (4, 4, 4, 4)
    assert max(moves_function(model, right, vectors(), square, eps=EXACT_EPS)) < 1e-12
    without = moves_function(model, replace(right, minus=right.minus[:1]), vectors(), square, eps=EXACT_EPS)
    assert without.outputs > 0.01
    in_training = reference(model, vectors(), square, evaluation=False)
    assert in_training.compare([replace(right, minus=right.minus[:1])]) == (4, 4, 0, 0)


def test_experts_have_scales_of_their_own():
    model = nn.Sequential(Experts(6, 4, 3, gated=True, transposed=False), nn.Tanh(), head(6))
    assert count(model, tokens()) == 3 * 4


def test_groups_of_a_convolution_have_scales_of_their_own():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.ReLU(), nn.Flatten(), head(6 * 9)
    )
    batch = torch.randn(5, 2, 3, 3)
    assert count(model, batch, "diagonal") == 4 + 6


def test_a_branch_that_is_dropped_at_times_is_not_absent():
    branch = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))
    model = nn.Sequential(nn.Linear(5, 4), StochasticDepth(branch, 0.7, "batch"), head(4))
    assert count(model, vectors()) == 10  # GL(4) of the stream; the branch has none


def test_concatenation_and_skip():
    model = nn.Sequential(Concatenated(-1, nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 3), nn.ReLU())), nn.Linear(7, 2))
    assert count(model, vectors()) == 10 + 3


def test_the_mean_of_a_stream_is_counted_apart():
    branch = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    found = reference(nn.Sequential(nn.Linear(5, 4), Residual(branch), head(4)), vectors(), square)
    assert (found.charges, found.rotated) == (4, 1)


def test_a_penalty_in_the_loss_breaks_everything():
    assert count(mlp(nn.ReLU()), vectors(), loss=penalised) == 0


def neurons(first, bias, second, width):
    axis = lambda name, k, dimensions: Axis(name, k, np.arange(width)[:, None], width, dimensions)
    return Symmetry("rescaling", (axis(second, 1, 2),), (axis(first, 0, 2), axis(bias, 0, 1)), 1, True, 0.0)


RIGHT, OTHER = neurons("0.weight", "0.bias", "2.weight", 4), neurons("2.weight", "2.bias", "4.weight", 6)
WITHOUT_BIAS = replace(RIGHT, minus=RIGHT.minus[:1])


@pytest.mark.parametrize("kind", ["symmetric", "diagonal", "full"])
@pytest.mark.parametrize(
    ("symmetries", "expected"),
    [
        ([RIGHT, OTHER], (10, 10, 0, 0)),
        ([RIGHT], (10, 4, 0, 6)),
        ([RIGHT, RIGHT, OTHER], (10, 10, 0, 0)),
        ([WITHOUT_BIAS, OTHER], (10, 10, 4, 4)),
        ([RIGHT, WITHOUT_BIAS], (10, 8, 4, 6)),
        ([], (10, 0, 0, 10)),
    ],
)
def test_comparisons(symmetries, expected, kind):
    model = mlp(nn.ReLU())
    found = reference(model, vectors(), square, space=Space(model, kind))
    assert found.compare(symmetries) == expected
    assert census_dimension(model, symmetries, kind) == expected[1]


def test_a_block_that_is_too_large_is_false():
    model = mlp(nn.ReLU())
    found = reference(model, vectors(), square)
    assert found.compare([replace(RIGHT, block=4)]) == (10, 10, 6, 6)


def test_missed_symmetries_are_described_by_their_sparsest_vectors():
    model = mlp(nn.ReLU())
    found = reference(model, vectors(), square)
    texts = found.missed([OTHER])
    assert len(texts) == 4
    for text in texts:
        parts = text.replace("+1", "s").replace("-1", "s").split("} ")
        assert [part.split("@")[0] for part in parts] == ["0.weight", "0.bias", "2.weight"]
        assert len({part.split("{")[1].split(":")[0] for part in parts}) == 1
    assert not found.missed([RIGHT, OTHER])


@dataclass(frozen=True, eq=False)
class Powered(Axis):
    """An axis with an exponent, whatever the version of `Axis`."""

    power: int = 2


def test_exponents():
    model = mlp(SquaredReLU())
    powered = tuple(Powered(a.parameter, a.axis, a.index, a.length, a.dimensions) for a in RIGHT.plus)
    right = replace(RIGHT, plus=RIGHT.minus, minus=powered)
    assert reference(model, vectors(), square).compare([right]) == (10, 4, 0, 6)
    assert max(moves_function(model, right, vectors(), square)) < 1e-12
    assert reference(model, vectors(), square).compare([RIGHT]).false == 4
    assert moves_function(model, RIGHT, vectors(), square).outputs > 0.01


def test_moves_do_not_change_the_function_along_symmetries_only():
    model, batch = mlp(nn.Identity()), vectors()
    symmetries = list(census(model, batch, square))
    assert [symmetry.block for symmetry in symmetries] == [4, 6]
    for symmetry in symmetries:
        assert max(moves_function(model, symmetry, batch, square)) < 1e-11
        assert moves_function(model, replace(symmetry, minus=symmetry.minus[:1]), batch, square).outputs > 0.01
        assert moves_function(model, symmetry, batch, penalised).loss > 1e-3


def test_moves_see_saturation():
    assert moves_function(mlp(nn.Hardtanh()), RIGHT, vectors(), square).outputs > 0.01


def test_other_data_has_the_same_shapes():
    batch = {
        "x": torch.randn(3, 2),
        "ids": torch.arange(6).reshape(2, 3),
        "mask": torch.tensor([[1, 0]]),
        "pair": (1, "a"),
    }
    other = other_data(batch, 0)
    assert not torch.equal(other["x"], batch["x"])
    assert not torch.equal(other["ids"], batch["ids"])
    assert torch.equal(other["ids"].flatten().sort().values, torch.arange(6))
    assert torch.equal(other["mask"], batch["mask"])
    assert other["pair"] == (1, "a")


def test_a_wrong_kind_is_refused():
    with pytest.raises(ValueError, match='give kind="symmetric", "diagonal" or "full"'):
        Space(nn.Linear(2, 2), "skew")
