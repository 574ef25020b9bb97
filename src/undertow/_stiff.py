"""An adaptive solver for stiff flows whose Jacobian is known approximately, by its eigenvectors.

The stages solve (I - gamma dt W) k = ... in the eigenbasis of the approximation W. A Rosenbrock-W method keeps its
order with any W; a good one only allows longer steps. diffrax has implicit methods, but each of their steps needs the
exact Jacobian and Newton's iteration.
"""

from collections.abc import Callable

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees

__all__ = ["Linearisation", "Multiplier", "RosenbrockW", "along_eigenvectors"]

# ROS34PW2: order 3 with an embedded method of order 2, L-stable, stiffly accurate (Rang and Angermann, BIT 45, 2005)
GAMMA = 0.43586652150845900
STAGE = (
    (),
    (0.87173304301691801,),
    (0.84457060015369423, -0.11299064236484185),
    (0.0, 0.0, 1.0),
)
COUPLING = (
    (),
    (-0.87173304301691801,),
    (-0.90338057013044082, 0.054180672388095326),
    (0.24212380706095346, -1.2232505839045147, 0.54526025533510214),
)
WEIGHTS = (0.24212380706095346, -1.2232505839045147, 1.5452602553351020, 0.43586652150845900)
EMBEDDED = (0.37810903145819369, -0.096042292212423178, 0.5, 0.21793326075422950)

Time = float | Array | np.ndarray

Multiplier = Callable[[Array], Array]
"""A function of rates: 1/(1 + c rate), say."""

Linearisation = Callable[[Multiplier, PyTree], PyTree]
"""`apply(f, r)` returns f(-W) r: each component of r in the eigenbasis of W, times f at its rate of decay."""


def along_eigenvectors(vectors: Float[Array, "D k"], rates: Float[Array, " k"]) -> Linearisation:
    """Return the linearisation W = -V diag(rates) V' on flat vectors, which is zero on the complement of V.

    Negative rates count as zero: they could make a stage singular.

    >>> import jax.numpy as jnp
    >>> from undertow._stiff import along_eigenvectors
    >>> apply = along_eigenvectors(jnp.array([[1.0], [0.0]]), jnp.array([3.0]))
    >>> print(apply(lambda rate: 1 / (1 + rate), jnp.ones(2)))
    [0.25 1.  ]
    """
    rates = jnp.maximum(rates, 0)

    def apply(function: Multiplier, vector: Array) -> Array:
        beside = function(jnp.zeros((), rates.dtype))
        return beside * vector + vectors @ ((function(rates) - beside) * (vectors.T @ vector))

    return apply


class RosenbrockW(diffrax.AbstractAdaptiveSolver):
    """The Rosenbrock-W method ROS34PW2; `linearise(y)` gives the approximate Jacobian at y.

    >>> import diffrax, jax.numpy as jnp
    >>> from undertow._stiff import RosenbrockW, along_eigenvectors
    >>> rates = jnp.array([1.0, 1e6])
    >>> solver = RosenbrockW(lambda y: along_eigenvectors(jnp.eye(2), rates))
    >>> path = diffrax.diffeqsolve(diffrax.ODETerm(lambda t, y, args: -rates * y), solver, 0.0, 1.0, 1e-3, jnp.ones(2),
    ...                            stepsize_controller=diffrax.PIDController(1e-4, 1e-6))
    >>> print(f"{path.ys[0][0]:.3f} {abs(path.ys[0][1]):.3f}", int(path.stats["num_steps"]) < 100)
    0.368 0.000 True
    """

    linearise: Callable[[PyTree], Linearisation]
    term_structure = diffrax.AbstractTerm
    interpolation_cls = diffrax.LocalLinearInterpolation

    def order(self, terms: PyTree) -> int:
        return 3

    def strong_order(self, terms: PyTree) -> None:
        return None

    def error_order(self, terms: PyTree) -> int:
        return 3

    def init(self, terms: PyTree, t0: Time, t1: Time, y0: PyTree, args: PyTree) -> None:
        return None

    def func(self, terms: diffrax.AbstractTerm, t0: Time, y0: PyTree, args: PyTree) -> PyTree:
        return terms.vf(t0, y0, args)

    def step(
        self,
        terms: diffrax.AbstractTerm,
        t0: Time,
        t1: Time,
        y0: PyTree,
        args: PyTree,
        solver_state: None,
        made_jump: bool | Array | np.ndarray,
    ) -> tuple[PyTree, PyTree, dict[str, PyTree], None, diffrax.RESULTS]:
        dt = t1 - t0
        apply = self.linearise(y0)
        stages: list[PyTree] = []
        for ahead, coupling in zip(STAGE, COUPLING, strict=True):
            at = trees.add(y0, _combine(ahead, stages, y0))
            slope = terms.vf(t0 + sum(ahead) * dt, at, args)
            slope = trees.add(slope, apply(jnp.negative, _combine(coupling, stages, y0)))
            stages.append(apply(lambda rate: dt / (1 + GAMMA * dt * rate), slope))
        end = trees.add(y0, _combine(WEIGHTS, stages, y0))
        error = _combine(tuple(b - e for b, e in zip(WEIGHTS, EMBEDDED, strict=True)), stages, y0)
        # a step out of the domain of the flow is rejected
        error = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.inf), error)
        return end, error, {"y0": y0, "y1": end}, None, diffrax.RESULTS.successful


def _combine(coefficients: tuple[float, ...], stages: list[PyTree], like: PyTree) -> PyTree:
    """Return the linear combination of the stages so far with the given coefficients."""
    total = trees.zeros_like(like)
    for coefficient, stage in zip(coefficients, stages, strict=True):
        if coefficient:
            total = trees.add(total, trees.scale(coefficient, stage))
    return total
