"""The largest curvature of the loss, by Lanczos iteration on products with the Hessian."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from undertow.estimate import Estimate
from undertow.torch.copies import Loss, forward, trainable
from undertow.torch.gather import undisturbed

__all__ = ["largest_curvature"]

TOLERANCE = 1e-2
"""Of the residual, relative; the error of the eigenvalue is of its square."""
SMALL = 40
"""Up to so many parameters the Hessian is written out."""


def largest_curvature(model: nn.Module, loss: Loss, batches: Sequence[Any], seed: int) -> Estimate:
    """lambda_max of the mean loss over the batches.

    The standard error is over batches, of v'Hv at the eigenvector v; NaN where Lanczos found none.
    """
    params = list(trainable(model).values())
    sizes = [p.numel() for p in params]
    total = sum(sizes)

    def product(vector: np.ndarray, batch: Any) -> np.ndarray:
        flat = torch.as_tensor(np.asarray(vector).reshape(-1), dtype=params[0].dtype, device=params[0].device)
        pieces = [v.reshape(p.shape) for v, p in zip(flat.split(sizes), params, strict=True)]
        # flash kernels have no second derivative
        with undisturbed(model, seed), sdpa_kernel(SDPBackend.MATH):
            value, _ = forward(model, loss, batch)
            first = torch.autograd.grad(value, params, create_graph=True, allow_unused=True)
            used = [(g, v) for g, v in zip(first, pieces, strict=True) if g is not None and g.requires_grad]
            along = torch.stack([(g * v).sum() for g, v in used]).sum()
            second = torch.autograd.grad(along, params, allow_unused=True)
        return _flat(second, params)

    mean = lambda v: np.mean([product(v, batch) for batch in batches], axis=0)
    start = np.random.default_rng(seed).standard_normal(total)
    if total <= SMALL:
        matrix = np.stack([mean(row) for row in np.eye(total)])
        vector = np.linalg.eigh((matrix + matrix.T) / 2)[1][:, -1]
    else:
        operator = _Hessian(total, mean)
        try:
            _, vectors = eigsh(
                operator, k=1, which="LA", v0=start.astype(np.float32), tol=TOLERANCE, ncv=10, maxiter=40
            )
        except ArpackNoConvergence:
            return Estimate(float("nan"), float("nan"), len(batches))
        vector = vectors[:, 0]
    values = np.array([float(vector @ product(vector, batch)) for batch in batches])
    spread = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Estimate(float(values.mean()), float(spread), len(values))


class _Hessian(LinearOperator):
    """The mean Hessian as scipy wants it."""

    def __init__(self, size: int, product: Callable[[np.ndarray], np.ndarray]):
        super().__init__(np.dtype(np.float32), (size, size))
        self.product = product

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.product(x)


def _flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> np.ndarray:
    whole = [torch.zeros_like(p) if t is None else t for t, p in zip(tensors, like, strict=True)]
    return torch.cat([t.detach().reshape(-1) for t in whole]).double().numpy(force=True)
