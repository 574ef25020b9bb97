"""Tiny models with random weights of the architectures for which a quantisation tool has scaling maps."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["ARCHITECTURES", "LinearExperts", "batch_of", "build", "language_loss", "linearise_experts"]

VOCABULARY, WIDTH, HIDDEN, HEADS, KEY_HEADS, LAYERS = 40, 24, 36, 4, 2, 2
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
HEAD = {"head_dim": WIDTH // HEADS}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
LATENT = {
    "num_key_value_heads": HEADS, "q_lora_rank": 10, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
HYBRID = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6, "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"], **HEAD,
}  # fmt: skip
WHISPER = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN, "num_mel_bins": 8,
    "max_source_positions": 8, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip

ROTATED = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 1], "rope_theta": 1e4}}
VISION = {
    "hidden_size": 16, "num_hidden_layers": 1, "depth": 1, "num_heads": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "image_size": 28, "patch_size": 14, "out_hidden_size": WIDTH, "vision_output_dim": 16,
    "projector_input_dim": 16, "projector_output_dim": 16, "fullatt_block_indexes": [0],
}  # fmt: skip
PROJECTORS = {
    "Cohere2VisionForConditionalGeneration": {"alignment_intermediate_size": 16},
    "MuseGlimmerForConditionalGeneration": {"out_hidden_size": 64, "projector_hidden_size": 16},
}
NOT_TEXT = ("vision", "visual", "multi_modal", "audio")
"""Parts of the names of layers that do not process text; the batches are text, and these layers are frozen."""
SOUND = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": WIDTH}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": HEAD,
    "MistralForCausalLM": HEAD,
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": HEAD,
    "GraniteForCausalLM": {},
    "SeedOssForCausalLM": HEAD,
    "Gemma2ForCausalLM": HEAD,
    "Gemma3ForCausalLM": HEAD,
    "Phi3ForCausalLM": {},
    "CohereForCausalLM": {},
    "Cohere2ForCausalLM": HEAD,
    "OlmoForCausalLM": {},
    "Olmo3ForCausalLM": {},
    "Exaone4ForCausalLM": HEAD,
    "BloomForCausalLM": {"n_layer": LAYERS, "n_head": HEADS},
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2, **HEAD},
    "Qwen2MoeForCausalLM": {**EXPERTS, "shared_expert_intermediate_size": 28},
    "Qwen3MoeForCausalLM": {**EXPERTS, **HEAD},
    "Glm4MoeForCausalLM": {
        **HEAD, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    },
    "Ernie4_5_MoeForCausalLM": {
        **HEAD, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20, "moe_layer_start_index": 1,
        "moe_num_shared_experts": 1,
    },
    "AfmoeForCausalLM": {
        **HEAD, **EXPERTS, "num_dense_layers": 1, "num_shared_experts": 1,
        "layer_types": ["full_attention", "full_attention"],
    },
    "Cohere2MoeForCausalLM": {**HEAD, **EXPERTS, "first_k_dense_replace": 1, "num_shared_experts": 0},
    "DeepseekV2ForCausalLM": LATENT,
    "DeepseekV3ForCausalLM": LATENT,
    "Glm4MoeLiteForCausalLM": LATENT,
    "GlmMoeDsaForCausalLM": {**LATENT, "index_topk": 3, "index_n_heads": 2, "index_head_dim": 8},
    "Qwen3NextForCausalLM": {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 28, "decoder_sparse_step": 1},
    "Qwen3_5ForCausalLM": HYBRID,
    "Qwen3_5MoeForCausalLM": {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 28},
    "WhisperForConditionalGeneration": WHISPER,
    "Gemma3ForConditionalGeneration": HEAD,
    "Mistral3ForConditionalGeneration": {**HEAD, "model_type": "mistral"},
    "Llama4ForConditionalGeneration": {
        **HEAD, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 28,
        "interleave_moe_layer_step": 2,
    },
    "Qwen2_5_VLForConditionalGeneration": ROTATED,
    "Qwen2_5OmniThinkerForConditionalGeneration": ROTATED,
    "Cohere2VisionForConditionalGeneration": HEAD,
    "MuseGlimmerForConditionalGeneration": HEAD,
    "Qwen3_5ForConditionalGeneration": HYBRID,
    "Qwen3_5MoeForConditionalGeneration": {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 28},
}  # fmt: skip
"""Architectures with what their configuration of the language model has beside `COMMON`."""


class LinearExperts(nn.Module):
    """The experts of a mixture as modules with linear layers, from one tensor for all of them.

    Quantisation tools convert mixtures to this form first, and their maps name its layers.
    """

    def __init__(self, fused: nn.Module):
        super().__init__()
        inner, outer = fused.gate_up_proj.detach(), fused.down_proj.detach()
        if inner.shape[1] == outer.shape[2]:  # Llama 4 has the inputs first
            inner, outer = inner.mT, outer.mT
        gates, ups = inner.chunk(2, dim=1)
        self.count = len(gates)
        for number in range(self.count):
            weights = {"gate_proj": gates[number], "up_proj": ups[number], "down_proj": outer[number]}
            expert = nn.Module()
            for name, weight in weights.items():
                layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
                layer.weight.data.copy_(weight)
                expert.add_module(name, layer)
            self.add_module(str(number), expert)
        self.act_fn = fused.act_fn

    def forward(
        self, states: torch.Tensor, index: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the sum over the experts chosen for each token, with the weights of the router.

        Without an index the rows are those of the first expert, then those of the second, and so on (Llama 4).
        """
        if index is None or weights is None:
            rows = states.reshape(self.count, -1, states.shape[-1])
            return torch.cat([self._expert(number, rows[number]) for number in range(self.count)])
        total = torch.zeros_like(states)
        for number in range(self.count):
            token, place = torch.where(index == number)
            share = weights[token, place, None].to(states)
            total = total.index_add(0, token, self._expert(number, states[token]) * share)
        return total

    def _expert(self, number: int, states: torch.Tensor) -> torch.Tensor:
        expert = self.get_submodule(str(number))
        return expert.down_proj(self.act_fn(expert.gate_proj(states)) * expert.up_proj(states))


