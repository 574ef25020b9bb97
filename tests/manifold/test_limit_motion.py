"""Flows, diffusions and their ends."""

import jax.numpy as jnp
import numpy as np
import pytest

from undertow import Additive
from undertow.manifold.geometry import frame_at
from undertow.manifold.limit_motion import blank_after, motion_of, report_lost_rank
from undertow.papers.zero_loss.models import curves


@pytest.mark.parametrize(("along", "motion"), [(0.0, "flow"), (1e-6, "flow"), (1e-3, "diffusion")])
def test_tangent_noise_within_rounding_is_no_diffusion(along, motion, x64):
    """The share of the tangent noise is 0, 1e-12 or 1e-6; up to sqrt(eps) = 1.5e-8 it counts as rounding."""
    noise = Additive(curves.circle(), lambda x: jnp.diag(jnp.array([1.0, along])))
    assert motion_of(noise, frame_at(curves.circle(), jnp.array([1.0, 0.0]))) == motion


def test_lost_rank_is_an_error_of_a_flow_and_a_warning_of_a_diffusion():
    with pytest.raises(ValueError, match=r"by slow time 0\.5, where the limit ends"):
        report_lost_rank(np.array(0.5), 3, "flow")
    with pytest.warns(UserWarning, match="1 of 2 runs stop"):
        report_lost_rank(np.array([0.5, np.inf]), 3, "diffusion")


def test_values_after_the_end_are_nan_and_integers_become_floats():
    after = np.array([False, True])
    np.testing.assert_array_equal(blank_after(np.array([1, 2]), after), [1.0, np.nan])
