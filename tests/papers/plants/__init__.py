"""The alternative of every claim, implemented as a patch of the code under which the alternative is true.

A plant patches the experiment or its prediction: a formula of the library, a model, a noise or a step of the
simulation. A plant never patches a check, its criterion, a statistic or the verdict. With its plant a claim must fail.
"""

import importlib
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax

Plant = Callable[[], AbstractContextManager[Any]]

MODULES = ("heterogeneity", "zero_loss", "noise_equilibrium", "optimisers")


def replaced(target: str, wrap: Callable[[Any], Any]) -> Plant:
    """Replace `module.name` (or `module.Class.name`) by `wrap(original)` inside the context.

    Give the module that uses the name: a function that a claim imports by name is patched in the module of the claim.
    """
    home, _, name = target.rpartition(".")

    @contextmanager
    def planted() -> Generator[None]:
        owner = _resolve(home)
        with mock.patch.object(owner, name, wrap(getattr(owner, name))), cleared_caches():
            yield

    return planted


def together(*plants: Plant) -> Plant:
    """Combine several plants into one."""

    @contextmanager
    def planted() -> Generator[None]:
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return planted


@contextmanager
def cleared_caches() -> Generator[None]:
    """Clear the compiled programs before and after the context, because they contain the code they were traced from."""
    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()


def plants() -> Mapping[str, Plant]:
    """Return the plant of every claim by its id."""
    every: dict[str, Plant] = {}
    for name in MODULES:
        every |= importlib.import_module(f"{__name__}.{name}").PLANTS
    return every


def _resolve(home: str) -> Any:
    """Return a module, or a class of a module."""
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError:
        module, _, name = home.rpartition(".")
        return getattr(importlib.import_module(module), name)
