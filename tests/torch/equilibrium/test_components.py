"""Components of parameters that symmetries link, and their groups by memory."""

import numpy as np
import pytest
import torch
from torch import nn

from undertow.torch import Axis, Symmetry
from undertow.torch.equilibrium import components as module
from undertow.torch.equilibrium.components import components, memory_groups

pytestmark = pytest.mark.torch


def linking(*names):
    axes = tuple(Axis(name, 0, np.arange(2)[:, None], 2) for name in names)
    return Symmetry("", axes[:1], axes[1:], 1, True, 0.0)


def test_symmetries_that_share_parameters_are_in_one_component():
    one, two, three = linking("c", "a"), linking("d", "c"), linking("f", "e")
    parts = components([one, two, three], list("abcdef"))
    assert [part.parameters for part in parts] == [("a", "c", "d"), ("b",), ("e", "f")]
    assert [part.symmetries for part in parts] == [(one, two), (), (three,)]
    assert [part.parameters for part in components([], ["a", "b"])] == [("a",), ("b",)]


def test_the_groups_respect_the_memory_limit(monkeypatch):
    monkeypatch.setattr(module, "MEMORY", 4 * 10 * 3)
    params = {name: nn.Parameter(torch.zeros(size)) for name, size in zip("abcd", (6, 4, 20, 1), strict=True)}
    groups = memory_groups(components([], list(params)), params, batches=3)
    assert [[name for part in group for name in part.parameters] for group in groups] == [["a", "b"], ["c"], ["d"]]
