"""Equilibria of diagonal generators under Adam: the least sum of standard deviations on the orbit.

With v = E g^2 along the orbit and amounts that multiply entry i by exp(l_i), y_i = sqrt(v_i) exp(-l_i), the flow of
the charges C_S is minus the gradient of

    F = eta/2 sum_i (Sigma_ii/v_i) (y_i - eps log(1 + y_i/eps))  +  lambda sum_i theta_i^2 exp(2 l_i) (y_i + eps/2)

in the amounts, and F is convex. Without eps and where noise dominates this is eta/2 sum_i sqrt(Sigma_ii) plus decay.
The fluctuations across the manifold (`fluctuations`) change the flow; the corrected equilibrium is the root near the
minimum of F.
"""

import warnings
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.noise.base import AbstractNoise
from undertow.optimisers.adaptive import AbstractAdaptive
from undertow.regime import Regime, SmallParameter
from undertow.symmetry.commuting import Limits, Solved, members
from undertow.symmetry.fluctuations import LIMIT, Fluctuations, fluctuations
from undertow.symmetry.powers import entry_powers_now, mean_gradient
from undertow.symmetry.recession import directions_at_infinity, generator_matrix
from undertow.symmetry.relaxation import metric_relaxation

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Sparse = csr_array
else:
    Sparse = object  # scipy.sparse is imported where it is used, for the start-up time

__all__ = ["MetricSolved", "solve_metric"]

LONGEST = 4.0
"""The longest step of an amount, for generators that run away before they are found to have no equilibrium."""
FAR = 8.0
"""Amounts beyond this may run away, with a flow that falls to zero on the way; a linear programme decides."""
TOO_FAR = 3.0
"""The largest correction of an amount that is accepted."""


class MetricSolved(NamedTuple):
    """The result of the solver, with the regime and the fluctuations at the equilibrium (None where not computed)."""

    solved: Solved
    regime: Regime
    fluctuations: Fluctuations | None


