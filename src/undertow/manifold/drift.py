"""The second derivative of Phi, the end of gradient flow, at a point of the manifold of minimisers.

With P = dPhi the tangent projector, Q = I - P, H the Hessian, d3L[A] = sum_ij A_ij d_i d_j grad L and L_H(X) = HX + XH
(zero_loss, section 4, with the signs corrected: all three are minus):

    d2Phi[S] = - H^+ d3L[P S P]  -  P d3L[L_H^-1(Q S Q)]  -  2 P d3L[H^+ Q S P]
                   tangent              normal                  mixed

The drift of the limiting diffusion is half of it, with S the covariance of the noise. The drift is linear in S, so the
drift of a sum of covariances is the sum of their drifts, and each type of covariance has its own shortest formula. The
shorter formulas for least squares hold where the residuals are zero, which the frame has checked
(`Frame.least_squares`).
"""

from collections.abc import Callable
from functools import partial, singledispatch
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._table import ResultTable, number
from undertow.covariance import AbstractCovariance, LabelCovariance, SampleCovariance, ScaledIdentity, Sum
from undertow.figures import results
from undertow.manifold.geometry import FiniteStep, Frame, jacobian
from undertow.manifold.label import trace_gradient
from undertow.manifold.minimum import frame_of_minimum, third
from undertow.problem import AbstractProblem, AbstractSampled, Population, Regression

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Parts", "covariance_parts", "factor_parts", "normal_part", "second_derivative"]


class Parts(NamedTuple):
    """The three parts of d2Phi[S] (or of the drift, which is half of it), each like params.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    >>> drift = ut.Limit(ut.Isotropic(circle)).parts(jnp.array([1.0, 0.0]))
    >>> print(drift.tangent.round(4) + 0.0, drift.normal.round(4) + 0.0, drift.total.round(4) + 0.0)
    [-0.5  0. ] [0. 0.] [-0.5  0. ]
    """

    tangent: PyTree
    """The compensation of the manifold's curvature; normal to the manifold."""
    normal: PyTree
    """The regularisation by noise across the manifold; tangent. The only part that depends on the loss across it."""
    mixed: PyTree
    """The part from the correlation of noise along and across the manifold; tangent."""

    @property
    def total(self) -> PyTree:
        """The sum of the three parts."""
        return trees.add(trees.add(self.tangent, self.normal), self.mixed)

    def _table(self) -> ResultTable:
        parts = {**self._asdict(), "total": self.total}
        leaves = trees.names(self.tangent) if len(jax.tree.leaves(self.tangent)) > 1 else []
        whole = lambda part: number(float(jnp.linalg.norm(trees.ravel(part))))
        rows = tuple(
            (name, whole(part), *map(number, _norms(part, leaves)), MEANINGS[name]) for name, part in parts.items()
        )
        header = ("part", "norm", *leaves, "meaning")
        return ResultTable("parts of d2Phi, or of the drift", header, rows, "l" + "r" * (1 + len(leaves)) + "l")

    def __str__(self) -> str:
        return self._table().text() if all(map(validate.concrete, jax.tree.leaves(tuple(self)))) else repr(self)

    def _repr_html_(self) -> str:
        return self._table().html()

    def plot(self, *, ax: "Axes | None" = None) -> "Axes":
        """Draw the norm of each part on every leaf of params, as bars.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
        >>> parts = ut.second_derivative(circle, jnp.array([1.0, 0.0]), jnp.array([[0.0], [1.0]]))
        >>> axes = parts.plot()
        >>> print([text.get_text() for text in axes.get_legend().get_texts()])
        ['tangent', 'normal', 'mixed']
        """
        axes = results.new_axes(ax)
        names = trees.names(self.tangent)
        results.draw_bars(axes, names, {name: _norms(part, names) for name, part in self._asdict().items()})
        results.label_axes(axes, "leaf of params", "norm")
        return axes


MEANINGS = {
    "tangent": "curvature of the manifold",
    "normal": "noise across the manifold",
    "mixed": "noise along and across",
    "total": "",
}
"""The causes of the parts in words."""


def _norms(part: PyTree, names: list[str]) -> list[float]:
    """Return the norm of every leaf, where names of leaves are given."""
    return [float(jnp.linalg.norm(leaf)) for leaf in jax.tree.leaves(part)] if names else []


@checked_call("second_derivative")
def second_derivative(problem: AbstractProblem, params: PyTree, factor: PyTree) -> Parts:
    """Return d2Phi[B B'] at a point of the manifold, for a factor B: params with one extra trailing axis.

    Phi(params) is the end point of gradient flow from params (`settle`). The result is its second derivative, summed
    over the columns of B, as `.tangent`, `.normal`, `.mixed` and `.total`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    >>> along = jnp.array([[0.0], [1.0]])  # a unit step along the circle at (1, 0)
    >>> parts = ut.second_derivative(circle, jnp.array([1.0, 0.0]), along)
    >>> print(parts.total.round(4) + 0.0)
    [-1.  0.]
    >>> print(parts)
    parts of d2Phi, or of the drift
    part     norm  meaning
    tangent     1  curvature of the manifold
    normal      0  noise across the manifold
    mixed       0  noise along and across
    total       1
    """
    validate.instance("second_derivative", "problem", problem, AbstractProblem, "a Problem or a Regression")
    if isinstance(problem, Population):
        raise TypeError(
            "`second_derivative(problem=Population(...))`: `problem` has no manifold of exact minimisers; give a "
            "Problem or a "
            "Regression, such as `population.sample(key, count)`."
        )
    validate.params_of_floats("second_derivative", params)
    _check_factor(params, factor)
    frame = frame_of_minimum("second_derivative", problem, params)
    parts = factor_parts(problem, frame, _flatten(factor), 0.0)
    return Parts(*(frame.unravel(part) for part in parts))


