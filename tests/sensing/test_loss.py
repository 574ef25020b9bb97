"""The population loss of matrix sensing."""

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow.sensing.laws import Table


def test_the_loss_and_its_gradient_equal_the_formulas(x64):
    law = Table([[-1.0, 0.5], [2.0, 1.0]], [0.25, 0.75])
    sensing = ut.MatrixSensing(5, 10, law, spectrum=[1.0, 0.5], key=jax.random.key(0))
    for point in (jnp.eye(5) * 0.3, {"U": jnp.eye(5) * 0.3, "V": 0.2 * jnp.ones((5, 2))}):
        product = (
            point @ point.T if not isinstance(point, dict) else point["U"] @ point["U"].T - point["V"] @ point["V"].T
        )
        by_hand = sum(
            p * jnp.sum((product - sensing.problem.signal - sensing.problem.spurious(s)) ** 2) / 4
            for p, s in zip(law.probabilities, law.values, strict=True)
        )
        np.testing.assert_allclose(sensing.problem.loss(point), by_hand, rtol=1e-10)
        auto = jax.grad(sensing.problem.loss)(point)
        for a, b in zip(jax.tree.leaves(auto), jax.tree.leaves(sensing.problem.gradient(point)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
