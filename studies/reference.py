"""An independent count of the linear symmetries of a network, which judges `undertow.torch.census`.

The count knows nothing of layers. For every axis a of every trainable parameter W it has an unknown matrix A_a, and the
parameter moves by dW = sum_a A_a W (A_a acts on axis a). The derivative of the outputs (and of the loss) along this
motion is linear in all A together. A symmetry is a vector of matrices for which it vanishes at every draw of random
weights: a null space. Three families of matrices are counted:

- "symmetric": A = A'. This is the number of charges, d (d + 1)/2 for GL(d). Rotations conserve no charge.
- "diagonal": scales only, for networks with too many axes for matrices: d for GL(d).
- "full": all matrices, d^2 for GL(d), with rotations and nilpotent motions.

Motions without effect on any gradient are not symmetries: scaling one axis by s and another of the same parameter by
1/s, or moving a key bias, which softmax ignores. They are recognised by gradients of one draw being orthogonal to the
motion at another draw.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
import torch
from torch import Tensor, nn

from studies.matrix_space import Space, smallest_space
from studies.orbits import Change, double_copy, draw_weights, moves_function, without_warnings
from undertow.torch import Symmetry
from undertow.torch._copies import OnePrecision, cast_batch, forward, norm_epsilon, trainable
from undertow.torch._isolation import isolated

__all__ = [
    "EXACT_EPS",
    "WITHOUT_EPS",
    "Change",
    "Comparison",
    "Reference",
    "Space",
    "census_dimension",
    "moves_function",
    "reference",
    "smallest_space",
]

EXACT_EPS, WITHOUT_EPS = 0.2, 1e-30
"""Eps of all norms: a large one breaks symmetries that hold only up to eps, a tiny one makes them exact."""
NULL_RTOL = 1e-8
"""Singular values below this, relative to the largest, are zero. Those of symmetries are near 1e-13."""
SCALES = (1.0, 0.7, 4.0, 1.0, 16.0)
"""Largest factors on the random weights, draw by draw. At large ones ReLU6, Hardtanh and clipped queries saturate."""
LEAST_DRAWS = 5 * len(SCALES)
"""Draws that are always made: a unit may saturate in few of them."""
MOST_TRIALS = 4
"""Times that draws are added because of singular values that are neither zero nor clearly nonzero."""
ROWS_PER_DRAW = 24
"""Random combinations of the outputs that are differentiated in each draw."""


class Comparison(NamedTuple):
    """A census beside the reference, in numbers of independent generators."""

    reference: int
    """Symmetries along axes."""
    found: int
    """Dimension of the span of the census, with false generators."""
    false: int
    """Independent generators of the census that are no symmetries."""
    missed: int
    """Independent symmetries along axes that the census does not span."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The null space of a network and what distinguishes motions with an effect in it."""

    space: Space
    charges: int
    """Number of independent symmetries along axes: scales of indices, and matrices on blocks of indices."""
    rotated: int
    """Number of the others, whose scales belong to other directions than indices. Where a stream is read by norms that
    subtract a mean and also by a linear layer, for instance, its mean has a scale of its own. No `Axis` states them."""
    scales: np.ndarray
    """Norms of the columns of `rows`, by which unknowns are measured."""
    null: np.ndarray
    """Orthonormal null vectors (columns), in unknowns times `scales`, with those without effect."""
    rows: np.ndarray
    """Derivatives of the outputs, divided by `scales`: (rows, unknowns)."""
    effects: np.ndarray
    """Gradients of one draw along motions at another, divided by `scales`."""
    top: float
    """Largest singular value of `rows`."""
    ambiguous: tuple[float, ...]
    """Singular values that are neither zero nor clearly nonzero, relative to the largest."""

    def _span(self, symmetries: Iterable[Symmetry]) -> np.ndarray:
        """Return an orthonormal basis of the generators of symmetries."""
        vectors = [self.space.generators(symmetry) for symmetry in symmetries]
        if not vectors:
            return np.zeros((self.space.unknowns, 0))
        return _range(np.concatenate(vectors, axis=1) * self.scales[:, None])

    def compressed(self) -> "Reference":
        """Return the reference with rows and effects in as few rows as there are unknowns; it compares equally."""
        triangle = lambda matrix: np.linalg.qr(matrix, mode="r") if len(matrix) > matrix.shape[1] else matrix
        return replace(self, rows=triangle(self.rows), effects=triangle(self.effects))

    def compare(self, symmetries: Iterable[Symmetry]) -> Comparison:
        """Return the dimensions of a census and of what it gets wrong."""
        span = self._span(symmetries)
        found = self._dimension(span)
        values, directions = _svd(self.rows @ span)
        false = int(np.sum(values > 10 * NULL_RTOL * self.top))
        right = span @ directions[:, false:]
        return Comparison(self.charges, found, false, self.charges - self._dimension(right))

    def _count_rotated(self) -> int:
        """Return the number of symmetries off the diagonal that commute with all scales.

        A matrix on a block of indices does not: the scales of the block are symmetries too, and differ.
        """
        off_diagonal = self.space.off_diagonal()
        if not len(off_diagonal) or not self.null.shape[1]:
            return 0
        scales = _null_combinations(self.null, off_diagonal[:, 0])
        drawn = np.random.default_rng(0).standard_normal(scales.shape[1])
        inverse = np.divide(1.0, self.scales, out=np.zeros_like(self.scales), where=self.scales > 0)
        generic = scales @ drawn * inverse
        unknown, row, column = off_diagonal.T
        differ = np.abs(generic[row] - generic[column]) > 1e-6 * np.abs(generic).max(initial=0.0)
        commuting = _null_combinations(self.null, unknown[differ])
        return self._dimension(commuting) - self._dimension(scales)

    def _dimension(self, vectors: np.ndarray) -> int:
        """Return the dimension of a span of vectors, without the motions that have no effect."""
        if not vectors.shape[1]:
            return 0
        values, _ = _svd(self.effects @ vectors)
        top = np.linalg.norm(self.effects) / max(1, self.space.unknowns) ** 0.5
        return int(np.sum(values > 1e-7 * top))

    def missed(self, symmetries: Iterable[Symmetry], most: int = 6) -> list[str]:
        """Return descriptions of symmetries that a census does not span, the sparsest of them by linear programs."""
        span = self._span(symmetries)
        known = _range(self.effects @ span) if span.shape[1] else np.zeros((len(self.effects), 0))
        inverse = np.divide(1.0, self.scales, out=np.zeros_like(self.scales), where=self.scales > 0)
        effects = self.effects @ self.null
        texts: list[str] = []
        while len(texts) < most:
            left, values, _ = np.linalg.svd(effects - known @ (known.T @ effects), full_matrices=False)
            if not len(values) or values[0] <= 1e-7 * np.linalg.norm(self.effects) / self.space.unknowns**0.5:
                break
            # this functional vanishes on what the census spans and on motions without effect
            coefficients = _sparsest(self.null * inverse[:, None], left[:, 0] @ effects)
            texts.append(self.space.describe(self.null @ coefficients * inverse))
            known = _range(np.concatenate([known, (effects @ coefficients)[:, None]], axis=1))
        return texts


