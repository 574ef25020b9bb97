"""The fixed point on every orbit: the flow falls and the charge rises along it, and SGD converges to it."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree
from scipy.linalg import expm
from scipy.optimize import brentq

from undertow import _trees as trees
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.claims.identities import kinds
from undertow.problem import Population, Problem
from undertow.symmetry.closed_forms import balanced_factors
from undertow.symmetry.equilibrium import NoFiniteEquilibrium, equilibrium
from undertow.symmetry.flow import noether_flow
from undertow.symmetry.generators import AbstractSymmetry, Exponential, Rescaling, Scaling
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Criterion, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 6
"""Number of rows, of columns and inner width of the factorisation."""
NEAR = 0.06
"""Relative distance to the closed form that is due to the finite step size."""


@dataclass(frozen=True)
class Orbits:
    """Random points of three models and their orbits."""

    draws: int
    """Number of draws of each model."""
    points: int = 40
    """Number of points on each orbit, even, so that none of them is the equilibrium."""
    reach: float = 1.5
    """Largest amount along the orbit, to both sides."""
    step_size: float = 0.05
    """Step size of SGD."""
    weight_decay: float = 0.01
    """The paper's gamma, where weight decay is on; the library's `weight_decay` is twice it."""
    size: int = 4
    """Samples in a batch."""


@dataclass(frozen=True)
class Starts:
    """SGD on a 6 x 6 factorisation with fresh data, from starts of very different sizes."""

    seeds: int
    """Number of starts."""
    relaxations: float = 16.0
    """Length of each run, in relaxation times S/(4 eta^2 lambda_min(Gamma))."""
    step_size: float = 0.01
    """Step size."""
    size: int = 5
    """Samples in a batch."""


class _Inside(eqx.Module):
    """The generator (U, W) -> (U B, -B W) of a matrix B between two factors."""

    matrix: Array

    def __call__(self, vector: PyTree) -> PyTree:
        return {"U": vector["U"] @ self.matrix, "W": -self.matrix @ vector["W"]}


LAYER = Rescaling(lambda p: p["out"], lambda p: (p["in"], p["bias"]))
ALL = Scaling(lambda p: (p["u"], p["w"]))


def _generators(key: Key[Array, ""], size: int) -> dict[str, tuple[Minibatch, PyTree, AbstractSymmetry]]:
    """Return one generator for each kind of model: rescaling of a layer, a random symmetric B, scaling."""
    drawn = np.asarray(jax.random.normal(jax.random.fold_in(key, 1), (3, 3)))
    inside = Exponential(_Inside(jax.device_put((drawn + drawn.T) / 4)))
    generators = {"ReLU neurons": LAYER, "factorisation": inside, "scale-invariant net": ALL}
    return {name: (Minibatch(kind.problem, size), kind.params, generators[name]) for name, kind in kinds(key).items()}


@eqx.filter_jit
def _along(
    noise: Minibatch, params: PyTree, symmetry: AbstractSymmetry, amounts: Array, eta: Array, gamma: Array
) -> tuple[Array, Array, Array]:
    """Return the flow, the charge and Tr[Sigma A] at points of the orbit."""

    def at(amount: Array) -> tuple[Array, Array, Array]:
        flow = noether_flow(noise, symmetry.orbit(params, amount), symmetry, step_size=eta, weight_decay=2 * gamma)
        return flow.rate, flow.charge, flow.noise

    return jax.lax.map(at, amounts)


@eqx.filter_jit
def _dense(noise: Minibatch, params: PyTree, symmetry: AbstractSymmetry) -> tuple[Array, Array, Array]:
    """Return A and Sigma at params as matrices, and params as a vector."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    generator = jax.hessian(lambda v: symmetry.charge(unravel(v)))(flat)
    assert isinstance(noise.problem, Problem)
    rows = jax.vmap(trees.ravel)(noise.problem.sample_gradients(params))
    return generator, jnp.cov(rows.T, bias=True) / noise.batch_size, flat


