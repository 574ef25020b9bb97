"""Names of symmetries, and the order of their sides."""

import numpy as np
import pytest
import torch
from torch import nn

from studies.zoo import LIBRARIES
from undertow.torch import Axis, Symmetry, census
from undertow.torch.census.candidates import Heads
from undertow.torch.census.names import name_symmetry, names_of_axes

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


class LatentAttention(nn.Module):
    """Attention with low-rank keys and values, whose heads have another width for values."""

    def __init__(self):
        super().__init__()
        self.kv_a_proj, self.kv_b_proj, self.o_proj = nn.Linear(8, 6), nn.Linear(6, 10), nn.Linear(6, 8)


def test_names_in_latent_attention():
    model = nn.ModuleDict({"attn": LatentAttention()})
    values = axis("attn.kv_b_proj.weight", 0, 6, "out")
    assert named(model, (axis("attn.o_proj.weight", 1, 6, "in"),), (values,), block=3).kind == "OV"
    low = axis("attn.kv_a_proj.weight", 0, 6, "out")
    assert named(model, (axis("attn.kv_b_proj.weight", 1, 6, "in"),), (low,), block=6).kind == "MLA low rank"
    queries = axis("attn.kv_a_proj.weight", 0, 6, "out")
    assert named(model, (values,), (queries,)).kind == "QK"


class Mixer(nn.Module):
    """The layers of a state space model: B and C are rows of one matrix."""

    def __init__(self):
        super().__init__()
        self.A_log, self.x_proj = nn.Parameter(torch.zeros(4, 2)), nn.Linear(4, 8)


def test_the_two_sides_of_a_state_space_model():
    model = nn.ModuleDict({"mixer": Mixer()})
    b, c = (Axis("mixer.x_proj.weight", 0, np.arange(k, k + 2)[:, None], 8) for k in (4, 6))
    assert named(model, (b,), (c,)).kind == "state space"


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(8))


def test_a_layer_scale_after_attention():
    model = nn.ModuleDict({"o": nn.Linear(8, 8), "ls": LayerScale()})
    out, scale = axis("o.weight", 0, 8, "out"), axis("ls.gamma", 0, 8, "bias")
    assert named(model, (scale,), (out,), heads=[Heads("", 2, 2, 4, 4)]).kind == "LayerScale"


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.zeros(3, 4, 5)), nn.Parameter(torch.zeros(3, 5, 4))


def test_units_of_experts():
    stacked = lambda name, number, role: Axis(
        name, number, np.arange(12)[:, None], 12, 3, role=role, matrices=3, by_matrix=True
    )
    symmetry = named(Experts(), (stacked("down", 2, "in"),), (stacked("up", 1, "out"),))
    assert symmetry.kind == "expert"


def test_axes_without_parts_of_longer_ones():
    whole, part = axis("o.weight", 0, 8, "out"), Axis("o.weight", 0, np.arange(4)[:, None], 8)
    assert names_of_axes([part, whole]) == ("o.weight[i, :]",)


EXPECTED = {
    "DeepSeek-V3": {"OV", "QK", "QK on RoPE pairs", "gain against readers", "up against down"},
    "Mamba": {"state space", "state space low rank", "gain against readers"},
    "timm CaiT": {"LayerScale", "QK", "OV"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_names_of_architectures(name):
    if name.startswith("timm"):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    build = {key: builder for library in LIBRARIES.values() for key, builder in library.items()}[name]
    kinds = {symmetry.kind for symmetry in census(*build())}
    assert not EXPECTED[name] - kinds
    assert "GL" not in kinds
