"""Noise powers by the interpretation of the jaxpr, against per-sample gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry import taps

KEYS = jax.random.split(jax.random.key(0), 12)


def normal(k, *shape):
    return jax.random.normal(KEYS[k], shape, jnp.float64)


def attention(p, s):
    x, y = s
    heads = lambda z: z.reshape(5, 2, 2).transpose(1, 0, 2)
    q, k, v = (heads(x @ p[name].T) for name in "qkv")
    mixed = jax.nn.softmax(q @ k.transpose(0, 2, 1), axis=-1) @ v
    return nets.square(jnp.mean(mixed.transpose(1, 0, 2).reshape(5, 4) @ p["o"], axis=0), y)


def convolution(p, s):
    x, y = s
    layer = lambda z, w: jax.lax.conv(z, w, (1, 1), "SAME")
    hidden = jax.nn.relu(layer(x[None], p["c1"]) + p["b"][None, :, None, None])
    hidden = jax.nn.relu(jax.lax.conv(hidden, p["c2"], (2, 2), "VALID"))
    return nets.square(p["w"] @ jnp.mean(hidden, axis=(0, 2, 3)), y)


def tied(p, s):
    return nets.square(p["w"].T @ jnp.tanh(p["w"] @ s[0]), s[1])


@jax.jit
def _inner(w, x):
    return w @ x


def jitted(p, s):
    return nets.square(jax.checkpoint(lambda w, h: w @ h)(p["b"], jnp.tanh(_inner(p["a"], s[0]))), s[1])


def mixed_precision(p, s):
    return nets.square(
        (p["b"].astype(jnp.float32) @ jnp.tanh(p["a"] @ s[0]).astype(jnp.float32)).astype(s[1].dtype), s[1]
    )


def recurrent(p, s):
    step = lambda h, x: (jnp.tanh(p["w"] @ h + p["v"] @ x), None)
    return nets.square(jax.lax.scan(step, jnp.zeros(3), s[0])[0][:2], s[1])


def regularised(p, s):
    return nets.square(p["a"] @ s[0], s[1]) + jnp.sum(p["a"] ** 2)


@jax.jit
def _turned(w):
    return w.T


def turned_inside(p, s):
    return nets.square(p["a"] @ s[0], s[1]) + jnp.sum(jnp.sin(_turned(p["a"])) * s[0][0])


def pair_data(*shape, outputs=2):
    return normal(10, 12, *shape), normal(11, 12, outputs)


CASES = {
    "dense": (nets.relu_net, lambda: pair_data(2), nets.relu_params, {"w1": "taps", "w2": "taps", "b1": "per"}),
    "attention": (attention, lambda: pair_data(5, 4, outputs=4),
                  lambda: {n: normal(k, 4, 4) for k, n in enumerate("qkvo")}, dict.fromkeys("qkvo", "taps")),
    "convolution": (convolution, lambda: pair_data(1, 6, 6),
                    lambda: {"c1": normal(0, 3, 1, 3, 3), "b": normal(1, 3), "c2": normal(2, 4, 3, 2, 3),
                             "w": normal(3, 2, 4)},
                    {"c1": "taps", "c2": "taps", "w": "taps", "b": "per"}),
    "tied": (tied, lambda: pair_data(2), lambda: {"w": normal(0, 3, 2)}, {"w": "per"}),
    "jit and remat inside": (jitted, lambda: pair_data(2), lambda: {"a": normal(0, 3, 2), "b": normal(1, 2, 3)},
                             {"a": "taps", "b": "taps"}),
    "mixed precision": (mixed_precision, lambda: pair_data(2), lambda: {"a": normal(0, 3, 2), "b": normal(1, 2, 3)},
                        {"a": "taps", "b": "taps"}),
    "scan": (recurrent, lambda: pair_data(4, 2), lambda: {"w": normal(0, 3, 3), "v": normal(1, 3, 2)},
             {"w": "per", "v": "per"}),
    "a weight that a jitted function returns": (turned_inside, lambda: pair_data(2), lambda: {"a": normal(0, 2, 2)},
                                                {"a": "per"}),
    "penalty in the loss": (regularised, lambda: pair_data(2), lambda: {"a": normal(0, 2, 2)}, {"a": "per"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_request_against_per_sample_gradients(name, x64):
    loss, data, params, expected = CASES[name]
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params())
    problem = ut.Problem(loss, data())
    routes = taps.routes(problem, params)
    for leaf, method in expected.items():
        assert routes[leaf].startswith(method), (leaf, routes)
    requests: list[taps.Request] = []
    for index, leaf in enumerate(jax.tree.leaves(params)):
        requests.append(taps.Entries(index))
        for axis in range(leaf.ndim):
            requests += [
                taps.Squares(index, axis), taps.Gram(index, axis, np.arange(leaf.shape[axis]), None),
            ]  # fmt: skip
            if leaf.ndim == 2:
                requests.append(taps.Gram(index, axis, np.arange(2), np.array([1, 0])))
    sums = taps.moments(problem, params, requests)
    gradients = problem.sample_gradients(params)
    tolerance = 1e-5 if name == "mixed precision" else 1e-10
    for a, b in zip(jax.tree.leaves(sums.gradient), jax.tree.leaves(problem.gradient(params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    for request, value in zip(requests, sums.value, strict=True):
        each = np.stack([taps.value_of(request, jax.tree.map(lambda g, i=i: g[i], gradients)) for i in range(12)])
        scale = np.abs(each).max()
        np.testing.assert_allclose(value, each.mean(0), atol=tolerance * scale, err_msg=str(request))


def test_results_do_not_depend_on_the_chunks_of_samples(x64, monkeypatch):
    from undertow import _chunks as chunks

    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), nets.relu_params())
    problem = ut.Problem(nets.relu_net, pair_data(2))
    unchunked = taps.moments(problem, params, [taps.Squares(2, 0)])
    monkeypatch.setattr(chunks, "BUDGET_BYTES", 5000)
    split = taps.moments(problem, params, [taps.Squares(2, 0)])
    np.testing.assert_allclose(unchunked.value[0], split.value[0], rtol=1e-12)


def test_weighted_samples_against_per_sample_gradients(x64):
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), nets.relu_params())
    weights = jnp.arange(1.0, 13.0) / 78
    problem = ut.Problem(nets.relu_net, pair_data(2)).reweight(weights)
    each = problem.sample_gradients(params)["w1"]
    sums = taps.moments(problem, params, [taps.Squares(2, 0)])
    np.testing.assert_allclose(sums.value[0], jnp.einsum("n,nij->i", weights, each**2), rtol=1e-12)


def test_a_layer_on_a_sequence_by_hand(x64):
    """sum sin(x w) over the positions of a sequence has the gradient x' cos(x w)."""
    x, w = normal(10, 12, 4, 3), normal(0, 3, 2)
    problem = ut.Problem(lambda p, s: jnp.sum(jnp.sin(s @ p)), x)
    assert taps.routes(problem, w) == {"params": "taps"}
    sums = taps.moments(problem, w, [taps.Squares(0, 0), taps.Squares(0, 1)])
    each = np.einsum("nti,nto->nio", x, np.cos(np.asarray(x) @ np.asarray(w)))
    np.testing.assert_allclose(sums.gradient, each.mean(0), rtol=1e-12)
    for axis in (0, 1):
        np.testing.assert_allclose(sums.value[axis], (each**2).sum(2 - axis).mean(0), rtol=1e-12)