def covariance_parts(
    problem: AbstractProblem, frame: Frame, covariance: AbstractCovariance, finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    """Return the parts of d2Phi[Sigma] as flat vectors, by the shortest formula for the type of covariance."""
    return _dispatch_parts(covariance, problem, frame, finite_step)


@singledispatch
def _dispatch_parts(
    covariance: AbstractCovariance, problem: AbstractProblem, frame: Frame, finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    """Return the parts for a covariance without structure, by its factor."""
    columns = _flatten(covariance.factor())
    if columns.shape[1] > columns.shape[0]:  # no more columns than rows are needed
        columns = jnp.linalg.qr(columns.T, mode="r").T
    return factor_parts(problem, frame, columns, finite_step)


_general_parts = _dispatch_parts.dispatch(object)


@_dispatch_parts.register(Sum)
def _sum_parts(
    covariance: Sum, problem: AbstractProblem, frame: Frame, finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    parts = [covariance_parts(problem, frame, part, finite_step) for part in covariance.parts]
    return tuple(sum(column[1:], column[0]) for column in zip(*parts, strict=True))


@_dispatch_parts.register(ScaledIdentity)
def _identity_parts(
    covariance: ScaledIdentity, problem: AbstractProblem, frame: Frame, finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    return _isotropic(problem, frame, covariance.variance, finite_step)


@_dispatch_parts.register(LabelCovariance)
def _label_parts(
    covariance: LabelCovariance, problem: AbstractProblem, frame: Frame, finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    # with other weights than those of the loss the covariance is not a multiple of its Hessian
    weighted = isinstance(problem, AbstractSampled) and covariance.problem.weights is not problem.weights
    if weighted or not frame.least_squares:
        return _general_parts(covariance, problem, frame, finite_step)
    zero = 0 * frame.point  # NaN where the frame is NaN
    return zero, _label_normal(covariance.problem, frame, covariance.amount, finite_step), zero


@_dispatch_parts.register(SampleCovariance)
def _sample_parts(
    covariance: SampleCovariance, problem: AbstractProblem, frame: Frame, finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    if not frame.least_squares:
        return _general_parts(covariance, problem, frame, finite_step)
    zero = 0 * frame.point  # every sample's gradient vanishes with the residuals; NaN where the frame is NaN
    return zero, zero, zero


def factor_parts(
    problem: AbstractProblem, frame: Frame, factor: Float[Array, "D k"], finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    """Return the parts of d2Phi[B B'] for an explicit factor B."""
    along = frame.project(factor)
    inner = frame.normal.T @ factor
    return (
        _tangent(problem, frame, along),
        normal_part(problem, frame, frame.lyapunov(inner @ inner.T, finite_step)),
        _mixed(problem, frame, inner, along),
    )


def _tangent(problem: AbstractProblem, frame: Frame, along: Float[Array, "D k"]) -> Float[Array, " D"]:
    """Return -H^+ d3L[q q'] summed over the tangent columns q; for least squares -J^+ f''[q, q]."""
    if frame.least_squares and isinstance(problem, Regression):
        bend = partial(_bend, problem, frame)
        return -frame.pseudo_inverse(_pull(problem, frame, _sum_columns(bend, along)) / problem.size)
    along_two = partial(third, problem, frame)
    return -frame.pseudo_inverse(_sum_columns(lambda q: along_two(q, q), along))


def normal_part(problem: AbstractProblem, frame: Frame, inner: Float[Array, "r r"]) -> Float[Array, " D"]:
    """Return -P d3L[V X V'] for a symmetric X, as -P grad tr(H(x) A) with A = V X V' held fixed."""
    if frame.least_squares and isinstance(problem, Regression):
        # P grad tr(H A) = (1/n) P grad tr(J A J'): the other terms are multiples of rows of J
        rows = jacobian(problem, frame.unravel(frame.point)) @ frame.normal
        symmetric = (inner + inner.T) / 2
        return -frame.project(trace_gradient(problem, frame.point, frame.unravel, rows @ symmetric @ frame.normal.T))
    weights, rotation = jnp.linalg.eigh((inner + inner.T) / 2)
    columns = frame.normal @ rotation
    along_two = partial(third, problem, frame)
    total = _sum_columns(lambda c: c[0] * along_two(c[1:], c[1:]), jnp.concatenate([weights[None], columns]))
    return -frame.project(total)


def _mixed(
    problem: AbstractProblem, frame: Frame, inner: Float[Array, "r k"], along: Float[Array, "D k"]
) -> Float[Array, " D"]:
    """Return -2 P d3L[H^+ Q b, P b] summed over the columns b."""
    across = frame.normal @ (frame.inverse_curvature[:, None] * inner)
    size = along.shape[0]
    pairs = jnp.concatenate([across, along])
    if frame.least_squares and isinstance(problem, Regression):
        # (1/n) P grad <J c, J(x) q>, c = H^+ Q b
        def one(pair: Array) -> Array:
            c, q = pair[:size], pair[size:]
            fixed = jax.jvp(partial(_predictions, problem, frame), (frame.point,), (c,))[1]
            pushed = lambda x: jax.jvp(partial(_predictions, problem, frame), (x,), (q,))[1]
            return jax.grad(lambda x: jnp.vdot(fixed, pushed(x)))(frame.point)

        return -2 * frame.project(_sum_columns(one, pairs)) / problem.size
    along_two = partial(third, problem, frame)
    return -2 * frame.project(_sum_columns(lambda pair: along_two(pair[:size], pair[size:]), pairs))


def _label_normal(problem: Regression, frame: Frame, amount: Array, finite_step: FiniteStep) -> Float[Array, " D"]:
    """Return the normal part for Sigma = c H: X = c/2 on the normal space, -P d3L[X] = -(c/2) P grad tr H.

    Here tr H = (1/n) |J|^2. With a finite step X = c/(2 - eta h) depends on the direction, and the general formula is
    used.
    """
    if not isinstance(finite_step, float) or finite_step != 0.0:
        inner = frame.lyapunov(amount * jnp.diag(frame.curvature), finite_step)
        return normal_part(problem, frame, inner)
    rows = jacobian(problem, frame.unravel(frame.point))
    return -amount / 2 * frame.project(trace_gradient(problem, frame.point, frame.unravel, rows))


def _isotropic(
    problem: AbstractProblem, frame: Frame, variance: Array, finite_step: FiniteStep
) -> tuple[Array, Array, Array]:
    """Return the parts for Sigma = s I: tangent -s H^+ d3L[P], normal -(s/2) P grad ln |H|_+, mixed zero."""
    inner = frame.lyapunov(jnp.diag(jnp.where(frame.active, variance, 0)), finite_step)
    least_squares = frame.least_squares and isinstance(problem, Regression)
    bend = partial(_bend, problem, frame) if least_squares else lambda q: third(problem, frame, q, q)
    unit = lambda i: jnp.zeros_like(frame.point).at[i].set(1)
    size = frame.point.shape[0]
    everywhere = jax.lax.map(lambda i: bend(frame.project(unit(i))), jnp.arange(size), batch_size=min(size, 64))
    total = jnp.sum(everywhere, axis=0)
    if frame.least_squares and isinstance(problem, Regression):
        total = _pull(problem, frame, total) / problem.size
    return -variance * frame.pseudo_inverse(total), normal_part(problem, frame, inner), jnp.zeros_like(frame.point)


def _predictions(problem: Regression, frame: Frame, x: Array) -> Array:
    return problem.predictions(frame.unravel(x))


def _bend(problem: Regression, frame: Frame, q: Array) -> Array:
    """Return f''[q, q], one number per output."""
    f = partial(_predictions, problem, frame)
    return jax.jvp(lambda x: jax.jvp(f, (x,), (q,))[1], (frame.point,), (q,))[1]


def _pull(problem: Regression, frame: Frame, cotangent: Array) -> Float[Array, " D"]:
    """Return J' c."""
    return jax.vjp(partial(_predictions, problem, frame), frame.point)[1](cotangent)[0]


def _sum_columns(function: Callable[[Array], Array], columns: Float[Array, "m k"]) -> Array:
    """Return sum_k function(column k), in bounded memory."""
    bytes_each = 8 * columns.shape[0] * columns.dtype.itemsize
    block = lambda rows: jnp.sum(jax.vmap(function)(rows), axis=0)
    return chunks.sum_samples(block, columns.T, chunks.chunk_length(bytes_each))


def _flatten(factor: PyTree) -> Float[Array, "D k"]:
    return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(factor)])


def _check_factor(params: PyTree, factor: PyTree) -> None:
    call = "`second_derivative(problem, params, factor)`"
    if jax.tree.structure(params) != jax.tree.structure(factor):
        outlines = f"{trees.outline(factor)}, params are {trees.outline(params)}"
        raise ValueError(f"{call}: `factor` is {outlines}; give a pytree like params.")
    for leaf, column in zip(jax.tree.leaves(params), jax.tree.leaves(factor), strict=True):
        shape = getattr(column, "shape", None)
        if shape is None or shape[:-1] != leaf.shape or len(shape) != len(leaf.shape) + 1:
            raise ValueError(
                f"{call}: `factor` has {validate.shown(column)} where params have shape {leaf.shape}; give one extra "
                "trailing axis (for flat params the D x k matrix B)."
            )
        if not jnp.issubdtype(column.dtype, jnp.floating):
            raise TypeError(f"{call}: `factor` has dtype {column.dtype}; give real floating-point arrays.")
