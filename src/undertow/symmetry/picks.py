"""Picks of whole leaves, axes and index ranges, as hashable objects instead of lambda functions."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

__all__ = ["JointPick", "LeafPick", "pick_of"]


@dataclass(frozen=True)
class LeafPick:
    """Pick a leaf by its number, with one axis moved, and some indices along that axis."""

    index: int
    axis: int | None = None
    to: int = 0
    first: int | None = None
    last: int | None = None
    chosen: tuple[int, ...] | None = None

    def __call__(self, tree: PyTree) -> Array | np.ndarray:
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
class JointPick:
    """Pick several leaves at once."""

    picks: tuple[LeafPick, ...]

    def __call__(self, tree: PyTree) -> tuple[Array | np.ndarray, ...]:
        return tuple(pick(tree) for pick in self.picks)


def pick_of(picks: list[LeafPick]) -> LeafPick | JointPick:
    """Return one pick for a list of leaf picks."""
    return picks[0] if len(picks) == 1 else JointPick(tuple(picks))
