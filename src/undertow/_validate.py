"""Checks of arguments. An error quotes the call, names the argument and says what to do."""

import functools
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import NoReturn, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

__all__ = [
    "KeyLike",
    "Number",
    "RenamedAttribute",
    "as_float",
    "as_key",
    "concrete",
    "finite_number",
    "group_labels",
    "group_shares",
    "params_of_floats",
    "positive_integer",
    "probabilities",
    "quote",
    "real_array",
    "renamed_arguments",
    "sample_axis",
]

P = ParamSpec("P")
R = TypeVar("R")

Number = float | int | np.generic | np.ndarray | Array
"""Types accepted for one real number."""

KeyLike = Array | int | np.integer
"""Types accepted for a key: a key of `jax.random.key`, raw key data, or a whole number."""

SUM_TOLERANCE = 1e-5
"""The largest distance from 1 of a sum of probabilities; half precision is allowed its rounding error."""


def quote(function: str, **arguments: object) -> str:
    """Return the call as the user wrote it: quote("LabelNoise", batch_size=64) is "`LabelNoise(batch_size=64)`"."""
    return f"`{function}({', '.join(f'{name}={value}' for name, value in arguments.items())})`"


def renamed_arguments(function: str, **names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that raises where an argument is given under an old name: `names` maps old to new.

    >>> from undertow._validate import renamed_arguments
    >>> @renamed_arguments("wait", looks="num_saves")
    ... def wait(num_saves: int) -> int:
    ...     return num_saves
    >>> wait(looks=3)
    Traceback (most recent call last):
        ...
    TypeError: `wait(looks=...)`: the argument is called `num_saves` now; write `wait(num_saves=...)`.
    """

    def decorate(original: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(original)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in names.items():
                if old in kwargs:
                    raise TypeError(
                        f"`{function}({old}=...)`: the argument is called `{new}` now; write `{function}({new}=...)`."
                    )
            return original(*args, **kwargs)

        return checked

    return decorate


class RenamedAttribute:
    """A class attribute under an old name: reading it raises an AttributeError with the new name.

    >>> from undertow._validate import RenamedAttribute
    >>> class Batch:
    ...     size = RenamedAttribute("batch_size")
    >>> Batch().size
    Traceback (most recent call last):
        ...
    AttributeError: `Batch.size` is called `batch_size` now.
    """

    def __init__(self, new: str):
        self.new = new
        self.old = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(f"`{self.old}` is called `{self.new}` now.")


def concrete(value: object) -> bool:
    """Return whether a value is known: False for tracers, inside jit, vmap and grad."""
    return not isinstance(value, jax.core.Tracer)


def as_key(function: str, key: object) -> Array:
    """Return `key` as a key of JAX: a whole number n is `jax.random.key(n)`, raw key data are wrapped.

    >>> import jax
    >>> from undertow._validate import as_key
    >>> bool(as_key("descend", 3) == jax.random.key(3))
    True
    """
    if isinstance(key, Integral) and not isinstance(key, bool):
        return jax.random.key(int(key))
    if not isinstance(key, jax.Array):
        raise TypeError(f"`{function}(key={key!r})`: give `key=jax.random.key(0)`, or a whole number.")
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def positive_integer(function: str, name: str, value: object) -> int:
    """Return `value` as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{quote(function, **{name: repr(value)})}: `{name}` must be a whole number of at least 1.")
    if value < 1:
        raise ValueError(f"{quote(function, **{name: value})}: `{name}` must be at least 1.")
    return int(value)


def finite_number(function: str, name: str, value: object, *, least: float = 0.0, below: float = math.inf) -> None:
    """Raise unless `value` is a finite real scalar with least <= value < below. Tracers pass."""
    if concrete(value):
        as_float(function, name, value, least=least, below=below)


def as_float(function: str, name: str, value: object, *, least: float = 0.0, below: float = math.inf) -> float:
    """Return `value`, a finite real scalar with least <= value < below, in double precision."""
    is_number = isinstance(value, Real | Array | np.ndarray | np.generic) and not isinstance(value, bool)
    if not is_number or (not isinstance(value, Real) and value.ndim != 0):
        raise TypeError(f"{quote(function, **{name: repr(value)})}: `{name}` must be a number.")
    number = float(value)
    if not math.isfinite(number) or number < least or number >= below:
        bound = f"at least {least:g}" + (f" and below {below:g}" if below < math.inf else "")
        raise ValueError(f"{quote(function, **{name: value})}: `{name}` must be a finite number, {bound}.")
    return number


def real_array(function: str, name: str, value: object) -> np.ndarray:
    """Return `value` as an array of doubles; raise for masks, imaginary parts, dates and text."""
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(np.ma.is_masked(part) for part in parts):
        raise ValueError(f"`{function}`: `{name}` has masked entries; drop those samples or fill them.")
    try:
        given = np.asarray(value)
        mixed = given.dtype.kind == "O" and any(isinstance(x, complex | np.complexfloating) for x in given.flat)
        if given.dtype.kind == "c" or mixed:
            raise ValueError(
                f"`{function}`: `{name}` is complex; give real numbers, such as its real part. "
                "Complex data not supported."
            )
        if given.dtype.kind not in "mM":
            return given.astype(float)
        reason = f"dtype {given.dtype}"
    except (TypeError, ValueError) as error:
        if str(error).startswith(f"`{function}`"):
            raise
        reason = str(error)
    raise TypeError(
        f"`{function}`: `{name}` has entries that are not numbers; encode text and dates as numbers ({reason})."
    ) from None


def params_of_floats(function: str, params: PyTree) -> None:
    """Raise unless params are a pytree of floating-point arrays."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    if not flat:
        raise ValueError(f"`{function}`: `params` has no leaves; give a pytree of floating-point arrays.")
    for path, leaf in flat:
        place = "params" + jax.tree_util.keystr(path)
        if not hasattr(leaf, "dtype"):
            advice = (
                "wrap numbers with jnp.asarray; of an equinox module pass the arrays only, "
                "`eqx.partition(model, eqx.is_inexact_array)[0]`"
            )
            raise TypeError(f"`{function}`: `{place}` is a {type(leaf).__name__}, not a float array; {advice}.")
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"`{function}`: `{place}` has dtype {leaf.dtype}; params must be real floating-point: "
                "convert it with `.astype(float)`, or keep it out of params."
            )


def sample_axis(function: str, **data: PyTree) -> int:
    """Return the common length of the leading axes of all leaves of the data; raise where they are empty or differ."""
    sizes: dict[str, int] = {}
    for name, tree in data.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            place = name + jax.tree_util.keystr(path)
            if not hasattr(leaf, "shape"):
                raise TypeError(f"`{function}`: `{place}` is a {type(leaf).__name__}; data must be arrays.")
            if len(leaf.shape) == 0:
                raise ValueError(f"`{function}`: `{place}` is a scalar; every array needs a leading sample axis.")
            sizes[place] = leaf.shape[0]
    if not sizes:
        raise ValueError(f"`{function}`: no data; give at least one array with a leading sample axis.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"`{place}` {size}" for place, size in sizes.items())
        raise ValueError(f"`{function}`: the leading (sample) axes differ: {listed}; make them equal.")
    (size,) = set(sizes.values())
    if size == 0:
        raise ValueError(f"`{function}`: the data is empty (0 samples); give at least one sample.")
    return size


def probabilities(function: str, name: str, values: ArrayLike, count: int) -> Array:
    """Return `values` as `count` finite numbers of at least 0 that sum to 1, normalised to remove rounding.

    Tracers are returned unchanged after a check of their shape.
    """
    if np.shape(values) != (count,):
        raise ValueError(f"`{function}`: `{name}` has shape {np.shape(values)}; give {count} numbers, one each.")
    if isinstance(values, jax.core.Tracer):
        return values
    array = np.asarray(values)
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    if not (floating or array.dtype.kind in "biu"):
        raise TypeError(f"`{function}`: `{name}` has dtype {array.dtype}; give real numbers.")
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


def group_labels(function: str, labels: np.ndarray) -> np.ndarray:
    """Return the number of samples of each group 0..k-1; raise for other labels, masks and empty groups."""
    if np.ma.is_masked(labels):
        raise ValueError(f"`{function}`: `groups` has masked labels; drop those samples or give them a group.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(
            f"`{function}`: `groups` has dtype {labels.dtype}; give whole numbers 0..k-1, such as "
            "`np.unique(names, return_inverse=True)[1]`."
        )
    if labels.min() < 0:
        raise ValueError(f"`{function}`: `groups` holds {labels.min()}; labels are 0..k-1.")
    counts = np.bincount(labels)
    empty = np.flatnonzero(counts == 0)
    if empty.size:
        raise ValueError(
            f"`{function}`: group {empty[0]} has no data; number the groups 0..k-1 without gaps, such as "
            "`np.unique(groups, return_inverse=True)[1]`."
        )
    return counts


def group_shares(function: str, weights: ArrayLike, environments: int) -> np.ndarray:
    """Return the probability of each environment: positive, with the sum 1."""
    shares = np.asarray(weights, float)
    if shares.shape != (environments,):
        raise ValueError(
            f"`{function}`: `weights` has shape {shares.shape} and there are {environments} groups; give one each."
        )
    if not np.all(np.isfinite(shares)) or np.any(shares <= 0) or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"{quote(function, weights=shares.tolist())}: `weights` must be positive and sum to 1 "
            f"(they sum to {shares.sum():g}); divide by the sum, and leave out an environment of weight 0."
        )
    return shares / shares.sum()
