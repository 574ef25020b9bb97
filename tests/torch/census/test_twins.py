"""Narrow twins have the structure of a configuration, run, and give different sizes different numbers."""

import pytest
import torch
from torch import nn

from undertow.torch import narrow_twin
from undertow.torch.census.batches import mean_square, random_batch
from undertow.torch.census.folding import wildcard
from undertow.torch.census.twins import build_model

pytestmark = [pytest.mark.torch, pytest.mark.slow]

NAMES = (
    "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3Text", "Phi", "Phi3", "GPT2", "GPTNeoX", "GPTJ",
    "Bloom", "OPT", "Mpt", "Falcon", "Mixtral", "Qwen3Moe", "DeepseekV3", "Olmo2", "Cohere", "Granite", "StableLm",
    "Starcoder2", "Glm4", "GptOss", "SmolLM3", "Bert", "Roberta", "DistilBert", "Electra", "Albert", "ModernBert",
    "ViT", "T5", "Bart", "Mamba", "Mamba2", "GPTNeo",
)  # fmt: skip
"""Configurations, each with the sizes of a published network."""


def full(name, **changes):
    import transformers

    return getattr(transformers, f"{name}Config")(**changes)


def meta(config) -> nn.Module:
    with torch.device("meta"):
        return build_model(config)


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_has_the_parameters_of_the_network_and_runs(name):
    config = full(name)
    twin, network = narrow_twin(config), meta(config)
    assert type(twin) is type(network)
    shapes = lambda model: {wildcard(n): p.ndim for n, p in model.named_parameters()}
    assert shapes(twin) == shapes(network)
    assert sum(p.numel() for p in twin.parameters()) < 4e6
    assert twin.config.num_hidden_layers <= 9
    assert torch.isfinite(mean_square(twin, random_batch(twin)))
    flags = {k: v for k, v in config.to_dict().items() if isinstance(v, bool | str)}
    assert {k: v for k, v in twin.config.to_dict().items() if k in flags} == flags


def attributes(twin, *names):
    return [getattr(twin.config, name) for name in names]


def test_heads_per_key_head_and_flags_are_kept():
    heads = ("num_attention_heads", "num_key_value_heads")
    many, few = attributes(narrow_twin(full("Llama", num_attention_heads=32, num_key_value_heads=8)), *heads)
    assert (many // few, few > 1) == (4, True)
    many, few = attributes(narrow_twin(full("Llama", num_key_value_heads=32)), *heads)
    assert many == few > 1
    many, few = attributes(narrow_twin(full("Llama", num_key_value_heads=1)), *heads)
    assert many > few == 1
    tied = narrow_twin(full("Llama", tie_word_embeddings=True, attention_bias=True))
    assert "lm_head.weight" not in dict(tied.named_parameters())
    assert "model.layers.0.self_attn.q_proj.bias" in dict(tied.named_parameters())


def test_patterns_of_layers_are_kept():
    kinds = narrow_twin(full("Gemma2")).config.layer_types
    assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == (
        "sliding_attention", {"sliding_attention", "full_attention"}, "full_attention"
    )  # fmt: skip
    dense = [hasattr(layer.mlp, "experts") for layer in narrow_twin(full("DeepseekV3")).model.layers]
    assert (dense[0], set(dense[1:])) == (False, {True})
    mixers = narrow_twin(full("Jamba")).model.layers
    assert {type(layer).__name__ for layer in mixers} == {"JambaAttentionDecoderLayer", "JambaMambaDecoderLayer"}


def test_few_layers_are_kept_as_they_are():
    assert narrow_twin(full("Llama", num_hidden_layers=2)).config.num_hidden_layers == 2


def test_sizes_differ():
    config = narrow_twin(full("Mixtral")).config
    sizes = [
        config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads,
        config.num_local_experts, config.vocab_size, config.hidden_size // config.num_attention_heads,
    ]  # fmt: skip
    assert len(set(sizes)) == len(sizes)


def test_the_same_seed_gives_the_same_weights_and_the_generator_is_left_alone():
    state = torch.get_rng_state()
    one, two, other = (narrow_twin(full("GPT2"), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    first = lambda model: next(model.parameters())
    assert torch.equal(first(one), first(two))
    assert not torch.equal(first(one), first(other))


def test_what_cannot_be_made_smaller_is_named():
    """The embedding of positions keeps its rows."""
    with pytest.raises(ValueError, match=r"the field `n_positions` = 100000 cannot be made smaller"):
        narrow_twin(full("GPT2", n_positions=100_000))


def test_mistakes_are_sentences():
    with pytest.raises(TypeError, match="`config` is a dict; give a configuration of transformers"):
        narrow_twin({"hidden_size": 3})
    with pytest.raises(ValueError, match="transformers cannot build this configuration"):
        narrow_twin(full("Nemotron", num_key_value_heads=None))
