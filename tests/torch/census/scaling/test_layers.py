"""Patterns select layers, and readers belong to the source with the deepest common parent."""

import pytest

from undertow.torch.census.scaling.layers import folded, layer_of, match_layers, pair_layers

pytestmark = pytest.mark.torch

BLOCK = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")
LAYERS = [f"model.layers.{k}.{name}" for k in range(12) for name in BLOCK]


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("model.norm.weight", "model.norm"),
        ("model.norm.bias", "model.norm"),
        ("experts.gate_up_proj", "experts.gate_up_proj"),
        ("experts.gate_up_proj_bias", "experts.gate_up_proj"),
        ("attention.in_proj_weight", "attention.in_proj_weight"),
        ("attention.in_proj_bias", "attention.in_proj_weight"),
        ("weight", ""),
    ],
)
def test_the_layer_of_a_parameter(parameter, layer):
    assert layer_of(parameter) == layer


def test_a_regular_expression_matches_at_the_start_as_the_tools_do():
    assert match_layers("re:.*q_proj", LAYERS) == match_layers("re:.*q_proj$", LAYERS) == match_layers("q_proj", LAYERS)
    assert match_layers("re:q_proj", LAYERS) == []
    assert match_layers("proj", LAYERS) == []
    assert match_layers("model.layers.3.self_attn.q_proj.weight", LAYERS) == ["model.layers.3.self_attn.q_proj"]
    assert match_layers(r"re:model\.layers\.1\.", LAYERS) == [f"model.layers.1.{name}" for name in BLOCK]


def test_an_invalid_regular_expression_is_quoted():
    with pytest.raises(ValueError, match=r"the pattern 're:\*q' is not a regular expression"):
        match_layers("re:*q", LAYERS)


def test_readers_are_paired_layer_by_layer():
    selected = [match_layers(name, LAYERS) for name in ("q_proj", "k_proj")]
    matches = pair_layers(match_layers("input_layernorm", LAYERS), selected)
    assert len(matches) == 12
    for k, match in enumerate(matches):
        assert match.source == f"model.layers.{k}.input_layernorm"
        assert match.readers == (f"model.layers.{k}.self_attn.q_proj", f"model.layers.{k}.self_attn.k_proj")


def test_a_block_without_the_reader_takes_none_from_another_block():
    without = [name for name in LAYERS if name != "model.layers.4.self_attn.q_proj"]
    matches = pair_layers(match_layers("input_layernorm", without), [match_layers("q_proj", without)])
    assert [len(match.readers) for match in matches] == [k != 4 for k in range(12)]


def test_experts_are_paired_one_by_one_and_all_read_the_norm():
    experts = [f"h.0.mlp.experts.{k}.{name}" for k in range(3) for name in ("up_proj", "down_proj")]
    shared = ["h.0.mlp.shared.up_proj", "h.0.mlp.shared.down_proj"]
    layers = ["h.0.norm", *experts, *shared]
    for match in pair_layers(match_layers("up_proj", layers), [match_layers("down_proj", layers)]):
        assert match.readers == (match.source.replace("up_proj", "down_proj"),)
    (norm,) = pair_layers(["h.0.norm"], [match_layers("up_proj", layers)])
    assert len(norm.readers) == 4


def test_numbers_are_folded_and_names_with_digits_are_not():
    assert folded("layers.12.fc1") == "layers.*.fc1"
