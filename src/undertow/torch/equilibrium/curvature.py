"""Curvature of the loss from products with its Hessian: the largest eigenvalue by Lanczos iteration, and the trace."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from undertow.estimate import Estimate
from undertow.torch._copies import Loss, forward, trainable
from undertow.torch.equilibrium.gather import undisturbed

__all__ = ["largest_curvature", "trace_of_hessian"]

TOLERANCE = 1e-2
"""Of the residual, relative; the error of the eigenvalue is of its square."""
HELD, KEPT = 12, 4
"""Vectors that the iteration holds, each as large as the model, and those that a restart keeps."""
MOST_PRODUCTS = 200


def largest_curvature(model: nn.Module, loss: Loss, batches: Sequence[Any], seed: int) -> Estimate:
    """lambda_max of the mean loss over the batches.

    The standard error is over batches, of v'Hv at the eigenvector v; NaN where Lanczos found none, or where the loss
    cannot be differentiated twice.
    """
    return _or_unknown(_largest, model, loss, batches, seed)


def _or_unknown(measure: Callable[..., Estimate], model: nn.Module, loss: Loss, batches: Any, seed: int) -> Estimate:
    """A measurement, or NaN where PyTorch has no second derivative: of CTC, of bags of embeddings, of cuDNN's RNNs."""
    try:
        return measure(_Hessian(model, loss, seed), batches, seed)
    except RuntimeError as error:
        if not re.search("not implemented|not supported|differentiate twice", str(error)):
            raise
        return Estimate(float("nan"), float("nan"), len(batches))


def _largest(hessian: "_Hessian", batches: Sequence[Any], seed: int) -> Estimate:
    count = len(batches)

    def mean(vector: Tensor) -> Tensor:
        total = hessian.product(vector, batches[0])
        for batch in batches[1:]:
            total += hessian.product(vector, batch)
        return total / count

    vector = _top(mean, hessian.normal(seed))
    if vector is None:
        return Estimate(float("nan"), float("nan"), count)
    return _mean([float(vector @ hessian.product(vector, batch)) for batch in batches])


def trace_of_hessian(model: nn.Module, loss: Loss, batches: Sequence[Any], seed: int) -> Estimate:
    """Tr H of the mean loss by random signs, new ones for each batch: its standard error is of signs and batches.

    NaN where the loss cannot be differentiated twice.
    """
    return _or_unknown(_trace, model, loss, batches, seed)


def _trace(hessian: "_Hessian", batches: Sequence[Any], seed: int) -> Estimate:
    values = []
    for row, batch in enumerate(batches):
        signs = hessian.normal(seed + row).sign()
        values.append(float(signs @ hessian.product(signs, batch)))
    return _mean(values)


def _mean(values: list[float]) -> Estimate:
    """The mean with its standard error; one value has none (NaN)."""
    count = len(values)
    error = np.std(values, ddof=1) / count**0.5 if count > 1 else np.nan
    return Estimate(float(np.mean(values)), float(error), count)


class _Hessian:
    """Products with the Hessian of a batch's loss, as vectors on the model's device."""

    def __init__(self, model: nn.Module, loss: Loss, seed: int):
        self.model, self.loss, self.seed = model, loss, seed
        self.params = list(trainable(model).values())
        self.sizes = [p.numel() for p in self.params]

    def normal(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(sum(self.sizes), generator=generator)
        return drawn.to(device=self.params[0].device, dtype=self.params[0].dtype)

    def product(self, vector: Tensor, batch: Any) -> Tensor:
        pieces = [v.reshape(p.shape).to(p) for v, p in zip(vector.split(self.sizes), self.params, strict=True)]
        # flash kernels have no second derivative
        with undisturbed(self.model, self.seed), sdpa_kernel(SDPBackend.MATH):
            value, _ = forward(self.model, self.loss, batch)
            first = torch.autograd.grad(value, self.params, create_graph=True, allow_unused=True)
            used = [(g, v) for g, v in zip(first, pieces, strict=True) if g is not None and g.requires_grad]
            if not used:  # a loss that is linear
                return torch.zeros_like(vector)
            along = torch.stack([(g * v).sum().to(vector) for g, v in used]).sum()
            second = torch.autograd.grad(along, self.params, allow_unused=True)
        whole = [torch.zeros_like(p) if t is None else t for t, p in zip(second, self.params, strict=True)]
        return torch.cat([t.detach().reshape(-1).to(vector) for t in whole])


def _top(product: Callable[[Tensor], Tensor], start: Tensor) -> Tensor | None:
    """The eigenvector of the largest eigenvalue, by Lanczos iteration with thick restarts.

    Rows of `basis` are orthonormal and `small` is the matrix between them. What is left of the last image, orthogonal
    to all of them, is the residual of every Ritz pair, so that a restart with the best of them goes on from there.
    """
    basis = start.new_empty((HELD, len(start)))
    small = np.zeros((HELD, HELD))
    basis[0] = start / start.norm()
    count = 1
    for _ in range(MOST_PRODUCTS):
        held = basis[:count]
        rest = product(held[-1])
        along = held @ rest
        small[count - 1, :count] = small[:count, count - 1] = along.double().numpy(force=True)
        for _ in range(2):  # twice is enough
            rest = rest - held.mT @ (held @ rest)
        left = float(rest.norm())
        if not np.isfinite(left):
            return None
        values, vectors = np.linalg.eigh(small[:count, :count])
        scale = max(abs(values[-1]), abs(values[0]))
        if left * abs(vectors[-1, -1]) <= TOLERANCE * abs(values[-1]) or left <= 1e-6 * scale or count == len(start):
            return torch.as_tensor(vectors[:, -1]).to(start) @ held
        if count == HELD:
            basis[:KEPT] = torch.as_tensor(vectors[:, -KEPT:].T.copy()).to(start) @ held
            small[:] = 0
            small[range(KEPT), range(KEPT)] = values[-KEPT:]
            count = KEPT
        basis[count] = rest / left
        count += 1
    return None
