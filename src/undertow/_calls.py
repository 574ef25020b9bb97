"""Calls: those of undertow by a user, with their arguments, and those of a user's functions by undertow."""

import difflib
import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn, ParamSpec, TypeVar

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow._validate import kind_of, quote, shown

__all__ = [
    "RenamedAttribute",
    "check_finite",
    "check_function",
    "check_functions",
    "check_observables",
    "check_prediction",
    "check_repeats",
    "check_scalar",
    "checked_call",
    "noted",
    "output_of",
]

P = ParamSpec("P")
R = TypeVar("R")


def checked_call(function: str, **renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that explains missing, unknown and renamed arguments: `renamed` maps old names to new ones.

    >>> from undertow._calls import checked_call
    >>> @checked_call("wait", looks="num_saves")
    ... def wait(num_saves: int) -> int:
    ...     return num_saves
    >>> wait(looks=3)
    Traceback (most recent call last):
        ...
    TypeError: `wait(looks=...)`: the argument is called `num_saves` now; write `wait(num_saves=...)`.
    >>> wait(saves=3)
    Traceback (most recent call last):
        ...
    TypeError: `wait(saves=...)`: there is no argument `saves`; did you mean `num_saves`?
    """

    def decorate(original: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in renamed.items():
                if old in kwargs:
                    raise TypeError(
                        f"`{function}({old}=...)`: the argument is called `{new}` now; write `{function}({new}=...)`."
                    )
            try:
                return original(*args, **kwargs)
            except TypeError:
                wrong = _wrong_call(function, signature, args, kwargs)
                if not wrong:
                    raise
            raise TypeError(wrong)

        return checked

    return decorate


def _wrong_call(function: str, signature: inspect.Signature, args: tuple, kwargs: Mapping[str, object]) -> str:
    """Return what is wrong with the arguments of a call, as a sentence; empty if they fit the signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        pass
    else:
        return ""
    names = [name for name in signature.parameters if name != "self"]
    accepted = f"the arguments are {', '.join(f'`{name}`' for name in names)}"
    for name in kwargs:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"{accepted}."
            return f"`{function}({name}=...)`: there is no argument `{name}`; {hint}"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]
    for name in places[: len(args)]:
        if name in kwargs:
            return f"`{function}(..., {name}=...)`: `{name}` is given twice, by position and by keyword; give it once."
    if len(args) > len(places):
        by_name = [name for name in names if name not in places]
        extra = f"; write the others by name, as `{by_name[0]}=...`" if by_name else ""
        count = len(places) - ("self" in signature.parameters)
        return (
            f"`{function}(...)`: {len(args) - len(places)} arguments too many; it takes {count} positional "
            f"arguments{extra}."
        )
    given = {*places[: len(args)], *kwargs}
    empty = inspect.Parameter.empty
    missing = [n for n, parameter in signature.parameters.items() if parameter.default is empty and n not in given]
    return f"`{function}({missing[0]}=...)`: the argument `{missing[0]}` is missing; {accepted}."


class RenamedAttribute:
    """A class attribute under an old name: reading it raises an AttributeError with the new name.

    >>> from undertow._calls import RenamedAttribute
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


def check_function(function: str, called: str, value: object) -> None:
    """Raise unless `value` can be called as `called`, such as `loss(params, sample)`.

    >>> from undertow._calls import check_function
    >>> check_function("Problem", "loss(params, sample)", lambda w: w)
    Traceback (most recent call last):
        ...
    TypeError: `Problem(loss=...)`: `loss` takes (w); it is called as `loss(params, sample)`.
    """
    name, _, arguments = called.removesuffix(")").partition("(")
    if not callable(value):
        raise TypeError(
            f"`{function}({name}={shown(value)})`: `{name}` is {kind_of(value)}; give a function that is called as "
            f"`{called}`."
        )
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        takes = f"({', '.join(str(p.replace(annotation=p.empty)) for p in signature.parameters.values())})"
        raise TypeError(f"`{function}({name}=...)`: `{name}` takes {takes}; it is called as `{called}`.") from None


def check_functions(function: str, name: str, given: object) -> dict[str, Callable]:
    """Return a dict of functions of params under names; raise for anything else. None is an empty dict."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise TypeError(
            f"{quote(function, **{name: shown(given)})}: `{name}` is {kind_of(given)}; give a dict of functions of "
            f'params, such as `{name}={{"size": lambda params: jnp.sum(params**2)}}`.'
        )
    for key, value in given.items():
        if not isinstance(key, str) or not key:
            raise TypeError(f"`{function}({name}={{{key!r}: ...}})`: the keys of `{name}` must be non-empty strings.")
        check_function(function, f"{name}[{key!r}](params)", value)
    return dict(given)


def check_observables(function: str, name: str, functions: dict[str, Callable], params: PyTree) -> None:
    """Raise where a function of `check_functions` returns no arrays at params, or others when it is traced twice."""
    for key, value in functions.items():
        called = f"{name}[{key!r}](params)"
        if not jax.tree.leaves(output_of(function, called, value, params)):
            raise TypeError(f"`{function}`: `{called}` returns None; return JAX arrays.")
        check_repeats(function, called, value, params)


