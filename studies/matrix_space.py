"""Unknown matrices on all axes of the parameters of a network, in which `studies.reference` counts symmetries."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from undertow.torch import Axis, Symmetry
from undertow.torch._copies import trainable

__all__ = ["LARGEST_SPACE", "Space", "smallest_space", "stacked_matrices"]

LARGEST_SPACE = 2000
"""Unknowns up to which matrices are counted; beyond, scales."""


class _Block(NamedTuple):
    """The unknowns of an axis, or of a norm that computes with 1 + weight (axis -1)."""

    parameter: str
    axis: int
    length: int
    copies: int
    """Number of matrices on the axis, one for each part of the first axis (experts, groups of a convolution)."""
    offset: int
    count: int


class Space:
    """Unknown matrices on all axes of the trainable parameters of a network.

    Experts, groups of convolutions, and the queries, keys and values in one matrix have symmetries of their own: on
    axes other than the first there is one unknown matrix for each of them (`stacked_matrices`).
    """

    def __init__(self, model: nn.Module, kind: str):
        if kind not in ("symmetric", "diagonal", "full"):
            raise ValueError(f'`Space(model, {kind!r})`: give kind="symmetric", "diagonal" or "full".')
        self.kind, self.blocks = kind, []
        self.shapes = {name: tuple(p.shape) or (1,) for name, p in trainable(model).items()}
        self.unknowns = 0
        shifted, stacked = _norms_of_other_libraries(model), stacked_matrices(model)
        for name, shape in self.shapes.items():
            for axis, length in enumerate(shape):
                self._append(name, axis, length, stacked.get(name, 1) if axis else 1)
            if name in shifted:
                self._append(name, -1, shape[0], 1)

    def _append(self, name: str, axis: int, length: int, copies: int) -> None:
        kind = "diagonal" if axis < 0 else self.kind
        each = {"symmetric": length * (length + 1) // 2, "diagonal": length, "full": length**2}[kind]
        self.blocks.append(_Block(name, axis, length, copies, self.unknowns, copies * each))
        self.unknowns += copies * each

    def coordinates(self, matrices: np.ndarray) -> np.ndarray:
        """Return the unknowns of matrices (..., copies, length, length) on an axis."""
        if self.kind == "diagonal":
            entries = np.diagonal(matrices, axis1=-2, axis2=-1)
        elif self.kind == "full":
            entries = matrices.reshape(*matrices.shape[:-2], -1)
        else:
            entries = matrices[..., *np.triu_indices(matrices.shape[-1])]
        return entries.reshape(*entries.shape[:-2], -1)

    def derivatives(self, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> np.ndarray:
        """Return the derivative along every unknown, for gradients stacked along the first axis: (rows, unknowns)."""
        columns = []
        for block in self.blocks:
            shape = self.shapes[block.parameter]
            g, w = gradients[block.parameter], values[block.parameter].reshape(shape)
            g = g.reshape(-1, *shape)
            if block.axis < 0:
                columns.append((g * (1 + w)).numpy())
                continue
            parts = (block.copies, shape[0] // block.copies, *shape[1:])  # to (copies, length, rest)
            g = g.reshape(-1, *parts).movedim(block.axis + 2, 2).reshape(len(g), block.copies, block.length, -1)
            w = w.reshape(parts).movedim(block.axis + 1, 1).reshape(block.copies, block.length, -1)
            if self.kind == "diagonal":
                columns.append((g * w).sum(3).flatten(1).numpy())
                continue
            moments = (g @ w.mT).numpy()  # dL = sum_ij A_ij (G W')_ij
            if self.kind == "symmetric":
                diagonal = np.einsum("rcii->rci", moments)[..., None] * np.eye(block.length)
                moments = moments + moments.swapaxes(2, 3) - diagonal
            columns.append(self.coordinates(moments))
        return np.concatenate(columns, axis=1)

    def generators(self, symmetry: Symmetry) -> np.ndarray:
        """Return the generators of a symmetry as vectors of unknowns: (unknowns, generators)."""
        vectors = []
        for unit in self._matrix_units(symmetry):
            vector = np.zeros(self.unknowns)
            for sign, side in ((1, symmetry.plus), (-1, symmetry.minus)):
                for axis in side:
                    block, entries = self._on_axis(axis, unit.T if sign > 0 else unit)
                    part = slice(block.offset, block.offset + block.count)
                    vector[part] += sign * getattr(axis, "power", 1) * entries
            vectors.append(vector)
        return np.stack(vectors, axis=1)

    def _on_axis(self, axis: Axis, unit: np.ndarray) -> tuple[_Block, np.ndarray]:
        """Return the block of an axis, and the unknowns with which a matrix on the generators acts there."""
        place = -1 if axis.shift else axis.axis
        block = next(b for b in self.blocks if (b.parameter, b.axis) == (axis.parameter, place))
        matrix = np.zeros((axis.length, axis.length))
        for together in axis.index.T:
            matrix[np.ix_(together, together)] += unit
        if place < 0:
            return block, np.diagonal(matrix)
        if not getattr(axis, "by_matrix", False):
            return block, self.coordinates(np.stack([matrix] * block.copies))
        own = matrix.reshape(block.copies, block.length, block.copies, block.length)
        matrices = np.einsum("cicj->cij", own)
        if np.abs(own).sum() > np.abs(matrices).sum():
            raise ValueError(f"`Space.generators`: {axis} mixes indices of different matrices.")
        return block, self.coordinates(matrices)

    def _matrix_units(self, symmetry: Symmetry) -> Iterator[np.ndarray]:
        """Iterate over a basis of the matrices on the generators of a symmetry."""
        for i in range(symmetry.size):
            start = i // symmetry.block * symmetry.block
            for j in range(start, start + symmetry.block):
                unit = np.zeros((symmetry.size, symmetry.size))
                unit[i, j] = 1
                if self.kind == "symmetric":
                    unit[j, i] = 1
                if i == j or self.kind == "full" or (self.kind == "symmetric" and i < j):
                    yield unit

    def off_diagonal(self) -> np.ndarray:
        """Return the unknowns off the diagonal, each with the unknowns of its two diagonal entries: (count, 3)."""
        triples: list[np.ndarray] = []
        for block in self.blocks if self.kind != "diagonal" else ():
            if block.axis < 0:
                continue
            numbers = np.arange(block.length**2).reshape(block.length, block.length)
            pairs = [divmod(int(k), block.length) for k in self.coordinates(numbers[None])]
            each = block.count // block.copies
            place = {i: k for k, (i, j) in enumerate(pairs) if i == j}
            own = np.array([(k, place[i], place[j]) for k, (i, j) in enumerate(pairs) if i != j]).reshape(-1, 3)
            triples += [own + block.offset + copy * each for copy in range(block.copies)]
        return np.concatenate(triples).astype(int) if triples else np.zeros((0, 3), int)

    def describe(self, vector: np.ndarray) -> str:
        """Return the axes that a vector of unknowns moves, with the scale of each index; for matrices their places."""
        parts = []
        largest = np.abs(vector).max()
        for block in self.blocks:
            entries = vector[block.offset : block.offset + block.count] / largest
            used = [k for k in range(block.count) if abs(entries[k]) > 1e-4]
            texts = [f"{self._place(block, k)}: {entries[k]:+.3g}" for k in used]
            if texts:
                parts.append(f"{block.parameter}@{block.axis}{{{', '.join(texts)}}}")
        return " ".join(parts)

    def _place(self, block: _Block, unknown: int) -> str:
        copy, k = divmod(unknown, block.count // block.copies)
        if self.kind == "diagonal" or block.axis < 0:
            pair = (k, k)
        elif self.kind == "full":
            pair = divmod(k, block.length)
        else:
            pair = tuple(int(side[k]) for side in np.triu_indices(block.length))
        text = f"{pair[0]}" if pair[0] == pair[1] else f"{pair[0]},{pair[1]}"
        return f"[{copy}]{text}" if block.copies > 1 else text


def _norms_of_other_libraries(model: nn.Module) -> set[str]:
    """Return the names of vectors in norms that may compute with 1 + weight."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        if "norm" in type(module).__name__.lower() and not type(module).__module__.startswith("torch.nn")
        for name, p in module.named_parameters(recurse=False)
        if p.ndim == 1 and p.requires_grad and name != "bias"
    }


def stacked_matrices(model: nn.Module) -> dict[str, int]:
    """Return the number of matrices along the first axis of parameters that hold several: experts, groups, in_proj."""
    counts = {name: p.shape[0] for name, p in model.named_parameters() if p.ndim == 3}
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            counts[f"{path}.weight".lstrip(".")] = module.groups
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            counts[f"{path}.in_proj_weight".lstrip(".")] = 3
    return counts


def smallest_space(model: nn.Module, largest: int = LARGEST_SPACE) -> Space:
    """Return the space of symmetric matrices if it is small enough, else that of scales."""
    space = Space(model, "symmetric")
    return space if space.unknowns <= largest else Space(model, "diagonal")