def _measure_theorem(parameters: Orbits, key: Key[Array, ""]) -> Measurement:
    eta = parameters.step_size
    steepest, flattest, zeros, gaps, errors, constant_errors, flows, charges = [], [], [], [], [], [], [], []
    decayed = []
    for k in jax.random.split(key, parameters.draws):
        for noise, params, symmetry in _generators(k, parameters.size).values():
            matrix, sigma, point = map(np.asarray, _dense(noise, params, symmetry))
            values, vectors = np.linalg.eigh(matrix)
            powers, squares = np.diag(vectors.T @ sigma @ vectors), (vectors.T @ point) ** 2
            for gamma in (0.0, parameters.weight_decay):
                if gamma == 0 and isinstance(symmetry, Scaling):
                    continue  # the equilibrium is at infinity, see `equilibrium-at-infinity`

                def flow(
                    amount: float,
                    a: np.ndarray = values,
                    s: np.ndarray = powers,
                    t: np.ndarray = squares,
                    g: float = gamma,
                ) -> float:
                    noise_part = eta / 2 * np.exp(-2 * amount * a) * s
                    return float(np.sum(a * (noise_part - 2 * g * np.exp(2 * amount * a) * t)))

                root = brentq(flow, -20, 20, xtol=1e-13)
                balanced = equilibrium(noise, params, symmetry, step_size=eta, weight_decay=2 * gamma)
                amounts = np.linspace(root - parameters.reach, root + parameters.reach, parameters.points)
                numbers = map(jnp.asarray, (amounts, eta, gamma))
                rate, charge, trace = map(np.asarray, _along(noise, params, symmetry, *numbers))
                lemma = [np.sum(expm(-2 * a * matrix) * (matrix @ sigma)) for a in amounts[::10]]
                errors.append(np.abs(trace[::10] - lemma).max() / np.abs(lemma).max())
                constant_errors.append(np.abs(np.sum(matrix * sigma) - lemma).max() / np.abs(lemma).max())
                decayed.append(gamma > 0)
                gaps.append(abs(float(balanced.amount[0]) - root))
                steepest.append(np.diff(rate).max() / np.abs(rate).max())
                flattest.append(np.diff(charge).min() / np.ptp(charge))
                zeros.append(int(np.sum(np.sign(rate[:-1]) != np.sign(rate[1:]))))
                flows.append(rate / np.abs(rate).max())
                charges.append(charge / np.ptp(charge))
    checks = (
        # under the alternative, constant noise, only orbits with weight decay have a zero
        Check("share of orbits with exactly one zero of the flow", float(np.mean(np.array(zeros) == 1)), 1.0, 0.0,
              Above(0.999), alternative=float(np.mean(decayed))),
        Check("largest increase of the flow between points of an orbit", max(steepest), 0.0, 0.0, Below(0.0)),
        Check("least increase of the charge between points of an orbit", min(flattest), 0.0, 0.0, Above(0.0)),
        Check("largest |λ* of the library - root of the dense formula|", max(gaps), 0.0, 0.0, Below(1e-8)),
        Check("largest relative error of Lemma B.1", max(errors), 0.0, 0.0, Below(1e-10),
              alternative=min(constant_errors)),
    )  # fmt: skip
    amounts = np.linspace(-parameters.reach, parameters.reach, parameters.points)
    data = xarray.Dataset(
        {"flow": (("orbit", "amount"), np.array(flows)), "charge": (("orbit", "amount"), np.array(charges))},
        coords={"amount": amounts},
    )
    return Measurement(checks, data, parameters.draws)


def _measure_infinity(parameters: Orbits, key: Key[Array, ""]) -> Measurement:
    """Check that the flow of a scale-invariant network without weight decay falls like exp(-2 lambda)."""
    infinite, slopes, flows = [], [], []
    amounts = np.linspace(-parameters.reach, parameters.reach, parameters.points)
    numbers = tuple(map(jnp.asarray, (amounts, parameters.step_size, 0.0)))
    for k in jax.random.split(key, parameters.draws):
        noise, params, symmetry = _generators(k, parameters.size)["scale-invariant net"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoFiniteEquilibrium)  # expected here
            balanced = equilibrium(noise, params, symmetry, step_size=parameters.step_size)
        infinite.append(balanced.infinite == (1,) and float(balanced.amount[0]) == np.inf)
        rate = np.asarray(_along(noise, params, symmetry, *numbers)[0])
        slopes.append(np.polyfit(amounts, np.log(rate), 1)[0])
        flows.append(rate)
    finite = equilibrium(
        noise, params, symmetry, step_size=parameters.step_size, weight_decay=2 * parameters.weight_decay
    )
    checks = (
        Check("slope d log G/dλ of the flow along the orbit", max(slopes, key=lambda s: abs(s + 2)), -2.0, 0.0,
              Within(1e-8, 1e-3), alternative=-1.0),
        Check("share of points whose equilibrium is at infinity", float(np.mean(infinite)), 1.0, 0.0, Above(0.999)),
        Check("least flow along the orbit", float(np.min(flows)), 0.0, 0.0, Above(0.0)),
        Check("|λ*| with weight decay", abs(float(finite.amount[0])), 0.0, 0.0, Below(20.0)),
    )  # fmt: skip
    data = xarray.Dataset({"flow": (("orbit", "amount"), np.array(flows))}, coords={"amount": amounts})
    return Measurement(checks, data, parameters.draws)


