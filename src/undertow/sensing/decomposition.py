"""Decomposition of the learnt matrix into parts, and the paper's deterministic sequences for their growth."""

import math
from typing import NamedTuple, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from undertow import _validate as validate
from undertow.sensing.laws import LawLike, as_law
from undertow.sensing.matrix_sensing import MatrixSensing

__all__ = ["Auxiliary", "Parts", "auxiliary", "decompose"]


class Parts(eqx.Module):
    """U = U* R' + V* Q' + E for orthogonal signals: the invariant, the spurious and the remaining part of U."""

    invariant: Float[Array, "columns r"]
    """R = U'U*."""
    spurious: Float[Array, "columns k"]
    """Q = U'V*."""
    rest: Float[Array, "d columns"]
    """E = (I - U*U*' - V*V*') U."""
    recovered: Float[Array, " r"]
    """|R_j|^2 over the j-th eigenvalue of the invariant signal: 1 where it is learnt."""
    leaked: Float[Array, " k"]
    """|Q_j|^2, the learnt size of each spurious direction."""

    def singular_values(self) -> Float[Array, " r"]:
        """Return the singular values of R, the largest first: the paper's sigma_1 .. sigma_r."""
        return jnp.linalg.svd(self.invariant, compute_uv=False)


@overload
def decompose(sensing: MatrixSensing, params: Array) -> Parts: ...
@overload
def decompose(sensing: MatrixSensing, params: dict[str, Array]) -> dict[str, Parts]: ...
def decompose(sensing: MatrixSensing, params: Array | dict[str, Array]) -> Parts | dict[str, Parts]:
    """Return R, Q and E of U (heterogeneity, section 4); for {"U": U, "V": V} a dict with the parts of both.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.sensing.decomposition import decompose
    >>> sensing = ut.MatrixSensing(3, m=10, law=[1.0, -2.0])
    >>> parts = decompose(sensing, jnp.diag(jnp.array([1.0, 0.5, 0.1])))
    >>> print(parts.recovered, parts.leaked, jnp.linalg.norm(parts.rest).round(3))
    [1.] [0.25] 0.1
    """
    sensing.check(params)
    if isinstance(params, dict):
        return {name: _parts(sensing, leaf) for name, leaf in params.items()}
    return _parts(sensing, params)


def _parts(sensing: MatrixSensing, u: Array) -> Parts:
    truth, other = sensing.truth, sensing.problem.directions
    invariant, spurious = u.T @ truth, u.T @ other
    return Parts(
        invariant=invariant,
        spurious=spurious,
        rest=u - truth @ invariant.T - other @ spurious.T,
        recovered=jnp.sum(invariant**2, axis=0) / sensing.spectrum,
        leaked=jnp.sum(spurious**2, axis=0),
    )


class Auxiliary(NamedTuple):
    """The paper's deterministic sequences at steps 0..T (heterogeneity, Eq. 25, Definitions 2 and 3)."""

    growth: Float[np.ndarray, " times"]
    """R_t: the true signal without noise, R+ = (1 + eta - eta R^2) R from alpha."""
    upper: Float[np.ndarray, " times"]
    """The upper envelope, which grows faster by eta/(32 log(1/alpha))."""
    lower: Float[np.ndarray, " times"]
    """The lower envelope, which grows more slowly by the same amount in proportion to the upper one."""
    line: Float[np.ndarray, " times"]
    """L_t = max(alpha, 40 M1 delta sqrt(r1 + r2) R_t): a spurious signal below it is smaller than the noise."""

    def reaches(self, square: float) -> int:
        """Return the first step with R_t^2 above `square`."""
        above = np.flatnonzero(self.growth**2 >= square)
        if not above.size:
            raise ValueError(
                f"`Auxiliary.reaches({square:g})`: R^2 is {self.growth[-1] ** 2:.3g} after {len(self.growth) - 1} "
                "steps; take more of them, or a value below 1."
            )
        return int(above[0])


def auxiliary(
    step_size: float,
    *,
    steps: int,
    alpha: float = 1e-3,
    law: LawLike = 0.0,
    delta: float = 0.0,
    ranks: int = 2,
) -> Auxiliary:
    """Return R_t, its envelopes and the line L_t.

    **Arguments:** `law` is the law of the spurious signal (its largest value is M1), `delta` the isometry constant of
    the measurements (`rip`), and `ranks` = r1 + r2.

    >>> from undertow.sensing.decomposition import auxiliary
    >>> grown = auxiliary(0.05, steps=300)
    >>> print([grown.reaches(x) for x in (0.5, 0.95, 0.99)])
    [142, 170, 186]
    """
    steps = validate.positive_integer("auxiliary", "steps", steps)
    validate.finite_number("auxiliary", "step_size", step_size)
    validate.finite_number("auxiliary", "alpha", alpha, below=1.0, positive=True)
    validate.finite_number("auxiliary", "delta", delta)
    eta, drift = float(step_size), step_size / (32 * math.log(1 / alpha))
    values = np.empty((3, steps + 1))
    values[:, 0] = alpha
    for t in range(steps):
        middle, upper, lower = values[:, t]
        free = lambda r: (1 - eta * r**2 + eta) * r
        values[:, t + 1] = free(middle), free(upper) + drift * upper, free(lower) - drift * upper
    line = np.maximum(alpha, 40 * as_law("auxiliary", law).largest() * delta * math.sqrt(ranks) * values[0])
    return Auxiliary(values[0], values[1], values[2], line)
