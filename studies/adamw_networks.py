"""Networks and data of the study of AdamW: six small architectures, on digits and on noisy text."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.training import Adapted, Text, cross_entropy, digits, grammar, mlp

__all__ = ["NETWORKS", "Generators", "Sizes", "Task", "adapters", "census_rows", "task"]

NETWORKS = ("ReLU network", "convolutions", "Llama", "ViT", "GPT-2", "LoRA")
WRONG = 0.15
"""Fraction of wrong labels of digits, and of words of a text that are replaced by random words."""


class Sizes(NamedTuple):
    """Sizes of the networks and batches."""

    hidden: int = 16
    """Width of the ReLU network, and channels of the convolutions."""
    width: int = 64
    heads: int = 4
    layers: int = 2
    tokens: int = 32
    batch: int = 32
    text_batch: int = 8
    rank: int = 4
    sentences: int = 40_000


class Convolution(nn.Module):
    """A convolution by 3 x 3 as a matrix product, which is batched over networks faster than `nn.Conv2d`."""

    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outside, inside, 3, 3) * (2 / (9 * inside)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outside))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (samples, channels, height, width) to images that are smaller by 2."""
        high, wide = x.shape[-2] - 2, x.shape[-1] - 2
        shifted = torch.stack([x[..., i : i + high, j : j + wide] for i in range(3) for j in range(3)], -3)
        out = self.weight.flatten(1) @ shifted.flatten(-4, -3).flatten(-2) + self.bias[:, None]
        return out.unflatten(-1, (high, wide))


class Convolutions(nn.Module):
    """Three convolutions with ReLU and a linear layer, for images of 8 x 8."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.second = Convolution(1, channels), Convolution(channels, 2 * channels)
        self.third, self.head = Convolution(2 * channels, 2 * channels), nn.Linear(2 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map pixels (samples, 64) to logits (samples, 10)."""
        x = self.first(x.unflatten(-1, (1, 8, 8))).relu()
        return self.head(self.third(self.second(x).relu()).relu().mean((-1, -2)))


class Attention(nn.Module):
    """Attention with rotary positions (Llama) or without."""

    def __init__(self, width: int, heads: int, *, bias: bool, rotary: bool, causal: bool):
        super().__init__()
        self.num_heads, self.head_dim, self.rotary, self.causal = heads, width // heads, rotary, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def _rotated(self, x: Tensor) -> Tensor:
        half = self.head_dim // 2
        rates = 100.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
        angle = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] * rates
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, tokens, width) to the same shape."""
        split = lambda y: y.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        if self.rotary:
            q, k = self._rotated(q), self._rotated(k)
        scores = q @ k.mT / math.sqrt(self.head_dim)
        if self.causal:
            future = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2))


class RMSNorm(nn.Module):
    """The norm of Llama, in elementary operations."""

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root mean square and multiply by the gain."""
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class LlamaBlock(nn.Module):
    """RMS norms, rotary attention and a gated network."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.before, self.between = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads, bias=False, rotary=True, causal=True)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, tokens, width) to the same shape."""
        x = x + self.attention(self.before(x))
        read = self.between(x)
        return x + self.down(functional.silu(self.gate(read)) * self.up(read))


class Block(nn.Module):
    """Layer norms, attention with biases and a GELU network; with factors of each branch for a ViT (LayerScale)."""

    def __init__(self, width: int, heads: int, *, factors: bool):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, bias=True, rotary=False, causal=not factors)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        scale = lambda: nn.Parameter(torch.full((width,), 0.1)) if factors else None
        self.attention_factor, self.mlp_factor = scale(), scale()

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, tokens, width) to the same shape."""
        scaled = lambda factor, y: y if factor is None else factor * y
        x = x + scaled(self.attention_factor, self.attention(self.before(x)))
        return x + scaled(self.mlp_factor, self.down(functional.gelu(self.up(self.between(x)))))


class Decoder(nn.Module):
    """A language model: Llama with its own head, or GPT-2 with learned positions and the head tied to the words."""

    def __init__(self, words: int, sizes: Sizes, *, llama: bool):
        super().__init__()
        width = sizes.width
        self.words = nn.Parameter(0.3 * torch.randn(words, width))
        self.places = None if llama else nn.Parameter(0.3 * torch.randn(sizes.tokens, width))
        blocks = (LlamaBlock(width, sizes.heads) if llama else Block(width, sizes.heads, factors=False)
                  for _ in range(sizes.layers))  # fmt: skip
        self.layers = nn.ModuleList(blocks)
        self.last = RMSNorm(width) if llama else nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False) if llama else None

    def forward(self, ids: Tensor) -> Tensor:
        """Map integers (samples, tokens) to logits (samples, tokens, words)."""
        numbers = torch.arange(self.words.shape[0], device=ids.device)
        x = (ids[..., None] == numbers).to(self.words.dtype) @ self.words
        x = x if self.places is None else x + self.places
        for layer in self.layers:
            x = layer(x)
        x = self.last(x)
        return x @ self.words.mT if self.head is None else self.head(x)


class ViT(nn.Module):
    """A vision transformer on 16 patches of 2 x 2 pixels, with LayerScale."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.patches, self.places = nn.Linear(4, sizes.width), nn.Parameter(0.3 * torch.randn(16, sizes.width))
        self.layers = nn.ModuleList(Block(sizes.width, sizes.heads, factors=True) for _ in range(sizes.layers))
        self.last, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map pixels (samples, 64) to logits (samples, 10)."""
        patches = x.unflatten(-1, (4, 2, 4, 2)).transpose(-2, -3).flatten(-2).flatten(-3, -2)
        x = self.patches(patches) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last(x).mean(-2))


class Task(NamedTuple):
    """Networks of all seeds and their data."""

    nets: list[nn.Module]
    batch: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Return the batch of indices (..., samples)."""
    indices: int
    """Number of different samples or windows."""
    samples: int
    """Samples of a minibatch."""
    loss: Callable[[Callable[[Tensor], Tensor], tuple[Tensor, Tensor]], Tensor] = cross_entropy
    """Mean loss of a model on a batch."""


