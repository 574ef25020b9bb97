"""Charges that the named symmetries do not explain: the null space over all indices of all axes, counted.

A scale of index i along an axis of a parameter changes the outputs by a moment of their Jacobian. The moments of all
indices of all axes, for many outputs and several draws of weights, form a matrix. Every symmetry of scales lies in its
null space, also those between indices that no level puts side by side.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon, trainable
from undertow.torch._random_weights import RandomWeights, enlarge
from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.candidates import plain_axes
from undertow.torch.census.generators import signed

__all__ = ["MOST_INDICES", "IndexNullSpace", "Unexplained", "index_null_space"]

MOST_INDICES = 600
"""Largest number of indices of all axes for which the null space is computed by default."""
OUTPUTS_PER_DRAW = 64
"""Random combinations of outputs whose gradients are computed at once in a draw of weights."""
LEAST_DRAWS = 10
"""Least number of draws of weights: a unit may be inactive in some."""
LARGEST_FACTOR = 8.0
"""Largest factor on the parameters in every second draw: ReLU6 and clipped queries saturate there."""
NULL_RTOL = 1e-6
"""Singular values below this, relative to the largest, count as zero."""


@dataclass(frozen=True)
class Unexplained:
    """Symmetries of scales that the census counts but cannot name."""

    count: int
    """Number of independent charges; 0 if it could not be counted."""
    parameters: tuple[str, ...]
    """Parameters that they move."""
    text: str

    def __str__(self) -> str:
        return self.text


class IndexTable:
    """All indices of all axes of the trainable parameters, as columns of a matrix."""

    def __init__(self, twin: nn.Module):
        axes = plain_axes(twin)
        known = {(axis.parameter, axis.axis) for axis in axes if axis.by_matrix}
        self.axes = [a for a in axes if a.by_matrix or (a.parameter, a.axis) not in known]
        self.first = dict(
            zip(
                [(a.parameter, a.axis, a.shift) for a in self.axes],
                np.cumsum([0, *(a.length for a in self.axes)]).tolist(),
                strict=False,
            )
        )
        self.count = sum(axis.length for axis in self.axes)

    def columns(self, axis: Axis, row: int) -> list[int]:
        """Return the columns of the indices that a generator of an axis moves."""
        first = self.first[axis.parameter, axis.axis, axis.shift]
        return [first + key[2] for key in axis.keys(row)]

    def rows(self, axis: Axis) -> slice:
        """Return the columns of all indices of one of the axes."""
        first = self.first[axis.parameter, axis.axis, axis.shift]
        return slice(first, first + axis.length)

    def trivial(self) -> list[np.ndarray]:
        """Return the vectors that move nothing: all indices of one axis against all of another, for each matrix."""
        vectors = []
        by_parameter: dict[tuple[str, float], list[Axis]] = {}
        for axis in self.axes:
            by_parameter.setdefault((axis.parameter, axis.shift), []).append(axis)
        for axes in by_parameter.values():
            for other in axes[1:]:
                for part in range(axes[0].matrices):
                    vector = np.zeros(self.count)
                    for axis, sign in ((axes[0], 1), (other, -1)):
                        each = axis.length // axis.matrices
                        first = self.first[axis.parameter, axis.axis, axis.shift]
                        vector[first + part * each : first + (part + 1) * each] = sign
                    vectors.append(vector)
        return vectors


class IndexNullSpace:
    """Null space of the moments of all indices of all axes, with the part that symmetries explain."""

    def __init__(self, twin: nn.Module, batch: Batch, loss: Loss, *, eps: float, seed: int):
        self.indices = IndexTable(twin)
        gram = _gram(twin, batch, loss, self.indices, eps, seed)
        self.scales = np.sqrt(np.diag(gram))
        """Sizes of the columns, in which null vectors are measured."""
        self.moving = self.scales > 1e-9 * self.scales.max(initial=0.0)
        """Indices with a gradient."""
        gram = gram[np.ix_(self.moving, self.moving)] / np.outer(self.scales[self.moving], self.scales[self.moving])
        values, vectors = np.linalg.eigh(gram)
        dimension = int((values <= NULL_RTOL**2 * 1e2 * values.max(initial=1.0)).sum())
        self.null = np.zeros((self.indices.count, dimension))
        """Orthonormal null vectors (columns), in exponents times `scales`."""
        self.null[self.moving] = vectors[:, :dimension]

    def outside(self, symmetries: Sequence[Symmetry], vectors: Sequence[np.ndarray] = ()) -> np.ndarray:
        """Return an orthonormal basis of the null vectors orthogonal to symmetries and to vectors of exponents."""
        known = [*self._exponents(symmetries), *self.indices.trivial(), *vectors, np.zeros(self.indices.count)]
        inside = self.null.T @ (np.stack(known, axis=1) * (self.scales * self.moving)[:, None])
        left, sizes, _ = np.linalg.svd(inside)
        rank = int((sizes > 1e-6 * max(sizes.max(initial=0.0), 1e-300)).sum())
        return self.null @ left[:, rank:]

    def _exponents(self, symmetries: Sequence[Symmetry]) -> list[np.ndarray]:
        """Return the exponents of all indices, for each generator."""
        vectors = []
        for symmetry in symmetries:
            for row in range(symmetry.size):
                vector = np.zeros(self.indices.count)
                for axis, power in signed(symmetry):
                    if (axis.parameter, axis.axis, axis.shift) in self.indices.first:
                        np.add.at(vector, self.indices.columns(axis, row), power)
                vectors.append(vector)
        return vectors

    def unexplained(self, symmetries: Sequence[Symmetry]) -> tuple[Unexplained, ...]:
        """Return what the symmetries leave of the null space."""
        rest = self.outside(symmetries)
        if rest.shape[1] == 0:
            return ()
        largest = np.abs(rest).max()
        names = tuple(
            dict.fromkeys(
                axis.parameter
                for axis in self.indices.axes
                if np.abs(rest[self.indices.rows(axis)]).max() > 0.05 * largest
            )
        )
        text = f"{rest.shape[1]} charges that no named symmetry explains, of {', '.join(names[:6])}"
        return (Unexplained(rest.shape[1], names, text + (f" and {len(names) - 6} more" if names[6:] else "")),)


def index_null_space(
    twin: nn.Module, batch: Batch, loss: Loss, count: bool | None, *, eps: float, seed: int
) -> IndexNullSpace | Unexplained:
    """Return the null space over all indices, in double precision at random weights, or why it was not computed."""
    indices = IndexTable(twin)
    if not (indices.count <= MOST_INDICES if count is None else count):
        text = f"not counted: the network has {indices.count} indices. `count=True` counts, better on a narrow twin"
        return Unexplained(0, (), text)
    try:
        return IndexNullSpace(twin, batch, loss, eps=eps, seed=seed)
    except RuntimeError as error:  # an operation without a batched derivative
        return Unexplained(0, (), f"not counted: {str(error).splitlines()[0]}")


def _gram(twin: nn.Module, batch: Batch, loss: Loss, indices: IndexTable, eps: float, seed: int) -> np.ndarray:
    """Return M'M for the matrix of moments: its rows are outputs of several draws, its columns the indices."""
    params = trainable(twin)
    gram, rows, draws, used = np.zeros((indices.count, indices.count)), 0, 0, 0
    random_weights = RandomWeights(twin)
    while rows < 1.2 * indices.count + 20 or used < LEAST_DRAWS:
        draws += 1
        with norm_epsilon(twin, eps):
            random_weights.draw(seed + draws)
            enlarge(twin, LARGEST_FACTOR if draws % 2 else 1.0, seed + draws)
            outputs = forward(twin, batch, loss, seed + draws)[1]
        count = min(OUTPUTS_PER_DRAW, outputs.numel())
        generator = torch.Generator().manual_seed(seed + draws)
        weights = torch.randn(count, outputs.numel(), generator=generator, dtype=torch.float64).to(outputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # operations whose derivatives are computed one by one
            gradients = torch.autograd.grad(
                outputs, list(params.values()), weights, is_grads_batched=True, allow_unused=True
            )
        moments = _moments(indices, params, dict(zip(params, gradients, strict=True)), count)
        if np.isfinite(moments).all():
            moments = moments / max(np.linalg.norm(moments) / count**0.5, 1e-300)
            gram += moments.T @ moments
            rows, used = rows + count, used + 1
        elif draws > 4 * LEAST_DRAWS + used:
            raise RuntimeError("gradients are not finite at random weights")
    return gram


def _moments(
    indices: IndexTable, params: dict[str, nn.Parameter], gradients: dict[str, Tensor | None], count: int
) -> np.ndarray:
    """Return the moments of all indices for each of `count` gradients."""
    columns = []
    for axis in indices.axes:
        gradient, weight = gradients[axis.parameter], params[axis.parameter].detach()
        if gradient is None:
            columns.append(np.zeros((count, axis.length)))
            continue
        product, kept = gradient * (weight + axis.shift), {0, axis.axis + 1}
        if axis.by_matrix:
            product, kept = product.unflatten(1, (axis.matrices, -1)), {0, 1, axis.axis + 2}
        others = [dimension for dimension in range(product.ndim) if dimension not in kept]
        columns.append((product.sum(others) if others else product).reshape(count, axis.length).numpy(force=True))
    return np.concatenate(columns, axis=1)
