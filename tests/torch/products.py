"""Products u w of many pairs of numbers, whose ratio is set by noise and weight decay alone."""

import numpy as np
import torch
from torch import nn

from undertow.torch import Axis, Census, Symmetry


class Products(nn.Module):
    """u w of every pair, added to the inputs (samples, pairs)."""

    def __init__(self, pairs, u=1.0, w=1.0):
        super().__init__()
        self.u = nn.Parameter(torch.full((pairs,), u, dtype=torch.float64))
        self.w = nn.Parameter(torch.full((pairs,), w, dtype=torch.float64))

    def forward(self, noise):
        return self.u * self.w + noise


def product_census(pairs):
    u, w = (Axis(name, 0, np.arange(pairs)[:, None], pairs, 1, role="gain") for name in "uw")
    return Census((Symmetry("rescaling", (u,), (w,), 1, True, 0.0),), (), (), (), (), ())


def product_loss(model, noise):
    """Return 1/2 (u w - 1 + noise)^2, the mean over samples and the sum over pairs."""
    return (model(noise) - 1).square().sum(1).mean() / 2


def train_products(model, optimizer, steps, sigma=1.0, samples=2):
    for _ in range(steps):
        optimizer.zero_grad()
        noise = sigma * torch.randn(samples, len(model.u), dtype=torch.float64)
        product_loss(model, noise).backward()
        optimizer.step()
