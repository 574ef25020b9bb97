"""Checks of arrays that users give: data, probabilities, labels and numbers."""

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from undertow._validate import quote, shown

__all__ = [
    "check_indices",
    "data_arrays",
    "finite_numbers",
    "group_labels",
    "group_shares",
    "probabilities",
    "real_array",
    "real_vector",
    "regression_arrays",
    "sample_axis",
]

SUM_TOLERANCE = 1e-5
"""The largest distance from 1 of a sum of probabilities; half precision is allowed its rounding error."""


def real_array(function: str, name: str, value: object) -> np.ndarray:
    """Return `value` as an array of doubles; raise for masks, imaginary parts, dates and text."""
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(np.ma.is_masked(part) for part in parts):
        raise ValueError(f"`{function}`: `{name}` has masked entries; drop those samples or fill them.")
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # rows of several lengths, tensors that train
        given = np.asarray(None)
    # an array of objects may be a column of numbers of a data frame
    strange = [x for x in given.flat if x is None or not np.isscalar(x)] if given.dtype.kind == "O" else []
    if given.dtype.kind == "c" or (given.dtype.kind == "O" and any(isinstance(x, complex) for x in given.flat)):
        raise ValueError(
            f"`{function}`: `{name}` is complex; give real numbers, such as its real part. Complex data not supported."
        )
    if given.dtype.kind not in "mM" and not strange:
        try:
            return given.astype(float)
        except (TypeError, ValueError):
            pass
    raise TypeError(
        f"{quote(function, **{name: shown(value)})}: `{name}` has entries that are not numbers, with dtype "
        f"{given.dtype}; "
        "the argument must be without string, date and other entries: encode text and dates as numbers."
    )


def finite_numbers(function: str, name: str, value: object, *, most_axes: int = 1) -> np.ndarray:
    """Return `value` as an array of finite doubles with at most `most_axes` axes, at least one of them."""
    array = np.atleast_1d(real_array(function, name, value))
    wrong = array[~np.isfinite(array)]
    if array.ndim > most_axes or not array.size or wrong.size:
        what = f"has {wrong[0]}" if wrong.size else f"has shape {array.shape}"
        axes = (
            "one number or several"
            if most_axes == 1
            else "arrays of shape (environments,) or (environments, directions)"
        )
        raise ValueError(
            f"{quote(function, **{name: shown(value)})}: `{name}` {what}; give finite numbers, at least one: {axes}."
        )
    return array


def data_arrays(function: str, name: str, data: PyTree) -> PyTree:
    """Return the data with every leaf as a JAX array; raise for leaves that are not arrays of numbers or keys."""

    def convert(path: tuple, leaf: object) -> object:
        place = name + jax.tree_util.keystr(path)
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            advice = "data must be arrays: convert lists and numbers with jnp.asarray"
            raise TypeError(f"`{function}`: `{place}` is {shown(leaf)}; {advice}.")
        if isinstance(leaf, jax.Array):
            return leaf
        if np.ma.is_masked(leaf):
            raise ValueError(f"`{function}`: `{place}` has masked entries; drop those samples or fill them.")
        try:
            array = np.asarray(leaf)
        except (TypeError, ValueError, RuntimeError):  # a tensor of PyTorch on another device, or one that trains
            array = np.asarray(None)
        if not (array.dtype.kind in "biufc" or jnp.issubdtype(array.dtype, jnp.floating)):
            raise TypeError(
                f"`{function}`: `{place}` has dtype {getattr(leaf, 'dtype', None)}; encode text, dates and objects as "
                "numbers."
            )
        return jnp.asarray(array)

    return jax.tree_util.tree_map_with_path(convert, data)


def sample_axis(function: str, **data: PyTree) -> int:
    """Return the common length of the leading axes of all leaves of the data; raise where they are empty or differ."""
    sizes: dict[str, int] = {}
    for name, tree in data.items():
        flat = jax.tree_util.tree_flatten_with_path(tree)[0]
        if not flat:
            raise ValueError(
                f"{quote(function, **{name: shown(tree)})}: `{name}` has no data; give at least one array with a "
                "leading sample axis."
            )
        for path, leaf in flat:
            place = name + jax.tree_util.keystr(path)
            if not hasattr(leaf, "shape"):
                raise TypeError(f"`{function}`: `{place}` is {shown(leaf)}; data must be arrays.")
            if len(leaf.shape) == 0:
                raise ValueError(f"`{function}`: `{place}` is a scalar; every array needs a leading sample axis.")
            if leaf.shape[0] == 0:
                raise ValueError(
                    f"`{function}`: `{place}` has shape {tuple(leaf.shape)} and is empty; give at least one sample."
                )
            sizes[place] = leaf.shape[0]
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"`{place}` {size}" for place, size in sizes.items())
        raise ValueError(f"`{function}`: the leading (sample) axes differ: {listed}; make them equal.")
    return next(iter(sizes.values()))


