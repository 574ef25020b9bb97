"""The noise scale weighted by curvature, tr(H Sigma)/G'HG, by Hessian-vector products on batches of a user."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from undertow import _validate as validate
from undertow.torch._copies import Batch, Loss, forward, trainable, unwrap
from undertow.torch._isolation import isolated
from undertow.torch.monitor.noise_scale import NoiseScale, ratio_uncertainty

__all__ = ["curvature_noise_scale"]


def curvature_noise_scale(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, *, batch_size: int, seed: int = 0
) -> NoiseScale:
    """Return B = tr(H Sigma)/G'HG, the batch size at which noise halves the best decrease of a quadratic loss.

    It is the noise scale of McCandlish et al. (2018, arXiv:1812.06162, equation 2.8), of which tr Sigma/|G|^2 is the
    case of a Hessian that is a multiple of the identity. Three batches with the gradients g, g' and the Hessian H of
    the third give the unbiased estimates (g - g')'H(g - g')/2 for tr(H Sigma)/batch_size and g'Hg' for G'HG. A triple
    takes two gradients and two Hessian-vector products. The model is not changed.

    **Arguments:**

    - `batches`: at least 9 independent batches of one size; three make one estimate.
    - `batch_size`: samples of each batch.

    >>> import torch
    >>> from undertow.torch.monitor.curvature_scale import curvature_noise_scale
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Linear(3, 1)
    >>> batches = [torch.randn(8, 3) + 1 for _ in range(30)]
    >>> scale = curvature_noise_scale(net, batches, lambda model, x: model(x).square().mean(), batch_size=8)
    >>> print(scale.measurements, scale.value > 0)
    10 True
    """
    batch_size = validate.positive_integer("curvature_noise_scale", "batch_size", batch_size)
    if len(batches) < 9:
        raise ValueError(
            f"`curvature_noise_scale(batches=...)`: {len(batches)} batches have no standard error; give at least 9."
        )
    model = unwrap(model)
    triples = [batches[start : start + 3] for start in range(0, len(batches) - 2, 3)]
    with isolated(model, seed), sdpa_kernel(SDPBackend.MATH):  # other kernels have no second derivative
        pairs = np.array([_noise_and_signal(model, triple, loss) for triple in triples])
    noise, signal = pairs.T
    value = batch_size * noise.mean() / signal.mean() if signal.mean() > 0 else math.inf
    uncertainty = map(float, ratio_uncertainty(batch_size * noise, signal))
    means = float(noise.mean()), float(signal.mean())
    return NoiseScale("curvature", float(value), *uncertainty, *means, float(batch_size), len(triples))


def _noise_and_signal(model: nn.Module, triple: Sequence[Batch], loss: Loss) -> tuple[float, float]:
    """Return (g - g')'H(g - g')/2 and g'Hg'."""
    params = list(trainable(model).values())
    first, second = (_gradient(model, batch, loss, params) for batch in triple[:2])
    value, _ = forward(model, triple[2], loss)
    gradient = _flat(torch.autograd.grad(value, params, create_graph=True, allow_unused=True), params)
    product = lambda vector: _flat(
        torch.autograd.grad(gradient @ vector, params, retain_graph=True, allow_unused=True), params
    ).detach()
    along_first, along_second = product(first), product(second)
    signal = float(first @ along_second)
    return (float(first @ along_first) + float(second @ along_second)) / 2 - signal, signal


def _gradient(model: nn.Module, batch: Batch, loss: Loss, params: Sequence[nn.Parameter]) -> Tensor:
    value, _ = forward(model, batch, loss)
    return _flat(torch.autograd.grad(value, params, allow_unused=True), params).detach()


def _flat(gradients: Sequence[Tensor | None], params: Sequence[nn.Parameter]) -> Tensor:
    pairs = zip(gradients, params, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
