"""Networks with known symmetries: a builder, a batch and the expected census."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

LAYERS, WIDTH, HIDDEN, HEADS, KEY_HEADS, VOCABULARY = 2, 24, 36, 4, 2, 40
"""Sizes of the language models. HIDDEN is no multiple of WIDTH, and no two sizes are equal."""

Row = tuple[str, int, int, tuple[str, ...], tuple[str, ...]]
"""kind, size, block, minus, plus."""


@dataclass(frozen=True)
class Known:
    """A network with its expected symmetries."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    exact: tuple[Row, ...]
    scales: tuple[tuple[str, int], ...] = ()
    """The approximate symmetries, as kind and size."""


def square(model: nn.Module, x: Any) -> torch.Tensor:
    return model(x).square().mean()


def language(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch).loss


def tokens(count: int = 2, length: int = 7) -> dict[str, torch.Tensor]:
    drawn = torch.randint(0, VOCABULARY, (count, length))
    return {"input_ids": drawn, "labels": drawn}


def mlp(activation: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 3))


def neurons(kind: str, block: int) -> tuple[Row, ...]:
    return tuple(
        (kind, 8, block, (f"{k}.weight[i, :]", f"{k}.bias"), (f"{k + 2}.weight[:, i]",)) for k in (0, 2)
    )  # fmt: skip