def _svd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the singular values, padded by zeros to the number of columns, and the right singular vectors."""
    missing = max(matrix.shape[1] - matrix.shape[0], 0)
    _, values, vectors = np.linalg.svd(np.pad(matrix, ((0, missing), (0, 0))), full_matrices=False)
    return values, vectors.T


def _null_combinations(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the combinations of orthonormal vectors (columns) that vanish in these rows."""
    if not len(rows):
        return vectors
    values, directions = _svd(vectors[rows])
    return vectors @ directions[:, values <= 1e-7]


def _range(vectors: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the span of vectors (columns)."""
    norms = np.linalg.norm(vectors, axis=0)
    left, values, _ = np.linalg.svd(vectors[:, norms > 0] / norms[norms > 0], full_matrices=False)
    return left[:, values > 1e-9 * max(values, default=1.0)]


def _sparsest(basis: np.ndarray, functional: np.ndarray) -> np.ndarray:
    """Return coefficients with functional . coefficients = 1 and the least sum of absolute values of the vector."""
    rows, count = basis.shape
    eye = scipy.sparse.eye_array(rows)
    program = scipy.optimize.linprog(
        np.concatenate([np.zeros(count), np.ones(rows)]),
        A_ub=scipy.sparse.block_array([[basis, -eye], [-basis, -eye]]), b_ub=np.zeros(2 * rows),
        A_eq=np.concatenate([functional, np.zeros(rows)])[None] / np.abs(functional).max(), b_eq=[1.0],
        bounds=[(None, None)] * count + [(0, None)] * rows,
    )  # fmt: skip
    return program.x[:count] if program.status == 0 else functional


def reference(
    model: nn.Module,
    batch: Any,
    loss: Any,
    *,
    space: Space | None = None,
    eps: float = EXACT_EPS,
    evaluation: bool = True,
    seed: int = 0,
) -> Reference:
    """Return the linear symmetries of the outputs and the loss of a network.

    **Arguments:**

    - `space`: the matrices that are counted; by default symmetric ones, or scales where these are too many.
    - `eps`: eps of all norms. `EXACT_EPS` counts exact symmetries, `WITHOUT_EPS` also those up to eps.
    - `evaluation`: whether symmetries must hold in evaluation mode too. Batch norms use running statistics there, and
      no scale of the weights before them is a symmetry.
    """
    space = space or smallest_space(model)
    with isolated(model, seed):
        draws = _draws(model, batch, loss, space, eps, evaluation, seed)
        rows, effects = _collect(draws, 1.3 * space.unknowns + 64)
        trial = 0
        while True:
            found = _null_space(space, rows, effects)
            more = _collect(draws, 0)
            trial += 1
            clear = not found.ambiguous or trial > MOST_TRIALS
            if not found.null.shape[1] or (clear and _vanishes(found, more[0])):  # fresh draws confirm the null space
                rotated = found._count_rotated()
                return replace(found, charges=found._dimension(found.null) - rotated, rotated=rotated)
            extra = _collect(draws, 0.3 * len(rows))
            rows, effects = (np.concatenate(parts) for parts in zip((rows, effects), more, extra, strict=True))


def _null_space(space: Space, rows: np.ndarray, effects: np.ndarray) -> Reference:
    scales = np.hypot(np.linalg.norm(rows, axis=0), np.linalg.norm(effects, axis=0))
    scales[scales < 1e-10 * scales.max()] = 0
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    rows, effects = rows * inverse, effects * inverse
    squares = rows.T @ rows
    top = max(_largest_eigenvalue(squares), 1e-300) ** 0.5
    # squares lose half of the digits: the null space is separated from small singular values on the rows themselves
    _, null = scipy.linalg.eigh(squares, subset_by_value=(-np.inf, 1e-6 * top**2))
    values, directions = _svd(rows @ null)
    zero = values <= NULL_RTOL * top
    ambiguous = values[~zero & (values < 100 * NULL_RTOL * top)] / top
    return Reference(space, 0, 0, scales, null @ directions[:, zero], rows, effects, top, tuple(ambiguous.tolist()))


def _largest_eigenvalue(matrix: np.ndarray) -> float:
    """Return the largest eigenvalue of a positive matrix to a few percent, by power iteration."""
    vector = np.random.default_rng(0).standard_normal(len(matrix))
    for _ in range(50):
        vector = matrix @ vector
        vector /= max(float(np.linalg.norm(vector)), 1e-300)
    return float(vector @ matrix @ vector)


def _vanishes(found: Reference, rows: np.ndarray) -> bool:
    """Return whether other rows, not yet divided by the scales, vanish on the null space."""
    inverse = np.divide(1.0, found.scales, out=np.zeros_like(found.scales), where=found.scales > 0)
    size = found.top * (len(rows) / len(found.rows)) ** 0.5
    return bool(np.abs((rows * inverse) @ found.null).max() <= NULL_RTOL * size)


def _collect(draws: Iterator[tuple[np.ndarray, np.ndarray]], count: float) -> tuple[np.ndarray, np.ndarray]:
    """Return at least `count` rows of derivatives and of effects, from `LEAST_DRAWS` draws or more."""
    parts = [next(draws) for _ in range(LEAST_DRAWS)]
    while sum(len(rows) for rows, _ in parts) < count:
        parts.append(next(draws))
    rows, effects = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(effects)


def _draws(
    model: nn.Module, batch: Any, loss: Any, space: Space, eps: float, evaluation: bool, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over draws of weights and dropout: derivatives of the outputs and the loss along all unknowns.

    The second array has the gradients of the same draw along motions at the weights of the draw before.
    """
    twin, batch = double_copy(model), cast_batch(batch, torch.float64)
    params = trainable(twin)
    previous, skipped, number = None, 0, 0
    while skipped < 50:
        number += 1
        draw_weights(twin, seed + 7919 * number, SCALES[number % len(SCALES)])
        twin.train(number % 3 > 0 or not evaluation)
        with norm_epsilon(twin, eps), OnePrecision(), without_warnings():
            value, outputs = forward(twin, batch, loss, seed + number)
        gradients = _gradients(value, outputs, params, seed + number)
        values = {name: p.detach().clone() for name, p in params.items()}
        if not all(bool(torch.isfinite(g).all()) for g in gradients.values()):
            skipped += 1
            continue
        sizes = sum(
            g.reshape(len(g), -1).square().sum(1) * values[name].square().sum() for name, g in gradients.items()
        )
        gradients = {
            name: g / sizes.sqrt().clamp_min(1e-300).reshape(-1, *[1] * (g.ndim - 1)) for name, g in gradients.items()
        }
        if previous is not None:
            yield space.derivatives(values, gradients), space.derivatives(previous, gradients)
        previous = values
    raise ValueError("`reference`: gradients are not finite in 50 draws of random weights.")


def _gradients(value: Tensor, outputs: Tensor, params: Mapping[str, nn.Parameter], seed: int) -> dict[str, Tensor]:
    """Return the gradients of the loss and of random combinations of the outputs, stacked."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.cat([outputs, value.reshape(1)])
    signals = torch.randn(min(ROWS_PER_DRAW, outputs.numel()), outputs.numel(), generator=generator).double()
    signals[:, -1] = 0
    signals[0] = 0
    signals[0, -1] = 1
    options = {"retain_graph": True, "allow_unused": True}
    inputs = list(params.values())
    with without_warnings():
        try:
            stacked = torch.autograd.grad(outputs, inputs, signals, is_grads_batched=True, **options)
        except RuntimeError:  # an operation without a batched derivative
            each = [torch.autograd.grad(outputs, inputs, signal, **options) for signal in signals]
            stacked = [None if column[0] is None else torch.stack(column) for column in zip(*each, strict=True)]
    return {
        name: torch.zeros(len(signals), *p.shape, dtype=p.dtype) if g is None else g
        for (name, p), g in zip(params.items(), stacked, strict=True)
    }


def census_dimension(model: nn.Module, symmetries: Iterable[Symmetry], kind: str = "symmetric") -> int:
    """Return the dimension of the span of the generators of a census; redundant ones do not count twice.

    Motions along which no parameter moves (an axis against another of the same parameter) do not count.
    """
    space = Space(model, kind)
    vectors = [space.generators(symmetry) for symmetry in symmetries]
    if not vectors:
        return 0
    generator = torch.Generator().manual_seed(0)
    draw = lambda *count: {
        name: torch.randn(*count, *shape, generator=generator).double() for name, shape in space.shapes.items()
    }
    span = np.concatenate(vectors, axis=1)
    rows = [space.derivatives(draw(), draw(ROWS_PER_DRAW)) for _ in range(2 + 2 * span.shape[1] // ROWS_PER_DRAW)]
    return int(np.linalg.matrix_rank(np.concatenate(rows) @ _range(span), rtol=1e-9))
