"""Networks of transformers of medium size, and a comparison of censuses up to the order of symmetries and axes."""

from typing import Any

from torch import nn

from undertow.torch import Axis, Census
from undertow.torch.census.twins import build_model

LLAMA = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 150, "num_hidden_layers": 5, "num_attention_heads": 8,
    "num_key_value_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EQUAL_HEADS = LLAMA | {"num_attention_heads": 4, "num_key_value_heads": 4}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "Llama": LLAMA | {"head_dim": 16, "num_key_value_heads": 2},
    "Qwen3": LLAMA | {"head_dim": 16},
    "Qwen2": LLAMA,
    "Gemma2": LLAMA | {"head_dim": 16, "num_hidden_layers": 6},
    "Phi3": LLAMA,
    "Phi": EQUAL_HEADS,
    "GPTNeoX": EQUAL_HEADS,
    "GPTJ": {"vocab_size": 97, "n_embd": 64, "n_layer": 5, "n_head": 4, "rotary_dim": 8, "n_positions": 64},
    "GPT2": {"vocab_size": 97, "n_embd": 64, "n_layer": 5, "n_head": 4, "n_positions": 64},
    "OPT": EQUAL_HEADS | {"ffn_dim": 150, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
    "Bert": EQUAL_HEADS | {"max_position_embeddings": 64, "num_hidden_layers": 4},
    "ViT": {
        "hidden_size": 64, "intermediate_size": 150, "num_hidden_layers": 5, "num_attention_heads": 4,
        "image_size": 48, "patch_size": 8,
    },
    "T5": {"vocab_size": 97, "d_model": 64, "d_kv": 12, "d_ff": 150, "num_layers": 4, "num_heads": 4},
    "Falcon": {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 8},
    "Cohere": LLAMA,
    "Olmo2": LLAMA,
    "Mixtral": LLAMA | {"intermediate_size": 160, "num_local_experts": 6},
}  # fmt: skip
"""Names of configurations with sizes of which several are equal, as in most networks."""


def configuration(name: str, **changes: Any) -> Any:
    import transformers

    return getattr(transformers, f"{name}Config")(**CONFIGURATIONS.get(name, {}) | changes)


def network(name: str, **changes: Any) -> nn.Module:
    return build_model(configuration(name, **changes))


def axis_key(axis: Axis) -> tuple:
    """Return all that matters of an axis. A whole parameter may be described along any of its axes."""
    whole = axis.fold == "whole" and axis.index.size == axis.length
    place = () if whole else (axis.axis, axis.length, axis.index.tobytes())
    return axis.parameter, place, axis.shift, axis.role


def contents(census: Census) -> list[tuple]:
    """Return the symmetries of a census as values that can be compared."""
    sides = lambda s: sorted([sorted(map(axis_key, s.plus)), sorted(map(axis_key, s.minus))])
    return sorted((s.kind, s.block, s.exact, sides(s)) for s in (*census.symmetries, *census.approximate))
