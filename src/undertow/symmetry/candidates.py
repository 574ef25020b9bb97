"""Candidates for symmetries of networks: rescalings and scalings of neurons, and GL(d) between pairs of matrices."""

import itertools

import numpy as np

from undertow.symmetry.evidence import Evidence, inner_products, norm_products
from undertow.symmetry.generators import AbstractSymmetry, DoubleRotation, Rescaling, Scaling
from undertow.symmetry.null_space import null_space, signs
from undertow.symmetry.picks import LeafPick, pick_of

__all__ = ["neuron_symmetries", "rotations", "without_contained_rescalings"]


def neuron_symmetries(evidence: Evidence) -> list[AbstractSymmetry]:
    """Return rescalings and scalings of the rows and columns that share an index."""
    axes: dict[int, list[tuple[int, int]]] = {}
    for leaf, array in enumerate(evidence.params):
        for axis, length in enumerate(array.shape[1:]):
            axes.setdefault(length, []).append((leaf, axis))
    patterns: dict[tuple, list[int]] = {}
    for length, members in axes.items():
        products = [inner_products(evidence, *member) for member in members]
        sizes = [norm_products(evidence, *member) for member in members]
        for index in range(length):
            rows = np.stack([a[:, index] for a in products], axis=1)
            scale = np.stack([s[:, index] for s in sizes], axis=1).max(axis=0)
            if np.count_nonzero(np.abs(rows).max(1)) < 2 * np.count_nonzero(scale):
                continue  # too few points with a gradient to decide
            for vector in null_space(rows, scale, evidence.tolerance):
                pattern = signs(vector)
                if pattern is not None:
                    chosen = tuple((m, s) for m, s in zip(members, pattern, strict=True) if s)
                    patterns.setdefault((length, chosen), []).append(index)
    symmetries: list[AbstractSymmetry] = []
    for (length, chosen), indices in patterns.items():
        symmetries += _family(length, chosen, indices, evidence)
    return symmetries


def _family(length: int, chosen: tuple, indices: list[int], evidence: Evidence) -> list[AbstractSymmetry]:
    """Return the symmetries of one pattern of rows and columns: neurons together, scalings one by one."""
    up = [member for member, sign in chosen if sign > 0]
    down = [member for member, sign in chosen if sign < 0]
    taken = None if len(indices) == length else tuple(indices)
    if up and down:
        # the incoming side is the one with biases, hence with the leaves of fewer axes
        ends = sorted((up, down), key=lambda side: min(evidence.params[leaf].ndim for leaf, _ in side))
        into, out = (ends[0], ends[1]) if len(ends[0]) >= len(ends[1]) else (ends[1], ends[0])
        if len(up) == len(down) == 1:
            into, out = (up, down) if up[0][1] <= down[0][1] else (down, up)
        return [
            Rescaling(
                pick_of([LeafPick(leaf, axis, -1, chosen=taken) for leaf, axis in out]),
                pick_of([LeafPick(leaf, axis, 0, chosen=taken) for leaf, axis in into]),
                neurons=True,
            )
        ]
    side = up or down
    if length == 1:
        return []  # a single index is the whole leaf, which `scaled_leaves` tests
    return [
        Scaling(
            pick_of([LeafPick(leaf, axis, 0, index, index + 1) for leaf, axis in side]),
            label="scaling of " + ", ".join(f"{evidence.names[leaf]}[{index}] (axis {axis})" for leaf, axis in side),
        )
        for index in indices
    ]


def rotations(evidence: Evidence) -> list[AbstractSymmetry]:
    """Return GL(d) between pairs of matrices, in full or between equal blocks."""
    matrices = [leaf for leaf, array in enumerate(evidence.params) if array.ndim == 3 and evidence.alive[leaf].any()]
    symmetries: list[AbstractSymmetry] = []
    for left, right in itertools.combinations(matrices, 2):
        for left_axis, right_axis in itertools.product((0, 1), repeat=2):
            u, gu = (np.moveaxis(x[left], left_axis + 1, -1) for x in (evidence.params, evidence.gradients))
            w, gw = (np.moveaxis(x[right], right_axis + 1, 1) for x in (evidence.params, evidence.gradients))
            width = u.shape[-1]
            if w.shape[1] != width or width == 1:
                continue
            few = slice(0, 2)  # two points are enough to exclude most pairs
            if not _blocks(_mismatch(u[few], gu[few], w[few], gw[few]), evidence.tolerance):
                continue
            for block in _blocks(_mismatch(u, gu, w, gw), evidence.tolerance):
                if block == width:
                    symmetries.append(DoubleRotation(LeafPick(left, left_axis, -1), LeafPick(right, right_axis, 0)))
                    continue
                for a in range(0, width, block):
                    span = f"[{a}:{a + block}]"
                    label = f"GL({block}) between {evidence.names[left]}{span} and {evidence.names[right]}{span}"
                    ends = (a, a + block)
                    one, other = LeafPick(left, left_axis, -1, *ends), LeafPick(right, right_axis, 0, *ends)
                    symmetries.append(DoubleRotation(one, other, label))
    return symmetries


def _mismatch(u: np.ndarray, gu: np.ndarray, w: np.ndarray, gw: np.ndarray) -> np.ndarray:
    """Return the largest relative entries of U'dL/dU - dL/dW W' over all points; infinite without any gradient."""
    gap = np.swapaxes(u, 1, 2) @ gu - gw @ np.swapaxes(w, 1, 2)
    norm = lambda x: np.sqrt((x**2).sum((1, 2)))
    scale = (norm(u) * norm(gu) + norm(w) * norm(gw)).max()
    return np.abs(gap).max(0) / scale if scale > 0 else np.full(gap.shape[1:], np.inf)


def _blocks(mismatch: np.ndarray, tolerance: float) -> list[int]:
    """Return the largest block size of at least two for which all diagonal blocks vanish, if there is one."""
    width = len(mismatch)
    for size in [s for s in range(width, 1, -1) if width % s == 0]:
        if all(mismatch[a : a + size, a : a + size].max() <= tolerance for a in range(0, width, size)):
            return [size]
    return []


def without_contained_rescalings(symmetries: list[AbstractSymmetry]) -> list[AbstractSymmetry]:
    """Return the symmetries without the rescalings whose two sides are the two factors of a rotation."""
    place = lambda pick: (pick.index, pick.axis) if isinstance(pick, LeafPick) else None
    factors = [{place(s.left), place(s.right)} for s in symmetries if isinstance(s, DoubleRotation)]
    contained = lambda s: isinstance(s, Rescaling) and {place(s.outgoing), place(s.incoming)} in factors
    return [s for s in symmetries if not contained(s)]
