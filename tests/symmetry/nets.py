"""Losses with known symmetries: (loss, params, number of independent generators)."""

import jax
import jax.numpy as jnp

import undertow as ut

KEY = jax.random.key(7)


def weights(**shapes):
    return {name: jax.random.normal(jax.random.fold_in(KEY, i), s) for i, (name, s) in enumerate(shapes.items())}


def data(samples=60, inputs=2, outputs=2):
    keys = jax.random.split(jax.random.key(3))
    return jax.random.normal(keys[0], (samples, inputs)), jax.random.normal(keys[1], (samples, outputs))


def square(a, b):
    return jnp.sum((a - b) ** 2)


def relu_net(p, s):
    hidden = jax.nn.relu(p["w1"] @ s[0] + p["b1"])
    hidden = jax.nn.relu(p["w2"] @ hidden + p["b2"])
    return square(p["w3"] @ hidden, s[1])


def relu_params(first=5, second=4, inputs=2, outputs=2):
    return weights(w1=(first, inputs), b1=(first,), w2=(second, first), b2=(second,), w3=(outputs, second))


RELU_LAYERS = (
    ut.Rescaling(lambda p: p["w2"], lambda p: (p["w1"], p["b1"]), neurons=True),
    ut.Rescaling(lambda p: p["w3"], lambda p: (p["w2"], p["b2"]), neurons=True),
)


def linear_net(p, s):
    return square(p["U"] @ (p["W"] @ s[0]), s[1])


FACTORS = ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"])


def normalised(p, s):
    hidden = jnp.tanh(p["w"] @ s[0] / jnp.linalg.norm(p["w"]))
    return square(p["u"] @ hidden, s[1])


SCALE = ut.Scaling(lambda p: p["w"])


def swiglu(p, s):
    return square(p["down"] @ (jax.nn.swish(p["gate"] @ s[0]) * (p["up"] @ s[0])), s[1])


def net_a(p, s):
    return square(p["u"] @ jnp.tanh(p["w"] @ s[0] / jnp.linalg.norm(p["u"])) / jnp.linalg.norm(p["w"]), s[1])


def net_b(p, s):
    return square(p["u"] @ jnp.tanh(p["w"] @ s[0] / jnp.linalg.norm(p["w"])) / jnp.linalg.norm(p["u"]), s[1])


def layer_norm(p, s):
    h = p["w"] @ s[0]
    h = p["gain"] * (h - jnp.mean(h)) / jnp.std(h)
    return square(p["out"] @ h, s[1])


def leaky(h):
    return jax.nn.leaky_relu(h, 0.1)


# name: (loss, params, number of independent generators)
ARCHITECTURES = {
    "two-layer linear": (linear_net, weights(U=(2, 2), W=(2, 2)), 3),
    "three-layer linear": (lambda p, s: square(p["A"] @ (p["B"] @ (p["C"] @ s[0])), s[1]),
                           weights(A=(2, 2), B=(2, 2), C=(2, 2)), 6),
    "ReLU": (lambda p, s: square(p["out"] @ jax.nn.relu(p["i"] @ s[0]), s[1][0]), weights(out=(3,), i=(3, 2)), 3),
    "ReLU with biases": (lambda p, s: square(p["o"] @ jax.nn.relu(p["i"] @ s[0] + p["b"]) + p["c"], s[1]),
                         weights(o=(2, 3), i=(3, 2), b=(3,), c=(2,)), 3),
    "ReLU, rows times matrix": (lambda p, s: square(jax.nn.relu(s[0] @ p["i"] + p["b"]) @ p["o"], s[1]),
                                weights(i=(2, 3), b=(3,), o=(3, 2)), 3),
    "two leaky layers": (lambda p, s: square(p["o"] @ leaky(p["m"] @ leaky(p["i"] @ s[0])), s[1]),
                         weights(o=(2, 2), m=(2, 3), i=(3, 2)), 5),
    "tanh": (lambda p, s: square(p["o"] @ jnp.tanh(p["i"] @ s[0] + p["b"]), s[1]),
             weights(o=(2, 3), i=(3, 2), b=(3,)), 0),
    "linear regression": (lambda p, s: square(p["W"] @ s[0] + p["b"], s[1]), weights(W=(2, 2), b=(2,)), 0),
    "weight norm": (lambda p, s: square(p["g"] * (p["v"] @ s[0]) / jnp.linalg.norm(p["v"]), s[1][0]),
                    weights(g=(), v=(2,)), 1),
    "net A": (net_a, weights(u=(2, 3), w=(3, 2)), 1),
    "net B": (net_b, weights(u=(2, 3), w=(3, 2)), 2),
    "rank one": (lambda p, s: square(p["u"] * (p["w"] @ s[0]), s[1]), weights(u=(2,), w=(2,)), 1),
    "three factors": (lambda p, s: square(p["a"] * p["b"] * p["c"] * s[0][0], s[1][0]), weights(a=(), b=(), c=()), 2),
    "SwiGLU": (swiglu, weights(down=(2, 3), gate=(3, 2), up=(3, 2)), 3),
    "unused parameters": (lambda p, s: linear_net(p, s), weights(U=(2, 2), W=(2, 2), nothing=(4,)), 3),
    # gains against columns, the scale of w, and shifts of all its rows alike: 1 1' (x) M, M symmetric 2 x 2
    "layer norm": (layer_norm, weights(out=(2, 3), gain=(3,), w=(3, 2)), 3 + 1 + 3),
}  # fmt: skip
