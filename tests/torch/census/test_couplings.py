"""Indices of layers that are coupled: flattened images, concatenations, experts, groups, rotary pairs."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.zoo import square
from undertow.torch import census

pytestmark = pytest.mark.torch


class Skip(nn.Module):
    """A small U-Net: the second convolution reads the first, the third reads both side by side."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 10, 3, padding=1)
        self.c, self.d = nn.Conv2d(16, 7, 3, padding=1), nn.Conv2d(7, 2, 1)

    def forward(self, x):
        u = self.a(x).relu()
        return self.d(self.c(torch.cat([u, self.b(u).relu()], 1)).relu())


def families(symmetries):
    """Return the parameters and indices of each symmetry, in an order that does not depend on the search."""
    side = lambda axes: sorted((a.parameter, a.axis, a.index.tolist()) for a in axes)
    return [(s.size, side(s.minus), side(s.plus)) for s in symmetries]


def test_channels_through_a_concatenation():
    torch.manual_seed(0)
    symmetries = census(Skip(), torch.randn(4, 3, 6, 6), square)
    column = lambda first, count: np.arange(first, first + count)[:, None].tolist()
    assert [s.size for s in symmetries] == [6, 10, 7]
    assert families(symmetries)[0][2] == [("b.weight", 1, column(0, 6)), ("c.weight", 1, column(0, 6))]
    assert families(symmetries)[1][2] == [("c.weight", 1, column(6, 10))]
    assert symmetries.unexplained == ()


def test_channels_through_a_flattened_image():
    """LeNet's last convolution: channel i against columns 4 i to 4 i + 3 of the linear layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3))
    (symmetry,) = census(model, torch.randn(16, 1, 6, 6), square)
    assert symmetry.plus[0].index.tolist() == np.arange(20).reshape(5, 4).tolist()
    assert symmetry.minus[0].size == 5


class Squared(nn.Module):
    def forward(self, x):
        return x.relu() ** 2


def test_a_squared_relu_scales_twice_as_fast():
    torch.manual_seed(0)
    (symmetry,) = census(nn.Sequential(nn.Linear(5, 7), Squared(), nn.Linear(7, 3)), torch.randn(9, 5), square)
    assert {(axis.parameter, axis.power) for axis in symmetry.axes} == {("0.weight", 1), ("0.bias", 1), ("2.weight", 2)}


def test_groups_of_a_convolution_have_columns_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.Tanh())
    (symmetry,) = census(model, torch.randn(8, 2, 7, 7), square)
    (reader,) = symmetry.plus
    assert (reader.by_matrix, reader.matrices, reader.size) == (True, 2, 6)
    assert str(reader) == "2.weight[m, i, :, :]"


class CrossAttention(nn.Module):
    """Queries read one norm, keys and values another, and one matrix holds all three projections."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        memory = self.two(x[:, :5])
        return self.attention(self.one(x[:, 5:]), memory, memory, need_weights=False)[0]


def test_norms_of_cross_attention():
    torch.manual_seed(0)
    symmetries = census(CrossAttention(), torch.randn(6, 9, 8), square)
    gains = {s.minus[0].parameter: s.plus[0].index.tolist() for s in symmetries if s.kind == "gain against readers"}
    assert gains["one.weight"] == np.arange(8)[:, None].tolist()
    assert gains["two.weight"] == (np.arange(8)[:, None] + [8, 16]).tolist()


def mixture(name, **facts):
    import transformers

    size = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "max_position_embeddings": 32}  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**size, **facts))


def words(count=4, length=9):
    drawn = torch.randint(0, 40, (count, length))
    return {"input_ids": drawn, "labels": drawn}


def language(model, batch):
    return model(**batch).loss


def test_experts_have_a_scale_per_expert_and_unit():
    torch.manual_seed(0)
    model = mixture("Mixtral", intermediate_size=20, num_local_experts=4)
    symmetries = census(model, words(), language)
    (experts,) = (s for s in symmetries if "experts" in s.minus[0].parameter)
    assert (experts.size, experts.minus[0].by_matrix) == (80, True)
    assert experts.minus[0].index[:, 0].reshape(4, 20).tolist() == [
        [40 * e + 20 + i for i in range(20)] for e in range(4)
    ]
    gains = [s for s in symmetries if s.kind == "gain against readers" and "post" in s.minus[0].parameter]
    assert {axis.parameter.rpartition("mlp.")[2] for axis in gains[0].plus} == {"gate.weight", "experts.gate_up_proj"}


def test_rotary_pairs_in_a_layout_without_hints():
    """Falcon with one key head: queries, keys and values in one matrix, rotated in halves."""
    import transformers

    torch.manual_seed(0)
    config = transformers.FalconConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=1, num_attention_heads=4, multi_query=True, alibi=False,
        new_decoder_architecture=False, bias=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    symmetries = census(transformers.FalconForCausalLM(config), words(), language)
    (pairs,) = (s for s in symmetries if s.kind == "QK on RoPE pairs")
    assert pairs.minus[0].index.tolist() == [[24, 27], [25, 28], [26, 29]]
    assert [s.size for s in symmetries if s.kind == "OV"] == [6]