@contextmanager
def noted(function: str, called: str) -> Generator[None]:
    """Add one line to an exception of a user's function: which function undertow called."""
    try:
        yield
    except Exception as error:
        note = f"undertow called `{called}` of `{function}` here."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def output_of(function: str, called: str, value: Callable, *args: PyTree) -> PyTree:
    """Return the shapes of what a user's function returns; raise where it returns something that is not an array.

    An exception of the function passes unchanged, with a note.
    """
    try:
        observed = _observed_once(function, called, value)
    except TypeError:  # a function that cannot be hashed, such as a module with arrays
        observed = _observed(function, called, value)
    return jax.eval_shape(observed, *args)


@functools.lru_cache(maxsize=128)
def _observed_once(function: str, called: str, value: Callable) -> Callable:
    """Return `_observed`, the same object for the same function: JAX then traces it once for arguments of one shape."""
    return _observed(function, called, value)


def _observed(function: str, called: str, value: Callable) -> Callable:
    def observed(*args: PyTree) -> PyTree:
        with noted(function, called):
            returned = value(*args)
        for leaf in jax.tree.leaves(returned):
            array = isinstance(leaf, jax.Array) or (
                isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biufc"
            )
            if not array and not isinstance(leaf, bool | int | float | complex):
                raise TypeError(f"`{function}`: `{called}` returns {kind_of(leaf)}, {shown(leaf)}; return JAX arrays.")
        return jax.tree.map(jnp.asarray, returned)

    return observed


def check_repeats(function: str, called: str, value: Callable, *args: PyTree) -> None:
    """Raise where two traces of a user's function differ: it draws random numbers that JAX would keep fixed.

    >>> import random
    >>> import jax.numpy as jnp
    >>> from undertow._calls import check_repeats
    >>> check_repeats("Problem", "loss(params, sample)", lambda w, x: (w - x) ** 2, jnp.ones(()), jnp.ones(()))
    """
    inside: Callable = getattr(value, "__wrapped__", value) if hasattr(value, "lower") else value  # of `jax.jit`
    first, second = (
        list(_constants(jax.make_jaxpr(lambda *args: _observed(function, called, inside)(*args))(*args)))
        for _ in range(2)
    )
    if len(first) != len(second) or not all(map(_same, first, second)):
        raise ValueError(
            f"`{function}`: `{called}` gives different values when it is traced twice. Random numbers of Python or "
            "NumPy "
            "are drawn once, at tracing, and then stay the same in all steps: use `jax.random`, as in `SampledNoise`."
        )


def check_scalar(name: str, value: PyTree) -> None:
    """Raise unless a loss returns one real number for one sample."""
    shape = getattr(value, "shape", None)
    if shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        kind = "None" if value is None else f"a {type(value).__name__}"
        returned = f"shape {shape}, dtype {value.dtype}" if hasattr(value, "dtype") else kind
        raise ValueError(
            f"`{name}`: `loss(params, sample)` must return one real number for one sample, not {returned}; "
            "sum or average inside the loss."
        )


def check_finite(name: str, value: Array) -> None:
    """Raise where a loss is not finite."""
    if not np.isfinite(value):
        raise ValueError(
            f"`{name}`: the loss is {float(value)} at the given params; check the data (NaN?), the start and the loss."
        )


def check_prediction(output: PyTree, expected: tuple[int, ...]) -> None:
    """Raise unless a prediction has the shape of a target and is real."""
    if getattr(output, "shape", None) != expected:
        raise ValueError(
            f"`Regression`: `predict(params, x)` returns shape {getattr(output, 'shape', None)} for one input, "
            f"the target of one sample has shape {expected}; make them equal."
        )
    if jnp.issubdtype(output.dtype, jnp.complexfloating):
        raise ValueError(
            f"`Regression`: `predict(params, x)` returns dtype {output.dtype}; return real numbers, such as the "
            "real "
            "and imaginary parts as two outputs."
        )


def _same(a: object, b: object) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


def _constants(program: object) -> Iterator[object]:
    """Yield the operations of a traced function and the constants in it, also those of inner functions."""
    yield from map(_on_host, getattr(program, "consts", ()))
    program = getattr(program, "jaxpr", program)
    if not isinstance(program, jex.Jaxpr):
        return
    yield from (_on_host(result.val) for result in program.outvars if isinstance(result, jex.Literal))
    for equation in program.eqns:
        yield equation.primitive.name
        yield from (_on_host(operand.val) for operand in equation.invars if isinstance(operand, jex.Literal))
        for parameter in equation.params.values():
            for part in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if isinstance(part, int | float | str):
                    yield part
                else:
                    yield from _constants(part)


def _on_host(constant: object) -> object:
    """Return a constant as an array of NumPy; a key or another object as it is."""
    return (
        np.asarray(constant)
        if isinstance(constant, np.ndarray | np.generic | int | float) or _plain(constant)
        else None
    )


def _plain(constant: object) -> bool:
    return isinstance(constant, jax.Array) and not jnp.issubdtype(constant.dtype, jax.dtypes.prng_key)
