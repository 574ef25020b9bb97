"""Misprints of the paper that a measurement decides: constant factors, a time scale, signs in a proof."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.claims.identities import kinds
from undertow.problem import Population
from undertow.symmetry.flow import noether_flow
from undertow.symmetry.generators import AbstractSymmetry
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = 50
"""Number of independent groups of batches. The standard error comes from the spread of the group means."""


@dataclass(frozen=True)
class Batches:
    """Random batches at a random point of three models."""

    batches: int
    """Number of batches for each model."""
    size: int = 4
    """Samples in a batch."""
    step_size: float = 0.05
    """Step size of the step."""
    weight_decay: float = 1e-4
    """The paper's γ, small, so that its square is negligible; `weight_decay` is 2γ."""


@dataclass(frozen=True)
class Neuron:
    """SGD on a linear neuron u (w.x) with fresh data, from unbalanced weights on the manifold of minima."""

    seeds: int
    """Number of runs at each batch size."""
    step_size: float = 0.01
    """Step size."""
    size: int = 2
    """Samples in a batch; the other batch is four times as large."""
    start: float = 2.0
    """Charge (|u|² - |w|²)/2 at the start."""


@dataclass(frozen=True)
class Matrices:
    """Random symmetric generators, covariances and points."""

    draws: int
    """Number of draws."""
    dimension: int = 6
    """Number of parameters."""
    amount: float = 0.7
    """Amount λ along the orbit."""


@eqx.filter_jit
def _means(
    noise: Minibatch, symmetry: AbstractSymmetry, params: PyTree, keys: Key[Array, "groups batches"], eta: float
) -> Array:
    """Return the change of the charge in one step due to noise, averaged over each group of batches."""

    def change(gradient: PyTree) -> Array:
        after = jax.tree.map(lambda p, g: p - eta * g, params, gradient)
        return symmetry.charge(after) - symmetry.charge(params)

    full = change(noise.mean(params))
    one = lambda key: change(noise.draw(key, params)) - full
    return jax.lax.map(lambda ks: jnp.mean(jax.vmap(one)(ks), axis=0), keys)


def _measure_factors(parameters: Batches, key: Key[Array, ""]) -> Measurement:
    """Compare the change of theta'A theta due to noise with sigma^2 Tr[Sigma A] times the step size."""
    eta, each = parameters.step_size, parameters.batches // GROUPS
    measured, changes = {}, {}
    for index, (name, kind) in enumerate(kinds(key).items()):
        noise = Minibatch(kind.problem, parameters.size)
        keys = jax.random.split(jax.random.fold_in(key, index), (GROUPS, each))
        groups = np.asarray(_means(noise, kind.symmetry, kind.params, keys, eta)).reshape(GROUPS, -1)
        flow = noether_flow(noise, kind.params, kind.symmetry, step_size=eta)
        unit = eta * eta / 2 * np.ravel(flow.noise)  # the library's Sigma is that of a batch, so sigma^2 is eta/2
        ratios = 2 * groups @ unit / (unit @ unit)
        measured[name] = (float(ratios.mean()), float(standard_error(ratios)))
        columns = {
            "unit": unit,
            "change": 2 * groups.mean(axis=0),
            "error": 2 * np.asarray(standard_error(groups, axis=0)),
        }
        changes |= {f"{column}_{name}": (f"charge_{name}", values) for column, values in columns.items()}
    decay = _decay(kind.symmetry, kind.params, kind.problem.gradient(kind.params), eta, parameters.weight_decay)
    neurons, factors, scaled = measured.values()
    checks = (
        Check("ReLU neurons: rate of θ'Aθ / σ² Tr[ΣA]", neurons[0], 2.0, neurons[1],
              Within(0.0, 0.5), printed=1.0, alternative=1.0, samples=GROUPS),
        Check("factorisation: rate of Tr[UBU'] - Tr[W'BW] / σ² (noise of rows - noise of columns)", factors[0], 2.0,
              factors[1], Within(0.0, 0.5), printed=1.0, alternative=1.0, samples=GROUPS),
        Check("ReLU neurons: rate of 1/2 θ'Aθ / σ² Tr[ΣA]", neurons[0] / 2, 1.0, neurons[1] / 2,
              Within(0.0, 0.25), printed=0.5, alternative=0.5, samples=GROUPS),
        Check("scale-invariant network: rate of |θ|² / σ² Tr Σ", scaled[0], 2.0, scaled[1],
              Within(0.0, 0.5), printed=1.0, alternative=1.0, samples=GROUPS),
        Check("scale-invariant network: rate of |θ|² due to weight decay / γ |θ|²", decay, -4.0, 0.0,
              Within(1e-4, 1e-2), printed=-1.0, alternative=-2.0),
    )  # fmt: skip
    data = xarray.Dataset(
        {"ratio": ("kind", [value for value, _ in measured.values()])} | changes, attrs={"kinds": list(measured)}
    )
    return Measurement(checks, data, parameters.batches)


