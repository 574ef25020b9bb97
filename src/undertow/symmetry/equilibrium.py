"""Noise equilibria: the point of an orbit with the least noise plus weight penalty.

Along a symmetry the flow is -dF/d amount with F = eta/4 Tr Sigma + lambda/2 |params|^2, both at the moved point, and
F is convex along the orbit. Each family is solved in closed form (or by one root), and families that share parameters
are swept until no family moves any more. Where F only decreases, the equilibrium is at infinity. The generators for
which this is so, and combinations of generators (`recession`), are held fixed, and the others are balanced.
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._table import ResultTable, shortened, span
from undertow._validate import KeyLike, Number
from undertow.figures import results
from undertow.noise.base import AbstractNoise
from undertow.optimisers.adaptive import AbstractAdaptive
from undertow.optimisers.base import AbstractOptimiser
from undertow.regime import Regime
from undertow.symmetry import precision
from undertow.symmetry.alternating import solve_alternating
from undertow.symmetry.commuting import Limits, Solved, solve_commuting
from undertow.symmetry.comparison import RunComparison, compare_run
from undertow.symmetry.flow import check_order, check_symmetry, known_optimiser
from undertow.symmetry.generators import AbstractDiagonal, AbstractSymmetry
from undertow.symmetry.metric_balance import MetricSolved, solve_metric
from undertow.symmetry.metric_charge import check_diagonal
from undertow.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Equilibrium", "NoFiniteEquilibrium", "VanishingNoiseError", "equilibrium"]


class NoFiniteEquilibrium(UserWarning):
    """Warning that a symmetry given to `equilibrium` has its equilibrium at infinity."""


class VanishingNoiseError(ValueError):
    """Error for a symmetry along which the noise vanishes, so that every point of its orbit is an equilibrium."""


class Equilibrium(eqx.Module):
    """A noise equilibrium: a point with the same function and loss, and balanced noise.

    Tuples have one entry per symmetry. `print` shows the residual, the charges and the amounts of every symmetry, and
    names those that have no finite equilibrium.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> params, balance = {"u": jnp.array(2.0), "w": jnp.array(0.5)}, ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> end = ut.equilibrium(ut.Minibatch(product, 1), params, balance, step_size=0.1)
    >>> print(f"{end.names[0]}: amount {end.amount[0]:.3f}, relaxation in {end.relaxation_steps[0]:.0f} steps")
    rescaling, w against u: amount -0.693, relaxation in 25 steps
    """

    params: PyTree
    """The params after the move along their orbit."""
    amount: tuple[Array | np.ndarray, ...]
    """The amount of the move along each symmetry; infinite where there is no finite equilibrium (then not moved)."""
    charge: tuple[Array | np.ndarray, ...]
    """The charges at the point."""
    residual: float
    """The largest of `residuals`."""
    excluded: tuple[tuple[int, ...], ...]
    """Generators without any noise or decay (dead neurons), by their number in the family; they are not moved."""
    infinite: tuple[int, ...]
    """The number of directions of each symmetry whose equilibrium is at infinity."""
    sweeps: int
    """The number of sweeps over all symmetries."""
    residuals: tuple[float, ...] = ()
    """The largest flow left along each symmetry, relative to its noise and decay; 1 where they are one-sided."""
    names: tuple[str, ...] = eqx.field(static=True, default=())
    """A description of each symmetry in words."""
    together: tuple[tuple[int, ...], ...] = eqx.field(static=True, default=())
    """Sets of symmetries (by number) of which only a combination has its equilibrium at infinity."""
    relaxation_steps: tuple[Array | np.ndarray, ...] = ()
    """The relaxation times of each symmetry at the point, in steps, as in `Flow`, with the other symmetries held fixed.
    Infinite for generators whose equilibrium is at infinity."""
    symmetries: tuple[AbstractSymmetry, ...] = ()
    """The symmetries, in the order of all tuples."""
    step_size: float = np.nan
    """The step size of training for which this is the equilibrium."""
    weight_decay: float = 0.0
    """The weight decay of training."""
    optimiser: str = eqx.field(static=True, default="SGD")
    """The name of the optimiser."""
    regime: Regime = eqx.field(static=True, default=Regime())
    """The small parameters under Adam, and the sizes of the corrections; empty for SGD."""
    offset: PyTree = None
    """The mean of params in a long run minus `params`, to first order in the step size; None for SGD."""
    fluctuations: PyTree = None
    """A factor B (one extra trailing axis) of the covariance B B' of params in a long run; None for SGD."""

    def expected(self, observable: Callable[[PyTree], Array]) -> Array:
        """Return the mean of a function of params in a long run, f + f' offset + 1/2 f''[B B']; f itself for SGD.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
        >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
        >>> params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
        >>> end = ut.equilibrium(ut.Minibatch(product, 1), params, balance, step_size=0.01, optimiser=ut.Adam())
        >>> loss = end.expected(product.loss)
        >>> print(f"{product.loss(end.params):.3f} at the point, {loss:.3f} in a run")
        1.000 at the point, 1.010 in a run
        """
        if self.offset is None:
            return observable(self.params)
        return _expected(observable, self.params, self.offset, self.fluctuations)

    def compare(self, run: Trajectory, *, tolerance: float = 0.1) -> RunComparison:
        """Compare the charges at the end of a run of `descend` with this equilibrium; warn where they are far from it.

        The run has the step size, the weight decay and the optimiser of this equilibrium. Charges that are further away
        than the amount `tolerance` (0.1: the weights differ by ten percent) give the warning `FarFromEquilibrium`, with
        the length of the run in relaxation times and the number of steps that are missing.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.5, 1.5]))
        >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
        >>> params, noise = {"u": jnp.array(2.0), "w": jnp.array(0.5)}, ut.Minibatch(product, 1)
        >>> end = ut.equilibrium(noise, params, balance, step_size=0.01)
        >>> run = ut.descend(noise, params, step_size=0.01, steps=40_000, key=0)
        >>> found = end.compare(run)
        >>> print(f"{found.relaxations[0]:.1f} relaxation times, within 0.1: {found.distance[0] < 0.1}")
        4.0 relaxation times, within 0.1: True
        """
        return compare_run(self, run, tolerance)

    def _table(self) -> ResultTable:
        sweeps = f"{self.sweeps} sweep{'' if self.sweeps == 1 else 's'}"
        title = f"noise equilibrium after {sweeps}, largest residual {self.residual:.2g}"
        rows = [
            (name, f"{left:.2g}", span(np.asarray(charge)), span(np.asarray(amount)), _shortcomings(self, index))
            for index, (name, left, charge, amount) in enumerate(
                zip(self.names, self.residuals, self.charge, self.amount, strict=True)
            )
        ]
        shown, notes = shortened(rows, "symmetries")
        if self.regime.parameters:
            notes = (*notes, *self.regime.table().text().splitlines())
        return ResultTable(title, ("symmetry", "residual", "charge", "amount", ""), shown, "lrrrl", notes)

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def plot(self, *, ax: "Axes | None" = None) -> "Axes":
        """Draw the amount of the move along every generator; those with an equilibrium at infinity are left out.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
        >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
        >>> params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
        >>> axes = ut.equilibrium(ut.Minibatch(product, 1), params, balance, step_size=0.1).plot()
        >>> print(axes.get_ylabel(), axes.get_xlabel())
        amount of the move generator
        """
        axes = results.new_axes(ax)
        results.draw_groups(axes, dict(zip(self.names, self.amount, strict=True)))
        results.label_axes(axes, "generator", "amount of the move")
        return axes


