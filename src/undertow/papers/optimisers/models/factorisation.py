"""A matrix factorisation with noisy labels, which has a manifold of minimisers but does not fit its data."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from undertow.problem import Problem

__all__ = ["charge", "noisy_factorisation"]

Factors = dict[str, Array]


def _loss(params: Factors, sample: tuple[Array, Array]) -> Float[Array, ""]:
    x, y = sample
    return jnp.sum((params["U"] @ (params["W"] @ x) - y) ** 2) / 2


def noisy_factorisation(
    key: Key[Array, ""], *, samples: int = 40, outputs: int = 2, inputs: int = 3
) -> tuple[Problem, Factors]:
    """Return the loss (1/2) mean |U W x - y|^2 with y = M x + noise, and its balanced minimiser.

    The layer between has `outputs` units, so that U W is any matrix and minimises the loss at the least-squares matrix
    A. From its singular value decomposition A = P s Q', U = P sqrt(s) and W = sqrt(s) Q', so that U'U = WW'.

    >>> import jax
    >>> from undertow.papers.optimisers.models.factorisation import noisy_factorisation
    >>> problem, start = noisy_factorisation(jax.random.key(0))
    >>> print({name: factor.shape for name, factor in start.items()})
    {'U': (2, 2), 'W': (2, 3)}
    """
    k = jax.random.split(key, 3)
    x = jax.random.normal(k[0], (samples, inputs))
    truth = jax.random.normal(k[1], (inputs, outputs))
    y = x @ truth + jax.random.normal(k[2], (samples, outputs))
    left, sizes, right = jnp.linalg.svd(jnp.linalg.lstsq(x, y)[0].T, full_matrices=False)
    root = jnp.sqrt(sizes)
    return Problem(_loss, (x, y)), {"U": left * root[None], "W": root[:, None] * right}


def charge(params: Factors) -> Float[Array, ""]:
    """Return |U|^2 - |W|^2, which gradient flow conserves."""
    return jnp.sum(params["U"] ** 2) - jnp.sum(params["W"] ** 2)
