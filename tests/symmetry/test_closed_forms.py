"""Closed forms of noise equilibria: their defining equations, limits and units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.symmetry import closed_forms


@pytest.mark.parametrize("widths", [[3], [5, 3], [5, 4, 6]])
def test_a_deep_linear_net_satisfies_the_pairwise_equations(x64, widths):
    keys = jax.random.split(jax.random.key(1), 3)
    truth = jax.random.normal(keys[0], (4, 3), jnp.float64)
    root = lambda k, n: jax.random.normal(keys[k], (n, n), jnp.float64)
    sx, se = root(1, 3) @ root(1, 3).T + jnp.eye(3), root(2, 4) @ root(2, 4).T + jnp.eye(4)
    layers = closed_forms.deep_linear(truth, sx, se, widths)
    # the norms do not depend on the widths
    norms = closed_forms.deep_linear_norms(truth, sx, se, len(layers))
    np.testing.assert_allclose([jnp.sum(layer**2) for layer in layers], norms, rtol=1e-10)
    before, after = [jnp.eye(3)], [jnp.eye(4)]
    for layer in layers:
        before.append(layer @ before[-1])
    for layer in layers[::-1]:
        after.append(after[-1] @ layer)
    np.testing.assert_allclose(before[-1], truth, atol=1e-12)
    for i in range(len(layers) - 1):
        into, out = before[i], after[len(layers) - 2 - i]  # the product before layer i, and that after layer i + 1
        left = layers[i + 1].T @ out.T @ se @ out @ layers[i + 1] * jnp.trace(into @ sx @ into.T)
        right = layers[i] @ into @ sx @ into.T @ layers[i].T * jnp.trace(out.T @ se @ out)
        np.testing.assert_allclose(left, right, atol=1e-10 * float(jnp.abs(left).max()))


def test_directions_without_noise_in_one_factor_do_not_move(x64):
    """The other directions move as in the limit of vanishing noise, and the product does not change."""
    keys = jax.random.split(jax.random.key(3), 4)
    left, right = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], (4, 5))
    half, part = jax.random.normal(keys[2], (4, 4)), jax.random.normal(keys[3], (4, 3))
    a, b = half @ half.T, part @ part.T  # b has rank 3
    move = closed_forms.rotation(left, right, a, b, 0.1, 0.0)
    assert (int(move.lost), int(move.silent)) == (1, 0)
    np.testing.assert_allclose(move.left @ move.right, left @ right, atol=1e-12)
    vectors = jnp.linalg.eigh(b)[1]
    silent, noisy = vectors[:, :1], vectors[:, 1:]
    np.testing.assert_allclose(move.amount @ silent, 0, atol=1e-10)
    limit = closed_forms.geometric_mean(a, b + 1e-12 * silent @ silent.T)
    inside = noisy.T @ closed_forms.geometric_mean(
        noisy @ (noisy.T @ a @ noisy) @ noisy.T + silent @ silent.T, b + silent @ silent.T
    ) @ noisy  # fmt: skip
    np.testing.assert_allclose(noisy.T @ limit @ noisy, inside, rtol=0, atol=1e-3 * jnp.abs(inside).max())
    moved = noisy.T @ jax.scipy.linalg.expm(2 * move.amount) @ noisy
    np.testing.assert_allclose(moved, inside, atol=1e-8)


def test_without_any_noise_nothing_moves(x64):
    left, right = jnp.eye(3), 2 * jnp.eye(3)
    move = closed_forms.rotation(left, right, jnp.zeros((3, 3)), jnp.zeros((3, 3)), 0.1, 0.0)
    assert (int(move.lost), int(move.silent)) == (0, 3)
    np.testing.assert_array_equal(move.amount, 0)
    np.testing.assert_allclose(move.left, left, atol=1e-14)
    np.testing.assert_allclose(move.right, right, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1.0, 1e10])
def test_the_move_does_not_depend_on_the_unit_of_the_noise(x64, scale):
    """The strength of the noise differs widely between directions, also where all of it is small."""
    keys = jax.random.split(jax.random.key(4), 4)
    left, right = jax.random.normal(keys[0], (9, 8)), jax.random.normal(keys[1], (8, 9))
    frames = (jnp.linalg.qr(jax.random.normal(key, (8, 8)))[0] for key in keys[2:])
    a, b = ((frame * jnp.logspace(-7, 0, 8)[None]) @ frame.T for frame in frames)
    move = closed_forms.rotation(left, right, scale * a, scale * b, 0.1, 0.0)
    assert (int(move.lost), int(move.silent)) == (0, 0)
    forward, backward = (jax.scipy.linalg.expm(sign * move.amount) for sign in (1, -1))
    moved, size = forward @ b @ forward, float(jnp.abs(forward @ b @ forward).max())
    np.testing.assert_allclose(backward @ a @ backward, moved, rtol=0, atol=1e-8 * size, equal_nan=False)


def test_the_inner_layers_of_a_deep_linear_net_have_the_rank_of_the_product(x64):
    """By hand, for W_1 = a e v', W_2 = b e e', W_3 = c u e' with unit vectors and identity moments of trace 3.

    The pairwise equations are 3 b^2 = a^2 and c^2 = 3 b^2. With a b c = s, the size of the product, b^3 = s/3.
    """
    u, v = jnp.array([0.3, -1.0, 0.7]), jnp.array([0.2, 0.9, -0.4])
    product = jnp.outer(u, v)
    layers = closed_forms.deep_linear(product, jnp.eye(3), jnp.eye(3), [3, 4])
    values = np.linalg.svd(layers[1], compute_uv=False)
    np.testing.assert_allclose(values, [np.cbrt(jnp.linalg.norm(product) / 3), 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(layers[2] @ layers[1] @ layers[0], product, atol=1e-12)
