"""Layers from which `tests.torch.generator` builds random networks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class Clamp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(-1.5, 2.0)


class OnePlusNorm(nn.Module):
    """RMSNorm that multiplies by 1 + weight."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class StochasticDepth(nn.Module):
    """A branch that is dropped for a whole batch, or for single samples."""

    def __init__(self, branch: nn.Module, rate: float, mode: str):
        super().__init__()
        self.branch, self.rate, self.mode = branch, rate, mode

    def forward(self, x: Tensor) -> Tensor:
        h = self.branch(x)
        if not self.training:
            return x + h
        shape = (len(x) if self.mode == "row" else 1, *[1] * (x.ndim - 1))
        keep = (torch.rand(shape, device=x.device) >= self.rate).to(x.dtype)
        return x + h * keep / (1 - self.rate)


class Residual(nn.Module):
    def __init__(self, branch: nn.Module):
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Concatenated(nn.Module):
    """Branches side by side on the axis of features."""

    def __init__(self, axis: int, *branches: nn.Module):
        super().__init__()
        self.axis, self.branches = axis, nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], self.axis)


class Gated(nn.Module):
    """A gated MLP, with gate and up in one matrix or in two."""

    def __init__(self, width: int, hidden: int, activation: nn.Module, *, fused: bool, bias: bool):
        super().__init__()
        self.activation, self.fused = activation, fused
        if fused:
            self.gate_up_proj = nn.Linear(width, 2 * hidden, bias=bias)
        else:
            self.gate, self.up = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1) if self.fused else (self.gate(x), self.up(x))
        return self.down(self.activation(gate) * up)


class Experts(nn.Module):
    """A mixture of experts with 3-D weights; every expert is used with the weight of a softmax router."""

    def __init__(self, width: int, hidden: int, count: int, *, gated: bool, transposed: bool):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.gated, self.transposed = gated, transposed
        rows = 2 * hidden if gated else hidden
        shape = lambda a, b: (count, b, a) if transposed else (count, a, b)
        self.gate_up_proj = nn.Parameter(torch.randn(shape(rows, width)) / width**0.5)
        self.down_proj = nn.Parameter(torch.randn(shape(width, hidden)) / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.gate_up_proj, self.down_proj
        if self.transposed:
            first, last = first.mT, last.mT
        h = torch.einsum("ehd,...d->...eh", first, x)
        if self.gated:
            gate, up = h.chunk(2, -1)
            h = F.silu(gate) * up
        else:
            h = F.relu(h)
        return torch.einsum("edh,...eh,...e->...d", last, h, torch.softmax(self.router(x), -1))


class LowRank(nn.Module):
    """The product of two matrices; with a base it is an adapter beside a matrix that may be frozen."""

    def __init__(self, width: int, rank: int, out: int, base: str):
        super().__init__()
        self.lora_A, self.lora_B = nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False)
        self.base = nn.Linear(width, out) if base else None
        if base == "frozen":
            self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        product = self.lora_B(self.lora_A(x))
        return product if self.base is None else self.base(x) + product


class Tied(nn.Module):
    """Encoder and decoder with the same matrix."""

    def __init__(self, width: int, hidden: int, activation: nn.Module):
        super().__init__()
        self.first, self.activation, self.bias = nn.Linear(width, hidden), activation, nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.activation(self.first(x)), self.first.weight.T, self.bias)


def rotate(x: Tensor, rotary: int, style: str) -> Tensor:
    """Apply RoPE to the first `rotary` entries of each head: (batch, heads, time, width)."""
    turned, rest = x[..., :rotary], x[..., rotary:]
    angles = torch.outer(torch.arange(x.shape[-2]).to(x), 0.7 ** torch.arange(rotary // 2).to(x))
    cos, sin = angles.cos(), angles.sin()
    if style == "half":
        one, two = turned.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin, rest], -1)
    one, two = turned[..., ::2], turned[..., 1::2]
    pairs = torch.stack([one * cos - two * sin, two * cos + one * sin], -1)
    return torch.cat([pairs.flatten(-2), rest], -1)


class Attention(nn.Module):
    """Attention with grouped queries, RoPE, fused projections in several layouts, or a memory to attend to."""

    HINTS = (("num_heads", "num_key_value_heads", "head_dim"), ("n_head", "n_kv_head", "head_size"), ())

    def __init__(
        self, width: int, heads: int, key_heads: int, head: int, *, layout: str, rope: str, rotary: int, bias: bool,
        memory: int = 0, norms: bool = False, hints: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.layout, self.rope, self.memory, self._sizes = layout, rope, memory, (heads, key_heads, head, rotary)
        for name, value in zip(self.HINTS[hints], (heads, key_heads, head), strict=False):
            setattr(self, name, value)
        if rotary < head and hints < 2:
            self.rotary_ndims = rotary
        total = (heads + 2 * key_heads) * head
        if layout == "separate":
            self.q_proj = nn.Linear(width, heads * head, bias=bias)
            self.k_proj, self.v_proj = (nn.Linear(memory or width, key_heads * head, bias=bias) for _ in range(2))
        else:
            name = {"contiguous": "qkv", "heads": "query_key_value", "groups": "query_key_value"}[layout]
            self.fused_name = name
            setattr(self, name, nn.Linear(width, total, bias=bias))
        self.o_proj = nn.Linear(heads * head, width, bias=bias)
        self.q_norm, self.k_norm = (nn.RMSNorm(head) if norms else nn.Identity() for _ in range(2))

    def _split(self, x: Tensor, memory: Tensor) -> list[Tensor]:
        heads, key_heads, head, _ = self._sizes
        shape = x.shape[:2]
        if self.layout == "separate":
            parts = self.q_proj(x), self.k_proj(memory), self.v_proj(memory)
            return [p.reshape(*p.shape[:2], -1, head).transpose(1, 2) for p in parts]
        fused = getattr(self, self.fused_name)(x)
        if self.layout == "contiguous":
            parts = fused.split([heads * head, key_heads * head, key_heads * head], -1)
            return [p.reshape(*shape, -1, head).transpose(1, 2) for p in parts]
        group = heads // key_heads  # with one query head in a group: head by head
        fused = fused.reshape(*shape, key_heads, group + 2, head)
        q, k, v = fused[:, :, :, :group], fused[:, :, :, group], fused[:, :, :, group + 1]
        return [q.reshape(*shape, heads, head).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)]

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        heads, key_heads, head, rotary = self._sizes
        q, k, v = self._split(x, x if memory is None else memory)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rope:
            q, k = rotate(q, rotary, self.rope), rotate(k, rotary, self.rope)
        k, v = (t.repeat_interleave(heads // key_heads, 1) for t in (k, v))
        mixed = torch.softmax(q @ k.mT / head**0.5, -1) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` on one sequence."""

    def __init__(self, width: int, heads: int, *, bias: bool):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class CrossAttention(nn.Module):
    """Attention to the encoding of the same sequence by another layer, with a norm of the memory."""

    def __init__(self, width: int, memory: int, attention: Attention, norm: nn.Module):
        super().__init__()
        self.encoder, self.norm, self.attention = nn.Linear(width, memory), norm, attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, self.norm(torch.tanh(self.encoder(x))))