def linear_chain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 6, bias=False), nn.Linear(6, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


class Attention(nn.Module):
    """`nn.MultiheadAttention` with a head that reads it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.attention(x, x, x, need_weights=False)[0]))


def llama_like(name: str) -> nn.Module:
    import transformers

    facts = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "max_position_embeddings": 32,
    }  # fmt: skip
    if name != "Qwen2":
        facts["head_dim"] = WIDTH // HEADS
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**facts))


def gpt2() -> nn.Module:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=HIDDEN, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def adapter(base: Callable[[], nn.Module] = lambda: llama_like("Llama"), **options: Any) -> nn.Module:
    import peft

    options = {"r": 3, "target_modules": ["q_proj", "down_proj"]} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(base(), peft.LoraConfig(**options))


def llama_rows(*, biases: bool = False, gains: bool = False, one_plus: bool = False, tied: bool = False) -> list[Row]:
    """Return the expected symmetries of the Llama family."""
    rows: list[Row] = []
    norm = lambda name: f"(1 + {name})" if one_plus else name
    pairs = KEY_HEADS * WIDTH // HEADS // 2
    for layer in (f"model.layers.{k}" for k in range(LAYERS)):
        attention = f"{layer}.self_attn"
        out = lambda name, a=attention: (f"{a}.{name}.weight[i, :]", *((f"{a}.{name}.bias",) if biases else ()))
        read = lambda *names, p: tuple(f"{p}.{name}.weight[:, i]" for name in names)
        rows += [
            ("gain against readers", WIDTH, 1, (norm(f"{layer}.input_layernorm.weight"),),
             read("q_proj", "k_proj", "v_proj", p=attention)),
            ("gain against readers", WIDTH, 1, (norm(f"{layer}.post_attention_layernorm.weight"),),
             read("gate_proj", "up_proj", p=f"{layer}.mlp")),
            ("up against down", HIDDEN, 1, (f"{layer}.mlp.up_proj.weight[i, :]",), read("down_proj", p=f"{layer}.mlp")),
            ("OV", KEY_HEADS * WIDTH // HEADS, WIDTH // HEADS, out("v_proj"), read("o_proj", p=attention)),
        ]  # fmt: skip
        if gains:
            q, k = (f"{attention}.{name}_norm.weight" for name in "qk")
            rows.append(("QK gains on RoPE pairs", WIDTH // HEADS // 2, 1, (k,), (q,)))
        else:
            rows.append(("QK on RoPE pairs", pairs, 1, out("k_proj"), out("q_proj")))
    if not tied:
        rows.append(("gain against readers", WIDTH, 1, (norm("model.norm.weight"),), ("lm_head.weight[:, i]",)))
    return rows


def gpt2_rows() -> list[Row]:
    rows: list[Row] = []
    for layer in (f"transformer.h.{k}" for k in range(LAYERS)):
        fused, bias = f"{layer}.attn.c_attn.weight", f"{layer}.attn.c_attn.bias"
        piece = lambda k: f"{k * WIDTH}:{(k + 1) * WIDTH}"
        for norm, reader in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc")):
            written = (f"{layer}.{norm}.weight", f"{layer}.{norm}.bias")
            rows.append(("gain against readers", WIDTH, 1, written, (f"{layer}.{reader}.weight[i, :]",)))
        queries, values = ((f"{fused}[:, {piece(k)}]", f"{bias}[{piece(k)}]") for k in (0, 2))
        rows.append(("QK", WIDTH, WIDTH // HEADS, (f"{fused}[:, {piece(1)}]",), queries))
        rows.append(("OV", WIDTH, WIDTH // HEADS, values, (f"{layer}.attn.c_proj.weight[i, :]",)))
    return rows


def bert_rows() -> list[Row]:
    rows: list[Row] = []
    for layer in (f"bert.encoder.layer.{k}" for k in range(LAYERS)):
        out = lambda name, s=f"{layer}.attention.self": (f"{s}.{name}.weight[i, :]", f"{s}.{name}.bias")
        rows.append(("QK", WIDTH, WIDTH // HEADS, out("key")[:1], out("query")))
        rows.append(
            ("OV", WIDTH, WIDTH // HEADS, out("value"), (f"{layer}.attention.output.dense.weight[:, i]",))
        )  # fmt: skip
    last = f"bert.encoder.layer.{LAYERS - 1}.output.LayerNorm"
    readers = ("cls.predictions.transform.dense.weight[:, i]",)
    rows.append(("gain against readers", WIDTH, 1, (f"{last}.weight", f"{last}.bias"), readers))
    return rows


def adapter_rows() -> list[Row]:
    return [
        ("LoRA", 3, 3, (f"{p}.lora_A.default.weight[i, :]",), (f"{p}.lora_B.default.weight[:, i]",))
        for k in range(LAYERS)
        for p in (f"base_model.model.model.layers.{k}.{place}" for place in ("self_attn.q_proj", "mlp.down_proj"))
    ]


STREAM = (("whole scale", 1),)
"""The scale of the residual stream."""

vector = lambda: torch.randn(6, 5)
KNOWN = {
    "relu": Known(lambda: mlp(nn.ReLU), vector, square, neurons("rescaling", 1)),
    "leaky": Known(lambda: mlp(nn.LeakyReLU), vector, square, neurons("rescaling", 1)),
    "tanh": Known(lambda: mlp(nn.Tanh), vector, square, ()),
    "gelu": Known(lambda: mlp(nn.GELU), vector, square, ()),
    "linear": Known(linear_chain, vector, square, (
        ("GL", 8, 8, ("0.weight[i, :]", "0.bias"), ("1.weight[:, i]",)),
        ("GL", 6, 6, ("1.weight[i, :]",), ("2.weight[:, i]",)),
    )),
    "conv": Known(convolutions, lambda: torch.randn(5, 3, 9, 9), square, (
        ("gain against readers", 6, 1, ("1.weight", "1.bias"), ("3.weight[:, i, :, :]",)),
        ("gain against readers", 4, 1, ("4.weight", "4.bias"), ("8.weight[:, i]",)),
    ), (("scale into a norm", 6), ("scale into a norm", 4))),
    "attention": Known(Attention, lambda: torch.randn(2, 6, 12), square, (
        ("QK", 12, 4, ("attention.in_proj_weight[12:24, :]",),
         ("attention.in_proj_weight[0:12, :]", "attention.in_proj_bias[0:12]")),
        ("OV", 12, 4, ("attention.in_proj_weight[24:36, :]", "attention.in_proj_bias[24:36]"),
         ("attention.out_proj.weight[:, i]",)),
    )),
    "GPT-2": Known(gpt2, tokens, language, tuple(gpt2_rows()), STREAM),
    "BERT": Known(bert, tokens, language, tuple(bert_rows()), STREAM * (2 * LAYERS + 1)),
    "Llama": Known(lambda: llama_like("Llama"), tokens, language, tuple(llama_rows()), STREAM),
    "Qwen2": Known(lambda: llama_like("Qwen2"), tokens, language, tuple(llama_rows(biases=True)), STREAM),
    "Qwen3": Known(lambda: llama_like("Qwen3"), tokens, language, tuple(llama_rows(gains=True)), (
        *STREAM, *[("scale into a norm", count) for _ in range(LAYERS) for count in (HEADS, KEY_HEADS)],
    )),
    "Gemma": Known(lambda: llama_like("Gemma"), tokens, language, tuple(llama_rows(one_plus=True, tied=True)), STREAM),
    "LoRA": Known(adapter, tokens, language, tuple(adapter_rows())),
    "DoRA": Known(lambda: adapter(use_dora=True), tokens, language, tuple(adapter_rows())),
}  # fmt: skip


def build(name: str, seed: int = 0) -> tuple[nn.Module, Any, Callable]:
    """Return a model, a batch and its loss."""
    torch.manual_seed(seed)
    known = KNOWN[name]
    return known.build(), known.batch(), known.loss
