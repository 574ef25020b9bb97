"""The fields of a configuration of `transformers` with small numbers, different ones for different sizes."""

import math
from collections.abc import Iterator
from typing import Any

__all__ = ["Fields", "layer_choices", "narrowed"]

Fields = dict[str, Any]
"""A configuration as a dict: `config.to_dict()`."""

LAYERS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
)  # fmt: skip
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
HEAD_WIDTHS = ("head_dim", "d_kv")
HIDDEN = (
    "intermediate_size", "intermediate_size_mlp", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim",
    "ffn_hidden_size", "hidden_dim", "moe_intermediate_size", "shared_expert_intermediate_size",
    "shared_intermediate_size",
)  # fmt: skip
SIDE_WIDTHS = (
    "embedding_size", "word_embed_proj_dim", "pooler_hidden_size", "pooler_output_size", "projection_dim",
    "classifier_proj_size", "state_size", "mamba_d_state", "time_step_rank", "mamba_dt_rank", "q_lora_rank",
    "kv_lora_rank", "qk_nope_head_dim", "v_head_dim",
)  # fmt: skip
"""Other widths. One that is equal to the hidden size stays equal to it."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "moe_top_k", "moe_k", "top_k_experts")
NUMBERED = ("moe_layers", "mlp_only_layers", "full_attn_idxs", "cross_attention_layers")
"""Lists of the numbers of layers; other lists that are as long as the network have an entry for each layer."""
MOST_LAYERS = 9
MOST_GROUP = 8
"""Largest number of query heads per key head that a twin keeps."""


class _Sizes:
    """Small numbers such that none is another one times 2 or 3."""

    def __init__(self) -> None:
        self._taken = {1, 2, 3, 4}

    def take(self, *numbers: int) -> None:
        self._taken |= set(numbers)

    def is_free(self, *numbers: int) -> bool:
        """Return whether numbers differ from each other and from all taken ones, also up to a factor of 2 or 3."""
        related = lambda n: {n, 2 * n, 3 * n, *(n // k for k in (2, 3) if n % k == 0)}
        rest = [number for number in numbers if number > 4]
        return len(rest) == len(set(rest)) and all(not related(n) & (self._taken - {1, 2, 3, 4}) for n in rest)

    def draw(self, least: int, multiple: int = 1) -> int:
        """Return the smallest free multiple of a number that is not below `least`, and take it."""
        number = math.ceil(least / multiple) * multiple
        while not self.is_free(number) or number <= 4:
            number += multiple
        self.take(number)
        return number

    def draw_count(self, least: int, multiple: int) -> int:
        """Return the smallest multiple of a number that is not taken and not below `least`, and take it."""
        number = next(n for n in range(least, 100) if n % multiple == 0 and n not in self._taken)
        self.take(number)
        return number


def layer_choices(fields: Fields) -> Iterator[list[int]]:
    """Return choices of layers of the network for its twin, the shortest first: the first, some between, the last.

    Layers between are chosen so that the twin has every entry of the lists with an entry for each layer.
    """
    count = max((value for _, value in _layer_fields(fields)), default=0)
    if count <= 3:
        if count:
            yield list(range(count))
        return
    lists = [value for _, value in _per_layer(fields, count)]
    kind = lambda n: tuple(str(value[n]) for value in lists)
    for length in range(3, min(MOST_LAYERS, count) + 1):
        between = range(1, count - 1)
        first_of_kind = list({kind(n): n for n in reversed(between)}.values())
        chosen = sorted(sorted(first_of_kind)[: length - 2])
        chosen += [n for n in between if n not in chosen][: length - 2 - len(chosen)]
        yield [0, *sorted(chosen), count - 1]


def _layer_fields(fields: Fields) -> Iterator[tuple[str, int]]:
    for key, value in fields.items():
        if key in LAYERS and isinstance(value, int):
            yield key, value
        elif isinstance(value, dict) and key.endswith("config"):
            yield from _layer_fields(value)


def _per_layer(fields: Fields, count: int) -> Iterator[tuple[str, list]]:
    for key, value in fields.items():
        if isinstance(value, list) and len(value) == count and key not in NUMBERED:
            yield key, value
        elif isinstance(value, dict) and key.endswith("config"):
            yield from _per_layer(value, count)


def narrowed(fields: Fields, layers: list[int]) -> Fields:
    """Return the configuration of a twin with these layers of the network."""
    count = max((value for _, value in _layer_fields(fields)), default=0)
    return _narrowed(fields, layers, count, _Sizes())


def _narrowed(fields: Fields, layers: list[int], count: int, sizes: _Sizes) -> Fields:
    new = {key: value for key, value in fields.items() if key not in ("quantization_config", "transformers_version")}
    _set_layers(new, layers, count)
    heads = [key for key in HEADS if isinstance(new.get(key), int)]
    if any(key in new for key in WIDTHS):
        _set_attention(new, fields, heads, sizes)
        _set_widths(new, fields, sizes)
    _set_experts(new, sizes)
    _set_tokens(new, sizes)
    for key, value in fields.items():
        if isinstance(value, dict) and key.endswith("config") and key in new:
            new[key] = _narrowed(value, layers, count, sizes)
    return new


def _set_layers(new: Fields, layers: list[int], count: int) -> None:
    place = {n: k for k, n in enumerate(layers)}
    for key, value in _per_layer(new, count):
        if key in new:
            new[key] = [value[n] for n in layers]
    for key in NUMBERED:
        if isinstance(new.get(key), list):
            new[key] = [place[n] for n in new[key] if n in place]
    for key in LAYERS:
        if isinstance(new.get(key), int):
            new[key] = min(len(layers), new[key])
    if isinstance(new.get("attention_types"), list) and "attention_layers" in new:  # GPT-Neo: [[[types], repeats]]
        new["attention_types"] = [[new["attention_layers"], 1]]
    for key in ("first_k_dense_replace", "moe_layer_start_index"):
        if isinstance(new.get(key), int):
            new[key] = min(1, new[key])


def _set_attention(new: Fields, fields: Fields, heads: list[str], sizes: _Sizes) -> None:
    """Set the numbers and the widths of heads, and the hidden size, which is a multiple of the number of heads."""
    width = next(key for key in WIDTHS if key in new)
    number = max((new[key] for key in heads), default=1)
    key_heads = [key for key in KEY_HEADS if isinstance(new.get(key), int)]
    fewer = min([number, *(new[key] for key in key_heads)])
    group = min(number // fewer, MOST_GROUP)
    few = 1 if fewer == 1 else 7 if fewer == number else 3
    many = min(number, 7) if fewer == 1 else few * group
    if isinstance(new.get("n_groups"), int) and new["n_groups"] > 1:  # groups of heads that share a state (Mamba 2)
        new["n_groups"], many = 7, 14
    for key in heads:
        new[key] = many
    for key in key_heads:
        new[key] = few if new[key] == fewer else many
    head = _head_width(new, fields, {few, many, many // few})
    sizes.take(few, many, head, head // 2, few * head, many * head)
    own = [key for key in HEAD_WIDTHS if isinstance(new.get(key), int)]
    for key in own:
        new[key] = head
    if "qk_rope_head_dim" in new:
        new["qk_rope_head_dim"] = head
    rest = new.keys() & {"expand", "mamba_expand"}
    if own and "expand" in rest:
        new[width] = many * head // new["expand"]
    elif own or "qk_rope_head_dim" in new or not heads:
        new[width] = sizes.draw(30, math.lcm(many, _alignment(new)))
    else:
        new[width] = many * head
    sizes.take(new[width], *(new[key] * new[width] for key in rest))


def _alignment(new: Fields) -> int:
    """Return the number that widths are multiples of: products of experts' matrices need rows of 16 bytes."""
    return 4 if any(isinstance(new.get(key), int) and new[key] > 1 for key in EXPERTS) else 1


