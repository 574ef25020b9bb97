"""Checks of the arguments of symmetries, and sums over picked entries."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._arrays import real_array
from undertow._calls import check_function, noted
from undertow.symmetry import selection
from undertow.symmetry.selection import Pick

__all__ = [
    "check_amount",
    "check_label",
    "check_overlap",
    "check_pick",
    "check_shape",
    "largest_exponent",
    "picked_sums",
]


def largest_exponent(params: PyTree) -> float:
    """Return the largest x for which exp(x) is finite in the types of all leaves."""
    return min(float(np.log(float(jnp.finfo(leaf.dtype).max))) for leaf in jax.tree.leaves(params))


def check_amount(function: str, amount: ArrayLike, params: PyTree, size: float = 1.0) -> None:
    """Raise where an amount is not finite or exp(amount A) overflows, for A with eigenvalues up to `size`."""
    if not validate.concrete(amount):
        return
    values = np.asarray(amount, np.float64)
    call = f"`{function}.orbit(params, amount)`"
    if not np.isfinite(values).all():
        raise ValueError(f"{call}: `amount` is {values.ravel()[~np.isfinite(values.ravel())][0]}; give finite numbers.")
    largest = float(np.linalg.norm(values, 2) if values.ndim == 2 else np.abs(values).max(initial=0))
    if largest * size > largest_exponent(params):
        bound = largest_exponent(params) / size
        raise ValueError(
            f"{call}: with `amount` {largest:.3g} exp(amount A) overflows; give amounts between -{bound:.3g} and "
            f"{bound:.3g}."
        )


def check_shape(function: str, amount: ArrayLike | Sequence, charge: tuple[int, ...]) -> None:
    """Raise where an amount is neither one number nor an array in the shape of the charge."""
    kind = getattr(amount, "dtype", np.asarray(amount).dtype if np.isscalar(amount) else None)
    if isinstance(amount, list | tuple) and real_array(function, "amount", amount) is not None:
        kind = np.dtype(float)
    if kind is None or (not jnp.issubdtype(kind, jnp.floating) and kind.kind not in "iu"):
        raise TypeError(
            f"`{function}.orbit(params, amount={validate.shown(amount)})`: `amount` must be real; give one number, "
            "or an "
            "array."
        )
    if np.shape(amount) not in ((), charge):
        array = f", or an array of shape {charge}, one for each entry of the charge" if charge else ""
        raise ValueError(
            f"`{function}.orbit(params, amount)`: `amount` has shape {np.shape(amount)}; give one number{array}."
        )


def check_pick(function: str, name: str, pick: object) -> None:
    """Raise where an argument is not a function that picks entries of params."""
    check_function(function, f"{name}(params)", pick)


def check_label(function: str, label: object) -> str:
    """Return a label, which must be a string."""
    if not isinstance(label, str):
        raise TypeError(f"`{function}(label={validate.shown(label)})`: `label` must be a string.")
    return label


def check_overlap(function: str, params: PyTree, **picks: Pick) -> None:
    """Raise where a pick takes no entries of params, or one entry twice."""
    taken, total = [], trees.count(params)
    for name, pick in picks.items():
        with noted(function, f"{name}(params)"):
            numbers, shifted = (selection.entries(pick, params, first) for first in (0, total))
        # a pick that only selects follows a shift of all numbers, one that computes does not
        if not numbers or any(
            x.dtype.kind != "i" or (y != x + total).any() for x, y in zip(numbers, shifted, strict=True)
        ):
            raise ValueError(
                f"`{function}({name}=...)`: `{name}(params)` must return entries of params as they are, such as "
                '`lambda p: p["w"]`, at least one; it returns other values.'
            )
        taken += [x.ravel() for x in numbers]
    if np.bincount(np.concatenate(taken)).max() > 1:
        raise ValueError(f"`{function}`: an entry of params is picked twice, by {' and '.join(picks)}.")


def picked_sums(pick: Pick, tree: PyTree, keep: int | None) -> Array:
    """Return the sum of the picked entries: of all of them, or for each index of the axis `keep`."""

    def one(x: Array) -> Array:
        if keep is None:
            return jnp.sum(x)
        return jnp.sum(x, axis=tuple(k for k in range(x.ndim) if k != keep % x.ndim))

    parts = [one(x) for x in selection.selected(pick, tree)]
    return sum(parts[1:], parts[0])
