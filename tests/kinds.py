"""One small example of every kind of noise, for the tests that apply to all noises.

A new noise is added here; `noise/test_base.py` fails until it is.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import undertow as ut
from undertow.dynamics.diffuse import GaussianNoise
from undertow.manifold.metric import RescaledNoise
from undertow.sensing import laws
from undertow.sensing.ensembles import Correlated
from undertow.sensing.measurements import FreshMeasurements
from undertow.sensing.quadratic_net import QuadraticNet

SAMPLES, INPUTS = 7, 3


def regression(outputs: int | None = None, dtype=jnp.float32) -> ut.Regression:
    """Return a two-layer tanh net on noisy data, away from zero loss; params from `params`."""
    keys = jax.random.split(jax.random.key(11), 2)
    inputs = jax.random.normal(keys[0], (SAMPLES, INPUTS), dtype)
    shape = (SAMPLES,) if outputs is None else (SAMPLES, outputs)
    targets = jax.random.normal(keys[1], shape, dtype)

    def predict(p, x):
        hidden = jnp.tanh(p["inner"] @ x)
        return jnp.vdot(p["outer"], hidden) if outputs is None else p["outer"] @ hidden

    return ut.Regression(predict, inputs, targets)


def params(outputs: int | None = None, dtype=jnp.float32) -> dict:
    keys = jax.random.split(jax.random.key(12), 2)
    outer = (2,) if outputs is None else (outputs, 2)
    return {"inner": jax.random.normal(keys[0], (2, INPUTS), dtype), "outer": jax.random.normal(keys[1], outer, dtype)}


def problem(dtype=jnp.float32) -> ut.Problem:
    """Return the same net with a smooth absolute value as the loss, which is not quadratic."""
    net = regression(dtype=dtype)
    return ut.Problem(lambda p, s: jnp.sqrt(1 + (net.predict(p, s[0]) - s[1]) ** 2), net.data)


def population(dtype=jnp.float32) -> ut.Population:
    net = regression(dtype=dtype)

    def draw(key):
        x = jax.random.normal(key, (INPUTS,), dtype)
        return x, jnp.sin(x[0])

    return ut.Population(lambda p, s: (net.predict(p, s[0]) - s[1]) ** 2 / 2, draw)


def factor(p: dict) -> dict:
    """Return a factor with three columns that depends on params."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf, jnp.ones_like(leaf), jnp.sin(3 * leaf)], axis=-1), p)


def scaled_sample_gradient(task: ut.Problem) -> Callable:
    """Return a function that draws the gradient of one random sample times a random factor of mean 1."""

    def draw(key, p):
        which, size = jax.random.split(key)
        gradient = task.batch_gradient(p, jax.random.randint(which, (), 0, SAMPLES))
        factor = jax.random.uniform(size, (), minval=0.5, maxval=1.5)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), gradient)

    return draw


def sensing(dtype=jnp.float32, law=None, **settings) -> ut.MatrixSensing:
    """Return matrix sensing of size 4 x 4 with two correlated spurious directions."""
    law = laws.Table([[-1.0, 0.5], [2.0, 1.0], [0.5, -2.0]], [0.2, 0.5, 0.3]) if law is None else law
    return ut.MatrixSensing(4, 6, law, key=jax.random.key(2), dtype=dtype, **settings)


def point(kind: str, dtype=jnp.float32) -> Any:
    """Return params for a kind of noise."""
    if kind.startswith(("matrix sensing", "quadratic net")):
        return jax.random.normal(jax.random.key(13), (4, 3), dtype) / 2
    return params(dtype=dtype)


GROUPS = jnp.array([0, 0, 1, 2, 1, 1, 2])
WEIGHTS = jnp.array([0.5, 0.2, 0.3])

Build = Callable[..., ut.AbstractNoise]

KINDS: dict[str, Build] = {
    "minibatch of one": lambda dtype=jnp.float32: ut.Minibatch(problem(dtype), 1),
    "minibatch with replacement": lambda dtype=jnp.float32: ut.Minibatch(problem(dtype), 3),
    "minibatch without replacement": lambda dtype=jnp.float32: ut.Minibatch(problem(dtype), 3, replace=False),
    "minibatch of a population": lambda dtype=jnp.float32: ut.Minibatch(population(dtype), 2),
    "label noise, one sample": lambda dtype=jnp.float32: ut.LabelNoise(regression(dtype=dtype), 0.7),
    "label noise, subsets": lambda dtype=jnp.float32: ut.LabelNoise(regression(dtype=dtype), 0.7, 3, replace=False),
    "label noise, Gaussian": lambda dtype=jnp.float32: ut.LabelNoise(regression(dtype=dtype), 0.7, 2, kind="gaussian"),
    "isotropic": lambda dtype=jnp.float32: ut.Isotropic(problem(dtype), 0.3),
    "additive": lambda dtype=jnp.float32: ut.Additive(problem(dtype), factor),
    "whole environments": lambda dtype=jnp.float32: ut.Environments(problem(dtype), GROUPS),
    "weighted environments": lambda dtype=jnp.float32: ut.Environments(problem(dtype), GROUPS, WEIGHTS),
    "batches inside environments": lambda dtype=jnp.float32: ut.Environments(
        problem(dtype), GROUPS, WEIGHTS, batch_size=2
    ),
    "one sample inside environments": lambda dtype=jnp.float32: ut.Environments(problem(dtype), GROUPS, batch_size=1),
    "pooled environments": lambda dtype=jnp.float32: ut.Environments(
        problem(dtype), GROUPS, WEIGHTS, batch_size=2
    ).pooled(),
    "rescaled": lambda dtype=jnp.float32: RescaledNoise(
        ut.Minibatch(problem(dtype), 3), jax.tree.map(lambda p: 1 + p**2, params(dtype=dtype))
    ),
    "sampled": lambda dtype=jnp.float32: ut.SampledNoise(
        problem(dtype), scaled_sample_gradient(problem(dtype)), samples=256
    ),
    "matrix sensing": lambda dtype=jnp.float32: sensing(dtype),
    "matrix sensing, pooled": lambda dtype=jnp.float32: sensing(
        dtype, law=laws.Uniform([-1.0, 0.0], [2.0, 1.5]), pooled=True, ensemble="full"
    ),
    "matrix sensing, measured": lambda dtype=jnp.float32: FreshMeasurements(
        sensing(
            dtype,
            law=laws.Table([[-1.0, 0.5, 0.4], [2.0, 1.0, -0.3]], [0.4, 0.6]),
            spurious_rank=2,
            ensemble=Correlated(jax.random.normal(jax.random.key(5), (10, 4, 4), dtype) / 3),
        ),
        chunk=4,
    ),
    "quadratic net": lambda dtype=jnp.float32: QuadraticNet(
        4, 6, laws.Table([[-1.0], [2.0]], [0.4, 0.6]), key=jax.random.key(2), dtype=dtype
    ),
    "Gaussian twin": lambda dtype=jnp.float32: GaussianNoise(
        ut.LabelNoise(regression(dtype=dtype), 0.7), jnp.asarray(1.5, dtype)
    ),
}
