"""The population loss of matrix sensing in environments, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow.problem import AbstractProblem
from undertow.sensing.ensembles import AbstractEnsemble
from undertow.sensing.laws import AbstractLaw

__all__ = ["SensingLoss", "product", "pull"]


class SensingLoss(AbstractProblem):
    """The population loss of matrix sensing: 1/4 E_e <M_e, C M_e>, M_e = UU' - A* - A(e).

    Params are U, or {"U": U, "V": V} for UU' - VV'. C is the identity for isotropic measurements, and the gradient
    C(UU' - A* - E A(e)) U.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
    >>> task = ut.MatrixSensing(4, m=10, law=two_point(0.5, 2.0)).problem
    >>> print(task.loss(jnp.zeros((4, 4))))
    1.3125
    """

    signal: Float[Array, "d d"]
    """A*."""
    directions: Float[Array, "d k"]
    """V*, with orthonormal columns."""
    law: AbstractLaw
    ensemble: AbstractEnsemble

    def residual(self, params: PyTree) -> Float[Array, "d d"]:
        """Return UU' (- VV') - A*."""
        return product(params) - self.signal

    def mean_residual(self, params: PyTree) -> Float[Array, "d d"]:
        """Return UU' (- VV') - A* - E A(e)."""
        return self.residual(params) - self.spurious(self.law.mean())

    def spurious(self, sizes: Float[Array, " p"]) -> Float[Array, "d d"]:
        """Return V* S V*', S = diag(sizes), or the symmetric S with `sizes` on the diagonal, then above it by rows."""
        v, sizes = self.directions, sizes.astype(self.directions.dtype)
        if sizes.shape[0] == v.shape[1]:
            return (v * sizes[None]) @ v.T
        return v @ jnp.tensordot(sizes, self._parts, axes=1) @ v.T

    def along(self, matrix: Float[Array, "d d"]) -> Float[Array, " p"]:
        """Return the adjoint of `spurious`: the inner product of a matrix with the part of each size."""
        v = self.directions
        if self.law.size == v.shape[1]:
            return jnp.sum(v * (matrix @ v), axis=0)
        return jnp.tensordot(self._parts, v.T @ matrix @ v, axes=2)

    @property
    def _parts(self) -> Float[Array, "p k k"]:
        return jnp.asarray(_symmetric_basis(self.directions.shape[1]), self.directions.dtype)

    @property
    def gram(self) -> Float[Array, "p p"]:
        """The matrix <B_a, C B_b> of the parts B_a of each size."""
        each = jnp.eye(self.law.size, dtype=self.directions.dtype)
        return jax.vmap(lambda one: self.along(self.ensemble.apply(self.spurious(one))))(each)

    def loss(self, params: PyTree) -> Float[Array, ""]:
        mean = self.mean_residual(params)
        return (jnp.sum(mean * self.ensemble.apply(mean)) + self._spread().astype(mean.dtype)) / 4

    def _spread(self) -> Float[Array, ""]:
        """Return E <A(e) - E A(e), C (A(e) - E A(e))>."""
        return jnp.sum(self.gram * self.law.covariance().astype(self.directions.dtype))

    def gradient(self, params: PyTree) -> PyTree:
        return pull(self.ensemble.apply(self.mean_residual(params)), params)


def _symmetric_basis(k: int) -> np.ndarray:
    """Return the units of symmetric k x k matrices: the k of the diagonal, then those above it, row by row."""
    above, right = np.triu_indices(k, 1)
    rows, columns = np.concatenate([np.arange(k), above]), np.concatenate([np.arange(k), right])
    units = np.zeros((len(rows), k, k))
    units[np.arange(len(rows)), rows, columns] = 1
    units[np.arange(len(rows)), columns, rows] = 1
    return units


def product(params: PyTree) -> Float[Array, "d d"]:
    """Return UU', or UU' - VV'."""
    if isinstance(params, dict):
        return params["U"] @ params["U"].T - params["V"] @ params["V"].T
    return params @ params.T


def pull(g: Array, params: PyTree) -> PyTree:
    """Return the gradient with respect to params of 1/2 <G, UU' - VV'> for a fixed symmetric G: G U and -G V."""
    if isinstance(params, dict):
        return {"U": g @ params["U"], "V": -g @ params["V"]}
    return g @ params
