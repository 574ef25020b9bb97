"""The end of ill-conditioned gradient flows; `test_settle.py` compares it with explicit steps."""

import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.dynamics.stiff_flow import MOST_EQUATIONS, MOST_PARAMETERS, stiff_end, stiff_route

CONDITIONS = jnp.array([1.0, 1e-3, 1e-6, 1e-9])


def valley():
    """A dense problem with curvatures over nine decades, and a flat direction."""
    return ut.Problem(lambda x, _: jnp.sum(CONDITIONS * (x[:4] - 1) ** 2) / 2, jnp.zeros(1))


def test_a_quadratic_valley_of_any_conditioning(x64):
    """The flow converges to 1 in every curved direction and keeps the flat one."""
    end = stiff_end(valley(), jnp.zeros(5).at[4].set(0.3), jnp.asarray(1e-14), 1e-4, 5000)
    np.testing.assert_allclose(end.params, [1, 1, 1, 1, 0.3], atol=1e-6)
    assert float(end.resolution) == 0


@pytest.mark.parametrize(("tolerance", "resolved"), [(1e-5, 1e-3), (1e-8, 1e-6)])
def test_directions_below_the_tolerance_are_reported(tolerance, resolved, x64):
    """A gradient g along curvature h is g/h from its end: at g = tolerance this exceeds 1e-4 below tolerance/1e-4."""
    end = stiff_end(valley(), jnp.zeros(5), jnp.asarray(tolerance), 1e-4, 5000)
    np.testing.assert_allclose(end.resolution, resolved, rtol=1e-6)
    unfollowed = np.asarray(CONDITIONS) <= resolved
    np.testing.assert_allclose(end.distance, np.linalg.norm(1 - np.asarray(end.params)[:4][unfollowed]), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(end.params)[:4][~unfollowed], 1, atol=1e-6)


def test_the_route_is_taken_up_to_its_sizes():
    narrow = lambda samples: ut.Regression(lambda p, x: jnp.sum(p) * x, jnp.ones(samples), jnp.ones(samples))
    assert stiff_route(narrow(MOST_EQUATIONS), jnp.ones(MOST_EQUATIONS + 1))
    assert not stiff_route(narrow(MOST_EQUATIONS + 1), jnp.ones(MOST_EQUATIONS + 2))
    assert stiff_route(valley(), jnp.ones(MOST_PARAMETERS))
    assert not stiff_route(valley(), jnp.ones(MOST_PARAMETERS + 1))
