"""The chain of layers of the law of balance (Ziyin, Li and Ueda, arXiv 2308.06671), its moments and its runs.

The paper studies a loss with a rescaling symmetry, l(u, w) = l(c u, w/c), under the SDE of SGD with T = step size/batch
size. Noise then balances |u|^2 against |w|^2. For v = u_1 ... u_n and l = (v x - y)^2, it makes the stationary
distribution of v a closed form, with the moments

    b1 = E x^2,  b2 = E xy,  a1 = Var x^2,  a2 = Cov(x^2, xy),  a3 = Var xy,  C(v) = a1 v^2 - 2 a2 v + a3.

With all |u_k| equal, Ito's formula gives dv = (-n v^q g + (n (n - 1)/2) T s^2 v^(2 q - 1)) dt + n sqrt(T) s v^q dB for
v > 0, where q = 2 - 2/n, g = 2 (b1 v - b2) and s^2 = 4 C(v). Everything below follows from this equation. Places are
named by subject, because versions of the paper number their results differently. `n` is the number of layers, D + 1 in
the paper's words.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import undertow as ut

MEAN, NOISE = 0.05, 1.0
"""Labels y = MEAN ± NOISE at x = 1: the critical T is MEAN/NOISE^2, and a step moves log v by little."""
CRITICAL = MEAN / NOISE**2


@dataclass(frozen=True)
class Runs:
    """SGD or its SDE, many runs side by side."""

    seeds: int
    """Independent runs."""


SCALES = {"smoke": Runs(256), "default": Runs(1024), "full": Runs(8192)}


def chain(x, y):
    """Return the problem l = (u_1 ... u_n x - y)^2 on samples x, y."""
    return ut.Problem(lambda u, sample: (jnp.prod(u) * sample[0] - sample[1]) ** 2, (jnp.asarray(x), jnp.asarray(y)))


def labels(average=MEAN, noise=NOISE):
    """Return the chain with x = 1 and two labels."""
    return chain([1.0, 1.0], [average - noise, average + noise])


def several():
    """Return a chain with inputs that differ, so that the noise depends on v in all three of its moments."""
    x = np.array([0.4, 0.8, 1.0, 1.1, 1.3, 0.9, 0.7, 1.2])
    return chain(x, 0.1 * x + np.array([1.0, -1.0, 0.9, -0.9, -0.6, 1.1, 0.5, -0.5]))


def sgd_noise(problem):
    """Return the noise of SGD with one sample per step, so that T is the step size."""
    return ut.Minibatch(problem, batch_size=1)


def full_batch(right):
    """Plant gradient descent in place of SGD."""
    return lambda problem: ut.Minibatch(problem, batch_size=problem.size, replace=False)


def product(u):
    """Return v."""
    return jnp.prod(u)


def log_product(u):
    """Return log |v|."""
    return jnp.sum(jnp.log(jnp.abs(u)))


def balanced(v, layers):
    """Return the start with equal layers whose product is v."""
    return jnp.full(layers, v ** (1 / layers))


def moments(problem):
    """Return b1, b2, a1, a2, a3 of a chain."""
    x, y = map(np.asarray, problem.data)
    a2 = np.mean(x**3 * y) - np.mean(x**2) * np.mean(x * y)
    return np.mean(x**2), np.mean(x * y), np.var(x**2), a2, np.var(x * y)


def run_sgd(problem, start, step_size, time, key, p, **settings):
    """Run SGD with one sample per step for a time."""
    settings = {"progress": False, "seeds": p.seeds, "key": key} | settings
    return ut.descend(sgd_noise(problem), start, step_size=step_size, steps=round(time / step_size), **settings)