def _draw_factors(measurement: Measurement, parameters: Batches) -> "Figure":
    """Draw the change of every charge in one step over the printed one, for each model."""
    data = measurement.data
    kinds = data.attrs["kinds"]
    figure, panels = style.new_figure(len(kinds), width=3.4, height=3.2)
    for axes, name in zip(panels, kinds, strict=True):
        unit, change, error = (style.some(data[f"{column}_{name}"]) for column in ("unit", "change", "error"))
        ends = 1.1 * np.array([min(unit.min(), 0.0), max(unit.max(), 0.0)])
        style.theory(axes, ends, 2 * ends, "slope 2")
        style.theory(axes, ends, ends, "slope 1, in print", "red")
        style.points(axes, unit, change, error, "mean over batches")
        axes.set(xlabel="η σ² Tr[ΣA]", ylabel="change of θ'Aθ per step by noise", title=name)
    panels[0].legend()
    return figure


def _decay(symmetry: AbstractSymmetry, params: PyTree, gradient: PyTree, eta: float, gamma: float) -> float:
    """Return the change of |theta|^2 per step due to weight decay, in units of eta gamma |theta|^2."""

    def after(shrink: float) -> Array:
        moved = jax.tree.map(lambda p, g: (1 - 2 * eta * shrink) * p - eta * g, params, gradient)
        return 2 * symmetry.charge(moved)

    return float((after(gamma) - after(0.0)) / (eta * gamma * 2 * symmetry.charge(params)))


OUTPUTS, INPUTS = 2, 3
STRENGTH = 1.0
"""The product |u| |w| at the minimum."""