def _expected(observable: Callable[[PyTree], Array], params: PyTree, offset: PyTree, factor: PyTree) -> Array:
    """Return f + f' offset + 1/2 f''[B B'] at params, for the columns of B."""
    slope = lambda p, d: jax.jvp(observable, (p,), (d,))[1]
    bend = lambda d: jax.jvp(lambda p: slope(p, d), (params,), (d,))[1]
    columns = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), factor)
    return observable(params) + slope(params, offset) + jnp.sum(jax.lax.map(bend, columns), axis=0) / 2


def _shortcomings(result: Equilibrium, index: int) -> str:
    """Return the reasons why a symmetry has no finite equilibrium."""
    partners = {k for members in result.together if index in members for k in members} - {index}
    names = ", ".join(result.names[k] for k in sorted(partners))
    infinite = f"{result.infinite[index]} of {_directions(result, index)} at infinity" if result.infinite[index] else ""
    together = f"{infinite} together with {names}".strip() if partners else infinite
    silent = f"{len(result.excluded[index])} without noise" if result.excluded[index] else ""
    return ", ".join(filter(None, (together, silent)))


def _directions(result: Equilibrium, index: int) -> str:
    shape = np.shape(result.charge[index])
    count = shape[0] if shape else 1
    return f"{count} direction{'' if count == 1 else 's'}"