def _head_width(new: Fields, fields: Fields, numbers: set[int]) -> int:
    """Return an even width of heads whose rotated part is even too; set the number of rotated entries if it is one."""
    part = _rotated_part(fields)
    used = {1, 2, 3, 4, *(k * n for n in numbers for k in (1, 2, 3))}
    for width in range(10, 400, 2):
        rotated = round(width * part)
        even = rotated % 2 == 0 and abs(rotated - width * part) < 1e-9 and rotated > 0
        parts = {width, width // 2, rotated, rotated // 2, *({width - rotated} - {0})}
        if even and not parts & used and max(numbers) * width % _alignment(new) == 0:
            break
    if isinstance(new.get("rotary_dim"), int):
        new["rotary_dim"] = rotated
    return width


def _rotated_part(fields: Fields) -> float:
    """Return the part of each head that RoPE rotates."""
    if isinstance(fields.get("rotary_dim"), int):
        width = next(fields[key] for key in WIDTHS if key in fields)
        return fields["rotary_dim"] / (width // max(fields[key] for key in HEADS if key in fields))
    rope = fields.get("rope_parameters")
    inner = [rope, *rope.values()] if isinstance(rope, dict) else []
    sources = [fields, *(source for source in inner if isinstance(source, dict))]
    parts = (source.get(key) for source in sources for key in ("partial_rotary_factor", "rotary_pct"))
    return next((part for part in parts if isinstance(part, int | float)), 1.0)


def _set_widths(new: Fields, fields: Fields, sizes: _Sizes) -> None:
    """Set the other widths; one that is equal to the hidden size of the network stays equal to it."""
    width = next(key for key in WIDTHS if key in new)
    expand = next((new[key] for key in ("expand", "mamba_expand") if isinstance(new.get(key), int)), None)
    for key in HIDDEN:
        if isinstance(new.get(key), int) and new[key] > 1:
            derived = expand is not None and fields[key] == expand * fields[width]
            new[key] = expand * new[width] if derived else sizes.draw(new[width] + 3, _alignment(new))
    for key in SIDE_WIDTHS:
        if isinstance(new.get(key), int) and new[key] > 1:
            new[key] = new[width] if fields[key] == fields[width] else sizes.draw(11, 2)  # RoPE may need even strides
    for key in WIDTHS:
        if key in new and key != width and isinstance(new[key], int):
            new[key] = new[width]
    if "qk_rope_head_dim" in new:
        new["qk_head_dim"] = new["qk_nope_head_dim"] + new["qk_rope_head_dim"]
        new["head_dim"] = new["qk_rope_head_dim"]


def _set_experts(new: Fields, sizes: _Sizes) -> None:
    groups = 2 if (new.get("n_group") or 1) > 1 else 1
    for key in EXPERTS:
        if isinstance(new.get(key), int) and new[key] > 5:
            new[key] = sizes.draw_count(5, groups)
    if groups > 1:
        new["n_group"], new["topk_group"] = 2, 1
    for key in PER_TOKEN:
        if isinstance(new.get(key), int):
            new[key] = min(new[key], 2)


def _set_tokens(new: Fields, sizes: _Sizes) -> None:
    """Set the vocabulary with the tokens that have a meaning, and the number of pixels."""
    if isinstance(new.get("vocab_size"), int) and new["vocab_size"] > 300:
        new["vocab_size"] = sizes.draw(251)
    most = new.get("vocab_size", math.inf)
    for key, value in new.items():
        if key.endswith("token_id") and isinstance(value, int | list):
            values = [v if v < most else k for k, v in enumerate(value if isinstance(value, list) else [value])]
            new[key] = values if isinstance(value, list) else values[0]
    if isinstance(new.get("image_size"), int) and isinstance(new.get("patch_size"), int):
        new["image_size"] = 3 * new["patch_size"]
