"""Dense matrices of small examples: covariances, gradients of samples, Jacobians of predictions."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from undertow import _trees as trees
from undertow.covariance import AbstractCovariance


def matrix(function, like) -> np.ndarray:
    """Return the matrix of a linear map of vectors like `like`."""
    return np.asarray(eqx.filter_jit(_columns)(function, like)).T


def assert_covariance(sigma: AbstractCovariance, like, expected: np.ndarray, **tolerance) -> None:
    """Check every method of a covariance against its dense matrix, in one program.

    Tr[Sigma A] is for a matrix A without symmetry, and the moments are those of all products of two entries.
    """
    middle = np.random.default_rng(1).normal(size=expected.shape)
    answers = eqx.filter_jit(_answers)(sigma, like, middle)
    tolerance = tolerance or {"atol": 1e-12 * np.abs(expected).max()}
    np.testing.assert_allclose(answers["mv"].T, expected, **tolerance)
    for name in ("sqrt_mv", "factor"):
        columns = np.asarray(answers[name])
        np.testing.assert_allclose(columns @ columns.T, expected, err_msg=name, **tolerance)
    np.testing.assert_allclose(answers["moment"], expected, **tolerance)
    np.testing.assert_allclose(answers["trace"], np.trace(expected), rtol=1e-10)
    np.testing.assert_allclose(answers["trace with A"], np.trace(expected @ middle), rtol=1e-8)


def _answers(sigma: AbstractCovariance, like, middle):
    _, unravel = jax.flatten_util.ravel_pytree(like)
    normals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sigma.normal_structure())
    return {
        "mv": _columns(sigma.mv, like),
        "sqrt_mv": _columns(sigma.sqrt_mv, normals).T,
        "factor": jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(sigma.factor())]),
        "moment": sigma.moment(lambda v: jnp.outer(trees.ravel(v), trees.ravel(v))),
        "trace": sigma.trace(),
        "trace with A": sigma.trace(lambda v: unravel(middle @ trees.ravel(v))),
    }


def _columns(function, like):
    flat, unravel = jax.flatten_util.ravel_pytree(like)
    return jax.vmap(lambda v: trees.ravel(function(unravel(v))))(jnp.eye(flat.size, dtype=flat.dtype))


def factor_matrix(factor) -> np.ndarray:
    """Return a factor (leaves with one extra trailing axis k) as a D x k matrix."""
    return np.concatenate([np.reshape(leaf, (-1, leaf.shape[-1])) for leaf in jax.tree.leaves(factor)])


def sample_gradients(task, point) -> np.ndarray:
    """Return the gradient of every sample, as rows."""
    rows = jax.vmap(lambda sample: trees.ravel(jax.grad(task.sample_loss)(point, sample)))
    return np.asarray(jax.jit(rows)(task.data))


def jacobians(task, point) -> np.ndarray:
    """Return the Jacobian of every prediction, (samples, outputs, parameters)."""
    flat, unravel = jax.flatten_util.ravel_pytree(point)
    one = jax.jacrev(lambda v, x: jnp.atleast_1d(task.predict(unravel(v), x)))
    return np.asarray(jax.jit(jax.vmap(one, in_axes=(None, 0)))(flat, task.inputs))
