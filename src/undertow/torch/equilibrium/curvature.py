"""Curvature of the loss from Hessian-vector products: the largest eigenvalue by Lanczos iteration, and the trace."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from undertow.estimate import Estimate
from undertow.torch._copies import Batch, Loss, forward, trainable
from undertow.torch._isolation import isolated

__all__ = ["dense_hessian", "largest_curvature", "trace_of_hessian"]

T = TypeVar("T")

RESIDUAL_RTOL = 1e-2
"""Relative tolerance of the residual; the error of the eigenvalue is of the order of its square."""
BASIS_SIZE, KEPT = 12, 4
"""Vectors that the iteration holds, each as large as the model, and those that a restart keeps."""
MAX_PRODUCTS = 200


def largest_curvature(model: nn.Module, batches: Sequence[Batch], loss: Loss, seed: int) -> Estimate:
    """Return lambda_max of the Hessian of the mean loss over the batches.

    The standard error is that of v'Hv over batches, at the eigenvector v. The estimate is NaN if the Lanczos iteration
    does not converge, or if the loss cannot be differentiated twice.
    """
    return _or_nan(_largest, model, batches, loss, seed)


def dense_hessian(model: nn.Module, batches: Sequence[Batch], loss: Loss, seed: int) -> np.ndarray | None:
    """Return the Hessian of the mean loss over the batches, for small models; None without second derivatives."""
    return _or_none(lambda hessian: _dense(hessian, batches), model, loss, seed)


def _dense(hessian: "_Hessian", batches: Sequence[Batch]) -> np.ndarray:
    total = hessian.matrix(batches[0]).double()
    for batch in batches[1:]:
        total += hessian.matrix(batch)
    return (total / len(batches)).numpy(force=True)


def _or_nan(
    measure: Callable[["_Hessian", Sequence[Batch], int], Estimate],
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    seed: int,
) -> Estimate:
    """Return a measurement, or NaN where PyTorch has no second derivative."""
    estimate = _or_none(lambda hessian: measure(hessian, batches, seed), model, loss, seed)
    return Estimate(float("nan"), float("nan"), len(batches)) if estimate is None else estimate


def _or_none(measure: Callable[["_Hessian"], T], model: nn.Module, loss: Loss, seed: int) -> T | None:
    """Return a measurement, or None where PyTorch has no second derivative (CTC, `EmbeddingBag`, RNNs of cuDNN)."""
    try:
        return measure(_Hessian(model, loss, seed))
    except RuntimeError as error:
        if not re.search("not implemented|not supported|differentiate twice", str(error)):
            raise
        return None


def _largest(hessian: "_Hessian", batches: Sequence[Batch], seed: int) -> Estimate:
    count = len(batches)

    def mean(vector: Tensor) -> Tensor:
        total = hessian.product(vector, batches[0])
        for batch in batches[1:]:
            total += hessian.product(vector, batch)
        return total / count

    vector = _top_eigenvector(mean, hessian.normal(seed))
    if vector is None:
        return Estimate(float("nan"), float("nan"), count)
    return _mean([float(vector @ hessian.product(vector, batch)) for batch in batches])


def trace_of_hessian(model: nn.Module, batches: Sequence[Batch], loss: Loss, seed: int) -> Estimate:
    """Return Tr H of the mean loss by random signs, new ones for each batch.

    The standard error covers both the signs and the batches. The estimate is NaN if the loss cannot be differentiated
    twice.
    """
    return _or_nan(_trace, model, batches, loss, seed)


def _trace(hessian: "_Hessian", batches: Sequence[Batch], seed: int) -> Estimate:
    values = []
    for row, batch in enumerate(batches):
        signs = hessian.normal(seed + row).sign()
        values.append(float(signs @ hessian.product(signs, batch)))
    return _mean(values)


def _mean(values: list[float]) -> Estimate:
    """Return the mean with its standard error, which is NaN for one value."""
    count = len(values)
    error = np.std(values, ddof=1) / count**0.5 if count > 1 else np.nan
    return Estimate(float(np.mean(values)), float(error), count)


class _Hessian:
    """Products of vectors with the Hessian of the loss of a batch, on the device of the model."""

    def __init__(self, model: nn.Module, loss: Loss, seed: int):
        self.model, self.loss, self.seed = model, loss, seed
        self.params = list(trainable(model).values())
        self.sizes = [p.numel() for p in self.params]

    def normal(self, seed: int) -> Tensor:
        """Return a vector of standard normal numbers."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(sum(self.sizes), generator=generator)
        return drawn.to(device=self.params[0].device, dtype=self.params[0].dtype)

    def product(self, vector: Tensor, batch: Batch) -> Tensor:
        """Return H v for the loss of a batch."""
        pieces = [v.reshape(p.shape).to(p) for v, p in zip(vector.split(self.sizes), self.params, strict=True)]
        # flash kernels have no second derivative
        with isolated(self.model, self.seed), sdpa_kernel(SDPBackend.MATH):
            value, _ = forward(self.model, batch, self.loss)
            first = torch.autograd.grad(value, self.params, create_graph=True, allow_unused=True)
            used = [(g, v) for g, v in zip(first, pieces, strict=True) if g is not None and g.requires_grad]
            if not used:  # a linear loss
                return torch.zeros_like(vector)
            along = torch.stack([(g * v).sum().to(vector) for g, v in used]).sum()
            second = torch.autograd.grad(along, self.params, allow_unused=True)
        whole = [torch.zeros_like(p) if t is None else t for t, p in zip(second, self.params, strict=True)]
        return torch.cat([t.detach().reshape(-1).to(vector) for t in whole])

    def matrix(self, batch: Batch) -> Tensor:
        """Return H for the loss of a batch, row by row."""
        size = sum(self.sizes)
        rows = torch.zeros(size, size, device=self.params[0].device, dtype=self.params[0].dtype)
        with isolated(self.model, self.seed), sdpa_kernel(SDPBackend.MATH):
            value, _ = forward(self.model, batch, self.loss)
            first = torch.autograd.grad(value, self.params, create_graph=True, allow_unused=True)
            whole = [torch.zeros_like(p) if g is None else g for g, p in zip(first, self.params, strict=True)]
            for row, entry in zip(rows, torch.cat([g.reshape(-1) for g in whole]), strict=True):
                if entry.requires_grad:
                    second = torch.autograd.grad(entry, self.params, retain_graph=True, allow_unused=True)
                    pieces = zip(row.split(self.sizes), second, strict=True)
                    for piece, gradient in pieces:
                        if gradient is not None:
                            piece += gradient.reshape(-1)
        return rows


