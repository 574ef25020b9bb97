"""Every test runs with shapes and types checked, rank promotion refused and warnings as errors."""

import functools
import importlib.util
import sys
from pathlib import Path

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook

# scripts of users, and what needs a package that may not be there
collect_ignore_glob = ["tests/torch/integrations/scripts/*"]
if not importlib.util.find_spec("lightning") and not importlib.util.find_spec("pytorch_lightning"):
    collect_ignore_glob.append("src/undertow/torch/integrations/lightning.py")

# before anything imports undertow: its annotations become checks
install_import_hook("undertow", "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")


LONG_TESTS = frozenset((Path(__file__).parent / "tests" / "long_tests.txt").read_text().splitlines())
"""Tests that take longest in `make test`, mostly to compile; `make test-all` runs them with the slow ones."""


def pytest_collection_modifyitems(items):
    """Mark the long tests as slow, and run every test in one block of frames, in which JAX traces faster."""
    from undertow._frames import call_in_one_block

    for item in items:
        item.runtest = functools.partial(call_in_one_block, item.runtest)
        if item.nodeid in LONG_TESTS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def settings_restored():
    """The command line sets jax up for good in its process; tests share theirs."""
    names = ("jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)


@pytest.fixture(autouse=True)
def figures_closed():
    """Figures of pyplot stay open until they are closed, and many open figures are a warning."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True, scope="module")
def programs_freed():
    """The tests of one process compile thousands of programs, and XLA crashes where Linux permits no more mappings."""
    from undertow.execution.compiling import free_programs

    yield
    free_programs()


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def as_a_user():
    """Without the type checks, which would answer before the library's own messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