@checked_call("equilibrium")
def equilibrium(
    noise: AbstractNoise,
    params: PyTree,
    symmetries: AbstractSymmetry | Sequence[AbstractSymmetry],
    *,
    step_size: Number,
    weight_decay: Number = 0.0,
    optimiser: AbstractOptimiser | None = None,
    corrected: bool = True,
    tolerance: float | None = None,
    max_sweeps: int = 1000,
    key: KeyLike | None = None,
) -> Equilibrium:
    """Return the noise equilibrium on the orbit of params: `.params` has the same loss and balanced noise.

    **Arguments:**

    - `noise`, `params`: the noise of training, and a point of the orbit.
    - `symmetries`: one symmetry or several, which may share parameters.
    - `step_size`, `weight_decay`: those of training. Without weight decay the result does not depend on the step size.
    - `optimiser`: that of training (None: SGD); `corrected` is explained below.
    - `tolerance`: the residual below which a symmetry counts as balanced (None: machine epsilon to the power 3/4).
    - `max_sweeps`: the largest number of sweeps over all symmetries.
    - `key`: draws random elements of the orbit, with which the symmetries of the loss are tested (None: a fixed key).

    A symmetry has no finite equilibrium if noise and decay push its charge in one direction only. Scale-invariant
    weights grow without bound if there is no weight decay, and the partner of a factor that is zero has no noise. Such
    generators, and combinations of generators, are not moved. They are counted in `.infinite`, listed by `print`, and
    a warning names them. The other generators are balanced with these held fixed. `.residual` is the largest residual
    over all symmetries. Half-precision params and data are converted to float32; `.params` have the precision of the
    given params.

    With `optimiser=Adam(...)`, `AdamW` or `RMSProp` the equilibrium of diagonal generators (`Rescaling`, `Scaling`) is
    the point of the orbit with the least sum of standard deviations sum_i sqrt(Sigma_ii), plus decay, where SGD has
    the least sum of variances. With `corrected=True` and at most 500 parameters the fluctuations of params and of the
    metric across the manifold are included, to first order in the step size and in (1 - b2)/(eta lambda); then params
    should be at a minimum. `.regime` has this ratio and the sizes of the corrections, `.expected(f)` the mean of a
    function of params in a long run. A diagonal metric conserves no charge of other generators, which raise an error.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
    >>> end = ut.equilibrium(ut.Minibatch(product, 1), params, balance, step_size=0.1)
    >>> print(end.params["u"].round(4), end.params["w"].round(4))
    1.0 1.0
    """
    check_order("equilibrium", params, "symmetries")
    several = _several(symmetries)
    validate.instance("equilibrium", "noise", noise, AbstractNoise, "a noise, such as `Minibatch`")
    validate.params_of_floats("equilibrium", params)
    validate.finite_number("equilibrium", "step_size", step_size, positive=True)
    validate.finite_number("equilibrium", "weight_decay", weight_decay)
    if tolerance is not None:
        validate.finite_number("equilibrium", "tolerance", tolerance, positive=True)
    max_sweeps = validate.positive_integer("equilibrium", "max_sweeps", max_sweeps)
    corrected = validate.flag("equilibrium", "corrected", corrected)
    used = known_optimiser("equilibrium", optimiser, 0.0, weight_decay)
    given = params
    noise, params = precision.widened((noise, params))
    adaptive = isinstance(used, AbstractAdaptive)
    for symmetry in several:
        if adaptive:
            check_diagonal("equilibrium", symmetry, params)
        check_symmetry("equilibrium", noise, params, symmetry, key)
    rounding = trees.machine_epsilon(params)
    eta, decay = (jnp.asarray(x, jnp.result_type(*jax.tree.leaves(params))) for x in (step_size, used.weight_decay))
    limits = Limits(rounding**0.75 if tolerance is None else tolerance, rounding**0.375, max_sweeps)
    if isinstance(used, AbstractAdaptive):
        solution = solve_metric(noise, params, several, eta, used, limits, corrected)
        result = _with_fluctuations(_assembled(several, solution.solved, float(eta), float(decay)), solution, used)
    else:
        solve = solve_commuting if all(isinstance(s, AbstractDiagonal) for s in several) else solve_alternating
        longer = eta / (1 - used.momentum) if used.momentum else eta
        result = _assembled(several, solve(noise, params, several, longer, decay, limits), float(eta), float(decay))
    _check_noise(noise, several, result)
    _warn(result, limits)
    return eqx.tree_at(
        lambda r: r.params, result, jax.tree.map(lambda x, like: x.astype(like.dtype), result.params, given)
    )


