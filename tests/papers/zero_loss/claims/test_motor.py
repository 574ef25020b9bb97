import jax.numpy as jnp
import numpy as np
import pytest

from undertow import SGD, Limit
from undertow.papers.zero_loss.claims.motor import PHASES, SPEED, _predicted
from undertow.papers.zero_loss.models.curves import motor

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_the_predicted_speed_under_momentum_is_that_of_the_limit_for_this_optimiser(momentum):
    """The line of the figure of `heavy-ball` once left momentum out of the finite-step correction."""
    step, limit = 0.1, Limit(motor(PHASES), optimiser=SGD(momentum=momentum))
    speeds = []
    for angle in 0.1 + np.linspace(0, 2 * np.pi / PHASES, 24, endpoint=False):
        point = jnp.array([np.cos(angle), np.sin(angle), *np.zeros(PHASES)])
        # the slow time of the optimiser's own step size is (1 - momentum)^2 times that of the effective step size
        drift = np.asarray(limit.drift(point, step_size=step * (1 - momentum))) * (1 - momentum) ** 2
        speeds.append((drift[1] * np.cos(angle) - drift[0] * np.sin(angle)) / SPEED)
    mean = 1 / np.mean(1 / np.array(speeds))
    np.testing.assert_allclose(_predicted(np.array([step]), momentum), mean, rtol=1e-4)
    assert abs(mean - _predicted(np.array([step]))[0]) > 0.05  # the speed without momentum is clearly another one
