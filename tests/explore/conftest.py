"""Double precision in all threads, as in the process of `undertow explore`."""

import jax
import pytest


@pytest.fixture(autouse=True)
def double_precision(settings_restored):
    jax.config.update("jax_enable_x64", True)
