"""The alternative of every claim, as a change of the code that makes it true.

A plant changes what an experiment runs or what it is compared with: a formula of the library, a model, a noise, a step
of the simulation. It never touches a check, its criterion, a statistic or the verdict. The claim must then fail.
"""

import importlib
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax

Plant = Callable[[], AbstractContextManager[Any]]

MODULES = ("heterogeneity", "zero_loss", "noise_equilibrium")


def replaced(target: str, wrap: Callable[[Any], Any]) -> Plant:
    """Replace `module.name` (or `module.Class.name`) by `wrap(original)` while the plant is in the ground.

    Give the module that looks the name up: a function that a claim imports by name is patched in the claim's module.
    """
    home, _, name = target.rpartition(".")

    @contextmanager
    def planted() -> Generator[None]:
        owner = _resolve(home)
        with mock.patch.object(owner, name, wrap(getattr(owner, name))), forgotten():
            yield

    return planted


def together(*plants: Plant) -> Plant:
    """Plant several changes at once."""

    @contextmanager
    def planted() -> Generator[None]:
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return planted


@contextmanager
def forgotten() -> Generator[None]:
    """Without compiled programs from before, and without leaving any: they hold the code they were traced from."""
    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()


def plants() -> Mapping[str, Plant]:
    """The plant of every claim, by id."""
    every: dict[str, Plant] = {}
    for name in MODULES:
        every |= importlib.import_module(f"{__name__}.{name}").PLANTS
    return every


def _resolve(home: str) -> Any:
    """A module, or a class in one."""
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError:
        module, _, name = home.rpartition(".")
        return getattr(importlib.import_module(module), name)
