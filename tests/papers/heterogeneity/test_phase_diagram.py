"""The experiment of the phase diagram of HeteroSGD equals a run of `descend`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.papers.heterogeneity import phase_diagram as hetero
from undertow.sensing.laws import two_point


@pytest.mark.slow
def test_a_run_of_hetero_equals_a_run_of_descend():
    """The noise, key and steps are the same; the steps are small, so that rounding does not grow."""
    key = jax.random.key(5)
    sensing = ut.MatrixSensing(6, m=8000, law=two_point(1.0, 2.0), dtype=jnp.float32)
    # seed 0 of `descend` draws from fold_in(key, 0)
    run = ut.descend(sensing, sensing.start(0.1), step_size=0.03, steps=40, key=key, seeds=1, progress=False,
                     observe={"measured": sensing.measure})  # fmt: skip
    one = jax.jit(partial(hetero.run, steps=40, d=6))
    other = one(jax.random.fold_in(key, 0), step_size=0.03, spread=2.0, alpha=0.1)
    np.testing.assert_allclose(other["true"], run.observed["measured"]["true"][0, -1], rtol=1e-4)
    np.testing.assert_allclose(other["spurious"], run.observed["measured"]["spurious"][0, -1], rtol=1e-4)
