"""The trace of a forward pass names the layers that run and those that read a source."""

import pytest
import torch
from torch import nn

from undertow.torch.census.scaling.trace import trace_layers

pytestmark = pytest.mark.torch


class Branches(nn.Module):
    """A norm that is read by a layer, by a router, by some rows of an expert, and after a product with 2."""

    def __init__(self):
        super().__init__()
        self.norm, self.plain, self.router = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.expert, self.doubled, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.empty = nn.Linear(4, 4)

    def forward(self, x):
        h = self.norm(x)
        part = self.expert(h[:, 1:3].reshape(-1, 4))
        nothing = self.empty(h[:0])
        return self.plain(input=h).sum() + self.router(h).sum() + part.sum() + self.doubled(2 * h).sum() + nothing.sum()


def test_readers_are_those_whose_rows_are_rows_of_the_source():
    trace = trace_layers(Branches(), torch.randn(3, 5, 4), lambda model, x: model(x), ["norm", "unused"])
    assert set(trace.readers["norm"]) == {"plain", "router", "expert"}
    assert "unused" not in trace.readers
    assert {name for name in ("norm", "doubled", "unused", "empty") if trace.uses(name)} == {"norm", "doubled"}


def test_a_parameter_of_a_module_that_runs_is_used():
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    outer = nn.ModuleDict({"attention": model})
    outer.forward = lambda x: model(x, x, x, need_weights=False)[0]
    trace = trace_layers(outer, torch.randn(2, 3, 4), lambda model, x: model(x).sum(), [])
    assert trace.uses("attention.in_proj_weight")


def test_hooks_are_removed():
    model = Branches()
    trace_layers(model, torch.randn(3, 5, 4), lambda model, x: model(x), ["norm"])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_row_that_a_relu_leaves_unchanged_does_not_make_a_reader():
    model = nn.Sequential(nn.LayerNorm(2), nn.ReLU(), nn.Linear(2, 2))
    nn.init.constant_(model[0].bias, 0.5)
    near, far = [1.0, 1.001], [1.0, 3.0]
    batch = torch.tensor([near, far, far, near])
    assert (model[0](batch) > 0).all(dim=1).tolist() == [True, False, False, True]
    assert trace_layers(model, batch, lambda model, x: model(x).sum(), ["0"]).readers["0"] == ()
