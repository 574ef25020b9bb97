"""Networks that drop branches at random, and the change of outputs along an orbit."""

import copy
import random

import numpy as np
import torch
from torch import nn

from undertow.torch.census.axes import move
from undertow.torch.census.proof import random_transform


def rows(symmetries):
    return sorted(symmetry.name for symmetry in symmetries)


def largest_change(model, batch, loss, symmetry, scale=1.0, draws=range(20)):
    """Return the largest relative change of the outputs along the orbit, at weights of another distribution."""
    model = copy.deepcopy(model).double().train()
    generator = torch.Generator().manual_seed(5)
    params = {name: p.detach() for name, p in model.named_parameters()}
    params = {
        name: scale * (torch.rand(p.shape, generator=generator).double() - 0.4) / max(p[..., 0].numel(), 1) ** 0.5
        for name, p in params.items()
    }
    moved = params | move(params, symmetry, random_transform(symmetry, 7, torch.float64))
    batch = batch.double() if isinstance(batch, torch.Tensor) else batch
    worst = 0.0
    for draw in draws:
        recorded = []
        for values in (params, moved):
            model.load_state_dict(values, strict=False)
            torch.manual_seed(draw)
            handle = model.register_forward_hook(
                lambda m, a, out, recorded=recorded: recorded.append(getattr(out, "logits", out))
            )
            with torch.no_grad():
                loss(model, batch)
            handle.remove()
        worst = max(worst, float((recorded[1] - recorded[0]).norm() / recorded[0].norm()))
    return worst


class StochasticDepth(nn.Module):
    """Stochastic depth as in torchvision: the whole batch, or single rows, are dropped with probability p."""

    def __init__(self, p, mode):
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        shape = [x.shape[0] if self.mode == "row" else 1, *[1] * (x.ndim - 1)]
        return x * torch.empty(shape, dtype=x.dtype).bernoulli_(1 - self.p) / (1 - self.p)


class Stream(nn.Module):
    """A stream with two residual branches, each of which may be dropped."""

    def __init__(self, drop):
        super().__init__()
        self.into, self.out, self.drop = nn.Linear(5, 8), nn.Linear(8, 3), drop
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.left, self.right = nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x):
        stream = torch.relu(self.into(x))
        stream = stream + self.drop(self.down(torch.relu(self.up(stream))))
        return self.out(stream + self.drop(self.right(self.left(stream))))


def layer_drop(source):
    """Return LayerDrop, which skips a branch; `source` draws a number between 0 and 1."""

    class Drop(nn.Module):
        def forward(self, x):
            return x if not self.training or source() > 0.5 else torch.zeros_like(x)

    return Drop()


DROPS = {
    "batch": lambda: StochasticDepth(0.2, "batch"),
    "row": lambda: StochasticDepth(0.2, "row"),
    "often": lambda: StochasticDepth(0.5, "batch"),
    "LayerDrop": lambda: layer_drop(lambda: torch.rand([]).item()),
    "LayerDrop by Python": lambda: layer_drop(random.random),
    "LayerDrop by NumPy": lambda: layer_drop(np.random.rand),
}


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))
