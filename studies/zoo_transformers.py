"""Tiny architectures of transformers with random weights, for `studies.zoo`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["TRANSFORMERS", "Example", "language"]

VOCABULARY, LENGTH = 11, 6


class Example(NamedTuple):
    """A network, a batch and its loss."""

    model: nn.Module
    batch: Any
    loss: Callable[[nn.Module, Any], Tensor]


def language(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of a model of transformers."""
    return model(**batch).loss


def mean_square(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean square of the first output of a model of transformers that has no loss."""
    out, names = model(**batch), ("logits", "last_hidden_state", "logits_per_image")
    return next(out[name] for name in names if name in out).square().mean()


IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE: dict[str, Any] = IDS | {
    "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 16,
}  # fmt: skip
"""Models whose head width is the hidden size divided by the number of heads."""
LLAMA: dict[str, Any] = WIDE | {"head_dim": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
BERT: dict[str, Any] = IDS | {
    "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 12, "embedding_size": 6,
}  # fmt: skip
GPT: dict[str, Any] = IDS | {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12, "n_inner": 10}
SEQ2SEQ: dict[str, Any] = IDS | {
    "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 10, "decoder_ffn_dim": 9, "max_position_embeddings": 12, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
T5: dict[str, Any] = IDS | {
    "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2,
    "decoder_start_token_id": 0, "relative_attention_num_buckets": 4,
}  # fmt: skip
VIT: dict[str, Any] = {
    "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "num_channels": 2, "num_labels": 3,
}  # fmt: skip
EXPERTS: dict[str, Any] = LLAMA | {
    "num_hidden_layers": 1, "num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2,
    "moe_intermediate_size": 4, "intermediate_size": 4, "shared_expert_intermediate_size": 6, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "router_aux_loss_coef": 0.0,
}  # fmt: skip
MLA: dict[str, Any] = LLAMA | {
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 5, "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 2, "v_head_dim": 3, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 4, "head_dim": 4,
}  # fmt: skip
FALCON: dict[str, Any] = WIDE | {"hidden_size": 16, "num_attention_heads": 4, "ffn_hidden_size": 10, "alibi": False}
MAMBA: dict[str, Any] = IDS | {
    "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "conv_kernel": 2, "expand": 2, "time_step_rank": 3,
}  # fmt: skip


def build(config: str, model: str, batch: str, options: dict[str, Any]) -> Example:
    """Return a model of transformers by the names of its classes."""
    import transformers

    network = getattr(transformers, model)(getattr(transformers, config)(**options))
    tokens = torch.randint(3, VOCABULARY, (3, LENGTH))
    pixels = torch.randn(3, 2, 8, 8)
    if batch == "tokens":
        return Example(network, {"input_ids": tokens, "labels": tokens}, language)
    if batch == "image":
        return Example(network, {"pixel_values": pixels}, mean_square)
    if batch == "image and text":
        return Example(network, {"pixel_values": pixels, "input_ids": tokens}, mean_square)
    if batch == "audio":
        return Example(network, {"input_features": torch.randn(3, 4, 12), "labels": tokens}, language)
    return Example(network, {"input_ids": tokens}, mean_square)


Row = tuple[str, str, str, dict[str, Any]]
"""Configuration, model, kind of batch, options."""


def causal(name: str, options: dict[str, Any], **more: Any) -> Row:
    return f"{name}Config", f"{name}ForCausalLM", "tokens", options | more


def masked(name: str, options: dict[str, Any], **more: Any) -> Row:
    return f"{name}Config", f"{name}ForMaskedLM", "tokens", options | more


def seq2seq(name: str, options: dict[str, Any], **more: Any) -> Row:
    return f"{name}Config", f"{name}ForConditionalGeneration", "tokens", options | more


def vision(name: str, options: dict[str, Any], **more: Any) -> Row:
    return f"{name}Config", f"{name}ForImageClassification", "image", options | more


CLIP_TEXT = BERT | {"projection_dim": 5, "eos_token_id": 2}
ROWS: dict[str, Row] = {
    "Llama": causal("Llama", LLAMA),
    "Mistral": causal("Mistral", LLAMA),
    "Qwen2": causal("Qwen2", WIDE),
    "Qwen3": causal("Qwen3", LLAMA),
    "Gemma": causal("Gemma", LLAMA),
    "Gemma 2": causal("Gemma2", LLAMA),
    "Gemma 3": ("Gemma3TextConfig", "Gemma3ForCausalLM", "tokens", LLAMA),
    "OLMo": causal("Olmo", WIDE),
    "OLMo with clip_qkv": causal("Olmo", WIDE, clip_qkv=1.0),
    "OLMo 2": causal("Olmo2", WIDE),
    "Cohere": causal("Cohere", WIDE),
    "Cohere 2": causal("Cohere2", LLAMA),
    "Granite": causal("Granite", WIDE),
    "GLM": causal("Glm", LLAMA),
    "GLM 4": causal("Glm4", LLAMA),
    "Helium": causal("Helium", WIDE, head_dim=4),
    "SmolLM3": causal("SmolLM3", WIDE),
    "Ernie 4.5": causal("Ernie4_5", LLAMA),
    "Arcee": causal("Arcee", LLAMA),
    "Apertus": causal("Apertus", WIDE),
    "Nemotron": causal("Nemotron", LLAMA),
    "StarCoder 2": causal("Starcoder2", WIDE),
    "Phi": causal("Phi", WIDE),
    "Phi-3": causal("Phi3", WIDE),
    "StableLM": causal("StableLm", WIDE),
    "Persimmon": causal("Persimmon", WIDE, partial_rotary_factor=0.5),
    "Mixtral": causal("Mixtral", EXPERTS),
    "Qwen2-MoE": causal("Qwen2Moe", EXPERTS, num_attention_heads=2, num_key_value_heads=1),
    "Qwen3-MoE": causal("Qwen3Moe", EXPERTS),
    "OLMoE": causal("Olmoe", EXPERTS, num_attention_heads=2, num_key_value_heads=1),
    "gpt-oss": causal("GptOss", EXPERTS, sliding_window=4),
    "DeepSeek-V2": causal("DeepseekV2", MLA),
    "DeepSeek-V3": causal("DeepseekV3", MLA),
    "Falcon, one key head": causal("Falcon", FALCON, multi_query=True, new_decoder_architecture=False),
    "Falcon, key heads": causal("Falcon", FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "Falcon, head by head": causal(
        "Falcon", FALCON, multi_query=False, new_decoder_architecture=False, alibi=True, bias=True, parallel_attn=False,
        hidden_size=8, num_attention_heads=2,
    ),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", "tokens", GPT),
    "GPT-Neo": causal(
        "GPTNeo", IDS, hidden_size=8, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]],
        intermediate_size=9, max_position_embeddings=16, window_size=4,
    ),
    "GPT-J": causal("GPTJ", GPT, rotary_dim=2),
    "CodeGen": causal("CodeGen", GPT, n_embd=16, n_head=4, rotary_dim=2),
    "GPT-NeoX": causal("GPTNeoX", BERT, rotary_pct=0.5),
    "GPTBigCode": causal("GPTBigCode", GPT),
    "OPT": causal("OPT", BERT, ffn_dim=10, word_embed_proj_dim=8),
    "XGLM": causal("XGLM", IDS, d_model=8, num_layers=1, attention_heads=2, ffn_dim=12, max_position_embeddings=16),
    "BioGPT": causal("BioGpt", BERT),
    "MPT": causal("Mpt", IDS, d_model=8, n_heads=2, n_layers=1, expansion_ratio=2, max_seq_len=16),
    "BLOOM": causal("Bloom", IDS, hidden_size=8, n_layer=1, n_head=2),
    "CTRL": ("CTRLConfig", "CTRLLMHeadModel", "tokens", GPT | {"dff": 12}),
    "OpenAI GPT": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", "tokens", GPT),
    "XLNet": ("XLNetConfig", "XLNetLMHeadModel", "tokens",
              IDS | {"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 10}),
    "RecurrentGemma": causal(
        "RecurrentGemma", LLAMA, lru_width=8, attention_window_size=8, num_hidden_layers=2, intermediate_size=12,
        block_types=["recurrent", "attention"],
    ),
    "Mamba": causal("Mamba", MAMBA),
    "Mamba 2": causal("Mamba2", MAMBA, num_heads=4, head_dim=4, n_groups=1, chunk_size=4),
    "RWKV": causal("Rwkv", IDS, hidden_size=8, attention_hidden_size=8, num_hidden_layers=2, intermediate_size=12,
                   use_cache=False),
    "LFM2": causal("Lfm2", WIDE, layer_types=["conv", "full_attention"], num_hidden_layers=2, block_ff_dim=10,
                   block_auto_adjust_ff_dim=False),
    "BERT": masked("Bert", BERT),
    "RoBERTa": masked("Roberta", BERT, max_position_embeddings=20),
    "DistilBERT": masked("DistilBert", IDS, dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=16),
    "DeBERTa-v2": masked("DebertaV2", BERT),
    "DeBERTa-v2, relative": masked(
        "DebertaV2", BERT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4,
        norm_rel_ebd="layer_norm", share_att_key=False,
    ),
    "ALBERT": masked("Albert", BERT),
    "ELECTRA": masked("Electra", BERT),
    "MobileBERT": masked("MobileBert", BERT, intra_bottleneck_size=8, true_hidden_size=8,
                         num_feedforward_networks=1),
    "SqueezeBERT": masked("SqueezeBert", BERT, embedding_size=8, q_groups=2, k_groups=2, v_groups=2,
                          intermediate_groups=2, output_groups=2, post_attention_groups=1),
    "FNet": masked("FNet", BERT),
    "ModernBERT": masked("ModernBert", BERT, global_attn_every_n_layers=2, local_attention=4,
                         num_hidden_layers=2, cls_token_id=1, sep_token_id=2),
    "ESM": masked("Esm", BERT, position_embedding_type="rotary", mask_token_id=3),
    "T5": seq2seq("T5", T5),
    "T5, gated": seq2seq("T5", T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "BART": seq2seq("Bart", SEQ2SEQ),
    "Pegasus": seq2seq("Pegasus", SEQ2SEQ),
    "mBART": seq2seq("MBart", SEQ2SEQ),
    "Whisper": ("WhisperConfig", "WhisperForConditionalGeneration", "audio", SEQ2SEQ | {
        "num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 16,
    }),
    "ViT": vision("ViT", VIT),
    "DeiT": vision("DeiT", VIT),
    "BEiT": vision("Beit", VIT, use_relative_position_bias=True, layer_scale_init_value=0.1),
    "DINOv2": vision("Dinov2", VIT, mlp_ratio=2),
    "DINOv2, SwiGLU": vision("Dinov2", VIT, mlp_ratio=2, use_swiglu_ffn=True),
    "Swin": vision("Swin", {"image_size": 8, "patch_size": 2, "num_channels": 2, "num_labels": 3}, embed_dim=4,
                   depths=[2, 1], num_heads=[2, 2], window_size=2, mlp_ratio=2.0),
    "ConvNeXt": vision("ConvNext", VIT, patch_size=2, hidden_sizes=[4, 6], depths=[1, 1], num_stages=2),
    "PoolFormer": vision("PoolFormer", VIT, hidden_sizes=[4, 6], depths=[1, 1], num_encoder_blocks=2,
                         patch_sizes=[3, 3], strides=[2, 2], padding=[1, 1], mlp_ratio=2.0),
    "ResNet (transformers)": vision("ResNet", VIT, embedding_size=4, hidden_sizes=[4, 6], depths=[1, 2],
                                    layer_type="basic"),
    "CLIP": ("CLIPConfig", "CLIPModel", "image and text", {
        "text_config": CLIP_TEXT, "vision_config": VIT, "projection_dim": 5,
    }),
    "SigLIP": ("SiglipConfig", "SiglipModel", "image and text", {
        "text_config": CLIP_TEXT | {"projection_size": 8}, "vision_config": VIT,
    }),
}  # fmt: skip

TRANSFORMERS = {name: lambda row=row: build(*row) for name, row in ROWS.items()}
"""Functions that build the architectures, by name."""
