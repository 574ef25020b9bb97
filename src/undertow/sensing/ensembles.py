"""Gaussian measurement matrices: X as a linear map of standard normals, and its covariance C M = E <X, M> X."""

import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from undertow._validate import KeyLike, as_key, shown
from undertow.sensing.laws import Numbers

__all__ = ["AbstractEnsemble", "Correlated", "Full", "Goe", "MatrixNormal", "as_ensemble"]


class AbstractEnsemble(eqx.Module):
    """The law of a Gaussian d x d matrix X = sqrt_mv(normals) of standard normals; only its covariance matters."""

    @abstractmethod
    def normal_structure(self, d: int) -> tuple[int, ...]:
        """Return the shape of the normals that one X needs."""

    @abstractmethod
    def sqrt_mv(self, normals: Array, d: int) -> Float[Array, "d d"]:
        """Return X, which is linear in the normals."""

    @abstractmethod
    def apply(self, matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
        """Return C M = E <X, M> X = sqrt_mv(sqrt_mv' M), for symmetric M."""

    def transform(self, matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
        """Return C M for any M; X is symmetric, so only the symmetric part of M counts."""
        return self.apply(_symmetric(matrix))

    def draw(self, key: KeyLike, count: int, d: int, dtype: DTypeLike) -> Float[Array, "count d d"]:
        """Return `count` independent measurement matrices."""
        normals = jax.random.normal(as_key("draw", key), (count, *self.normal_structure(d)), dtype)
        return jax.vmap(lambda z: self.sqrt_mv(z, d))(normals)

    def check(self, d: int) -> None:
        """Raise where the dimension does not fit the ensemble."""


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


class Goe(AbstractEnsemble):
    """Symmetric X with diagonal N(0, 1) and off-diagonal N(0, 1/2): the law of a symmetrised full X.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.sensing.ensembles import Goe
    >>> x = Goe().draw(jax.random.key(0), 1000, 3, jnp.float32)
    >>> print((x == jnp.swapaxes(x, 1, 2)).all())
    True
    """

    def normal_structure(self, d: int) -> tuple[int, ...]:
        even = d + d % 2
        return (even + 1, even // 2)

    def sqrt_mv(self, normals: Array, d: int) -> Array:
        """Return X from the packed lower triangle: its left half below the first row, the rest transposed above."""
        half = normals.shape[1]
        right = jnp.concatenate([jnp.zeros((half, half), normals.dtype), normals[:half].T])
        lower = jnp.tril(jnp.concatenate([normals[1:], right], axis=1), -1) * math.sqrt(0.5)
        diagonal = jnp.concatenate([jnp.diagonal(normals[1:]), jnp.diagonal(normals)])
        return (lower + lower.T + jnp.diag(diagonal))[:d, :d]

    def apply(self, matrix: Array) -> Array:
        return matrix


class Full(AbstractEnsemble):
    """X with independent N(0, 1) entries. The step matrix is not symmetric, and its off-diagonal noise is doubled.

    >>> from undertow.sensing.ensembles import Full
    >>> print(Full().normal_structure(3))
    (3, 3)
    """

    def normal_structure(self, d: int) -> tuple[int, ...]:
        return (d, d)

    def sqrt_mv(self, normals: Array, d: int) -> Array:
        return normals

    def apply(self, matrix: Array) -> Array:
        return matrix

    def transform(self, matrix: Array) -> Array:
        return matrix


class MatrixNormal(AbstractEnsemble):
    """X = the symmetric part of A Z B', Z with N(0, 1) entries, so that rows and columns are correlated.

    >>> import jax.numpy as jnp
    >>> from undertow.sensing.ensembles import MatrixNormal
    >>> print(MatrixNormal(2 * jnp.eye(2), jnp.eye(2)).apply(jnp.eye(2)))
    [[4. 0.]
     [0. 4.]]
    """

    rows: Float[Array, "d d"]
    """A."""
    columns: Float[Array, "d d"]
    """B."""

    def __init__(self, rows: Numbers, columns: Numbers):
        self.rows, self.columns = jnp.asarray(rows), jnp.asarray(columns)
        for name, value in (("rows", self.rows), ("columns", self.columns)):
            if value.ndim != 2 or value.shape[0] != value.shape[1] or not np.isfinite(np.asarray(value)).all():
                raise ValueError(f"`MatrixNormal({name}=...)`: give a square matrix of finite numbers.")

    def normal_structure(self, d: int) -> tuple[int, ...]:
        return (d, d)

    def sqrt_mv(self, normals: Array, d: int) -> Array:
        return _symmetric(self.rows.astype(normals.dtype) @ normals @ self.columns.T.astype(normals.dtype))

    def apply(self, matrix: Array) -> Array:
        rows, columns = self.rows.astype(matrix.dtype), self.columns.astype(matrix.dtype)
        return _symmetric(rows @ (rows.T @ matrix @ columns) @ columns.T)

    def check(self, d: int) -> None:
        if self.rows.shape != (d, d) or self.columns.shape != (d, d):
            raise ValueError(
                f"`MatrixNormal(rows, columns)`: got shapes {self.rows.shape} and {self.columns.shape}; both must be "
                f"{d} x {d} matrices here."
            )


class Correlated(AbstractEnsemble):
    """A Gaussian law of any covariance: X = the symmetric part of sum_k z_k factor_k, factor of shape (k, d, d).

    >>> import jax.numpy as jnp
    >>> from undertow.sensing.ensembles import Correlated
    >>> print(Correlated(jnp.array([[[1.0, 0.0], [0.0, 2.0]]])).apply(jnp.eye(2)))
    [[3. 0.]
     [0. 6.]]
    """

    factor: Float[Array, "k d d"]

    def __init__(self, factor: Numbers):
        factor = jnp.asarray(factor)
        if factor.ndim != 3 or factor.shape[1] != factor.shape[2] or not np.isfinite(np.asarray(factor)).all():
            raise ValueError("`Correlated(factor)`: give finite numbers of shape (k, d, d).")
        self.factor = (factor + jnp.swapaxes(factor, 1, 2)) / 2

    def normal_structure(self, d: int) -> tuple[int, ...]:
        return (self.factor.shape[0],)

    def sqrt_mv(self, normals: Array, d: int) -> Array:
        return jnp.tensordot(normals, self.factor.astype(normals.dtype), axes=1)

    def apply(self, matrix: Array) -> Array:
        return self.sqrt_mv(jnp.tensordot(self.factor.astype(matrix.dtype), matrix, axes=2), matrix.shape[0])

    def check(self, d: int) -> None:
        if self.factor.shape[1] != d:
            raise ValueError(
                f"`Correlated(factor)`: got shape {self.factor.shape}; give matrices of size {d} x {d} here."
            )


def as_ensemble(function: str, ensemble: AbstractEnsemble | str) -> AbstractEnsemble:
    """Return an ensemble, given as an object or as one of the two names."""
    named = {"goe": Goe, "full": Full}
    if isinstance(ensemble, AbstractEnsemble):
        return ensemble
    if not isinstance(ensemble, str) or ensemble not in named:
        raise ValueError(
            f'`{function}(ensemble={shown(ensemble)})`: choose "goe" (or full X symmetrised), "full", or give an '
            "ensemble "
            "such as `Correlated(factor)`."
        )
    return named[ensemble]()