def adapters(net: nn.Module, rank: int) -> nn.Module:
    """Freeze a Llama and add adapters to queries, values and the last layer of each block."""
    net.requires_grad_(False)
    for block in net.layers:
        for inside, place in ((block.attention, "query"), (block.attention, "value"), (block, "down")):
            setattr(inside, place, Adapted(getattr(inside, place), rank))
    return net


def _noisy_windows(text: Text, starts: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return windows in which some words are replaced by random words, drawn anew each time."""
    windows = text.ids[starts[..., None] + torch.arange(tokens + 1, device=starts.device)]
    other = torch.randint(0, text.words, windows.shape, device=windows.device)
    windows = torch.where(torch.rand(windows.shape, device=windows.device) < WRONG, other, windows)
    return windows[..., :-1], windows[..., 1:]


def _noisy_digits(pixels: Tensor | None, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    x, y = digits() if pixels is None or classes is None else (pixels, classes)
    generator = torch.Generator().manual_seed(3)
    other = torch.randint(0, 10, y.shape, generator=generator)
    return x, torch.where(torch.rand(y.shape, generator=generator) < WRONG, other, y)


def task(
    name: str, sizes: Sizes, seeds: int, device: torch.device, images: tuple[Tensor, Tensor] | None = None,
    base: dict[str, Tensor] | None = None,
) -> Task:  # fmt: skip
    """Return one of the six tasks. `images` are the digits if scikit-learn is missing; `base` is for adapters."""
    build: dict[str, Callable[[int], nn.Module]] = {
        "ReLU network": lambda words: mlp(64, sizes.hidden, 10),
        "convolutions": lambda words: Convolutions(sizes.hidden),
        "Llama": lambda words: Decoder(words, sizes, llama=True),
        "ViT": lambda words: ViT(sizes),
        "GPT-2": lambda words: Decoder(words, sizes, llama=False),
        "LoRA": lambda words: Decoder(words, sizes, llama=True),
    }
    of_text = name in ("Llama", "GPT-2", "LoRA")
    text = (
        (grammar(sizes.sentences, 0) if base is None else grammar(sizes.sentences, 1, tilt=-1.0)) if of_text else None
    )
    nets: list[nn.Module] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        net = build[name](0 if text is None else text.words)
        if base is not None:
            net.load_state_dict(base)
        nets.append(adapters(net, sizes.rank) if name == "LoRA" else net)
    if text is None:
        x, y = (part.to(device) for part in _noisy_digits(*(images or (None, None))))
        return Task(nets, lambda index: (x[index], y[index]), len(x), sizes.batch)
    text = Text(text.words, text.ids.to(device))
    last = len(text.ids) - sizes.tokens - 1
    return Task(nets, lambda index: _noisy_windows(text, index, sizes.tokens), last, sizes.text_batch)


class Generators(NamedTuple):
    """Diagonal generators of a network: the columns of the sums over rows of parameters on each side."""

    families: list[str]
    """Kind of each generator."""
    symmetry: list[int]
    """Number of the symmetry to which each generator belongs."""
    keys: list[tuple[str, int, int]]
    """Parameter, axis and length of each block of columns."""
    plus: np.ndarray
    """(generators, columns), 1 where a row of a parameter is on this side."""
    minus: np.ndarray


FAMILIES = {
    "GL": "OV", "QK on RoPE pairs": "QK", "up against down": "up/down", "gain against readers": "gains",
    "rescaling": "ReLU neurons",
}  # fmt: skip
"""Shorter names of kinds of symmetries."""


def census_rows(mine: Task) -> Generators:
    """Return the diagonal generators of the exact symmetries of a network, by its census."""
    from undertow.torch import census

    net = mine.nets[0]
    generator = torch.Generator().manual_seed(5)
    index = torch.randint(0, mine.indices, (4,), generator=generator)
    symmetries = list(census(net, mine.batch(index), cross_entropy))
    used = dict.fromkeys((a.parameter, a.axis, a.length) for s in symmetries for a in s.axes)
    keys = list(used)
    places = dict(zip(keys, np.cumsum([0, *(length for *_, length in keys[:-1])]), strict=True))
    columns = sum(length for *_, length in keys)
    families: list[str] = []
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for symmetry in symmetries:
        factor = any("factor" in axis.parameter for axis in symmetry.axes)
        families += ["LayerScale" if factor else FAMILIES.get(symmetry.kind, symmetry.kind)] * symmetry.size
        for rows, side in zip(sides, (symmetry.plus, symmetry.minus), strict=True):
            matrix = np.zeros((symmetry.size, columns), np.float32)
            for axis in side:
                start = places[axis.parameter, axis.axis, axis.length]
                np.put_along_axis(matrix, start + axis.index, 1.0, 1)
            rows.append(matrix)
    number = [place for place, symmetry in enumerate(symmetries) for _ in range(symmetry.size)]
    return Generators(families, number, keys, np.concatenate(sides[0]), np.concatenate(sides[1]))
