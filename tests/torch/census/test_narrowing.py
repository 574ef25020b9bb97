"""Fields of configurations with small numbers, and choices of layers."""

import pytest

from undertow.torch.census.narrowing import layer_choices, narrowed

pytestmark = pytest.mark.torch

PLAIN = {"num_hidden_layers": 24, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}


def test_choices_have_the_first_and_the_last_layer():
    choices = list(layer_choices(PLAIN))
    assert choices[0] == [0, 1, 23]
    assert all((c[0], c[-1]) == (0, 23) and c == sorted(set(c)) for c in choices)
    assert [len(c) for c in choices] == list(range(3, 10))
    assert list(layer_choices({"num_hidden_layers": 2})) == [[0, 1]]
    assert list(layer_choices({"hidden_size": 3})) == []


def test_choices_cover_the_kinds_of_layers():
    kinds = ["a"] * 24
    kinds[11], kinds[17] = "b", "c"
    four = next(c for c in layer_choices(PLAIN | {"layer_types": kinds}) if len(c) == 5)
    assert {kinds[n] for n in four[1:-1]} == {"a", "b", "c"}
    short = narrowed(PLAIN | {"layer_types": kinds, "mlp_only_layers": [0, 5, 11]}, four)
    assert short["layer_types"] == [kinds[n] for n in four]
    assert short["mlp_only_layers"] == [0, four.index(11)]
    assert short["num_hidden_layers"] == 5


def test_widths_are_consistent():
    """Without a field for it, the width of a head is the hidden size divided by the number of heads."""
    small = narrowed(PLAIN, [0, 1, 23])
    assert small["hidden_size"] % small["num_attention_heads"] == 0
    assert (small["hidden_size"] // small["num_attention_heads"]) % 2 == 0
    assert small["hidden_size"] < small["intermediate_size"] < 512
    equal = narrowed(PLAIN | {"word_embed_proj_dim": 512, "embedding_size": 128}, [0, 1, 23])
    assert equal["word_embed_proj_dim"] == equal["hidden_size"] != equal["embedding_size"]


@pytest.mark.parametrize("part", [0.25, 0.4, 0.5, 0.75, 1.0])
def test_the_rotated_part_of_a_head_is_even(part):
    small = narrowed(PLAIN | {"rope_parameters": {"partial_rotary_factor": part}}, [0, 1, 23])
    rotated = part * small["hidden_size"] / small["num_attention_heads"]
    assert rotated % 2 == pytest.approx(0)
    assert rotated / 2 > 4


def test_experts_tokens_and_inner_configurations():
    fields = PLAIN | {
        "num_experts": 64, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "vocab_size": 32000,
        "pad_token_id": 31999, "eos_token_id": [2, 31998], "quantization_config": {"bits": 4},
        "vision_config": {"hidden_size": 768, "num_attention_heads": 12, "image_size": 224, "patch_size": 14},
    }  # fmt: skip
    small = narrowed(fields, [0, 1, 23])
    assert small["num_experts"] % small["n_group"] == 0
    assert small["num_experts"] > small["num_experts_per_tok"] == 2
    assert small["pad_token_id"] < small["vocab_size"] < 32000
    assert small["eos_token_id"] == [2, 1]
    assert "quantization_config" not in small
    vision = small["vision_config"]
    assert vision["hidden_size"] not in (768, small["hidden_size"])
    assert vision["image_size"] == 42
    assert fields["vision_config"]["image_size"] == 224  # the argument is not changed