def _top_eigenvector(product: Callable[[Tensor], Tensor], start: Tensor) -> Tensor | None:
    """Return the eigenvector of the largest eigenvalue, by Lanczos iteration with thick restarts.

    Rows of `basis` are orthonormal, and `small` is the projection of the matrix on them. The part of the last product
    that is orthogonal to the basis is proportional to the residual of every Ritz pair, so that a restart with the best
    pairs continues from it.
    """
    basis = start.new_empty((BASIS_SIZE, len(start)))
    small = np.zeros((BASIS_SIZE, BASIS_SIZE))
    basis[0] = start / start.norm()
    count = 1
    for _ in range(MAX_PRODUCTS):
        held = basis[:count]
        rest = product(held[-1])
        along = held @ rest
        small[count - 1, :count] = small[:count, count - 1] = along.double().numpy(force=True)
        for _ in range(2):  # orthogonalising twice is enough in floating point
            rest = rest - held.mT @ (held @ rest)
        remainder = float(rest.norm())
        if not np.isfinite(remainder):
            return None
        values, vectors = np.linalg.eigh(small[:count, :count])
        scale = max(abs(values[-1]), abs(values[0]))
        if (
            remainder * abs(vectors[-1, -1]) <= RESIDUAL_RTOL * abs(values[-1])
            or remainder <= 1e-6 * scale
            or count == len(start)
        ):
            return torch.as_tensor(vectors[:, -1]).to(start) @ held
        if count == BASIS_SIZE:
            basis[:KEPT] = torch.as_tensor(vectors[:, -KEPT:].T.copy()).to(start) @ held
            small[:] = 0
            small[range(KEPT), range(KEPT)] = values[-KEPT:]
            count = KEPT
        basis[count] = rest / remainder
        count += 1
    return None
