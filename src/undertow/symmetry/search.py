"""Finding the exponential symmetries of a loss from its gradients alone.

A symmetric A is a symmetry when <grad l, A params> = 0 for every sample at every point. That is linear in A, so the
symmetries are a null space. Small models are searched in full. Larger ones are searched for the kinds that networks
have: for each axis length, which combinations of rows and columns scale against each other (neurons, normalised
weights); for each pair of matrices that can be multiplied, U'dL/dU = dL/dW W' in full or in blocks (linear pairs,
attention heads); for whole leaves, which of them scale together.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike
from undertow.problem import AbstractSampled, Population
from undertow.symmetry import precision
from undertow.symmetry.generators import AbstractSymmetry, DoubleRotation, Exponential, Rescaling, Scaling

__all__ = ["FULL_SEARCH", "find_symmetries"]

FULL_SEARCH = 30
"""Up to so many parameters the null space is searched in full: its cost grows like the sixth power."""
MEMORY = 2**28
"""Bytes that points and gradients may take together in a larger search."""


@dataclass(frozen=True)
class _Leaf:
    """Picks a leaf by its number, with one axis moved, and some indices along it."""

    index: int
    axis: int | None = None
    to: int = 0
    first: int | None = None
    last: int | None = None
    chosen: tuple[int, ...] | None = None

    def __call__(self, tree: PyTree) -> Any:
        leaf = jax.tree.leaves(tree)[self.index]
        if self.axis is None:
            return leaf
        moved = jnp.moveaxis(leaf, self.axis, self.to) if leaf.ndim > 1 else leaf
        if self.chosen is not None:
            return moved[np.array(self.chosen)] if self.to == 0 else moved[..., np.array(self.chosen)]
        if self.first is not None:
            return moved[self.first : self.last] if self.to == 0 else moved[..., self.first : self.last]
        return moved


@dataclass(frozen=True)
class _Together:
    """Several picks at once."""

    picks: tuple[_Leaf, ...]

    def __call__(self, tree: PyTree) -> Any:
        return tuple(pick(tree) for pick in self.picks)


def _pick(picks: list[_Leaf]) -> Callable:
    return picks[0] if len(picks) == 1 else _Together(tuple(picks))


class _Dense(eqx.Module):
    """A generator given as a matrix on flat params."""

    matrix: Array

    def __call__(self, vector: PyTree) -> PyTree:
        flat, unravel = jax.flatten_util.ravel_pytree(vector)
        return unravel(self.matrix.astype(flat.dtype) @ flat)


@dataclass(frozen=True)
class _Evidence:
    """Gradients at many points: params and gradients of every leaf, stacked on a leading axis."""

    names: list[str]
    params: list[np.ndarray]
    gradients: list[np.ndarray]
    alive: list[np.ndarray]
    """For every leaf, which entries ever have a gradient."""
    tolerance: float


def find_symmetries(
    problem: AbstractSampled | Population,
    params: PyTree,
    *,
    key: KeyLike | None = None,
    points: int | None = None,
) -> tuple[AbstractSymmetry, ...]:
    """The exponential symmetries of a loss: `Rescaling`, `DoubleRotation`, `Scaling`, and what else there is.

    **Arguments:** a problem with samples, params of the shapes to search (their values set the scale of the random
    points around them at which gradients are taken; `points` of them, None chooses), and a key. Each symmetry found
    says what it is with `.describe(params)` and how many generators it has with `.dimension(params)`; they are
    independent. Parameters without any gradient are left out, and so are neurons that are hardly ever alive. Models of
    up to 30 parameters are searched in full, so that nothing is missed and generators of no known kind come as
    `Exponential`s; larger ones for the kinds that networks have. Half-precision params and data are searched in
    float32; a loss that casts to half precision inside is refused, because its rounding hides what is no symmetry.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> def loss(p, sample):
    ...     x, y = sample
    ...     return (p["out"] @ jax.nn.relu(p["in"] @ x) - y) ** 2
    >>> data = (jax.random.normal(jax.random.key(0), (50, 2)), jnp.ones(50))
    >>> params = {"in": jnp.ones((3, 2)), "out": jnp.ones(3)}
    >>> for symmetry in ut.find_symmetries(ut.Problem(loss, data), params, key=0):
    ...     print(symmetry.describe(params))
    rescaling of 3 neurons, in against out
    """
    if not isinstance(problem, AbstractSampled | Population):
        raise TypeError(f"`find_symmetries(problem, ...)`: a {type(problem).__name__} has no samples to search on.")
    validate.params_of_floats("find_symmetries", params)
    problem, params = precision.widened((problem, params))
    key = validate.as_key("find_symmetries", 0 if key is None else key)
    size = trees.count(params)
    full = size <= FULL_SEARCH
    if points is None:
        least = 6 * size * (size + 1) // 2 if full else 4 * _most_axes(params)
        points = max(least, min(256, max(32, MEMORY // (16 * size))))
    points = validate.positive_integer("find_symmetries", "points", points)
    evidence = _evidence(problem, params, key, points)
    found = _independent(_rotations(evidence) + _neurons(evidence))
    found += _whole_leaves(evidence, found, params)
    if full:
        found += _remaining(evidence, found, params)
    return tuple(found)


def _most_axes(params: PyTree) -> int:
    """How many axes of leaves have the same length, at most: so many unknowns a neuron has."""
    lengths = [n for leaf in jax.tree.leaves(params) for n in leaf.shape]
    return max((lengths.count(n) for n in set(lengths)), default=1)


def _evidence(problem: Any, params: PyTree, key: Array, points: int) -> _Evidence:
    """Gradients of single samples at random points around params."""
    if isinstance(problem, Population):
        data = jax.vmap(problem.draw)(jax.random.split(jax.random.fold_in(key, 0), points))
        data = precision.widened(data)
    else:
        data = trees.take(problem.data, jax.random.randint(jax.random.fold_in(key, 0), (points,), 0, problem.size))
    working = precision.coarsest(problem.sample_loss, params, trees.take(data, 0))
    if precision.is_half(working):
        raise ValueError(
            f"`find_symmetries`: the loss computes in {working.name}, whose rounding hides which directions are "
            "symmetries; cast to float32 or float64 inside the loss instead (params and data may be of any precision)."
        )

    def somewhere(k: Array) -> PyTree:
        drawn = trees.standard_normal(k, params)

        def move(leaf: Array, z: Array) -> Array:
            scale = jnp.sqrt(jnp.mean(leaf**2))
            return leaf + 0.5 * jnp.where(scale > 0, scale, 0.5) * z

        return jax.tree.map(move, params, drawn)

    @jax.jit
    def look(keys: Array, samples: PyTree) -> tuple[PyTree, PyTree]:
        at = jax.vmap(somewhere)(keys)
        one = lambda row: jax.grad(problem.sample_loss)(*row)
        return at, jax.lax.map(one, (at, samples), batch_size=256)

    at, gradients = look(jax.random.split(jax.random.fold_in(key, 1), points), data)
    leaves, grads = ([np.asarray(x, np.float64) for x in jax.tree.leaves(tree)] for tree in (at, gradients))
    good = np.all([np.isfinite(g).reshape(points, -1).all(1) for g in grads], axis=0)
    if not good.any():
        raise ValueError("`find_symmetries`: no gradient near params is finite; check the loss and the data.")
    # every sample counts alike: gradients are taken to the same length
    length = np.sqrt(sum((g.reshape(points, -1) ** 2).sum(1) for g in grads))
    good &= length > 0
    if not good.any():
        raise ValueError("`find_symmetries`: all gradients near params vanish; check the loss and the data.")
    leaves = [x[good] for x in leaves]
    grads = [(g[good].T / length[good]).T for g in grads]
    alive = [np.asarray(np.abs(g).max(0) > 1e-12) for g in grads]
    eps = float(jnp.finfo(working).eps)
    return _Evidence(trees.names(params), leaves, grads, alive, eps**0.6)


def _along(evidence: _Evidence, leaf: int, axis: int) -> np.ndarray:
    """<params, gradient> for each index along an axis of a leaf: (points, length)."""
    product = evidence.params[leaf] * evidence.gradients[leaf]
    return product.sum(axis=tuple(k for k in range(1, product.ndim) if k != axis + 1))


def _sizes(evidence: _Evidence, leaf: int, axis: int) -> np.ndarray:
    """|params| |gradient| for each index along an axis: what `_along` is small against."""
    rest = tuple(k for k in range(1, evidence.params[leaf].ndim) if k != axis + 1)
    square = lambda x: np.sqrt((x**2).sum(axis=rest))
    return square(evidence.params[leaf]) * square(evidence.gradients[leaf])


def _null_space(rows: np.ndarray, scale: np.ndarray, tolerance: float) -> np.ndarray:
    """Vectors v (as rows, reduced to echelon form) with rows @ v = 0; columns are brought to the size `scale` first."""
    used = scale > 0
    if not used.any():
        return np.zeros((0, rows.shape[1]))
    scaled = rows[:, used] / scale[used]
    _, values, right = np.linalg.svd(scaled, full_matrices=True)
    values = np.concatenate([values, np.zeros(right.shape[0] - values.size)])
    null = right[values <= tolerance * 10 * np.sqrt(len(rows))] / scale[used]
    full = np.zeros((len(null), rows.shape[1]))
    full[:, used] = null
    return _echelon(full)


def _echelon(vectors: np.ndarray) -> np.ndarray:
    """Reduced row echelon form, so that combinations with few members come apart."""
    rows = vectors.copy()
    pivot = 0
    for column in range(rows.shape[1]):
        if pivot == len(rows):
            break
        best = pivot + int(np.abs(rows[pivot:, column]).argmax())
        if abs(rows[best, column]) < 1e-6 * max(np.abs(rows).max(), 1e-300):
            continue
        rows[[pivot, best]] = rows[[best, pivot]]
        rows[pivot] /= rows[pivot, column]
        for other in range(len(rows)):
            if other != pivot:
                rows[other] -= rows[other, column] * rows[pivot]
        pivot += 1
    return rows[:pivot]


def _signs(vector: np.ndarray) -> tuple[int, ...] | None:
    """The vector as -1, 0, 1 after scaling, or None."""
    scaled = vector / np.abs(vector).max()
    rounded = np.round(scaled)
    return tuple(int(x) for x in rounded) if np.abs(scaled - rounded).max() < 1e-3 else None


def _neurons(evidence: _Evidence) -> list[AbstractSymmetry]:
    """Rescalings and scalings of the rows and columns that share an index."""
    axes: dict[int, list[tuple[int, int]]] = {}
    for leaf, array in enumerate(evidence.params):
        for axis, length in enumerate(array.shape[1:]):
            axes.setdefault(length, []).append((leaf, axis))
    patterns: dict[tuple, list[int]] = {}
    for length, members in axes.items():
        alongs = [_along(evidence, *member) for member in members]
        sizes = [_sizes(evidence, *member) for member in members]
        for index in range(length):
            rows = np.stack([a[:, index] for a in alongs], axis=1)
            scale = np.stack([s[:, index] for s in sizes], axis=1).max(axis=0)
            if np.count_nonzero(np.abs(rows).max(1)) < 2 * np.count_nonzero(scale):
                continue  # too seldom alive to tell
            for vector in _null_space(rows, scale, evidence.tolerance):
                signs = _signs(vector)
                if signs is not None:
                    chosen = tuple((m, s) for m, s in zip(members, signs, strict=True) if s)
                    patterns.setdefault((length, chosen), []).append(index)
    found: list[AbstractSymmetry] = []
    for (length, chosen), indices in patterns.items():
        found += _family(length, chosen, indices, evidence)
    return found


def _family(length: int, chosen: tuple, indices: list[int], evidence: _Evidence) -> list[AbstractSymmetry]:
    """The symmetries of one pattern of rows and columns: neurons together, scalings one by one."""
    up = [member for member, sign in chosen if sign > 0]
    down = [member for member, sign in chosen if sign < 0]
    taken = None if len(indices) == length else tuple(indices)
    if up and down:
        # incoming are those with biases beside them: the side with the shorter leaves
        ends = sorted((up, down), key=lambda side: min(evidence.params[leaf].ndim for leaf, _ in side))
        into, out = (ends[0], ends[1]) if len(ends[0]) >= len(ends[1]) else (ends[1], ends[0])
        if len(up) == len(down) == 1:
            into, out = (up, down) if up[0][1] <= down[0][1] else (down, up)
        return [
            Rescaling(
                _pick([_Leaf(leaf, axis, -1, chosen=taken) for leaf, axis in out]),
                _pick([_Leaf(leaf, axis, 0, chosen=taken) for leaf, axis in into]),
                neurons=True,
            )
        ]
    side = up or down
    if length == 1:
        return []  # one index: the whole leaf, which is looked at as such
    return [
        Scaling(
            _pick([_Leaf(leaf, axis, 0, index, index + 1) for leaf, axis in side]),
            label="scaling of " + ", ".join(f"{evidence.names[leaf]}[{index}] (axis {axis})" for leaf, axis in side),
        )
        for index in indices
    ]


def _rotations(evidence: _Evidence) -> list[AbstractSymmetry]:
    """GL(d) between pairs of matrices, in full or between equal blocks."""
    matrices = [leaf for leaf, array in enumerate(evidence.params) if array.ndim == 3 and evidence.alive[leaf].any()]
    found: list[AbstractSymmetry] = []
    for left, right in itertools.combinations(matrices, 2):
        for left_axis, right_axis in itertools.product((0, 1), repeat=2):
            u, gu = (np.moveaxis(x[left], left_axis + 1, -1) for x in (evidence.params, evidence.gradients))
            w, gw = (np.moveaxis(x[right], right_axis + 1, 1) for x in (evidence.params, evidence.gradients))
            width = u.shape[-1]
            if w.shape[1] != width or width == 1:
                continue
            few = slice(0, 2)  # most pairs are no symmetry, which two points show
            if not _blocks(_mismatch(u[few], gu[few], w[few], gw[few]), evidence.tolerance):
                continue
            for block in _blocks(_mismatch(u, gu, w, gw), evidence.tolerance):
                if block == width:
                    found.append(DoubleRotation(_Leaf(left, left_axis, -1), _Leaf(right, right_axis, 0)))
                    continue
                for a in range(0, width, block):
                    span = f"[{a}:{a + block}]"
                    label = f"GL({block}) between {evidence.names[left]}{span} and {evidence.names[right]}{span}"
                    ends = (a, a + block)
                    one, other = _Leaf(left, left_axis, -1, *ends), _Leaf(right, right_axis, 0, *ends)
                    found.append(DoubleRotation(one, other, label))
    return found


def _mismatch(u: np.ndarray, gu: np.ndarray, w: np.ndarray, gw: np.ndarray) -> np.ndarray:
    """The largest entries of U'dL/dU - dL/dW W' over all points, relatively; infinite without any gradient."""
    gap = np.swapaxes(u, 1, 2) @ gu - gw @ np.swapaxes(w, 1, 2)
    norm = lambda x: np.sqrt((x**2).sum((1, 2)))
    scale = (norm(u) * norm(gu) + norm(w) * norm(gw)).max()
    return np.abs(gap).max(0) / scale if scale > 0 else np.full(gap.shape[1:], np.inf)


def _blocks(wrong: np.ndarray, tolerance: float) -> list[int]:
    """The largest block size of at least two for which all diagonal blocks vanish, if there is one."""
    width = len(wrong)
    for size in [s for s in range(width, 1, -1) if width % s == 0]:
        if all(wrong[a : a + size, a : a + size].max() <= tolerance for a in range(0, width, size)):
            return [size]
    return []


def _leaf_vector(symmetry: AbstractSymmetry, params: PyTree) -> np.ndarray:
    """What all generators of a symmetry together do to whole leaves: the sum of A's diagonal over each leaf's size."""
    ones = jax.tree.map(jnp.ones_like, params)
    moved = symmetry.orbit(ones, 1e-3)
    return np.array([float(jnp.mean(jnp.log(x))) / 1e-3 for x in jax.tree.leaves(moved)])


def _independent(found: list[AbstractSymmetry]) -> list[AbstractSymmetry]:
    """Without rescalings that a rotation contains: both of their sides are the two factors of it."""
    place = lambda pick: (pick.index, pick.axis) if isinstance(pick, _Leaf) else None
    rotations = [{place(s.left), place(s.right)} for s in found if isinstance(s, DoubleRotation)]
    return [s for s in found if not (isinstance(s, Rescaling) and {place(s.outgoing), place(s.incoming)} in rotations)]


def _whole_leaves(evidence: _Evidence, found: list[AbstractSymmetry], params: PyTree) -> list[AbstractSymmetry]:
    """Leaves that scale together as a whole, beyond what is known already."""
    rows = np.stack(
        [(p * g).reshape(len(p), -1).sum(1) for p, g in zip(evidence.params, evidence.gradients, strict=True)], 1
    )
    norm = lambda x: np.sqrt((x.reshape(len(x), -1) ** 2).sum(1))
    scale = np.stack([norm(p) * norm(g) for p, g in zip(evidence.params, evidence.gradients, strict=True)], 1).max(0)
    null = _null_space(rows, scale, evidence.tolerance)
    if not len(null):
        return []
    known = np.array([_leaf_vector(s, params) for s in found]).reshape(len(found), rows.shape[1])
    # scalings of all rows of a leaf add up to the leaf
    groups = _echelon(np.concatenate([known, _summed(known)])) if len(known) else known
    rest: list[np.ndarray] = []
    for vector in null:
        span = np.array([*groups, *rest]).reshape(-1, rows.shape[1])
        if (
            np.linalg.matrix_rank(np.vstack([span, vector]), tol=1e-3) > np.linalg.matrix_rank(span, tol=1e-3)
            if len(span)
            else True
        ):
            rest.append(vector)
    symmetries: list[AbstractSymmetry] = []
    for vector in rest:
        signs = _signs(vector)
        if signs is None:
            diagonal = [jnp.full(leaf.shape, v) for leaf, v in zip(jax.tree.leaves(params), vector, strict=True)]
            symmetries.append(
                Exponential(jax.tree.unflatten(jax.tree.structure(params), diagonal), "scaling of leaves")
            )
            continue
        up = [_Leaf(k) for k, sign in enumerate(signs) if sign > 0]
        down = [_Leaf(k) for k, sign in enumerate(signs) if sign < 0]
        symmetries.append(Rescaling(_pick(up), _pick(down)) if up and down else Scaling(_pick(up or down)))
    return symmetries


def _summed(known: np.ndarray) -> np.ndarray:
    """Single-leaf vectors as units: scalings of rows of a leaf together scale the leaf."""
    alone = [k for k in range(known.shape[1]) if any((row != 0).sum() == 1 and row[k] != 0 for row in known)]
    return np.eye(known.shape[1])[alone]


def _remaining(evidence: _Evidence, found: list[AbstractSymmetry], params: PyTree) -> list[AbstractSymmetry]:
    """The rest of the null space over all symmetric matrices, for small models."""
    points = len(evidence.params[0])
    flat = np.concatenate([p.reshape(points, -1) for p in evidence.params], axis=1)
    grads = np.concatenate([g.reshape(points, -1) for g in evidence.gradients], axis=1)
    alive = np.concatenate([a.ravel() for a in evidence.alive])
    used = np.flatnonzero(alive)
    size = used.size
    upper = np.triu_indices(size)
    outer = np.einsum("ki,kj->kij", grads[:, used], flat[:, used])
    both = outer + np.swapaxes(outer, 1, 2)
    weights = np.where(upper[0] == upper[1], 0.5, 1.0)
    rows = both[:, upper[0], upper[1]] * weights
    scale = np.sqrt((rows**2).mean(0))
    _, values, right = np.linalg.svd(rows / scale, full_matrices=True)
    values = np.concatenate([values, np.zeros(right.shape[0] - values.size)])
    null = right[values <= 10 * evidence.tolerance * values[0]] / scale

    def triangle(matrix: np.ndarray) -> np.ndarray:
        return matrix[np.ix_(used, used)][upper]

    known = np.array([triangle(m) for s in found for m in _matrices(s, params)]).reshape(-1, upper[0].size)
    rest: list[AbstractSymmetry] = []
    basis = np.linalg.qr(known.T)[0] if len(known) else np.zeros((upper[0].size, 0))
    for vector in null:
        left = vector - basis @ (basis.T @ vector)
        if np.linalg.norm(left) > 1e-3 * np.linalg.norm(vector):
            left = left / np.linalg.norm(left)
            basis = np.concatenate([basis, left[:, None]], axis=1)
            matrix = np.zeros((size, size))
            matrix[upper] = left
            matrix = matrix + np.triu(matrix, 1).T
            whole = np.zeros((alive.size, alive.size))
            whole[np.ix_(used, used)] = matrix / np.abs(matrix).max()
            rest.append(Exponential(_Dense(jnp.asarray(whole))))
    return rest


def _matrices(symmetry: AbstractSymmetry, params: PyTree) -> list[np.ndarray]:
    """The generators of a symmetry as dense matrices: d/d amount of the orbit, column by column."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    shape = jax.eval_shape(symmetry.charge, params).shape
    units = []
    for place in np.ndindex(*shape):
        if len(shape) == 2 and place[0] > place[1]:
            continue
        unit = np.zeros(shape)
        unit[place] = 1
        units.append((unit + unit.T) / 2 if len(shape) == 2 else unit)

    def act(unit: Array) -> Array:
        move = lambda amount, x: jax.flatten_util.ravel_pytree(symmetry.orbit(unravel(x), amount * unit))[0]
        small = 1e-3
        columns = lambda x: (move(small, x) - move(-small, x)) / (2 * small)
        return jax.vmap(columns, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))

    return [np.asarray(act(jnp.asarray(unit, flat.dtype)), np.float64) for unit in units]
