"""The closed forms of `undertow.symmetry` on NumPy arrays, in double precision on the CPU.

This is the only module of the bridge that calls the JAX functions. `weight_decay` is PyTorch's lambda.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from undertow.symmetry import closed_forms
from undertow.symmetry.relaxation import relaxation_steps
from undertow.torch.equilibrium.charge_moments import ChargeMoments

__all__ = ["gl_amounts", "mean_eigenpairs", "relaxation_times", "rescaling_amounts"]


@contextmanager
def _double_on_cpu() -> Generator[None]:
    """Use double precision and the CPU: the matrices are small, and the GPU belongs to PyTorch."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def rescaling_amounts(moments: ChargeMoments, step_size: float, weight_decay: float) -> np.ndarray:
    """Return the amount to the equilibrium for each generator; infinite for one-sided noise, NaN without noise."""
    with _double_on_cpu(), np.errstate(all="ignore"):
        arrays = map(jnp.asarray, moments[:4])
        return np.asarray(closed_forms.rescaling_amount(*arrays, step_size, weight_decay))


def gl_amounts(
    moments: ChargeMoments, step_size: float, weight_decay: float, rank_rtol: float
) -> tuple[np.ndarray, int, int]:
    """Return the symmetric logarithms (blocks, block, block), and the numbers of infinite and of dead directions.

    The closed form takes factors, of which only U'U and WW' matter: square roots of the weight matrices replace them.
    """
    left, right = _matrix_root(moments.weight_plus).swapaxes(1, 2), _matrix_root(moments.weight_minus)
    decay = float(weight_decay)
    with _double_on_cpu():
        amount, infinite, dead = _balance(
            left, right, moments.noise_plus, moments.noise_minus, float(step_size), decay, rank_rtol
        )
        return np.asarray(amount), int(infinite.sum()), int(dead.sum())


@partial(jax.jit, static_argnames="rank_rtol")
def _balance(
    left: Array, right: Array, noise_left: Array, noise_right: Array, step_size: Array | float, decay: Array | float,
    rank_rtol: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    one = lambda u, w, noise_u, noise_w: closed_forms.rotation(u, w, noise_u, noise_w, step_size, decay, rank_rtol)
    balance = jax.vmap(one)(left, right, noise_left, noise_right)
    return balance.amount, balance.lost, balance.silent


def _matrix_root(matrices: np.ndarray) -> np.ndarray:
    """Return R with R R' = matrix, for each positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrices)
    return vectors * np.sqrt(np.maximum(values, 0))[:, None, :]


def mean_eigenpairs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors of the positive definite X with X b X = a, for each block."""
    with _double_on_cpu():
        values, vectors = _mean_eigenpairs(a, b)
        return np.asarray(values), np.asarray(vectors)


@jax.jit
def _mean_eigenpairs(a: Array, b: Array) -> tuple[Array, Array]:
    return jax.vmap(lambda x, y: jnp.linalg.eigh(closed_forms.geometric_mean(x, y)))(a, b)


def relaxation_times(noise: np.ndarray, weight: np.ndarray, step_size: float, weight_decay: float) -> np.ndarray:
    """Return the finite relaxation times in steps, from the sums of noise and of weights at the equilibrium."""
    times = relaxation_steps(noise, weight, step_size, weight_decay)
    return times[np.isfinite(times)]
