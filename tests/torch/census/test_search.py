"""Symmetries between several parameters: weight norms, streams, axes in two symmetries."""

import pytest
import torch
from torch import nn

from tests.torch.zoo import square
from undertow.torch import census

pytestmark = pytest.mark.torch


def test_weight_norm_has_a_scale_per_row():
    torch.manual_seed(0)
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 8))
    symmetries = census(nn.Sequential(normed, nn.ReLU(), nn.Linear(8, 3)), torch.randn(6, 5), square)
    assert sorted((r.kind, r.size) for r in symmetries) == [("rescaling", 8), ("weight norm", 8)]
    (alone,) = (r for r in symmetries if r.kind == "weight norm")
    assert str(alone.plus[0]) == "0.parametrizations.weight.original1[i, :]"
    assert not alone.minus


class Depthwise(nn.Module):
    """A depthwise convolution between two convolutions that mix channels."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 1)
        self.depth = nn.Conv2d(8, 8, 3, groups=8)

    def forward(self, x):
        return self.last(torch.relu(self.depth(torch.relu(self.first(x)))))


class Residual(nn.Module):
    """A residual stream that two layers write to and two read from."""

    def __init__(self):
        super().__init__()
        self.into, self.inner, self.back, self.out = (nn.Linear(*s) for s in ((5, 8), (8, 12), (12, 8), (8, 3)))

    def forward(self, x):
        stream = torch.relu(self.into(x))
        return self.out(stream + self.back(torch.relu(self.inner(stream))))


def test_axes_in_two_symmetries_and_residual_streams():
    torch.manual_seed(0)
    symmetries = census(Depthwise(), torch.randn(4, 3, 9, 9), square)
    assert [(r.kind, r.size) for r in symmetries] == [("rescaling", 8), ("rescaling", 8)]
    assert [set(r.parameters) for r in symmetries] == [
        {"depth.weight", "first.weight", "first.bias"},
        {"last.weight", "depth.weight", "depth.bias"},
    ]
    symmetries = census(Residual(), torch.randn(6, 5), square)
    assert [(r.kind, r.size, len(r.minus), len(r.plus)) for r in symmetries] == [
        ("rescaling", 8, 4, 2),
        ("rescaling", 12, 2, 1),
    ]


def test_whole_scales_are_found_with_fewer_outputs_than_parameters():
    """Two samples with two outputs each, and twelve parameters: the scale of the stream is found all the same."""
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6))

    class Stream(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.one, self.two = nn.Linear(5, 6), block(), block()
            self.norm, self.out = nn.LayerNorm(6), nn.Linear(6, 2)

        def forward(self, x):
            x = self.into(x)
            x = x + self.one(x)
            return self.out(self.norm(x + self.two(x)))

    symmetries = census(Stream(), torch.randn(2, 5), square, count=False)
    (stream,) = (s for s in symmetries.approximate if s.kind == "whole scale")
    writers = {"into.weight", "into.bias", "one.3.weight", "one.3.bias", "two.3.weight", "two.3.bias"}
    assert set(stream.parameters) == writers
    assert not [text for text in symmetries.unclear if "whole parameters" in text]
