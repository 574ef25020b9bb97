"""Where noise takes the charges: the point of the orbit with the least noise plus weight penalty.

Along a symmetry the flow is -dF/d amount with F = eta/4 Tr Sigma + lambda/2 |params|^2, both at the moved point, and
F is convex along the orbit. So each family is solved in closed form (or by one root), and families that share
parameters are swept until none of them moves any more. Where F only falls, the equilibrium is at infinity: generators,
and combinations of them (`recession`), for which this is so are held where they are, and the others are balanced.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.noise.base import AbstractNoise
from undertow.symmetry import precision
from undertow.symmetry.alternating import solve_alternating
from undertow.symmetry.commuting import Limits, Solved, solve_commuting
from undertow.symmetry.flow import check_order, refuse_broken
from undertow.symmetry.generators import AbstractDiagonal, AbstractSymmetry

__all__ = ["Equilibrium", "NoFiniteEquilibrium", "equilibrium"]


class NoFiniteEquilibrium(UserWarning):
    """A symmetry given to `equilibrium` has its equilibrium at infinity."""


class Equilibrium(eqx.Module):
    """A noise equilibrium: the same function, the same loss, balanced noise. Tuples have one entry per symmetry.

    `print` shows the residual of every symmetry and names those that have no finite equilibrium.
    """

    params: PyTree
    """The point: params moved along their orbit (the teleport)."""
    amount: tuple[Any, ...]
    """How far each symmetry was moved; infinite where there is no finite equilibrium (not moved then)."""
    charge: tuple[Any, ...]
    """The charges at the point."""
    residual: float
    """The largest of `residuals`."""
    excluded: tuple[tuple[int, ...], ...]
    """Generators without any noise or decay (dead neurons), by their number in the family: not moved."""
    infinite: tuple[int, ...]
    """The number of directions of each symmetry whose equilibrium is at infinity."""
    sweeps: int
    """How often all symmetries were gone through."""
    residuals: tuple[float, ...] = ()
    """The largest flow left along each symmetry, relative to the noise and decay that balance: 1 is one-sided."""
    names: tuple[str, ...] = eqx.field(static=True, default=())
    """What each symmetry is, in words."""
    together: tuple[tuple[int, ...], ...] = eqx.field(static=True, default=())
    """Symmetries (by number) of which only a combination has its equilibrium at infinity."""

    def __str__(self) -> str:
        sweeps = f"{self.sweeps} sweep{'' if self.sweeps == 1 else 's'}"
        lines = [f"noise equilibrium after {sweeps}, largest residual {self.residual:.2g}"]
        for index, (name, left) in enumerate(zip(self.names, self.residuals, strict=True)):
            lines.append(f"  {name}: residual {left:.2g}{_shortcomings(self, index)}")
        return "\n".join(lines)


def _shortcomings(found: Equilibrium, index: int) -> str:
    """What keeps a symmetry from a finite equilibrium, as the end of a line."""
    said = ""
    if found.infinite[index]:
        said += f", {found.infinite[index]} of {_directions(found, index)} at infinity"
    partners = {k for members in found.together if index in members for k in members} - {index}
    if partners:
        said += f" together with {', '.join(found.names[k] for k in sorted(partners))}"
    if found.excluded[index]:
        said += f", {len(found.excluded[index])} without noise"
    return said


def _directions(found: Equilibrium, index: int) -> str:
    shape = np.shape(found.charge[index])
    count = shape[0] if shape else 1
    return f"{count} direction{'' if count == 1 else 's'}"


def equilibrium(
    noise: AbstractNoise,
    params: PyTree,
    symmetries: AbstractSymmetry | Sequence[AbstractSymmetry],
    *,
    step_size: Number,
    weight_decay: Number = 0.0,
    tolerance: float | None = None,
    max_sweeps: int = 1000,
    key: KeyLike | None = None,
) -> Equilibrium:
    """The noise equilibrium on the orbit of params: `.params` has the same loss and balanced noise.

    **Arguments:** the noise of training, one symmetry or several (they may share parameters), and the step size and
    weight decay of training. Without weight decay the step size does not matter.

    A symmetry along which noise and decay push one way only has no finite equilibrium: scale-invariant weights grow
    for ever without weight decay, and a factor that is zero leaves its partner without noise. Such generators, and
    combinations of generators, are left where they are, counted in `.infinite`, named by `print`, and warned about;
    the others are balanced with these held fixed. `.residual` is the largest over all symmetries, those included.
    Half-precision params and data are computed with in float32; `.params` come back in their own precision.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
    >>> found = ut.equilibrium(ut.Minibatch(product, 1), params, balance, step_size=0.1)
    >>> print(found.params["u"].round(4), found.params["w"].round(4))
    1.0 1.0
    """
    check_order("equilibrium", params, "symmetries")
    several = (symmetries,) if isinstance(symmetries, AbstractSymmetry) else tuple(symmetries)
    if not several or not all(isinstance(s, AbstractSymmetry) for s in several):
        raise TypeError("`equilibrium(noise, params, symmetries, ...)`: give a symmetry or a sequence of them.")
    if not isinstance(noise, AbstractNoise):
        raise TypeError(f"`equilibrium(noise, ...)`: got a {type(noise).__name__}; give a noise, such as `Minibatch`.")
    validate.finite_number("equilibrium", "step_size", step_size, least=np.finfo(float).tiny)
    validate.finite_number("equilibrium", "weight_decay", weight_decay)
    given = params
    noise, params = precision.widened((noise, params))
    for symmetry in several:
        refuse_broken("equilibrium", noise, params, symmetry, key)
    rounding = precision.rounding(params)
    eta, decay = (jnp.asarray(x, jnp.result_type(*jax.tree.leaves(params))) for x in (step_size, weight_decay))
    limits = Limits(rounding**0.75 if tolerance is None else tolerance, rounding**0.375, max_sweeps)
    solve = solve_commuting if all(isinstance(s, AbstractDiagonal) for s in several) else solve_alternating
    found = _assembled(several, solve(noise, params, several, eta, decay, limits))
    _refuse_silence(noise, several, found)
    _warn(found, limits)
    return eqx.tree_at(
        lambda f: f.params, found, jax.tree.map(lambda x, like: x.astype(like.dtype), found.params, given)
    )


def _assembled(symmetries: tuple, solved: Solved) -> Equilibrium:
    amounts = solved.amounts
    for direction in solved.directions:
        infinite = lambda a, part: np.diag(np.full(len(a), np.inf)) if a.ndim == 2 else np.copysign(np.inf, part)
        amounts = [np.where(part != 0, infinite(a, part), a) for a, part in zip(amounts, direction, strict=True)]
    members = [tuple(k for k, part in enumerate(d) if np.any(part != 0)) for d in solved.directions]
    return Equilibrium(
        params=solved.params,
        amount=tuple(jnp.asarray(np.where(np.isnan(a), 0, a)) for a in amounts),
        charge=tuple(s.charge(solved.params) for s in symmetries),
        residual=max(solved.residuals),
        excluded=tuple(tuple(int(k) for k in np.flatnonzero(np.isnan(a))) for a in amounts),
        infinite=tuple(lost + int(np.isinf(a).sum()) for lost, a in zip(solved.lost, amounts, strict=True)),
        sweeps=solved.sweeps,
        residuals=tuple(solved.residuals),
        names=tuple(s.describe(solved.params) for s in symmetries),
        together=tuple(m for m in members if len(m) > 1),
    )


def _warn(found: Equilibrium, limits: Limits) -> None:
    """Warns of symmetries that are not balanced at the point found."""
    behind = [k for k, left in enumerate(found.residuals) if limits.missed_by(left)]
    endless = [k for k in behind if found.infinite[k]]
    if endless:
        listed = "; ".join(found.names[k] + _shortcomings(found, k) for k in endless)
        warnings.warn(
            f"`equilibrium`: {len(endless)} of {len(found.names)} symmetries have no finite equilibrium: {listed}. "
            "Noise and weight decay push these charges one way only; they are left where they are (`residuals`), and "
            "the others are balanced. Give weight_decay > 0 if training has it, or leave these symmetries out.",
            NoFiniteEquilibrium,
            stacklevel=3,
        )
    slow = [k for k in behind if not found.infinite[k]]
    if slow:
        listed = "; ".join(f"{found.names[k]} (residual {found.residuals[k]:.1e})" for k in slow)
        warnings.warn(
            f"`equilibrium`: not converged after {found.sweeps} sweeps: {listed}. Give a larger max_sweeps.",
            UserWarning,
            stacklevel=3,
        )


def _refuse_silence(noise: AbstractNoise, symmetries: tuple, found: Equilibrium) -> None:
    """Raises where a symmetry has no noise at all: then every point of its orbit is an equilibrium."""
    for symmetry, dead, charge in zip(symmetries, found.excluded, found.charge, strict=True):
        if dead and len(dead) == np.size(charge):
            raise ValueError(
                f"`equilibrium`: {type(noise).__name__} noise vanishes along the symmetry "
                f"({symmetry.describe(found.params)}) and there is no weight decay, so every point of its orbit is an "
                "equilibrium; at interpolation minibatch noise is zero: start earlier, or give weight_decay > 0."
            )
