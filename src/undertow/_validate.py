"""Checks of arguments. An error quotes the call, names the argument and says what to do."""

import inspect
import math
import operator
import re
from collections.abc import Sequence
from numbers import Integral, Real
from types import UnionType

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

__all__ = [
    "KeyLike",
    "Number",
    "as_float",
    "as_key",
    "concrete",
    "finite_number",
    "flag",
    "instance",
    "kind_of",
    "one_of",
    "params_of_floats",
    "positive_integer",
    "quote",
    "seed_number",
    "shown",
]

Number = float | int | np.generic | np.ndarray | Array
"""Types accepted for one real number."""

KeyLike = Array | int | np.integer
"""Types accepted for a key: a key of `jax.random.key`, raw key data, or a whole number."""


def quote(function: str, **arguments: object) -> str:
    """Return the call as the user wrote it: quote("LabelNoise", batch_size=64) is "`LabelNoise(batch_size=64)`"."""
    return f"`{function}({', '.join(f'{name}={value}' for name, value in arguments.items())})`"


MOST = 2**31 - 1
"""The largest whole number of an argument: indices and counters have 32 bits."""

LONGEST = 80
"""The longest text of a value in a message."""


def shown(value: object) -> str:
    """Return a value as a message shows it: numbers and short texts as they are, arrays by type and shape.

    >>> import numpy as np
    >>> from undertow._validate import shown
    >>> print(shown(np.float32(0.5)), shown("no"), shown(np.zeros((2, 3))), shown(len))
    0.5 'no' float64 array of shape (2, 3) len
    """
    if isinstance(value, jax.core.Tracer):
        return "a traced value"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if value.shape == () and isinstance(value, np.ndarray | np.generic | jax.Array) and not _is_key(value):
            return shown(np.asarray(value).item())
        shape: tuple[int, ...] = getattr(value, "shape", ())
        return f"{value.dtype} array of shape {tuple(shape)}"
    if inspect.isroutine(value) or inspect.isclass(value):
        name = getattr(value, "__name__", "<lambda>")
        return "a function" if name == "<lambda>" else name
    if type(value).__module__.partition(".")[0] == "undertow":
        return f"{type(value).__name__}(...)"
    text = " ".join(repr(value).replace("<locals>.", "").replace("<lambda>", "lambda").split())
    text = re.sub(r"<(?:function )?([^<>]*?)(?: object)?(?: at 0x[0-9a-f]+)?>", r"\1", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def kind_of(value: object) -> str:
    """Return what a value is, in words: its type, or None itself."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray | jax.Array):
        return "an array"
    if inspect.isclass(value) or inspect.isroutine(value):
        return "a class" if inspect.isclass(value) else "a function"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"


def instance(function: str, name: str, value: object, kinds: type | UnionType | tuple, advice: str) -> None:
    """Raise unless `value` is an instance of `kinds`; `advice` says what to give."""
    if not isinstance(value, kinds):
        raise TypeError(f"{quote(function, **{name: shown(value)})}: `{name}` is {kind_of(value)}; give {advice}.")


def concrete(value: object) -> bool:
    """Return whether a value is known: False for tracers, inside jit, vmap and grad."""
    return not isinstance(value, jax.core.Tracer)


def _is_key(value: object) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def as_key(function: str, key: object) -> Array:
    """Return `key` as a JAX key: a whole number n is `jax.random.key(n)`, raw key data are wrapped.

    >>> import jax
    >>> from undertow._validate import as_key
    >>> bool(as_key("descend", 3) == jax.random.key(3))
    True
    """
    if isinstance(key, jax.Array) and _is_key(key) and key.shape == ():
        return key
    if not _is_key(key) and isinstance(key, jax.Array | np.ndarray) and key.shape == (2,) and key.dtype == np.uint32:
        return jax.random.wrap_key_data(jnp.asarray(key))
    number = _as_integer(key)
    if number is not None and -(2**63) <= number < 2**64:
        return jax.random.key(number if number < 2**63 else np.uint64(number))
    raise TypeError(f"`{function}(key={shown(key)})`: give one key, `key=jax.random.key(0)`, or a whole number.")


def _as_integer(value: object) -> int | None:
    """Return a whole number of Python or NumPy, or an array of one, as an int; None for anything else."""
    if isinstance(value, bool) or not concrete(value):
        return None
    if isinstance(value, Integral):
        return int(value)
    array = isinstance(value, np.ndarray | jax.Array) and value.shape == () and np.dtype(value.dtype).kind in "iu"
    return operator.index(np.asarray(value).item()) if array else None


def positive_integer(function: str, name: str, value: object, *, least: int = 1, most: int = MOST) -> int:
    """Return `value` as an int of at least `least` and at most `most`."""
    number = _as_integer(value)
    call = quote(function, **{name: shown(value)})
    if number is None:
        raise TypeError(f"{call}: `{name}` must be a whole number of at least {least}.")
    if number < least:
        raise ValueError(f"{call}: `{name}` must be at least {least}.")
    if number > most:
        raise ValueError(f"{call}: `{name}` must be at most {most}.")
    return number


def seed_number(function: str, name: str, value: object) -> int:
    """Return a seed of NumPy or PyTorch, a whole number from 0 to 2^32 - 1."""
    return positive_integer(function, name, value, least=0, most=2**32 - 1)


def flag(function: str, name: str, value: object) -> bool:
    """Return `value`, which is True or False, as a bool of Python."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{quote(function, **{name: shown(value)})}: `{name}` must be True or False.")
    return bool(value)


