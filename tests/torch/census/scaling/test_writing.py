"""The maps that a census writes preserve the function, and are complete."""

import pytest
import torch
from torch import nn

from tests.torch.known import census_of
from tests.torch.zoo import KNOWN, build, square
from undertow.torch import ScalingEntry, census, check_scaling_map
from undertow.torch.census.scaling.writing import scaling_map

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LLAMA = {
    r"re:model\.layers\.\d+\.input_layernorm$": ("q_proj", "k_proj", "v_proj"),
    r"re:model\.layers\.\d+\.post_attention_layernorm$": ("gate_proj", "up_proj"),
    r"re:model\.layers\.\d+\.self_attn\.v_proj$": ("o_proj",),
    r"re:model\.layers\.\d+\.mlp\.up_proj$": ("down_proj",),
    "model.norm": ("lm_head",),
}


def test_the_map_of_a_llama():
    written = scaling_map(census_of("Llama"))
    ends = {entry.source: tuple(r.rstrip("$").rpartition(".")[2] for r in entry.readers) for entry in written}
    assert ends == LLAMA
    (values,) = [entry for entry in written if "v_proj" in entry.source]
    assert values.note == "each scale acts on 2 inputs of the readers"


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "LoRA"])
def test_every_written_entry_preserves_the_function(name):
    """By moves of the model, which do not use the census."""
    model, batch, loss = build(name)
    symmetries = census(model, batch, loss)
    written = symmetries.scaling_map()
    assert bool(len(written)) == (name not in ("tanh", "gelu"))
    if len(written):
        report = check_scaling_map(symmetries, written, model=model, batch=batch, loss=loss)
        assert report
        assert all(check.change < 1e-12 for check in report)


class Mixed(nn.Module):
    """Blocks of which the first and third have a second reader of their norm."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(6), "a": nn.Linear(6, 6)}) for _ in range(4))
        for k in (0, 2):
            self.blocks[k]["b"] = nn.Linear(6, 6)

    def forward(self, x):
        for block in self.blocks:
            h = block["norm"](x)
            x = x + torch.tanh(block["a"](h)) + (torch.tanh(block["b"](h)) if "b" in block else 0)
        return x


def test_blocks_of_different_kinds_have_patterns_with_their_numbers():
    torch.manual_seed(0)
    model, batch = Mixed(), torch.randn(5, 6)
    symmetries = census(model, batch, square)
    entries = {entry.source: entry.readers for entry in symmetries.scaling_map()}
    assert entries == {
        r"re:blocks\.(0|2)\.norm$": (r"re:blocks\.(0|2)\.a$", r"re:blocks\.\d+\.b$"),
        r"re:blocks\.(1|3)\.norm$": (r"re:blocks\.(1|3)\.a$",),
    }
    report = check_scaling_map(symmetries, symmetries.scaling_map(), model=model, batch=batch, loss=square)
    assert report
    assert [len(check) for check in report] == [2, 2]


def test_values_of_a_fused_layer_are_noted():
    (entry,) = (entry for entry in scaling_map(census_of("attention")) if "in_proj" in entry.source)
    expected = ScalingEntry("attention.in_proj_weight", ("attention.out_proj",), "the last 12 of 36 channels")
    assert entry == expected


def test_numbered_layers_that_cannot_be_paired_by_their_parents_have_entries_of_their_own():
    entries = [(entry.source, entry.readers) for entry in scaling_map(census_of("relu"))]
    assert entries == [("0", ("2",)), ("2", ("4",))]
