"""Names of symmetries, and the order of their sides."""

import numpy as np
import pytest
from torch import nn

from undertow.torch import Axis, Symmetry
from undertow.torch.census.candidates import Heads
from undertow.torch.census.names import name_symmetry

pytestmark = pytest.mark.torch


def axis(parameter, number, length, role):
    return Axis(parameter, number, np.arange(length)[:, None], length, 2 if number or role == "out" else 1, role=role)


def named(model, plus, minus, block=1, heads=(), exact=True):
    return name_symmetry(model, list(heads), Symmetry("", plus, minus, block, exact, 0.0))


def test_weights_that_read_an_axis_are_on_the_plus_side():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    write, read = axis("0.weight", 0, 8, "out"), axis("2.weight", 1, 8, "in")
    for plus, minus in (((read,), (write,)), ((write,), (read,))):
        symmetry = named(model, plus, minus)
        assert (symmetry.plus, symmetry.minus) == ((read,), (write,))
        assert symmetry.kind == "rescaling"
    assert named(model, (read,), (write,), block=8).kind == "GL"


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 5)


def test_a_second_matrix_of_the_same_shape_is_a_gate():
    model = Gated()
    assert named(model, (axis("down.weight", 1, 8, "in"),), (axis("up.weight", 0, 8, "out"),)).kind == "up against down"


def test_names_of_one_sided_symmetries():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.Linear(8, 3))
    direction = axis("0.parametrizations.weight.original1", 0, 8, "out")
    assert named(model, (direction,), ()).kind == "weight norm"
    assert named(model, (axis("1.weight", 0, 3, "out"),), (), exact=False).kind == "scale into a norm"


def test_names_of_symmetries_of_attention_heads():
    model = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("q", "k", "v", "o")})
    heads = [Heads("", 2, 2, 4, 4)]
    q, k, v = (axis(f"{name}.weight", 0, 8, "out") for name in "qkv")
    assert named(model, (q,), (k,), block=4, heads=heads).kind == "QK"
    assert named(model, (axis("o.weight", 1, 8, "in"),), (v,), block=4, heads=heads).kind == "OV"
