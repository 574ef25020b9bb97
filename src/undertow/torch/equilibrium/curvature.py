"""Curvature of the loss from Hessian-vector products: the largest eigenvalue by Lanczos iteration, and the trace."""

import math
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

__all__ = ["batches_needed", "dense_hessian", "is_resolved", "largest_curvature", "trace_of_hessian"]

T = TypeVar("T")

RESIDUAL_RTOL = 1e-2
"""Relative tolerance of the residual; the error of the eigenvalue is of the order of its square."""
BASIS_SIZE, KEPT = 12, 4
"""Vectors that the iteration holds, each as large as the model, and those that a restart keeps."""
MAX_PRODUCTS = 200
FIRST_BATCHES = 8
"""Batches on which lambda_max is measured first. More are used where these show that more would resolve it."""
RESOLVED_RTOL = 0.3
"""An estimate with a relative error above this is not resolved."""


def largest_curvature(model: nn.Module, batches: Sequence[Batch], loss: Loss, seed: int) -> Estimate:
    """Return lambda_max of the Hessian of the expected loss, which the batches sample.

    The largest eigenvalue on few batches is too large: its eigenvector v fits their noise. On K batches the excess is
    b ~ 1/K, and v'Hv on other batches is too small by the same b, to leading order. The batches are therefore split
    into halves. The estimate is the mean of v'Hv over all batches and over the eigenvectors v of both halves, from
    which b cancels. The error has two parts: b, half the difference between v'Hv on the half of v and on the other
    half, and the standard error over batches.

    At first `FIRST_BATCHES` batches are used, and more only if the given ones are enough for `is_resolved`. The
    estimate is NaN if the Lanczos iteration does not converge, or if the loss cannot be differentiated twice.
    """
    first = _or_nan(_largest, model, batches[:FIRST_BATCHES], loss, seed)
    needed = batches_needed(first)
    if needed is None or not first.samples < needed <= len(batches):
        return first
    return _or_nan(_largest, model, batches[: math.ceil(1.5 * needed)], loss, seed)


def is_resolved(estimate: Estimate) -> bool:
    """Return whether the relative error of an estimate is at most `RESOLVED_RTOL`."""
    return bool(estimate.standard_error <= RESOLVED_RTOL * abs(estimate.value))


def batches_needed(estimate: Estimate) -> int | None:
    """Return how many batches would about resolve an estimate, None where it is too close to zero or not known.

    The error is taken to fall with the root of the number of batches; the part that falls faster is not known.
    """
    if not estimate.value > 0 or not estimate.standard_error <= 3 * estimate.value:
        return None
    ratio = estimate.standard_error / (RESOLVED_RTOL * estimate.value)
    return max(math.ceil(estimate.samples * ratio**2), 2)


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
    """Return the estimate of `largest_curvature` on these batches; for one batch lambda_max without an error."""
    count = len(batches)
    halves = [range(0, count, 2), range(1, count, 2)] if count > 1 else [range(count)]
    values = np.empty((len(halves), count))
    for row, half in enumerate(halves):
        vector = _top_eigenvector(lambda v, half=half: _mean_product(hessian, v, [batches[k] for k in half]),
                                  hessian.normal(seed))  # fmt: skip
        if vector is None:
            return Estimate(float("nan"), float("nan"), count)
        values[row] = [float(vector @ hessian.product(vector, batch)) for batch in batches]
    estimate = _mean(values.mean(0).tolist())
    if count < 3:  # one batch in each half: no variance among equals
        return Estimate(estimate.value, float("nan"), count)
    own = np.array([[place in half for place in range(count)] for half in halves])
    excess = max(float(values[own].mean() - values[~own].mean()) / 2, 0.0)
    return Estimate(estimate.value, math.hypot(estimate.standard_error, excess), count)


def _mean_product(hessian: "_Hessian", vector: Tensor, batches: Sequence[Batch]) -> Tensor:
    """Return H v for the mean loss over batches."""
    total = hessian.product(vector, batches[0])
    for batch in batches[1:]:
        total += hessian.product(vector, batch)
    return total / len(batches)


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
