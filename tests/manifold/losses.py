"""Three losses with a manifold of minimisers, a point on it, and a factor, for tests of d2Phi."""

from functools import cache

import jax
import jax.numpy as jnp

import undertow as ut
from undertow import _trees as trees
from undertow.papers.zero_loss.models.linear import LinearModel
from undertow.papers.zero_loss.models.tanh_net import TanhNet


def linear():
    model = LinearModel.draw(jax.random.key(0), d=6, n=3, sparsity=2, dtype=jnp.float64)
    start = tuple(1 + 0.3 * jax.random.normal(jax.random.key(k), (6,), jnp.float64) for k in (1, 2))
    return model.problem, model.settle(start)


def tanh_net():
    net = TanhNet.draw(jax.random.key(0), inputs=5, hidden=8, n=5, dtype=jnp.float64)
    return net.problem, ut.settle(net.problem, net.params, tolerance=1e-12).params


def metric():
    """1/2 g'M(x)g with two constraints g and a metric M that changes along the manifold; not a least-squares loss."""

    def loss(x, _):
        g = jnp.stack([x[0] ** 2 + x[1] ** 2 + 0.5 * x[2] - 1, x[3] - jnp.sin(x[0]) * x[4]])
        m = jnp.array([[2.0, 0.3], [0.3, 1.0]]) + 0.3 * jnp.cos(x[2]) * jnp.array([[1.0, 0.0], [0.0, -0.5]])
        return g @ m @ g / 2

    problem = ut.Problem(loss, jnp.zeros(1))
    return problem, ut.settle(problem, jnp.array([0.6, 0.7, 0.2, 0.3, 0.4]), tolerance=1e-12).params


LOSSES = {"linear model": cache(linear), "tanh network": cache(tanh_net), "metric": cache(metric)}


def factor(point, columns=2, seed=3):
    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(point)))
    leaves, structure = jax.tree.flatten(point)
    drawn = [jax.random.normal(k, (*leaf.shape, columns), leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def flat(tree):
    return trees.ravel(tree)
