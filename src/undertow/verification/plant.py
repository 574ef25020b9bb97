"""Plants: contexts in which the alternative of a claim is true. A claim must fail in its plant.

A plant patches the experiment or its prediction: a formula of the library, a model, a noise or a step of the
simulation. A plant never patches a check, its criterion, a statistic or the verdict.
"""

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FunctionType
from unittest import mock

from undertow.verification.claim import Plant

__all__ = ["replaced"]


def replaced(target: str | FunctionType, wrap: Callable, name: str | None = None) -> Plant:
    """Return a plant that replaces a name by `wrap(original)`.

    `target` is `module.name` or `module.Class.name`, as text. Give the module that uses the name: a function that a
    claim imports by name is patched in the module of the claim. Or it is a function, such as `measure`, and `name` is
    one of the global names that its file has.

    >>> import math
    >>> from undertow.verification import replaced
    >>> with replaced("math.pi", lambda pi: 3.0)():
    ...     print(math.pi)
    3.0
    """

    @contextmanager
    def planted() -> Generator[None]:
        with _patch(target, wrap, name), cleared_caches():
            yield

    return planted


@contextmanager
def _patch(target: str | FunctionType, wrap: Callable, name: str | None) -> Generator[None]:
    if isinstance(target, FunctionType):
        names = target.__globals__
        if name not in names:
            raise AttributeError(f"`replaced`: the file of {target.__name__} has no name {name!r}.")
        original = names[name]
        names[name] = wrap(original)
        try:
            yield
        finally:
            names[name] = original
    else:
        home, _, last = target.rpartition(".")
        owner = _resolve(home)
        with mock.patch.object(owner, last, wrap(getattr(owner, last))):
            yield


@contextmanager
def cleared_caches() -> Generator[None]:
    """Clear the compiled programs before and after the context, because they contain the code they were traced from."""
    import jax

    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()


def _resolve(home: str) -> object:
    """Return a module, or a class of a module."""
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError:
        module, _, name = home.rpartition(".")
        return getattr(importlib.import_module(module), name)