class _Orbit(NamedTuple):
    """The noise and the weights of all entries at the start, and the diagonals of the generators that may move."""

    generators: Sparse
    theta: np.ndarray
    variance: np.ndarray
    second: np.ndarray
    eta: float
    decay: float
    eps: float

    def entries(self, amounts: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return noise and weight (times 2 lambda/eta) of the entries, minus their derivatives in l, and F over eta/2.

        The first two increase and decrease a charge: the flow is eta/2 sum_i A_i (noise_i - weight_i).
        """
        logs = self.generators @ amounts
        y, decay_ratio = np.sqrt(self.second) * np.exp(-logs), 2 * self.decay / self.eta
        share = np.divide(self.variance, self.second, out=np.zeros_like(y), where=self.second > 0)
        inverse = np.where(y + self.eps > 0, y + self.eps, 1)
        square = decay_ratio * self.theta**2 * np.exp(2 * logs)
        noise, weight = share * y**2 / inverse, square * (y + self.eps)
        slopes = share * y**2 * (y + 2 * self.eps) / inverse**2, square * (y + 2 * self.eps)
        lost = self.eps * np.log1p(y / self.eps) if self.eps > 0 else 0.0
        return noise, weight, *slopes, share * (y - lost) + square * (y + self.eps / 2)

    def sides(self, noise: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each generator the terms that increase its charge and those that decrease it."""
        plus, minus = self.generators.maximum(0), (-self.generators).maximum(0)
        return plus.T @ noise + minus.T @ weight, minus.T @ noise + plus.T @ weight

    def residuals(self, amounts: np.ndarray) -> np.ndarray:
        """Return the flow of each charge, relative to its noise and decay."""
        up, down = self.sides(*self.entries(amounts)[:2])
        return _relative(up - down, up + down)

    def newton(self, amounts: np.ndarray, free: np.ndarray, flow: np.ndarray) -> np.ndarray:
        """Return the step of Newton's method for a flow over eta/2, with the derivatives of the leading terms."""
        from scipy.sparse import diags_array
        from scipy.sparse.linalg import spsolve

        columns = np.flatnonzero(free)
        step = np.zeros(free.size)
        if columns.size:
            _, _, slope, other, _ = self.entries(amounts)
            chosen = self.generators[:, columns]
            hessian = chosen.T @ (diags_array(slope + other) @ chosen)
            # combinations of generators that do not act have no curvature
            hessian = hessian + diags_array(1e-12 * hessian.diagonal())
            step[columns] = spsolve(hessian.tocsc(), flow[columns])
        return step * min(1.0, LONGEST / max(np.abs(step).max(initial=0), LONGEST))


def _relative(flow: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.divide(np.abs(flow), total, out=np.zeros_like(total), where=total > 0)


def solve_metric(
    noise: AbstractNoise,
    params: PyTree,
    symmetries: tuple,
    eta: Array,
    optimiser: AbstractAdaptive,
    limits: Limits,
    corrected: bool,
) -> MetricSolved:
    """Return the equilibrium of diagonal generators for the metric of an optimiser, whose v follows the orbit."""
    powers = entry_powers_now(noise, params)
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)
    matrix, shapes = generator_matrix(symmetries, params)
    variance, decay = flat(powers), float(optimiser.weight_decay)
    second = variance + flat(mean_gradient(noise, params)) ** 2
    orbit = _Orbit(matrix, flat(params), variance, second, float(eta), decay, float(optimiser.eps))
    up, down = orbit.sides(*orbit.entries(np.zeros(matrix.shape[1]))[:2])
    dead, one_sided = (up == 0) & (down == 0), (up == 0) != (down == 0)
    amounts, count = _minimise(orbit, ~dead & ~one_sided, limits)
    directions: list[list[np.ndarray]] = []
    free = ~dead & ~one_sided
    split = lambda values: _split(values, shapes)
    if limits.missed_by(orbit.residuals(amounts)[free].max(initial=0)) or np.abs(amounts).max(initial=0) > FAR:
        directions = directions_at_infinity(symmetries, params, powers, decay)
        held = members(directions, [np.zeros(shape, bool) for shape in shapes])
        free &= ~np.concatenate([mask.ravel() for mask in held])
        amounts, count = _minimise(orbit, free, limits)
    found, residuals = None, orbit.residuals(amounts)
    regime = Regime(notes=(f"Fluctuations are computed for at most {LIMIT} parameters.",))
    if orbit.theta.size <= LIMIT and corrected and free.any():
        amounts, residuals, found, regime = _correct(orbit, amounts, free, noise, params, eta, optimiser, limits)
    elif not corrected:
        regime = Regime(notes=("Fluctuations are not computed.",))
    times = split(_relaxation(orbit, amounts, optimiser))
    marked = np.where(dead, np.nan, np.where(one_sided, np.copysign(np.inf, up - down), amounts))
    moved = _moved(params, orbit, amounts)
    worst = [float(part.max(initial=0)) for part in split(residuals)]
    solved = Solved(moved, split(marked), worst, [0] * len(shapes), directions, count, times)
    return MetricSolved(solved, regime, found)


def _split(values: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(values, ends), shapes, strict=True)]


def _moved(params: PyTree, orbit: _Orbit, amounts: np.ndarray) -> PyTree:
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    return trees.unravel(flat * np.exp(orbit.generators @ amounts).astype(flat.dtype), params)


def _minimise(orbit: _Orbit, free: np.ndarray, limits: Limits) -> tuple[np.ndarray, int]:
    """Return the amounts of the least F by Newton's method, and the number of its steps."""
    amounts = np.zeros(free.size)
    for count in range(limits.sweeps):
        noise, weight, _, _, value = orbit.entries(amounts)
        up, down = orbit.sides(noise, weight)
        left = _relative(up - down, up + down)[free].max(initial=0)
        if left <= limits.tolerance or np.abs(amounts).max(initial=0) > 4 * FAR:
            return amounts, count + 1
        step = orbit.newton(amounts, free, up - down)
        for _ in range(40):
            after = amounts + step
            if np.sum(orbit.entries(after)[4] - value) <= 1e-14 * np.sum(value):
                break
            step = step / 2
        if left <= limits.rounding and orbit.residuals(after)[free].max() >= left:
            return amounts, count + 1
        amounts = after
    return amounts, limits.sweeps


