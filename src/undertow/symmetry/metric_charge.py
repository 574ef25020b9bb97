"""Charges in a diagonal metric S, such as that of Adam: C_S = 1/2 sum_i A_i theta_i^2/S_i.

Gradient flow in a frozen metric, d theta/dt = -S grad L, conserves C_S for every diagonal generator A, because
theta'A S^-1 S grad L = theta'A grad L = 0. It does not conserve the plain charge 1/2 theta'A theta. Of GL(d) between
two factors U and W it conserves the diagonal part; the whole matrix U'P^-1 U - W R^-1 W' only where the metric does not
depend on the inner index, S_U = P on the rows of U and S_W = R on the columns of W.
"""

from functools import singledispatch
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow._validate import Number
from undertow.optimisers.adaptive import AbstractAdaptive
from undertow.optimisers.base import AbstractOptimiser
from undertow.symmetry.generators import AbstractDiagonal, AbstractSymmetry, Exponential, Pair
from undertow.symmetry.recession import is_diagonal

__all__ = ["ChargeChange", "charge_change", "check_diagonal", "metric_charge", "sides", "signed_sum", "square_sum"]


@singledispatch
def sides(symmetry: AbstractSymmetry, entries: PyTree) -> Pair:
    """Return the sums of |A_i| x_i for the entries x, where A > 0 and where A < 0, in the shape of the charge."""
    raise TypeError(f"`{type(symmetry).__name__}`: the generators are not diagonal in the entries of params.")


@sides.register(AbstractDiagonal)
def _family_sides(symmetry: AbstractDiagonal, entries: PyTree) -> Pair:
    return symmetry.sums(entries)


@sides.register(Exponential)
def _exponential_sides(symmetry: Exponential, entries: PyTree) -> Pair:
    diagonal = _diagonal(symmetry, entries)
    plus, minus = (jax.tree.map(lambda a, sign=sign: jnp.maximum(sign * a, 0), diagonal) for sign in (1, -1))
    return trees.dot(plus, entries), trees.dot(minus, entries)


def signed_sum(symmetry: AbstractSymmetry, entries: PyTree) -> Array:
    """Return sum_i A_i x_i for the entries x, in the shape of the charge."""
    return jnp.subtract(*sides(symmetry, entries))


@singledispatch
def square_sum(symmetry: AbstractSymmetry, entries: PyTree) -> Array:
    """Return sum_i A_i^2 x_i for the entries x, in the shape of the charge."""
    raise TypeError(f"`{type(symmetry).__name__}`: the generators are not diagonal in the entries of params.")


@square_sum.register(AbstractDiagonal)
def _family_squares(symmetry: AbstractDiagonal, entries: PyTree) -> Array:
    return jnp.add(*symmetry.sums(entries))


@square_sum.register(Exponential)
def _exponential_squares(symmetry: Exponential, entries: PyTree) -> Array:
    return trees.dot(jax.tree.map(jnp.square, _diagonal(symmetry, entries)), entries)


def _diagonal(symmetry: Exponential, like: PyTree) -> PyTree:
    return jax.tree.map(lambda a, x: jnp.broadcast_to(jnp.asarray(a, x.dtype), x.shape), symmetry.generator, like)


def check_diagonal(function: str, symmetry: AbstractSymmetry, params: PyTree) -> None:
    """Raise where a generator is not diagonal, so that a diagonal metric conserves no charge of it."""
    if not is_diagonal(symmetry):
        raise ValueError(
            f"`{function}(optimiser=...)`: {symmetry.describe(params)}: the generators are not diagonal in the entries "
            "of params. A metric that differs between entries conserves no quadratic charge of such a generator, so "
            "there is no equilibrium to predict; give its diagonal part, such as `Rescaling(..., neurons=True)`. "
            "`noether_flow` gives the change of the plain charge."
        )


def metric_charge(symmetry: AbstractSymmetry, params: PyTree, metric: PyTree) -> Float[Array, "..."]:
    """Return C_S = 1/2 sum_i A_i theta_i^2/S_i.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.metric_charge import metric_charge
    >>> balance = ut.Rescaling(lambda p: p[0], lambda p: p[1])
    >>> print(metric_charge(balance, jnp.array([2.0, 1.0]), metric=jnp.array([0.5, 1.0])))
    3.5
    """
    check_diagonal("metric_charge", symmetry, params)
    return signed_sum(symmetry, jax.tree.map(lambda p, s: p**2 / s, params, metric)) / 2


