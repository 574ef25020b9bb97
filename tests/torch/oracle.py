"""Reference values for the monitor by per-sample gradients of torch.func, and models to monitor."""

import copy
import functools

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.torch import Axis, Census, NoiseMonitor, Symmetry, census


def square(model, x):
    return model(x).square().flatten(1).sum(1).mean()


def relu(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def census_of(model, x, loss=square):
    return census(model, x, loss)


@functools.cache
def relu_census():
    """Return the census of the ReLU network; all ReLU networks of these tests have the same symmetries."""
    return census(relu(), torch.randn(4, 5), square)


def claimed_census(model, *names, block=1):
    """Return a census that claims a symmetry of every axis of these parameters, to measure the noise along it."""
    axes = []
    for name in names:
        p = model.get_parameter(name)
        axes += [Axis(name, k, np.arange(n)[:, None], n, p.ndim) for k, n in enumerate(p.shape[:2])]
    symmetries = tuple(Symmetry("claimed", (axis,), (), block, True, 0.0) for axis in axes)
    return Census(symmetries, (), (), (), (), ())


def sample_gradients_by_vmap(model, loss, x, axis=0):
    """Return the contribution of each sample to the gradient of a mean over the batch."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    one = lambda p, sample: loss(lambda s: torch.func.functional_call(model, p, (s,)), sample.unsqueeze(axis))
    gradients = torch.vmap(torch.func.grad(one), in_dims=(None, axis), randomness="error")(params, x)
    return {name: g.double() / x.shape[axis] for name, g in gradients.items()}


def sample_gradients_in_a_loop(model, loss, x):
    """Return the contribution of each sample by one backward pass per sample, for models that vmap does not support."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = [torch.autograd.grad(loss(model, row[None]), [*params.values()], allow_unused=True) for row in x]
    zero = lambda g, p: torch.zeros_like(p) if g is None else g
    return {name: torch.stack([zero(row[k], p) for row in rows]) / len(x) for k, (name, p) in enumerate(params.items())}


def covariance(parts, axis, block):
    """Return the covariance of the sum of independent parts, along an axis."""
    count = len(parts)
    away = parts - parts.mean(0)
    rows = away.movedim(axis.axis + 1, 1).reshape(count, axis.length, -1)[:, axis.index]  # samples, generators, ...
    rows = rows.permute(1, 2, 0, 3).reshape(axis.size // block, block, -1)
    total = (rows @ rows.mT * count / (count - 1)).numpy()
    return total[:, 0, 0] if block == 1 else total


def assert_noise(monitor, parts, tolerance):
    """Compare the last reading with the contributions of the samples."""
    assert monitor.last
    for reading in monitor.last:
        symmetry = reading.symmetry
        for side, noise in ((symmetry.plus, reading.noise_plus), (symmetry.minus, reading.noise_minus)):
            exact = sum((covariance(parts[a.parameter], a, symmetry.block) for a in side), np.zeros_like(noise))
            np.testing.assert_allclose(noise, exact, rtol=0, atol=tolerance * max(np.abs(exact).max(), 1e-300))


def monitored_step(model, symmetries, loss, x, step_size=0.1, **options):
    """Monitor one step; return the monitor and a copy of the model from before the step."""
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=step_size)
    with NoiseMonitor(model, symmetries, every=1, **options) as monitor:
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()
    return monitor, before


class Block(nn.Module):
    """Attention and a ReLU network with norms, on sequences."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.norm, self.between = nn.LayerNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x):
        n, t, width = x.shape
        h = self.norm(x)
        q, k, v = (f(h).view(n, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.mT, -1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.relu(self.up(self.between(x))))


class Attention(nn.Module):
    """`nn.MultiheadAttention`, which uses its matrices without calling the layers that hold them."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.attention(x, x, x, need_weights=False)[0]))