def _correct(
    orbit: _Orbit,
    start: np.ndarray,
    free: np.ndarray,
    noise: AbstractNoise,
    params: PyTree,
    eta: Array,
    optimiser: AbstractAdaptive,
    limits: Limits,
) -> tuple[np.ndarray, np.ndarray, Fluctuations, Regime]:
    """Return the root of the flow with fluctuations near the minimum of F, its residuals, and the regime."""
    from scipy.optimize import root

    columns = np.flatnonzero(free)
    scale = 2 / orbit.eta**2
    shrink = orbit.decay * orbit.eta

    def parts(amounts: np.ndarray) -> tuple[np.ndarray, np.ndarray, Fluctuations]:
        """Return the flow without and with the metric term, over eta/2 and per unit of time."""
        found = fluctuations(noise, _moved(params, orbit, amounts), optimiser, eta)
        power, weight, metric = (np.asarray(x, np.float64) for x in found.entries)
        fixed = orbit.generators.T @ (power - scale * shrink * (1 - shrink / 2) * weight)
        return fixed, orbit.generators.T @ (scale * metric), found

    def step(chosen: np.ndarray) -> np.ndarray:
        amounts = start.copy()
        amounts[columns] = chosen
        fixed, metric, _ = parts(amounts)
        return orbit.newton(amounts, free, fixed + metric)[columns]

    fixed, metric, found = parts(start)
    sizes = [np.abs(orbit.newton(start, free, flow)).max() for flow in (fixed, metric)]
    solved = root(step, start[columns], method="broyden1", options={"fatol": limits.tolerance, "maxiter": 60,
                                                                     "jac_options": {"alpha": 1.0}})  # fmt: skip
    amounts = start.copy()
    amounts[columns] = solved.x
    missed = not np.all(np.isfinite(solved.x)) or np.abs(amounts - start).max() > TOO_FAR
    if missed or limits.missed_by(np.abs(solved.fun).max()):
        warnings.warn(
            "`equilibrium(optimiser=...)`: no equilibrium was found with the fluctuations across the manifold; the "
            "result is the one without them, see `.regime`.",
            UserWarning,
            stacklevel=5,
        )
        return start, orbit.residuals(start), found, _regime(optimiser, orbit.eta, found, sizes, ("Not corrected.",))
    fixed, metric, found = parts(amounts)
    residuals = _relative(fixed + metric, np.add(*orbit.sides(*orbit.entries(amounts)[:2])))
    residuals[~free] = orbit.residuals(amounts)[~free]
    return amounts, residuals, found, _regime(optimiser, orbit.eta, found, sizes)


def _regime(
    optimiser: AbstractAdaptive, eta: float, found: Fluctuations, sizes: list[float], notes: tuple[str, ...] = ()
) -> Regime:
    """Return the ratio of memory and relaxation, and the sizes of the two corrections as amounts."""
    corrections = (
        SmallParameter("|amount| from eta", float(sizes[0]), 1.0, "correction for fluctuations at a finite step"),
        SmallParameter("|amount| from 1 - b2", float(sizes[1]), 1.0, "correction for the memory of v"),
    )
    if found.downward:
        notes += (f"{int(found.downward)} directions of negative curvature are left out: params are not a minimum.",)
    return Regime((*optimiser.regime(eta, float(found.slowest)).parameters, *corrections), notes=notes)


def _relaxation(orbit: _Orbit, amounts: np.ndarray, optimiser: AbstractAdaptive) -> np.ndarray:
    noise, weight, *_ = orbit.entries(amounts)
    logs = orbit.generators @ amounts
    root = np.sqrt(orbit.second) * np.exp(-logs)
    inverse = np.where(root + orbit.eps > 0, root + orbit.eps, 1)
    plain = (orbit.theta * np.exp(logs)) ** 2 * inverse
    squares = orbit.generators.multiply(orbit.generators).T
    sums = (squares @ x for x in (noise, plain, noise * root / inverse, plain * root / inverse))
    times = metric_relaxation(*sums, orbit.eta, orbit.decay, 1 - float(optimiser.b2))
    up, down = orbit.sides(noise, weight)
    return np.where((up > 0) & (down > 0), times, np.inf)