class ChargeChange(NamedTuple):
    """The change of a charge in one step, in parts whose sum is the charge after the step minus that before it.

    The charge is C_S for diagonal generators. For others it is the plain charge 1/2 theta'A theta, with S = 1 below.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.metric_charge import charge_change
    >>> optimiser, balance = ut.AdamW(weight_decay=1.0, eps=1.0), ut.Rescaling(lambda p: p[0], lambda p: p[1])
    >>> start = jnp.array([2.0, 1.0]), optimiser.init(jnp.zeros(2))
    >>> end = optimiser.update(*start, jnp.zeros(2), optimiser.rates(jnp.array(0), jnp.array(0.1)))
    >>> change = charge_change(balance, optimiser, start, end, step=0, step_size=0.1)
    >>> print(f"decay {change.decay:.3f}, total {change.total:.3f}")  # no gradient: weight decay alone
    decay -0.285, total -0.285
    """

    first_order: Array
    """-eta kept theta'A S^-1 u for the step theta+ = kept theta - eta u. For diagonal generators this is the memory of
    momentum, -eta kept theta'A m, which is zero without momentum."""
    second_order: Array
    """eta^2/2 u'A S^-1 u: noise and gradient."""
    decay: Array
    """-(1 - kept^2) times the charge of theta before the step, with S after it."""
    metric: Array
    """1/2 sum_i A_i theta_i^2 Delta(1/S_i), with theta before the step; zero for the plain charge."""

    @property
    def total(self) -> Array:
        """The change of the charge."""
        return self.first_order + self.second_order + self.decay + self.metric


def charge_change(
    symmetry: AbstractSymmetry,
    optimiser: AbstractOptimiser,
    before: tuple[PyTree, PyTree],
    after: tuple[PyTree, PyTree],
    *,
    step: int | Array,
    step_size: Number,
) -> ChargeChange:
    """Return the exact change of a charge in one step of Adam, AdamW or RMSProp, in four parts.

    `before` and `after` are pairs of params and the optimiser's state; `step` counts from 0. The step is
    theta+ = kept theta - eta S m with kept = 1 - eta lambda, and m and S of the state after the step. With bias
    correction, eta is the step size over 1 - b1^t and 1/S = sqrt(v/(1 - b2^t)) + eps in step t = step + 1; before the
    first step 1/S = eps.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.metric_charge import charge_change
    >>> optimiser, balance = ut.RMSProp(b2=0.9), ut.Rescaling(lambda p: p[0], lambda p: p[1])
    >>> gradient = jax.grad(lambda p: (p[0] * p[1] - 1) ** 2)
    >>> start, state = jnp.array([2.0, 1.0]), {"v": jnp.array([1.0, 4.0])}
    >>> rates = optimiser.rates(jnp.array(0), jnp.array(0.1))
    >>> end = optimiser.update(start, state, gradient(start), rates)
    >>> change = charge_change(balance, optimiser, (start, state), end, step=0, step_size=0.1)
    >>> print(f"second order {change.second_order:.4f}, metric {change.metric:.4f}, sum {change.total:.4f}")
    second order -0.0175, metric 0.1402, sum 0.1226
    """
    if not isinstance(optimiser, AbstractAdaptive):
        raise TypeError(
            f"`charge_change(optimiser={type(optimiser).__name__}(...))`: give `RMSProp`, `Adam` or `AdamW`; for SGD "
            "use the method `change` of the symmetry."
        )
    (params, old), (moved, new) = before, after
    count, eta = jnp.asarray(step), jnp.asarray(step_size, jnp.result_type(float))
    rates = optimiser.rates(count, eta)
    kept = rates["kept"]
    way = jax.tree.map(lambda p, q: kept.astype(p.dtype) * p - q, params, moved)  # eta u
    if not is_diagonal(symmetry):
        form = lambda a, b: _symmetric(jnp.subtract(*symmetry.pair(a, b)))
        zero = jnp.zeros_like(form(way, way))
        return ChargeChange(
            -kept * form(params, way), form(way, way) / 2, -(1 - kept**2) * form(params, params) / 2, zero
        )
    previous = jnp.where(count > 0, optimiser.rates(jnp.maximum(count - 1, 0), eta)["root"], 1)
    was, now = _inverse(optimiser, old, previous), _inverse(optimiser, new, rates["root"])
    total = lambda function, *entries: signed_sum(symmetry, jax.tree.map(function, *entries))
    return ChargeChange(
        -kept * total(lambda p, u, w: p * u * w, params, way, now),
        total(lambda u, w: u**2 * w, way, now) / 2,
        -(1 - kept**2) * total(lambda p, w: p**2 * w, params, now) / 2,
        total(lambda p, w, w0: p**2 * (w - w0), params, now, was) / 2,
    )


def _symmetric(form: Array) -> Array:
    """Return the symmetric part of a matrix of charges; numbers as they are."""
    return (form + form.T) / 2 if form.ndim == 2 else form


def _inverse(optimiser: AbstractAdaptive, state: PyTree, root: Array) -> PyTree:
    """Return 1/S = sqrt(v)/root + eps, with root^2 the bias correction of v."""
    return jax.tree.map(lambda v: jnp.sqrt(v) / root.astype(v.dtype) + jnp.asarray(optimiser.eps, v.dtype), state["v"])