def one_of(function: str, name: str, value: object, names: Sequence[str]) -> None:
    """Raise unless `value` is one of the names."""
    if not isinstance(value, str) or value not in names:
        *others, last = (f'"{each}"' for each in names)
        choices = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{quote(function, **{name: shown(value)})}: `{name}` is {choices}.")


def finite_number(
    function: str,
    name: str,
    value: object,
    *,
    least: float = 0.0,
    below: float = math.inf,
    positive: bool = False,
) -> None:
    """Raise unless `value` is a finite real scalar with least <= value < below. Tracers pass."""
    if concrete(value):
        as_float(function, name, value, least=least, below=below, positive=positive)


def as_float(
    function: str,
    name: str,
    value: object,
    *,
    least: float = 0.0,
    below: float = math.inf,
    positive: bool = False,
) -> float:
    """Return `value`, a finite real scalar with least <= value < below, in double precision; `positive`: above 0."""
    call = quote(function, **{name: shown(value)})
    array = isinstance(value, np.ndarray | np.generic | jax.Array)
    real = jnp.issubdtype(value.dtype, jnp.floating) or value.dtype.kind in "iu" if array else isinstance(value, Real)
    if not real or isinstance(value, bool) or (array and value.shape != ()):
        raise TypeError(f"{call}: `{name}` must be a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < least or number >= below or (positive and number == 0):
        bound = ("above 0" if positive else f"at least {least:g}") + (
            f" and below {below:g}" if below < math.inf else ""
        )
        raise ValueError(f"{call}: `{name}` must be a finite number, {bound}.")
    return number


def params_of_floats(function: str, params: PyTree) -> None:
    """Raise unless params are a pytree of floating-point arrays."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    if not flat:
        raise ValueError(
            f"{quote(function, params=shown(params))}: `params` has no leaves; give a pytree of floating-point arrays."
        )
    for path, leaf in flat:
        place = "params" + jax.tree_util.keystr(path)
        if not hasattr(leaf, "dtype"):
            advice = (
                "wrap numbers with jnp.asarray; of an equinox module pass the arrays only, "
                "`eqx.partition(model, eqx.is_inexact_array)[0]`"
            )
            raise TypeError(f"`{function}`: `{place}` is {kind_of(leaf)}, not a float array; {advice}.")
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"`{function}`: `{place}` has dtype {leaf.dtype}; params must be real floating-point: "
                "convert it with `.astype(float)`, or keep it out of params."
            )
