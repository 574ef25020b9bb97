"""Layers that are run again, under the autocast in which they ran."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.oracle import (
    Attention,
    assert_noise,
    claimed_census,
    monitored_step,
    sample_gradients_in_a_loop,
    square,
)
from undertow.torch import Axis, Census, NoiseMonitor, Symmetry

pytestmark = pytest.mark.torch


def test_a_layer_is_run_again_under_its_own_autocast():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 12), Attention()), torch.randn(24, 6, 12)  # its input has half precision
    before = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    symmetries = claimed_census(model, "1.attention.in_proj_weight", "1.attention.out_proj.weight")
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        output.float().square().flatten(1).sum(1).mean().backward()
        optimizer.step()
    assert_noise(monitor, sample_gradients_in_a_loop(before, square, x.double()), 5e-2)


class TwoOutputs(nn.Module):
    """A layer with two outputs that both depend on its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        product = x @ self.weight.mT
        return product.sin(), product.cos()


class UsesTwoOutputs(nn.Module):
    """A network that uses one or both outputs of the layer."""

    def __init__(self, both):
        super().__init__()
        self.layer, self.both = TwoOutputs(), both

    def forward(self, x):
        one, two = self.layer(x)
        return one * two if self.both else one


@pytest.mark.parametrize("both", [True, False])
def test_layers_with_two_outputs_count_once(both):
    torch.manual_seed(0)
    model, x = UsesTwoOutputs(both).double(), torch.randn(6, 5, dtype=torch.float64)
    monitor, before = monitored_step(model, claimed_census(model, "layer.weight"), square, x)
    assert_noise(monitor, sample_gradients_in_a_loop(before, square, x), 1e-11)


class Sorted(nn.Module):
    """A layer that gets the positions of all samples in one axis, without those that are negative, as experts do."""

    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(5, 5, dtype=torch.float64)) for _ in range(2))

    def forward(self, x):
        return x @ self.up @ self.down


class Routed(nn.Module):
    """A layer, and a layer that receives some of the samples only."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(5, 5, bias=False).double() for _ in range(2))
        self.expert = Sorted()

    def forward(self, x):
        hidden = self.second(self.first(x))
        chosen = hidden[:, 0] > hidden[:, 0].median()
        return hidden.index_put((chosen,), self.expert(hidden[chosen]))


def routed_census():
    axis = lambda name, k: Axis(name, k, np.arange(5)[:, None], 5)
    pair = lambda plus, minus: Symmetry("claimed", (axis(plus, 0),), (axis(minus, 1),), 1, True, 0.0)
    symmetries = pair("second.weight", "first.weight"), pair("expert.down", "expert.up")
    return Census(symmetries, (), (), (), (), ())


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_layer_that_cannot_be_separated_by_sample_has_a_note(kind):
    """Other layers are measured. AdamW's flow and distance need no samples; those of SGD do."""
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    with NoiseMonitor(model, routed_census(), every=1) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    seen, unseen = monitor.rows[2:]
    assert (seen["note"], seen["noise_plus"] > 0) == ("", True)
    assert unseen["noise_plus"] is None
    assert "the noise is not known: the layer expert (Sorted): none of its inputs has the 8 samples" in unseen["note"]
    assert (unseen["distance"] is None, unseen["flow"] is None) == ((kind == "SGD",) * 2)
    assert np.isnan(monitor.last[1].noise_plus).all()
    first, second = monitor.rows[1], monitor.rows[3]
    assert second["charge"] - first["charge"] == pytest.approx(first["change"], rel=1e-8)


def test_without_the_noise_of_any_symmetry_the_noise_scale_of_the_other_layers_is_left():
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(8, 5, dtype=torch.float64)
    census = routed_census()
    monitor, _ = monitored_step(model, replace(census, symmetries=census.symmetries[1:]), square, x)
    assert monitor.rows[0]["noise_plus"] is None
    assert set(monitor.noise_scale.uncovered) == {"expert.up", "expert.down"}
    assert "first.weight" in monitor.noise_scale.covered


def test_a_model_of_such_layers_alone_is_refused():
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(8, 5, dtype=torch.float64)
    census = routed_census()
    for layer in (model.first, model.second):
        layer.requires_grad_(False)
    with pytest.raises(RuntimeError, match="none of its inputs has the 8 samples"):
        monitored_step(model, replace(census, symmetries=census.symmetries[1:]), square, x)
