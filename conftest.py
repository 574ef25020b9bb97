"""Every test runs with shapes and types checked, rank promotion refused and warnings as errors."""

import jax
import pytest
from jaxtyping import install_import_hook

# before anything imports undertow: its annotations become checks
install_import_hook("undertow", "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
