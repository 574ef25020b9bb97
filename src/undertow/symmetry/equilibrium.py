"""Where noise takes the charges: the point of the orbit with the least noise plus weight penalty.

Along a symmetry the flow is -dF/d amount with F = eta/4 Tr Sigma + gamma |params|^2, both taken at the moved point, and
F is convex along the orbit. So each family is solved in closed form (or by one root), and families that share
parameters are swept until none of them moves any more.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from undertow import trees, validate
from undertow.noise.base import AbstractNoise
from undertow.symmetry import closed_forms
from undertow.symmetry.flow import refuse_broken
from undertow.symmetry.generators import AbstractDiagonal, AbstractSymmetry, DoubleRotation, Exponential
from undertow.symmetry.powers import entry_powers_now, powers, powers_now
from undertow.validate import Number

__all__ = ["Equilibrium", "equilibrium"]

FAR = 30.0
"""exp(2 * 30) is 1e26: an amount beyond this is reported as infinite."""


class Equilibrium(eqx.Module):
    """A noise equilibrium: the same function, the same loss, balanced noise. Tuples have one entry a symmetry."""

    params: PyTree
    """The point: params moved along their orbit (the teleport)."""
    amount: tuple[Any, ...]
    """How far each symmetry was moved; infinite where the noise is one-sided (not moved then)."""
    charge: tuple[Any, ...]
    """The charges at the point."""
    residual: float
    """The largest flow left, relative to the noise and decay that balance."""
    excluded: tuple[tuple[int, ...], ...]
    """Generators without any noise or decay (dead neurons), by their number in the family: not moved."""
    infinite: tuple[int, ...]
    """How many directions of each symmetry have their equilibrium at infinity."""
    sweeps: int
    """How often all symmetries were gone through."""


def equilibrium(
    noise: AbstractNoise,
    symmetries: AbstractSymmetry | Sequence[AbstractSymmetry],
    params: PyTree,
    *,
    step_size: Number,
    weight_decay: Number = 0.0,
    tolerance: float | None = None,
    max_sweeps: int = 1000,
    key: Key[Array, ""] | None = None,
) -> Equilibrium:
    """The noise equilibrium on the orbit of params: `.params` has the same loss and balanced noise.

    **Arguments:** the noise of training, one symmetry or several (they may share parameters), and the step size and
    weight decay of training. Without weight decay the step size does not matter.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
    >>> found = ut.equilibrium(ut.Minibatch(product, 1), balance, params, step_size=0.1)
    >>> print(found.params["u"].round(4), found.params["w"].round(4))
    1.0 1.0
    """
    several = (symmetries,) if isinstance(symmetries, AbstractSymmetry) else tuple(symmetries)
    if not several or not all(isinstance(s, AbstractSymmetry) for s in several):
        raise TypeError("`equilibrium(noise, symmetries, ...)`: give a symmetry or a sequence of them.")
    if not isinstance(noise, AbstractNoise):
        raise TypeError(f"`equilibrium(noise, ...)`: got a {type(noise).__name__}; give a noise, such as `Minibatch`.")
    validate.finite_number("equilibrium", "step_size", step_size, least=np.finfo(float).tiny)
    validate.finite_number("equilibrium", "weight_decay", weight_decay)
    for symmetry in several:
        refuse_broken("equilibrium", noise, symmetry, params, key)
    dtype = jax.tree.leaves(params)[0].dtype
    eta, gamma = jnp.asarray(step_size, dtype), jnp.asarray(weight_decay, dtype)
    limit = float(jnp.finfo(dtype).eps) ** 0.75 if tolerance is None else tolerance
    if all(isinstance(s, AbstractDiagonal) for s in several):
        found = _diagonal(noise, several, params, eta, gamma, limit, max_sweeps)
    else:
        found = _general(noise, several, params, eta, gamma, limit, max_sweeps)
    _refuse_silence(noise, several, found)
    return found


def _diagonal(
    noise: AbstractNoise, symmetries: tuple, params: PyTree, eta: Array, gamma: Array, tolerance: float, most: int
) -> Equilibrium:
    """Commuting families: the noise of every entry is all that is needed, and one look at the data suffices."""
    entries = entry_powers_now(noise, params)
    moved, amounts, residual, sweeps = _sweep(symmetries, params, entries, eta, gamma, tolerance, most)
    amounts = [np.asarray(a) for a in amounts]
    dead = tuple(tuple(int(k) for k in np.flatnonzero(np.isnan(a))) for a in amounts)
    infinite = tuple(int(np.isinf(a).sum()) for a in amounts)
    clean = tuple(jnp.asarray(np.where(np.isnan(a), 0, a)) for a in amounts)
    charges = tuple(s.charge(moved) for s in symmetries)
    return Equilibrium(moved, clean, charges, float(residual), dead, infinite, int(sweeps))


@eqx.filter_jit
def _sweep(
    symmetries: tuple, params: PyTree, entries: PyTree, eta: Array, gamma: Array, tolerance: float, most: int
) -> tuple[PyTree, list[Array], Array, Array]:
    """Each family in turn goes to its own equilibrium, exactly, until the flow of all of them is gone.

    Steps of infinite and dead neurons count as zero; their amounts are filled in at the end.
    """
    shapes = [jax.eval_shape(s.charge, params) for s in symmetries]
    zero = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]

    def at(amounts: list[Array]) -> tuple[PyTree, PyTree]:
        logs = trees.zeros_like(params)
        for symmetry, amount in zip(symmetries, amounts, strict=True):
            logs = trees.add(logs, symmetry.logs(params, amount))
        squares = jax.tree.map(lambda p, log: p**2 * jnp.exp(2 * log), params, logs)
        return squares, jax.tree.map(lambda s, log: s * jnp.exp(-2 * log), entries, logs)

    def step(symmetry: Any, amounts: list[Array]) -> tuple[Array, Array]:
        squares, powered = at(amounts)
        (out, into), (s_out, s_in) = symmetry.sums(squares), symmetry.sums(powered)
        move = closed_forms.rescaling_amount(s_out, s_in, out, into, eta, gamma)
        k = 4 * gamma / eta
        up, down = s_out + k * into, s_in + k * out
        return move, jnp.abs(up - down) / jnp.maximum(up + down, jnp.finfo(up.dtype).tiny)

    def residual_of(amounts: list[Array]) -> Array:
        found = [step(s, amounts) for s in symmetries]
        finite = [jnp.where(jnp.isfinite(move), left, 0) for move, left in found]
        return jnp.max(jnp.stack([jnp.max(x) for x in finite]))

    def body(state: tuple[list[Array], Array, Array]) -> tuple[list[Array], Array, Array]:
        amounts, _, count = state
        for index, symmetry in enumerate(symmetries):
            move, _ = step(symmetry, amounts)
            moved = amounts[index] + jnp.where(jnp.isfinite(move), move, 0)
            amounts = [moved if k == index else a for k, a in enumerate(amounts)]
        return amounts, residual_of(amounts), count + 1

    def going(state: tuple[list[Array], Array, Array]) -> Array:
        return (state[1] > tolerance) & (state[2] < most)

    amounts, residual, count = jax.lax.while_loop(going, body, body((zero, jnp.asarray(jnp.inf), jnp.asarray(0))))
    moved = params
    for symmetry, amount in zip(symmetries, amounts, strict=True):
        moved = symmetry.orbit(moved, amount)
    last = [step(s, amounts)[0] for s in symmetries]
    told = [jnp.where(jnp.isfinite(move), a, move) for move, a in zip(last, amounts, strict=True)]
    return moved, told, residual, count


def _general(
    noise: AbstractNoise, symmetries: tuple, params: PyTree, eta: Array, gamma: Array, tolerance: float, most: int
) -> Equilibrium:
    """Families that do not commute: the noise is looked at anew after every move."""
    amounts: list[Any] = [None] * len(symmetries)
    dead: list[tuple[int, ...]] = [()] * len(symmetries)
    infinite = [0] * len(symmetries)
    sweeps, residual, best = 0, np.inf, np.inf
    while sweeps < most:
        for index, symmetry in enumerate(symmetries):
            params, move, gone, silent = _one(noise, symmetry, params, eta, gamma, tolerance)
            amounts[index] = move if amounts[index] is None else amounts[index] + move
            infinite[index] = max(infinite[index], gone) if isinstance(symmetry, DoubleRotation) else gone
            dead[index] = silent
        sweeps += 1
        before, residual = residual, _residual(noise, symmetries, params, eta, gamma)
        best = min(best, residual)
        if residual <= tolerance or (len(symmetries) == 1 and sweeps > 1) or (residual >= before and residual < 1e-6):
            break
    charges = tuple(s.charge(params) for s in symmetries)
    return Equilibrium(params, tuple(amounts), charges, float(residual), tuple(dead), tuple(infinite), sweeps)


def _one(
    noise: AbstractNoise, symmetry: AbstractSymmetry, params: PyTree, eta: Array, gamma: Array, tolerance: float
) -> tuple[PyTree, Any, int, tuple[int, ...]]:
    """One symmetry to its own equilibrium: the moved params, the amount, directions at infinity, dead ones."""
    if isinstance(symmetry, DoubleRotation):
        moved, amount, lost = _rotate(noise, symmetry, params, eta, gamma)
        return moved, amount, int(lost), ()
    if isinstance(symmetry, AbstractDiagonal):
        found = _diagonal(noise, (symmetry,), params, eta, gamma, tolerance, 2)
        finite = jnp.where(jnp.isfinite(found.amount[0]), found.amount[0], 0)
        return found.params, finite, found.infinite[0], found.excluded[0]
    assert isinstance(symmetry, Exponential)
    amount = _root(noise, symmetry, params, eta, gamma, tolerance)
    if np.isnan(amount):
        return params, jnp.asarray(0.0), 0, (0,)
    if np.isinf(amount):
        return params, jnp.asarray(amount), 1, ()
    return symmetry.orbit(params, amount), jnp.asarray(amount), 0, ()


@eqx.filter_jit
def _rotate(
    noise: AbstractNoise, symmetry: DoubleRotation, params: PyTree, eta: Array, gamma: Array
) -> tuple[PyTree, Array, Array]:
    found = powers(noise, symmetry, params)
    found = closed_forms.rotation(*symmetry.factors(params), found.plus, found.minus, eta, gamma)
    return symmetry.replace(params, found.left, found.right), found.amount, found.lost


@eqx.filter_jit
def _pull(
    noise: AbstractNoise, symmetry: AbstractSymmetry, params: PyTree, amount: Array, eta: Array, gamma: Array
) -> tuple[Array, Array]:
    """The flow at a point of the orbit, over eta/2, and the size of what balances in it."""
    moved = symmetry.orbit(params, amount)
    found = powers(noise, symmetry, moved)
    trace, decay = found.plus - found.minus, 8 * gamma / eta * symmetry.charge(moved)
    return trace - decay, jnp.abs(trace) + jnp.abs(decay)


def _root(
    noise: AbstractNoise, symmetry: Exponential, params: PyTree, eta: Array, gamma: Array, tolerance: float
) -> float:
    """The amount where the flow vanishes: it falls along the orbit, so that a sign change can be closed in on."""
    pull = lambda amount: float(_pull(noise, symmetry, params, jnp.asarray(amount, eta.dtype), eta, gamma)[0])
    here, size = (float(x) for x in _pull(noise, symmetry, params, jnp.zeros((), eta.dtype), eta, gamma))
    if size == 0:
        return np.nan
    if here == 0:
        return 0.0
    sign, near, far = np.sign(here), 0.0, np.sign(here) * 0.5
    scale = float(symmetry.norm(params)) / max(float(jnp.sqrt(trees.dot(params, params))), 1e-30)
    while np.sign(pull(far)) == sign:
        near, far = far, 2 * far
        if abs(far) * max(scale, 1e-3) > FAR:
            return sign * np.inf
    from scipy.optimize import brentq

    low, high = sorted((near, far))
    return float(brentq(pull, low, high, xtol=1e-14, rtol=max(tolerance, 4 * np.finfo(float).eps), maxiter=200))


def _residual(noise: AbstractNoise, symmetries: tuple, params: PyTree, eta: Array, gamma: Array) -> float:
    """The largest relative flow over the symmetries."""
    worst = 0.0
    for symmetry in symmetries:
        found = powers_now(noise, symmetry, params)
        plus, minus = (np.asarray(x) for x in (found.plus, found.minus))
        up, down = (np.asarray(x) for x in symmetry.pair(params, params))
        k = float(4 * gamma / eta)
        gap = plus + k * down - minus - k * up
        scale = np.abs(plus + k * down).max() + np.abs(minus + k * up).max()
        one_sided = isinstance(symmetry, Exponential) and k == 0 and np.all(gap == scale)
        if scale > 0 and not one_sided:
            worst = max(worst, float(np.abs(gap).max() / scale))
    return worst


def _refuse_silence(noise: AbstractNoise, symmetries: tuple, found: Equilibrium) -> None:
    """Raises where a symmetry has no noise at all: then every point of its orbit is an equilibrium."""
    for symmetry, dead in zip(symmetries, found.excluded, strict=True):
        if dead and len(dead) == symmetry.dimension(found.params):
            raise ValueError(
                f"`equilibrium`: {type(noise).__name__} noise vanishes along the symmetry "
                f"({symmetry.describe(found.params)}) and there is no weight decay, so every point of its orbit is an "
                "equilibrium; at interpolation minibatch noise is zero: start earlier, or give weight_decay > 0."
            )
