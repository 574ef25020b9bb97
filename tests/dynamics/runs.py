"""Short runs on a small problem, and a plain loop of SGD to compare them with."""

import equinox as eqx
import jax
import numpy as np

import undertow as ut
from tests.kinds import params, problem
from undertow import _trees as trees

FLAT = {"flat": trees.ravel}
NOISE = ut.Minibatch(problem(), 2)
KEY = jax.random.key(7)
BLOCK = 5


def descend(steps, every=None, seeds=3, **more):
    """Return a run of SGD on `NOISE`; by default three seeds."""
    return ut.descend(
        NOISE, params(), step_size=0.02, steps=steps, key=KEY, observe=FLAT, every=every, seeds=seeds, **more
    )


def plain_loop(noise, point, steps, step_size, seed=0, momentum=0.0, weight_decay=0.0, key=KEY, block=BLOCK):
    """Return the params of all steps of SGD by a plain loop, on the randomness fold_in(fold_in(key, seed), block)."""
    seed_key = jax.random.fold_in(key, seed)
    gradient = eqx.filter_jit(noise.gradient)
    velocity = trees.zeros_like(point)
    path = [point]
    for step in range(steps):
        if step % block == 0:
            slices = noise.randomness(jax.random.fold_in(seed_key, step // block), block, point)
        eta = step_size(step) if callable(step_size) else step_size
        g = gradient(path[-1], trees.take(slices, step % block))
        g = trees.add(g, trees.scale(weight_decay, path[-1]))
        velocity = trees.add(trees.scale(momentum, velocity), g)
        path.append(trees.subtract(path[-1], trees.scale(eta, velocity)))
    return np.stack([trees.ravel(p) for p in path])