def _neuron_loss(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return jnp.sum((p[0] * (p[1] @ x) - y) ** 2)


def _neuron_sample(key: Key[Array, ""]) -> tuple[Array, Array]:
    """Return x and y with white x and label noise; the true neuron has u and w along the first axes."""
    white = jax.random.normal(key, (INPUTS + OUTPUTS,), jnp.float32)
    x = white[:INPUTS]
    return x, white[INPUTS:].at[0].add(STRENGTH * x[0])


def _neuron_charge(p: PyTree) -> Array:
    return (jnp.sum(p[0] ** 2) - jnp.sum(p[1] ** 2)) / 2


def _flow(time: float, charge: np.ndarray, rate: float) -> np.ndarray:
    """Return dC/dt at the minimum: rate (Tr Sigma_eps |w|^2 - Tr Sigma_x |u|^2), with |u| |w| fixed."""
    half = np.sqrt(charge**2 + STRENGTH**2)
    return rate * (OUTPUTS * (half - charge) - INPUTS * (half + charge))


def _measure_time(parameters: Neuron, key: Key[Array, ""]) -> Measurement:
    """Measure the time in which the charge goes half of the way to its equilibrium, at two batch sizes."""
    end = -STRENGTH * (INPUTS - OUTPUTS) / (2 * np.sqrt(INPUTS * OUTPUTS))
    middle = (parameters.start + end) / 2
    half = np.sqrt(parameters.start**2 + STRENGTH**2)
    u, w = np.sqrt(half + parameters.start), np.sqrt(half - parameters.start)
    point = tuple(jnp.asarray(size * np.eye(n)[0], jnp.float32) for size, n in ((u, OUTPUTS), (w, INPUTS)))
    noise = Population(_neuron_loss, _neuron_sample)
    times, errors, theory, curves = [], [], [], []
    for size in (parameters.size, 4 * parameters.size):
        rate = 2 * parameters.step_size / size
        crossed = lambda _, charge, rate: charge[0] - middle
        solved = solve_ivp(_flow, (0, 10 / rate), [parameters.start], events=crossed, rtol=1e-9, args=(rate,))
        expected = float(solved.t_events[0][0])
        every = round(expected / parameters.step_size / 16)
        run = descend(
            Minibatch(noise, size), point, step_size=parameters.step_size, steps=32 * every, every=every,
            key=jax.random.fold_in(key, size), observe={"charge": _neuron_charge}, seeds=parameters.seeds,
            lane_width=parameters.seeds, progress=False,
        )  # fmt: skip
        charges = run.observed["charge"]
        each = np.array([np.interp(-middle, -row, run.time) for row in np.minimum.accumulate(charges, axis=1)])
        times.append(each.mean())
        errors.append(standard_error(each))
        theory.append(expected)
        curves.append((run.time, charges.mean(axis=0)))
    ratio = times[1] / times[0]
    error = float(ratio * np.hypot(errors[0] / times[0], errors[1] / times[1]))
    checks = (
        Check("half-way time to the equilibrium at σ²/4 / that at σ²", float(ratio), 4.0, error, Within(0.3, 1.0),
              printed=0.25, alternative=2.0),
        Check("half-way time at the larger batch size / that of the flow", times[1] / theory[1], 1.0,
              errors[1] / theory[1], Within(0.08, 0.2), alternative=0.5),
    )  # fmt: skip
    data = xarray.Dataset(
        {"time": (("batch", "look"), [c[0] for c in curves]), "charge": (("batch", "look"), [c[1] for c in curves])},
        coords={"batch": [parameters.size, 4 * parameters.size]},
    )
    return Measurement(checks, data, parameters.seeds)


def _measure_orbit(parameters: Matrices, key: Key[Array, ""]) -> Measurement:
    """Fit log(z/a) over lambda a, z the eigenvalues of exp(lambda A) A exp(lambda A), and trace I_1 on the orbit."""
    exponents, falling, spectra, courses = [], [], [], []
    amounts = np.linspace(-2, 2, 41)
    for k in jax.random.split(key, parameters.draws):
        drawn = np.asarray(jax.random.normal(k, (3, parameters.dimension, parameters.dimension), jnp.float64))
        matrix = (drawn[0] + drawn[0].T) / 2
        values, vectors = np.linalg.eigh(matrix)
        flow = expm(parameters.amount * matrix)
        moved = np.diag(vectors.T @ flow @ matrix @ flow @ vectors)  # the eigenvectors are those of A
        x, y = parameters.amount * values, np.log(moved / values)
        exponents.append(x @ y / (x @ x))
        spectra.append((values, moved))
        # I_1 is the sum of the noise in the growing directions and of the weights in the shrinking ones
        grows, shrinks = ((vectors * np.maximum(sign * values, 0)) @ vectors.T for sign in (1, -1))
        step = amounts[1] - amounts[0]
        noise, point = expm(-amounts[0] * matrix) @ drawn[1], expm(amounts[0] * matrix) @ drawn[2, 0]
        back, forth, course = expm(-step * matrix), expm(step * matrix), []
        for _ in amounts:
            course.append(np.sum(noise * (grows @ noise)) + point @ shrinks @ point)  # eta = gamma = 1
            noise, point = back @ noise, forth @ point
        falling.append(np.diff(course) < 0)
        courses.append(course)
    worst = max(exponents, key=lambda value: abs(value - 2))
    checks = (
        Check("exponent k of the eigenvalues a exp(k λ a) of Z", float(worst), 2.0, 0.0, Within(1e-8, 1e-3),
              printed=1.0, alternative=1.0),
        Check("share of steps along the orbit in which I_1 falls", float(np.mean(falling)), 1.0, 0.0, Within(0.0, 0.5),
              printed=0.0, alternative=0.0),
    )  # fmt: skip
    own, moved = np.array(spectra).transpose(1, 0, 2)
    data = xarray.Dataset(
        {"exponent": ("draw", exponents), "own": (("draw", "index"), own), "moved": (("draw", "index"), moved),
         "course": (("draw", "amount"), np.array(courses))},
        coords={"amount": amounts},
    )  # fmt: skip
    return Measurement(checks, data, parameters.draws)


def _draw_orbit(measurement: Measurement, parameters: Matrices) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.4)
    data = measurement.data
    scaled = parameters.amount * data.own.values.ravel()
    fine = np.linspace(scaled.min(), scaled.max(), 50)
    style.theory(left, fine, np.exp(2 * fine), "exp(2λa)")
    style.theory(left, fine, np.exp(fine), "exp(λa), in print", "red")
    style.points(left, style.some(scaled), style.some((data.moved / data.own).values.ravel()), None, "eigenvalues")
    left.set(xlabel="λa, a an eigenvalue of A", ylabel="eigenvalue of exp(λA) A exp(λA) / a", yscale="log")
    left.legend()
    for number, course in enumerate(style.some(data.course, 5)):
        label = "I_1 of random matrices" if number == 0 else ""
        style.theory(right, data.amount, course / course[len(course) // 2], label, "blue")
    right.set(xlabel="amount λ along the orbit", ylabel="I_1 / I_1 at λ = 0", yscale="log")
    right.legend()
    return figure


def _draw_time(measurement: Measurement, parameters: Neuron) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    for index, (size, colour) in enumerate(zip(data.batch.values, ("blue", "green"), strict=True)):
        time = data.time.values[index]
        rate = 2 * parameters.step_size / size
        fine = np.linspace(0, time[-1], 100)
        solved = solve_ivp(_flow, (0, time[-1]), [parameters.start], t_eval=fine, args=(rate,))
        style.theory(axes, solved.t, solved.y[0], f"flow, S = {size}", colour)
        style.points(axes, time, data.charge.values[index], None, f"SGD, S = {size}", colour)
    axes.set(xlabel="time, steps × step size", ylabel="charge (|u|² − |w|²)/2")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="charge-factor-two",
        paper="noise_equilibrium",
        place="Eq. (6), (24), (31) and Proposition 5.1",
        statement="The flow σ² Tr[ΣA] is that of the charge 1/2 θ'Aθ; the flow of θ'Aθ is twice as large, and |θ|² "
        "decays at the rate 4γ.",
        equation="d/dt θ'Aθ = -4γ θ'Aθ + 2σ² Tr[ΣA]",
        alternative="The flow σ² Tr[ΣA] is that of θ'Aθ, and |θ|² decays at the rate 2γ.",
        rests_on=("expected-change",),
        scales={"smoke": Batches(20_000), "default": Batches(100_000), "full": Batches(1_000_000)},
        measure=_measure_factors,
        draw=_draw_factors,
    ),
    Claim(
        id="equilibration-time",
        paper="noise_equilibrium",
        place="Section 4.2, time scales",
        statement="The time to the noise equilibrium is proportional to 1/σ²: four times the batch size takes four "
        "times as long.",
        equation="t_equi ~ 1/σ² = 2S/η",
        alternative="The time is proportional to 1/σ: four times the batch size takes twice as long.",
        rests_on=("charge-relaxes",),
        scales={"smoke": Neuron(16), "default": Neuron(256), "full": Neuron(2048)},
        measure=_measure_time,
        draw=_draw_time,
    ),
    Claim(
        id="orbit-eigenvalues",
        paper="noise_equilibrium",
        place="Appendix B.2, proof of Theorem 4.3",
        statement="exp(λ A) A exp(λ A) has the eigenvalues a exp(2λ a), and I_1 falls along the orbit.",
        equation="eig(exp(λ A) A exp(λ A)) = a exp(2λ a),  dI_1/dλ < 0",
        alternative="The eigenvalues are a exp(λ a), and I_1 rises, as the proof says.",
        scales={"smoke": Matrices(5), "default": Matrices(50), "full": Matrices(500)},
        measure=_measure_orbit,
        draw=_draw_orbit,
    ),
)
