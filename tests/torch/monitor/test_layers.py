"""Per-sample gradients of layers, with samples along the first or the second axis."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.torch.oracle import (
    Attention,
    assert_noise,
    claimed_census,
    monitored_step,
    relu,
    sample_gradients_by_vmap,
    sample_gradients_in_a_loop,
    square,
)
from undertow.torch import NoiseMonitor
from undertow.torch.monitor.layers import SharedCast

pytestmark = pytest.mark.torch


class ChannelNorm(nn.LayerNorm):
    """A norm over the channels of images as in torchvision: a subclass of the norm over the last axis."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class OfSines(nn.Linear):
    def forward(self, x):
        return super().forward(torch.sin(x))


class OfSquares(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x.square(), weight, bias)


def image(*shape):
    return torch.randn(4, *shape)


def twice():
    """Return a network that uses one layer twice."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))

    return Twice(), torch.randn(7, 5), ("layer.weight", "layer.bias")


def tied():
    """Return a network whose head is tied to the embedding."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.inside.weight

        def forward(self, x):
            return self.head(torch.tanh(self.inside(x)))

    return Tied(), torch.randint(0, 9, (5, 3)), ("inside.weight",)


LAYERS = {
    "twice": twice,
    "tied": tied,
    "attention": lambda: (Attention(), torch.randn(3, 6, 12), ("attention.in_proj_weight", "attention.in_proj_bias",
                                                               "attention.out_proj.weight", "head.weight")),
    "convolutions": lambda: (nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2)),
                             image(2, 7, 6), ("0.weight", "0.bias", "2.weight")),
    "convolution in 1d": lambda: (nn.Conv1d(2, 3, 3, dilation=2, padding=1), image(2, 9), ("weight", "bias")),
    "grouped convolution": lambda: (nn.Conv2d(4, 4, 3, groups=2), image(4, 5, 5), ("weight", "bias")),
    "weight norm": lambda: (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh()),
                            torch.randn(6, 5), ("0.parametrizations.weight.original1",)),
    "group norm": lambda: (nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 3, 1)), image(4, 3, 3), ("0.weight",)),
    "embedding": lambda: (nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)), torch.randint(0, 7, (5, 6)),
                          ("0.weight",)),
    "subclasses": lambda: (nn.Sequential(OfSquares(2, 3, 2), ChannelNorm(3), nn.Flatten(), OfSines(3 * 4 * 4, 5)),
                           image(2, 5, 5), ("0.weight", "1.weight", "1.bias", "3.weight")),
    "flattened tokens": lambda: (nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 4), nn.Tanh(), nn.Unflatten(0, (-1, 5))),
                                 torch.randn(6, 5, 3), ("1.weight", "1.bias")),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_noise_of_all_kinds_of_layers(name):
    torch.manual_seed(0)
    model, x, parameters = LAYERS[name]()
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    monitor, before = monitored_step(model, claimed_census(model, *parameters), square, x)
    assert_noise(monitor, sample_gradients_in_a_loop(before, square, x), 1e-10)


def test_noise_of_sequence_first_layers():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(6, 5, 3).double()
    loss = lambda net, s: net(s).square().sum((0, 2)).mean()
    monitor, before = monitored_step(model, claimed_census(model, "0.weight", "2.bias"), loss, x, batch_axis=1)
    assert_noise(monitor, sample_gradients_by_vmap(before, loss, x, axis=1), 1e-11)


def test_noise_of_sequence_first_layers_after_an_embedding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)).double()
    ids = torch.randint(0, 7, (6, 5))
    loss = lambda net, s: net(s).square().sum((0, 2)).mean()
    monitor, before = monitored_step(model, claimed_census(model, "0.weight", "1.weight"), loss, ids, batch_axis=1)
    assert_noise(monitor, sample_gradients_in_a_loop(before, lambda net, s: loss(net, s.mT), ids.mT), 1e-11)


class TimeFirst(nn.Module):
    """A sequence-first network with positions and samples in one axis inside, and a mean over positions."""

    def __init__(self):
        super().__init__()
        self.inside, self.norm, self.head = nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2)

    def forward(self, x):
        positions, samples, _ = x.shape
        h = self.norm(torch.tanh(self.inside(x.flatten(0, 1))))
        return self.head(h.unflatten(0, (positions, samples)).mean(0))


def test_noise_of_sequence_first_layers_with_positions_and_samples_in_one_axis():
    """With five features and five samples the last axis is not taken for that of the samples."""
    torch.manual_seed(0)
    model, x = TimeFirst().double(), torch.randn(6, 5, 3).double()
    loss = lambda net, s: net(s).square().sum(1).mean()
    symmetries = claimed_census(model, "inside.weight", "inside.bias", "norm.weight", "head.weight")
    monitor, before = monitored_step(model, symmetries, loss, x, batch_axis=1)
    assert_noise(monitor, sample_gradients_by_vmap(before, loss, x, axis=1), 1e-11)


def test_noise_of_a_layer_with_a_replaced_forward_pass():
    model, x = relu(), torch.randn(6, 5, dtype=torch.float64)
    model[0].forward = lambda s, layer=model[0]: F.linear(s.sin(), layer.weight, layer.bias)
    parts = sample_gradients_in_a_loop(model, square, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, claimed_census(model, "0.weight", "0.bias"), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    assert_noise(monitor, parts, 1e-11)


def test_an_input_that_layers_share_is_cast_once():
    x, cast = torch.randn(3, 4), SharedCast()
    first = cast(x.detach(), torch.bfloat16)
    assert cast(x.detach(), torch.bfloat16) is first
    assert cast(x, torch.float32) is x
    torch.testing.assert_close(cast(x.T, torch.bfloat16), x.T.to(torch.bfloat16))
    other = cast(x.detach(), torch.bfloat16)
    x.mul_(2)  # the same memory with other numbers
    assert cast(x, torch.bfloat16) is not other
    torch.testing.assert_close(cast(x, torch.bfloat16), x.to(torch.bfloat16))
    torch.testing.assert_close(cast(torch.ones(3, 4), torch.float64), torch.ones(3, 4).double())
    with torch.inference_mode():
        assert cast(torch.ones(2), torch.bfloat16).dtype == torch.bfloat16
