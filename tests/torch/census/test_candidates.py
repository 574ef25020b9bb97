"""Axes of fused layers, of interleaved heads and of heads that RoPE rotates in part."""

from collections import Counter

import pytest
import torch

from tests.torch.zoo import KNOWN, adapter, language, tokens
from undertow.torch import census

pytestmark = pytest.mark.torch


def test_symmetries_of_an_adapter_of_a_fused_layer_with_transposed_weights():
    torch.manual_seed(0)
    model = adapter(KNOWN["GPT-2"].build, target_modules=["c_attn"], fan_in_fan_out=True)
    symmetries = census(model, tokens(), language)
    assert [(r.kind, r.block) for r in symmetries] == [("LoRA", 3)] * 2


def test_symmetries_of_fused_layers_of_unequal_parts():
    """Phi-3: queries, keys and values in one matrix, gate and up in another."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Phi3Config(
        vocab_size=40, hidden_size=24, intermediate_size=36, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    symmetries = census(transformers.Phi3ForCausalLM(config), tokens(), language)
    kinds = ["QK on RoPE pairs", "OV", "up against down", *["gain against readers"] * 3]
    assert Counter(r.kind for r in symmetries) == Counter(kinds)
    assert [(r.kind, r.size) for r in symmetries.approximate] == [("whole scale", 1)]


def other(name):
    """Return a network that interleaves queries, keys and values by head, or rotates half of a head by RoPE."""
    import transformers

    size = {"vocab_size": 40, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "intermediate_size": 60}
    if name == "GPT-NeoX":
        config = transformers.GPTNeoXConfig(**size, **marks, rotary_pct=0.5, max_position_embeddings=32)
        return transformers.GPTNeoXForCausalLM(config)
    if name == "BLOOM":
        return transformers.BloomForCausalLM(
            transformers.BloomConfig(vocab_size=40, hidden_size=48, n_layer=1, n_head=4)
        )
    return transformers.PhiForCausalLM(transformers.PhiConfig(**size, **marks, partial_rotary_factor=0.5))


HALF = [("QK on RoPE pairs", 12, 1), ("QK", 24, 6), ("OV", 48, 12), *[("gain against readers", 48, 1)] * 3]


OTHERS = {
    "GPT-NeoX": HALF,
    "BLOOM": [("QK", 48, 12), ("OV", 48, 12), *[("gain against readers", 48, 1)] * 2],  # the head is tied
    "Phi": HALF[:-1],  # attention and the MLP read one norm
}


@pytest.mark.parametrize("name", OTHERS)
def test_symmetries_of_interleaved_or_partly_rotated_heads(name):
    torch.manual_seed(0)
    symmetries = census(other(name), tokens(), language)
    assert Counter((r.kind, r.size, r.block) for r in symmetries) == Counter(OTHERS[name])
    assert symmetries.unclear == ()
    (values,) = (r for r in symmetries if r.kind == "OV")
    if name != "Phi":
        assert str(values.minus[0]).endswith("query_key_value.weight[48 of 24:144, :]")
        # head by head: queries, keys and values of twelve each
        assert values.minus[0].index[:, 0].reshape(4, 12).tolist() == [[*range(k, k + 12)] for k in (24, 60, 96, 132)]