def regression_arrays(function: str, inputs: PyTree, targets: object) -> tuple[PyTree, Array]:
    """Return inputs and targets with a common sample axis as JAX arrays, the targets as floats (n,) or (n, q)."""
    if isinstance(targets, list | tuple | dict):
        raise TypeError(f"`{function}`: `targets` is a {type(targets).__name__}; give an array, jnp.asarray(targets).")
    inputs, targets = (data_arrays(function, name, tree) for name, tree in (("inputs", inputs), ("targets", targets)))
    sample_axis(function, inputs=inputs, targets=targets)
    if targets.ndim > 2:
        raise ValueError(f"`{function}`: `targets` has shape {targets.shape}; give (n,) or (n, q).")
    if jnp.issubdtype(targets.dtype, jnp.complexfloating):
        raise TypeError(f"`{function}`: `targets` is complex; give its real and imaginary parts as two outputs.")
    return inputs, targets if jnp.issubdtype(targets.dtype, jnp.floating) else targets.astype(jnp.result_type(float))


def real_vector(function: str, name: str, values: ArrayLike, count: int) -> None:
    """Raise unless `values` are `count` real numbers."""
    if _shape(values) != (count,):
        shape = "rows of several lengths" if _shape(values) is None else f"shape {_shape(values)}"
        call = quote(function, **{name: shown(values)})
        raise ValueError(f"{call}: `{name}` has {shape}; give {count} numbers, one each.")
    dtype = np.asarray(values).dtype
    if not (jnp.issubdtype(dtype, jnp.floating) or dtype.kind in "biu"):
        raise TypeError(f"`{function}`: `{name}` has dtype {dtype}; give real numbers.")


def probabilities(function: str, name: str, values: ArrayLike, count: int) -> Array:
    """Return `values` as `count` finite numbers of at least 0 that sum to 1, normalised to remove rounding.

    Tracers are returned unchanged after a check of their shape.
    """
    if isinstance(values, jax.core.Tracer) and values.shape == (count,):
        return values
    real_vector(function, name, values, count)
    array = np.asarray(values)
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    given = array.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if bad.size:
        raise ValueError(
            f"`{function}`: `{name}[{bad[0]}]` is {given[bad[0]]:g}; `{name}` must be finite and not negative."
        )
    total = given.sum()
    if abs(total - 1) > max(SUM_TOLERANCE, float(jnp.finfo(array.dtype).eps) if floating else 0.0):
        raise ValueError(f"`{function}`: `{name}` must sum to 1, not to {total:g}; divide it by its sum.")
    return jnp.asarray((given / total).astype(array.dtype if floating else np.float64))


def _shape(values: ArrayLike) -> tuple[int, ...] | None:
    """Return the shape of an array or of nested lists; None where rows have several lengths."""
    try:
        return np.shape(values)
    except ValueError:
        return None


def check_indices(function: str, indices: object, size: int) -> None:
    """Raise unless the indices are one or a vector of whole numbers from 0 to size - 1."""
    call = f"`{function}(indices={shown(indices)})`"
    if not isinstance(indices, np.ndarray | np.generic | jax.Array) or np.dtype(indices.dtype).kind not in "iu":
        kind = f"have dtype {indices.dtype}" if hasattr(indices, "dtype") else f"are a {type(indices).__name__}"
        raise TypeError(f"{call}: `indices` {kind}; give an array of whole numbers, such as `jnp.array([0, 2])`.")
    if indices.ndim > 1 or indices.size == 0:
        raise ValueError(f"{call}: `indices` must be one index or a vector of at least one.")
    outside = np.asarray(indices).ravel()
    outside = outside[(outside < 0) | (outside >= size)]
    if outside.size:
        raise ValueError(f"{call}: `indices` has {outside[0]}; the samples have numbers from 0 to {size - 1}.")


def group_labels(function: str, groups: ArrayLike, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and the number of samples of each group 0..k-1; raise for other labels and empty groups."""
    if _shape(groups) != (samples,):
        raise ValueError(
            f"{quote(function, groups=shown(groups))}: `groups` has shape {_shape(groups)} and there are {samples} "
            "samples; give one label each."
        )
    labels = np.asanyarray(groups)
    if np.ma.is_masked(labels):
        raise ValueError(f"`{function}`: `groups` has masked labels; drop those samples or give them a group.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(
            f"`{function}`: `groups` has dtype {labels.dtype}; give whole numbers 0..k-1, such as "
            "`np.unique(names, return_inverse=True)[1]`."
        )
    if labels.min() < 0:
        raise ValueError(f"`{function}`: `groups` holds {labels.min()}; labels are 0..k-1.")
    present, counts = np.unique(labels, return_counts=True)
    if present[-1] != len(present) - 1:
        empty = next(number for number, label in enumerate(present) if number != label)
        raise ValueError(
            f"`{function}`: `groups` goes up to {present[-1]}, and group {empty} has no data; number the groups 0..k-1 "
            "without gaps, such as `np.unique(groups, return_inverse=True)[1]`."
        )
    return np.asarray(labels), counts


def group_shares(function: str, weights: ArrayLike, environments: int) -> np.ndarray:
    """Return the probability of each environment: positive, with the sum 1."""
    if _shape(weights) != (environments,):
        raise ValueError(
            f"{quote(function, weights=shown(weights))}: `weights` has shape {_shape(weights)} and there are "
            f"{environments} groups; give one each."
        )
    real_vector(function, "weights", weights, environments)
    shares = np.asarray(weights, float)
    if not np.all(np.isfinite(shares)) or np.any(shares <= 0) or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"{quote(function, weights=shares.tolist())}: `weights` must be positive and sum to 1 "
            f"(they sum to {shares.sum():g}); divide by the sum, and leave out an environment of weight 0."
        )
    return shares / shares.sum()
