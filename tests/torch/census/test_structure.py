"""The structure of a network has its shapes, sizes and settings, and no weights."""

import pytest
import torch
from torch import nn

from tests.torch.transfers import network
from undertow.torch.census.stored import decode, encode
from undertow.torch.census.structure import Structure, structure_of

pytestmark = pytest.mark.torch


def test_the_structure_of_a_language_model():
    model = network("Qwen3", sliding_window=16, use_sliding_window=True, max_window_layers=2)
    structure = structure_of(model)
    assert dict(structure.shapes) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    fields = dict(structure.configuration)
    assert (fields["hidden_size"], fields["head_dim"], fields["num_key_value_heads"]) == (64, 16, 4)
    assert not {"num_hidden_layers", "vocab_size", "eos_token_id", "sliding_window"} & fields.keys()
    modules = {m.module: m for m in structure.modules}
    assert dict(modules["model.layers.1.self_attn"].sizes)["head_dim"] == 16
    one, other = (modules[f"model.layers.{k}.self_attn"].settings for k in (0, 3))
    assert one != other  # full and sliding attention
    assert one.startswith("Qwen3Attention")


def test_the_structure_does_not_depend_on_weights_or_training():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
    before = structure_of(model)
    model.eval()
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert structure_of(model) == before
    assert structure_of(model.to("meta")) == before
    assert decode(encode(before), Structure) == before