def _several(symmetries: object) -> tuple[AbstractSymmetry, ...]:
    """Return one symmetry or several as a tuple."""
    several = (symmetries,) if isinstance(symmetries, AbstractSymmetry) else symmetries
    wrong = not isinstance(several, Sequence) or not several or isinstance(several, str)
    if wrong or not all(isinstance(s, AbstractSymmetry) for s in several):
        raise TypeError(
            f"{validate.quote('equilibrium', symmetries=validate.shown(symmetries))}: `symmetries` is "
            f"{validate.kind_of(symmetries)}; give a symmetry or a sequence of symmetries, such as `Rescaling(...)`."
        )
    return tuple(several)


def _with_fluctuations(result: Equilibrium, solution: MetricSolved, optimiser: AbstractAdaptive) -> Equilibrium:
    found = solution.fluctuations
    offset = factor = None
    if found is not None:
        offset = trees.unravel(found.offset, result.params)
        factor = jax.vmap(trees.unravel, in_axes=(1, None), out_axes=-1)(found.factor, result.params)
    return dataclasses.replace(
        result, optimiser=type(optimiser).__name__, regime=solution.regime, offset=offset, fluctuations=factor
    )


def _assembled(symmetries: tuple, solved: Solved, step_size: float, weight_decay: float) -> Equilibrium:
    amounts = solved.amounts
    for direction in solved.directions:
        infinite = lambda a, part: np.diag(np.full(len(a), np.inf)) if a.ndim == 2 else np.copysign(np.inf, part)
        amounts = [np.where(part != 0, infinite(a, part), a) for a, part in zip(amounts, direction, strict=True)]
    members = [tuple(k for k, part in enumerate(d) if np.any(part != 0)) for d in solved.directions]
    return Equilibrium(
        params=solved.params,
        amount=tuple(jax.device_put(np.where(np.isnan(a), 0, a)) for a in amounts),
        charge=_charges(symmetries, solved.params),
        residual=max(solved.residuals),
        excluded=tuple(tuple(int(k) for k in np.flatnonzero(np.isnan(a))) for a in amounts),
        infinite=tuple(lost + int(np.isinf(a).sum()) for lost, a in zip(solved.lost, amounts, strict=True)),
        sweeps=solved.sweeps,
        residuals=tuple(solved.residuals),
        names=tuple(s.describe(solved.params) for s in symmetries),
        together=tuple(m for m in members if len(m) > 1),
        relaxation_steps=tuple(
            times if np.ndim(a) == 2 else np.where(np.isinf(a), np.inf, times)
            for times, a in zip(solved.relaxation, amounts, strict=True)
        ),
        symmetries=symmetries,
        step_size=step_size,
        weight_decay=weight_decay,
    )


@eqx.filter_jit
def _charges(symmetries: tuple[AbstractSymmetry, ...], params: PyTree) -> tuple[Array, ...]:
    return tuple(symmetry.charge(params) for symmetry in symmetries)


def _warn(result: Equilibrium, limits: Limits) -> None:
    """Warn of symmetries that are not balanced."""
    unbalanced = [k for k, left in enumerate(result.residuals) if limits.missed_by(left)]
    endless = [k for k in unbalanced if result.infinite[k]]
    if endless:
        listed = "; ".join(f"{result.names[k]}, {_shortcomings(result, k)}" for k in endless)
        warnings.warn(
            f"`equilibrium`: {len(endless)} of {len(result.names)} symmetries have no finite equilibrium: {listed}. "
            "Noise and weight decay push these charges in one direction only; they are not moved (see `residuals`), "
            "and the others are balanced. Give weight_decay > 0 if training has it, or leave these symmetries out.",
            NoFiniteEquilibrium,
            stacklevel=4,
        )
    slow = [k for k in unbalanced if not result.infinite[k]]
    if slow:
        listed = "; ".join(f"{result.names[k]} (residual {result.residuals[k]:.1e})" for k in slow)
        warnings.warn(
            f"`equilibrium`: not converged after {result.sweeps} sweeps: {listed}. Give a larger max_sweeps.",
            UserWarning,
            stacklevel=4,
        )


def _check_noise(noise: AbstractNoise, symmetries: tuple, result: Equilibrium) -> None:
    """Raise where a symmetry has no noise at all: then every point of its orbit is an equilibrium."""
    for symmetry, dead, charge in zip(symmetries, result.excluded, result.charge, strict=True):
        if dead and len(dead) == np.size(charge):
            raise VanishingNoiseError(
                f"`equilibrium`: {type(noise).__name__} noise vanishes along the symmetry "
                f"({symmetry.describe(result.params)}) and there is no weight decay, so every point of its orbit is an "
                "equilibrium; at interpolation minibatch noise is zero: start earlier, or give weight_decay > 0."
            )