class Task(eqx.Module):
    """y = V x + noise with Gaussian x and noise, neither of them isotropic; every matrix is SIZE x SIZE."""

    truth: Array
    """The matrix V."""
    inputs: Array
    """A square root of the covariance of x."""
    labels: Array
    """A square root of the covariance of the noise."""

    @staticmethod
    @eqx.filter_jit
    def draw(key: Key[Array, ""]) -> "Task":
        """Draw singular values and variances from 0.5 to 1.5, in random directions."""
        keys = jax.random.split(key, 4)
        left, right, x, e = (jnp.linalg.qr(jax.random.normal(k, (SIZE, SIZE), jnp.float64))[0] for k in keys)
        spread = jnp.linspace(0.5, 1.5, SIZE)[None]
        parts = (left * spread) @ right, x * jnp.sqrt(spread), e * jnp.sqrt(spread)
        return Task(*(part.astype(jnp.float32) for part in parts))

    def sample(self, key: Key[Array, ""]) -> tuple[Array, Array]:
        """Return one pair (x, y)."""
        white = jax.random.normal(key, (2, SIZE), jnp.float32)
        x = self.inputs @ white[0]
        return x, self.truth @ x + self.labels @ white[1]

    def population(self) -> Population:
        """Return the population problem, with fresh data at every step; params are (U, W)."""
        return Population(_residual_square, self.sample)

    def expected(self) -> Problem:
        """Return the expected loss up to a constant, for gradient descent."""
        error = lambda p, root: jnp.sum(((p[0] @ p[1] - self.truth) @ root) ** 2)
        return Problem(error, self.inputs[None])

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return Gamma_U = Tr[Sigma_x] Sigma_eps and Gamma_W = Tr[Sigma_eps] Sigma_x, at the minimum."""
        roots = (np.asarray(root) for root in (self.inputs, self.labels))
        x, e = ((root @ root.T).astype(np.float64) for root in roots)
        return np.trace(x) * e, np.trace(e) * x


def _residual_square(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return jnp.sum((p[0] @ (p[1] @ x) - y) ** 2)


def _start(key: Key[Array, ""]) -> tuple[Array, Array]:
    """Return two random factors, each with its own scale between exp(-0.8) and exp(0.8)."""
    k1, k2 = jax.random.split(key)
    factors = jax.random.normal(k1, (2, SIZE, SIZE), jnp.float32) / np.float32(np.sqrt(SIZE))
    scales = jnp.exp(jax.random.uniform(k2, (2,), jnp.float32, -0.8, 0.8))
    return scales[0] * factors[0], scales[1] * factors[1]


OUTER: dict[str, Callable[[PyTree], PyTree]] = {"left": lambda p: p[0] @ p[0].T, "right": lambda p: p[1].T @ p[1]}
CHARGE: dict[str, Callable[[PyTree], PyTree]] = {"charge": lambda p: (p[0].T @ p[0] - p[1] @ p[1].T) / 2}


def _measure_starts(parameters: Starts, key: Key[Array, ""]) -> Measurement:
    """Compare UU' and W'W, averaged over the last relaxation time; U and W are unique only up to an inner rotation."""
    task = Task.draw(key)
    moments = task.moments()
    factors = balanced_factors(*jax.device_put((np.asarray(task.truth, np.float64), *moments)), SIZE)
    factors = [np.asarray(factor) for factor in factors]
    ends = {name: outer(factors) for name, outer in OUTER.items()}
    least = min(float(np.linalg.eigvalsh(m)[0]) for m in moments)
    relaxation = round(parameters.size / (4 * parameters.step_size**2 * least))
    steps = round(parameters.relaxations * relaxation)
    simulate = functools.partial(
        descend, params=_start, step_size=parameters.step_size, every=relaxation, key=jax.random.fold_in(key, 1),
        average=OUTER | CHARGE, seeds=parameters.seeds, lane_width=parameters.seeds, progress=False,
    )  # fmt: skip
    sgd = simulate(Minibatch(task.population(), parameters.size), steps=steps)
    # gradient descent has converged long before
    gd = simulate(Minibatch(task.expected(), 1, replace=False), steps=steps // 4)
    distance = lambda a, b, name: np.linalg.norm(a - b, axis=(-2, -1)) / np.linalg.norm(ends[name])
    # in logarithms, because gradient descent ends at distances of different orders of magnitude
    last = lambda run, name: np.log(distance(run.observed[name][:, -1], ends[name], name) / NEAR)
    size = lambda matrices: np.linalg.norm(matrices, axis=(-2, -1))
    start = lambda run: run.observed["charge"][:, 0]
    moved = lambda run: size(run.observed["charge"][:, -1] - start(run)) / size(start(run))
    checks = (
        *(
            _mean(f"SGD: mean log of the relative error of {words} / {NEAR:g}", last(sgd, name),
                  Below(0.0), float(last(gd, name).mean()))
            for name, words in zip(OUTER, ("UU'", "W'W"), strict=True)
        ),
        _mean("gradient descent: relative change of U'U - WW' from the start", moved(gd), Below(0.2),
              float(moved(sgd).mean())),
    )  # fmt: skip
    errors = {
        name: np.maximum(*(distance(run.observed[n], ends[n], n) for n in OUTER))
        for name, run in (("sgd", sgd), ("gd", gd))
    }
    data = xarray.Dataset(
        {"sgd": (("seed", "time"), errors["sgd"]), "gd": (("seed", "short"), errors["gd"])},
        coords={"time": sgd.step / relaxation, "short": gd.step / relaxation},
    )
    return Measurement(checks, data, parameters.seeds, int(sgd.diverged.sum() + gd.diverged.sum()))


def _mean(what: str, values: np.ndarray, criterion: Criterion, alternative: float | None = None) -> Check:
    value, error = statistics.mean(values)
    return Check(what, value, 0.0, error, criterion, alternative=alternative, samples=len(values))


def _draw_theorem(measurement: Measurement, parameters: Orbits) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    for axes, values, words in ((left, data.flow, "flow G / max |G|"), (right, data.charge, "charge C / its range")):
        axes.plot(data.amount, style.some(values).T, color=style.COLOURS["grey"], lw=1)
        axes.set(xlabel="amount λ − λ* along the orbit", ylabel=words)
    left.plot([0], [0], "o", color=style.COLOURS["blue"], label="equilibrium")
    left.legend()
    return figure


def _draw_infinity(measurement: Measurement, parameters: Orbits) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.points(axes, data.amount, data.flow[0], None, "flow")
    style.theory(axes, data.amount, float(data.flow[0, 0]) * np.exp(-2 * (data.amount - data.amount[0])), "exp(−2λ)")
    axes.set(yscale="log", xlabel="amount λ along the orbit", ylabel="flow G without weight decay")
    axes.legend()
    return figure


def _draw_starts(measurement: Measurement, parameters: Starts) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    for name, time, words, colour in (("gd", "short", "gradient descent", "red"), ("sgd", "time", "SGD", "blue")):
        for index, row in enumerate(style.some(data[name].values, 20)):
            style.points(axes, data[time], row, None, words if index == 0 else "_", colour)
    style.theory(axes, data.time, float(data.sgd[:, 0].max()) * np.exp(-data.time), "slowest decay, exp(−t/τ)")
    axes.set(yscale="log", ylim=(5e-3, 30), xlabel="steps / relaxation time τ", ylabel="distance to the closed form")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="one-fixed-point",
        paper="noise_equilibrium",
        place="Theorem 4.3 and Lemma B.1",
        statement="Along every orbit the flow of the charge falls, the charge rises, and the flow has exactly one "
        "zero.",
        equation="Tr[Σ(θ_λ) A] = Tr[exp(-2λ A) Σ(θ) A],  G(θ_λ*) = 0",
        alternative="The noise is constant along an orbit, so that without weight decay the flow has no zero.",
        controls=True,
        scales={"smoke": Orbits(2), "default": Orbits(20), "full": Orbits(200)},
        measure=_measure_theorem,
        draw=_draw_theorem,
    ),
    Claim(
        id="equilibrium-at-infinity",
        paper="noise_equilibrium",
        place="Theorem 4.3 (2) and Figure 1",
        statement="If all eigenvalues of the generator have the same sign, as for scale invariance, the equilibrium "
        "is at infinity without weight decay, and at a finite point with weight decay.",
        equation="G(θ_λ) = exp(-2λ) G(θ) > 0",
        alternative="The flow falls like exp(-λ) along the orbit, half as fast.",
        controls=True,
        scales={"smoke": Orbits(2), "default": Orbits(20), "full": Orbits(200)},
        measure=_measure_infinity,
        draw=_draw_infinity,
    ),
    Claim(
        id="start-forgotten",
        paper="noise_equilibrium",
        place="Section 4.3, Theorem 5.2 and Eq. (14)",
        statement="SGD on a factorisation ends at the same UU' and W'W from every start, and they agree with the "
        "closed form. Gradient descent keeps the charge of its start and ends elsewhere.",
        equation="U = Γ_U^-1/2 L √S F,  W = F' √S R Γ_W^-1/2",
        alternative="SGD depends on its start, as gradient descent does.",
        rests_on=("one-fixed-point",),
        scales={"smoke": Starts(12, 6.0), "default": Starts(32), "full": Starts(256)},
        measure=_measure_starts,
        draw=_draw_starts,
        accelerated=True,
    ),
)
