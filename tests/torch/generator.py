"""Random networks: graphs of the layers that networks are made of, by seed, each with a batch and a loss.

>>> network = random_network(3)
>>> loss = network.loss(network.model, network.batch)
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.torch.layers import (
    Attention,
    Clamp,
    Concatenated,
    CrossAttention,
    Experts,
    Gated,
    LowRank,
    OnePlusNorm,
    Residual,
    SelfAttention,
    SquaredReLU,
    StochasticDepth,
    Tied,
)

__all__ = ["Network", "random_network"]

WIDTHS = (3, 4, 4, 5, 6, 6, 8)
"""Widths of layers. Some occur twice, so that axes of different layers often have the same length."""


class Network(NamedTuple):
    """A random network."""

    model: nn.Module
    batch: Any
    loss: Callable[[nn.Module, Any], Tensor]
    description: str


Part = tuple[nn.Module, int, str]
"""A layer, the width of its outputs, and its name in the description."""


def activation(r: random.Random) -> tuple[nn.Module, str]:
    """Return an activation; half of them are homogeneous."""
    make: dict[str, Callable[[], nn.Module]] = {
        "relu": nn.ReLU, "leaky": lambda: nn.LeakyReLU(0.2), "relu^2": SquaredReLU, "identity": nn.Identity,
        "prelu": nn.PReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU, "softplus": nn.Softplus,
        "relu6": nn.ReLU6, "hardtanh": nn.Hardtanh, "clamp": Clamp,
    }  # fmt: skip
    weights = (6, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1)
    name = r.choices(list(make), weights)[0]
    return make[name](), name


def norm(r: random.Random, width: int, domain: str) -> tuple[nn.Module, str]:
    """Return a norm for vectors, images or sequences."""
    divisors = [k for k in range(1, width) if width % k == 0 and width // k > 2]  # two entries would be a and -a
    make: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(width) if domain == "image" else nn.BatchNorm1d(width),
        "group": lambda: nn.GroupNorm(r.choice(divisors), width),
        "layer": lambda: nn.LayerNorm(width), "rms": lambda: nn.RMSNorm(width), "1+rms": lambda: OnePlusNorm(width),
        "plain": lambda: nn.LayerNorm(width, elementwise_affine=False),
    }  # fmt: skip
    kinds = {
        "image": ("batch", "group"),
        "vector": ("batch", "group", "layer", "rms"),
        "sequence": ("layer", "rms", "1+rms"),
    }
    name = r.choice((*kinds[domain], *(() if domain == "image" else ("plain",) if r.random() < 0.2 else ())))
    return make[name](), f"{name} norm"


def dense(r: random.Random, width: int, domain: str) -> Part:
    """Return a linear layer, with an activation and sometimes a norm and dropout."""
    out = r.choice(WIDTHS)
    layers: list[nn.Module] = [nn.Linear(width, out, bias=r.random() < 0.7)]
    names = ["linear"]
    if r.random() < 0.3:
        layer, name = norm(r, out, domain)
        layers, names = [*layers, layer], [*names, name]
    layer, name = activation(r)
    layers, names = [*layers, layer], [*names, name]
    if r.random() < 0.2:
        layers, names = [*layers, nn.Dropout(0.3)], [*names, "dropout"]
    return nn.Sequential(*layers), out, " ".join(names)


def branch(r: random.Random, width: int, domain: str) -> tuple[nn.Module, str]:
    """Return a layer from a width to itself: an MLP, a gated MLP, experts, a product or attention."""
    hidden, bias = r.choice(WIDTHS), r.random() < 0.6
    kinds = ("mlp", "gated", "experts", "low rank", "tied")
    kind = r.choice(kinds + ("attention",) * 5 if domain == "sequence" else kinds)
    layer, name = activation(r)
    if kind == "attention":
        return attention(r, width)
    if kind == "mlp":
        first, last = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)
        return nn.Sequential(first, layer, last), f"mlp {name}"
    if kind == "gated":
        fused = r.random() < 0.5
        return Gated(width, hidden, layer, fused=fused, bias=bias), f"{'fused ' * fused}gated {name}"
    if kind == "experts":
        gated, transposed = r.random() < 0.5, r.random() < 0.5
        experts = Experts(width, r.choice((3, 4, 5)), r.choice((2, 3)), gated=gated, transposed=transposed)
        return experts, f"{'gated ' * gated}{'transposed ' * transposed}experts"
    if kind == "low rank":
        base = r.choice(("", "trained", "frozen"))
        return LowRank(width, r.choice((2, 3)), width, base), f"low rank {base}".strip()
    return Tied(width, hidden, layer), f"tied {name}"


def attention(r: random.Random, width: int) -> tuple[nn.Module, str]:
    """Return attention on a sequence."""
    key_heads, group, head, bias = r.choice((1, 2, 2)), r.choice((1, 1, 2)), r.choice((2, 4)), r.random() < 0.5
    if r.random() < 0.15 and width % 2 == 0:
        return SelfAttention(width, 2, bias=bias), "nn.MultiheadAttention"
    rope = r.choice(("", "", "half", "interleaved"))
    rotary = head // 2 if rope and head == 4 and r.random() < 0.3 else head
    layout = r.choice(("separate", "separate", "contiguous", "heads", "groups"))
    group = 1 if layout == "heads" else group
    hints, norms = r.choice((0, 0, 1, 2)), layout == "separate" and r.random() < 0.2
    memory = r.choice(WIDTHS) if layout == "separate" and r.random() < 0.3 else 0
    layer = Attention(
        width, key_heads * group, key_heads, head, layout=layout, rope=rope, rotary=rotary, bias=bias, memory=memory,
        norms=norms, hints=hints,
    )  # fmt: skip
    words = [
        "cross" * bool(memory), f"{layout} attention {key_heads * group}/{key_heads}x{head}", rope and f"{rope} rope",
        "in part" * (rotary < head), "with norms" * norms, "without attributes" * (hints == 2),
    ]  # fmt: skip
    description = " ".join(filter(None, words))
    if not memory:
        return layer, description
    return CrossAttention(width, memory, layer, norm(r, memory, "sequence")[0]), description


def block(r: random.Random, width: int, domain: str) -> Part:
    """Return a part of a network on vectors or sequences."""
    kind = r.choice(("dense", "residual", "post-norm", "depth", "cat", "plain"))
    if kind == "dense":
        return dense(r, width, domain)
    if kind == "cat":
        parts = [dense(r, width, domain) for _ in range(2)]
        if r.random() < 0.4:
            parts[0] = (nn.Identity(), width, "identity")
        one, two = parts
        layer, name = activation(r)
        both = nn.Sequential(Concatenated(-1, one[0], two[0]), nn.Linear(one[1] + two[1], width), layer)
        return both, width, f"cat({one[2]} | {two[2]}) linear {name}"
    layer, name = branch(r, width, domain)
    if kind == "plain":
        return layer, width, name
    first, norm_name = norm(r, width, domain)
    if kind == "post-norm":
        return nn.Sequential(Residual(layer), first), width, f"residual({name}) {norm_name}"
    inner, name = (nn.Sequential(first, layer), f"{norm_name} {name}") if r.random() < 0.8 else (layer, name)
    if kind == "depth":
        mode = r.choice(("batch", "row"))
        return StochasticDepth(inner, 0.3, mode), width, f"stochastic depth by {mode}({name})"
    return Residual(inner), width, f"residual({name})"


def convolution(r: random.Random, width: int) -> Part:
    """Return a convolution that keeps the size of images, with an activation and sometimes a norm."""
    kind = r.choice(("plain", "plain", "plain", "depthwise", "grouped", "transposed"))
    out, bias = r.choice(WIDTHS), r.random() < 0.6
    if kind == "depthwise":
        out, layer = width, nn.Conv2d(width, width, 3, padding=1, groups=width, bias=bias)
    elif kind == "grouped" and width % 2 == 0:
        out = 2 * r.choice((2, 3))
        layer = nn.Conv2d(width, out, 3, padding=1, groups=2, bias=bias)
    elif kind == "transposed":
        layer = nn.ConvTranspose2d(width, out, 3, padding=1, bias=bias)
    else:
        kind, layer = "plain", nn.Conv2d(width, out, r.choice((1, 3)), padding="same", bias=bias)
    layers, names = [layer], [f"{kind} conv"]
    if r.random() < 0.4:
        between, name = norm(r, out, "image")
        layers, names = [*layers, between], [*names, name]
    last, name = activation(r)
    return nn.Sequential(*layers, last), out, " ".join([*names, name])


def image_block(r: random.Random, width: int) -> Part:
    """Return a part of a network on images."""
    kind = r.choice(("conv", "conv", "residual", "depth", "cat"))
    one, out, name = convolution(r, width)
    if kind == "conv":
        return one, out, name
    if kind == "cat":
        two, more, other = (nn.Identity(), width, "identity") if r.random() < 0.5 else convolution(r, width)
        return Concatenated(1, one, two), out + more, f"cat({name} | {other})"
    inner = nn.Sequential(one, nn.Conv2d(out, width, 3, padding=1))
    if kind == "residual":
        return Residual(inner), width, f"residual({name} conv)"
    mode = r.choice(("batch", "row"))
    return StochasticDepth(inner, 0.3, mode), width, f"stochastic depth by {mode}({name} conv)"


def network_parts(r: random.Random, domain: str) -> tuple[list[Part], Tensor]:
    """Return the parts of a network up to its head, and inputs."""
    width = r.choice(WIDTHS)
    if domain == "image":
        side, parts = r.choice((2, 3)), []
        inputs = torch.randn(5, r.choice((1, 2, 3)), side, side)
        first = r.choice(WIDTHS)
        parts.append((nn.Conv2d(inputs.shape[1], first, 3, padding=1), first, "conv"))
        for _ in range(r.choice((1, 2))):
            parts.append(image_block(r, parts[-1][1]))
        if r.random() < 0.6:
            parts.append((nn.Flatten(), parts[-1][1] * side**2, "flatten"))
        else:
            pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            parts.append((pool, parts[-1][1], "pool"))
        return parts, inputs
    if domain == "vector":
        inputs = torch.randn(7, r.choice((3, 5)))
        parts = [(nn.Linear(inputs.shape[1], width), width, "linear")]
    else:
        inputs = torch.randint(0, 9, (3, 5))
        parts = [(nn.Embedding(9, width), width, "embedding")]
    for _ in range(r.choice((1, 2, 3))):
        parts.append(block(r, parts[-1][1], domain))
    if r.random() < 0.5:
        layer, name = norm(r, parts[-1][1], domain)
        parts.append((layer, parts[-1][1], name))
    return parts, inputs


def square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def penalised(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean() + 0.01 * sum(p.square().sum() for p in model.parameters())


def random_network(seed: int) -> Network:
    """Return the network of a seed. Seeds that are equal modulo 3 have the same kind of data."""
    r = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        domain = ("vector", "sequence", "image")[seed % 3]
        parts, inputs = network_parts(r, domain)
        model = nn.Sequential(*(layer for layer, _, _ in parts))
        names = [name for _, _, name in parts]
        if domain == "sequence" and r.random() < 0.2 and parts[-1][1] == parts[0][1]:
            head: nn.Module = nn.Linear(parts[-1][1], 9, bias=False)
            head.weight = model[0].weight
            names.append("tied head")
        else:
            head = nn.Linear(parts[-1][1], r.choice((2, 3, 4)))
            names.append("head")
        model.append(head)
        loss = penalised if r.random() < 0.03 else square
        names += ["loss with a penalty"] * (loss is penalised)
    return Network(model, inputs, loss, ", ".join(names))
