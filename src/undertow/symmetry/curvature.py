"""The curvature of a loss at a point: Tr H, the largest stable step and the spectrum of the Hessian H."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow import spectral
from undertow._validate import KeyLike
from undertow.estimate import Estimate
from undertow.problem import AbstractProblem

__all__ = ["DENSE", "Curvature", "Spectrum", "measure_curvature", "spectrum_of", "trace_of_hessian"]

DENSE = 1000
"""The largest number of parameters for which the whole Hessian is computed."""
PROBES, STEPS = 4, 60
"""Random starts of the Lanczos iteration for larger models, and steps of each."""


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of the Hessian in descending order, and the number of eigenvalues that each stands for."""

    eigenvalues: tuple[float, ...]
    counts: tuple[float, ...]
    """1 for each where the whole Hessian was computed; weights of a Lanczos iteration otherwise."""
    exact: bool


class Curvature(NamedTuple):
    """The curvature of a loss at a point."""

    sharpness: Estimate
    """Tr H; its standard error is 0 where the whole Hessian was computed."""
    largest_step: float
    """2/lambda_max(H), from above for large models. Beyond it even gradient descent diverges."""
    spectrum: Spectrum


def measure_curvature(problem: AbstractProblem, params: PyTree, key: KeyLike) -> Curvature:
    """Return the curvature of the loss: exact up to 1,000 parameters, by random vectors beyond.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.curvature import measure_curvature
    >>> bowl = ut.Problem(lambda w, _: (4 * w[0] ** 2 - w[1] ** 2) / 2, jnp.zeros(1))
    >>> curvature = measure_curvature(bowl, jnp.zeros(2), 0)
    >>> print(curvature.spectrum.eigenvalues, curvature.largest_step, curvature.sharpness.value)
    (4.0, -1.0) 0.5 3.0
    """
    key = validate.as_key("measure_curvature", key)
    size = trees.count(params)
    if size <= DENSE:
        spectrum = spectrum_of(np.asarray(_hessian(problem, params)))
        sharpness = Estimate(np.asarray(sum(spectrum.eigenvalues)), np.asarray(0.0), size)
    else:
        values, weights = map(np.ravel, _lanczos(problem, params, jax.random.split(key, PROBES), STEPS))
        order = np.argsort(-values)
        counts = size / PROBES * weights[order]
        kept = counts > 0
        spectrum = Spectrum(tuple(values[order][kept].tolist()), tuple(counts[kept].tolist()), exact=False)
        sharpness = trace_of_hessian(problem, params, key)
    return Curvature(sharpness, 2 / max(spectrum.eigenvalues[0], 1e-300), spectrum)


def spectrum_of(hessian: np.ndarray) -> Spectrum:
    """Return the spectrum of a symmetric matrix."""
    values = np.linalg.eigvalsh((hessian + hessian.T).astype(np.float64) / 2)[::-1]
    return Spectrum(tuple(values.tolist()), (1.0,) * len(values), exact=True)


def trace_of_hessian(problem: AbstractProblem, params: PyTree, key: KeyLike, probes: int = 64) -> Estimate:
    """Return Tr H, estimated with random signs, and its standard error."""
    probes = validate.positive_integer("trace_of_hessian", "probes", probes)
    return Estimate.of(_quadratics(problem, params, jax.random.split(validate.as_key("trace_of_hessian", key), probes)))


def _product(problem: AbstractProblem, params: PyTree) -> Callable[[PyTree], PyTree]:
    return lambda v: jax.jvp(problem.gradient, (params,), (v,))[1]


def _flat_product(problem: AbstractProblem, params: PyTree) -> tuple[Callable[[Array], Array], Array]:
    """Return the Hessian as a function of flat vectors, and the flat params."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    product = _product(problem, params)
    return lambda v: trees.ravel(product(unravel(v))), flat


@eqx.filter_jit
def _quadratics(problem: AbstractProblem, params: PyTree, keys: Array) -> Array:
    draw = lambda key: spectral.random_signs(key, params)
    return spectral.quadratic_forms(draw, _product(problem, params), keys)


@eqx.filter_jit
def _hessian(problem: AbstractProblem, params: PyTree) -> Float[Array, "parameters parameters"]:
    product, flat = _flat_product(problem, params)
    return jax.lax.map(product, jnp.eye(flat.size, dtype=flat.dtype))


@eqx.filter_jit
def _lanczos(
    problem: AbstractProblem, params: PyTree, keys: Key[Array, " probes"], steps: int
) -> tuple[Float[Array, "probes steps"], Float[Array, "probes steps"]]:
    product, flat = _flat_product(problem, params)
    start = lambda key: jax.random.normal(key, flat.shape, flat.dtype)
    return jax.lax.map(lambda key: spectral.lanczos(product, start(key), steps), keys)
