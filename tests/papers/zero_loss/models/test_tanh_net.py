"""The tanh network: its prediction, and the variances of its random data and weights."""

import jax
import jax.numpy as jnp
import numpy as np

from undertow.papers.zero_loss.models.tanh_net import TanhNet, predict


def test_the_prediction_equals_the_formula(x64):
    net = TanhNet.draw(jax.random.key(0), inputs=4, hidden=5, n=8, dtype=jnp.float64)
    inner, outer = np.asarray(net.params["inner"]), np.asarray(net.params["outer"])
    for x in np.asarray(net.problem.inputs):
        np.testing.assert_allclose(predict(net.params, jnp.asarray(x)), outer @ np.tanh(inner @ x), rtol=1e-12)


def test_data_and_weights_have_the_stated_variances(x64):
    net = TanhNet.draw(jax.random.key(1), inputs=50, hidden=200, n=300, dtype=jnp.float64)
    expected = (
        (net.problem.inputs, 1.0),
        (net.problem.targets, 1.0),
        (net.params["inner"], 1 / 50),
        (net.params["outer"], 1 / 200),
    )
    for values, variance in expected:
        assert abs(np.mean(np.asarray(values) ** 2) / variance - 1) < 5 * np.sqrt(2 / values.size)
