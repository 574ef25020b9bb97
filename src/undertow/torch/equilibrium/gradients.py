"""Gradients of minibatches, and the noise power that they show."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from undertow.estimate import Estimate
from undertow.torch._copies import Batch, Loss, forward, trainable
from undertow.torch._isolation import isolated

__all__ = ["batch_gradients", "format_estimate", "noise_power"]


def batch_gradients(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, names: Sequence[str], seed: int
) -> dict[str, Tensor]:
    """Return the gradients of all batches, stacked: (batches, *shape) for each name."""
    params = trainable(model)
    chosen = [params[name] for name in names]
    stacks = [torch.empty((len(batches), *(p.shape or (1,))), dtype=p.dtype, device=p.device) for p in chosen]
    with isolated(model, seed):
        for row, batch in enumerate(batches):
            value, _ = forward(model, batch, loss)
            gradients = torch.autograd.grad(value, chosen, allow_unused=True)
            for stack, gradient in zip(stacks, gradients, strict=True):
                stack[row] = 0.0 if gradient is None else gradient.detach().to_dense().reshape(stack.shape[1:])
    if not all(bool(torch.isfinite(stack).all()) for stack in stacks):
        raise ValueError("`equilibrate`: a gradient is not finite; the model diverged or a batch is broken.")
    return dict(zip(names, stacks, strict=True))


def noise_power(gram: np.ndarray) -> Estimate:
    """Return Tr Sigma = sum_b |g_b - mean|^2/(K - 1) from the inner products of K gradients.

    The standard error is that of the mean of the K squared distances. For K = 2 both distances are equal, and the
    standard error is NaN.
    """
    count = len(gram)
    centring = np.eye(count) - 1 / count
    distances = np.diag(centring @ gram @ centring) * count / (count - 1)
    error = distances.std(ddof=1) / count**0.5 if count > 2 else np.nan
    return Estimate(float(distances.mean()), float(error), count)


def format_estimate(estimate: Estimate) -> str:
    """Return an estimate as text, with its standard error where that is known."""
    error = "" if np.isnan(estimate.standard_error) else f" ± {estimate.standard_error:.1g}"
    return f"{estimate.value:.3g}{error}"