def linearise_experts(model: nn.Module) -> nn.Module:
    """Replace fused experts by modules with linear layers, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(getattr(module, "gate_up_proj", None), nn.Parameter) and module.gate_up_proj.ndim == 3:
            model.set_submodule(name, LinearExperts(module))
    return model


def build(name: str, seed: int = 0) -> nn.Module:
    """Return a tiny model of an architecture with random weights; experts are modules with linear layers."""
    import transformers

    torch.manual_seed(seed)
    architecture = getattr(transformers, name)
    own = ARCHITECTURES[name]
    if name.startswith("Whisper"):
        config = architecture.config_class(**own)
    elif name.endswith("ForConditionalGeneration"):
        parts = {"text_config": COMMON | own, "vision_config": dict(VISION)}
        parts |= {"audio_config": dict(SOUND)} if "Omni" in name else {}
        parts |= PROJECTORS.get(name, {})
        config = architecture.config_class(**parts, tie_word_embeddings=False)
    else:
        config = architecture.config_class(**COMMON | own)
    for part in (config, getattr(config, "text_config", config)):
        part._attn_implementation = part._experts_implementation = "eager"
    model = linearise_experts(architecture(config))
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(word in parameter_name for word in NOT_TEXT))
    return model


def batch_of(name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a batch of random tokens, with random sounds for a speech model."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (3, 9), generator=generator)
    if not name.startswith("Whisper"):
        return {"input_ids": tokens}
    return {"input_features": torch.randn(3, 8, 16, generator=generator), "decoder_input_ids": tokens}


def language_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy of the next token."""
    logits = model(**batch, use_cache=False).logits
    tokens = batch.get("input_ids", batch.get("decoder_input_ids"))
    assert tokens is not None
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
