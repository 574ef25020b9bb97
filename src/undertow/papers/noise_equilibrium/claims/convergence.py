"""The relaxation of a charge to its noise equilibrium: its rate, the paper's bound on it, and a moving equilibrium."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key, PyTree
from scipy.integrate import solve_ivp

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.problem import Population
from undertow.trajectory import Trajectory
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTPUTS, INPUTS = 1, 8
"""Outputs and inputs of the neuron. With more inputs per output the input weights are longer at the equilibrium."""
LANE = 128
"""Number of runs with a moving equilibrium that advance together."""


@dataclass(frozen=True)
class Relaxing:
    """SGD on a linear neuron u (w.x) with fresh data from below its noise equilibrium, and random equilibria."""

    seeds: int
    """Number of runs at each step size."""
    draws: int
    """Number of random equilibria, each with its orbit."""
    dimension: int = 10
    """Number of parameters of the random equilibria."""
    step_size: float = 0.008
    """The smaller of two step sizes."""
    size: int = 4
    """Samples in a batch."""
    below: float = 0.6
    """Distance of the charge at the start below the equilibrium."""
    relaxations: float = 1.0
    """Length of each run, in relaxation times at the equilibrium."""


@dataclass(frozen=True)
class Chase:
    """SGD, batches of one, on a linear neuron whose teacher drifts and diffuses, and C* with it: dC* = mu dt + s dW."""

    seeds: int
    """Number of runs with the moving teacher; with a resting one at most as many as a lane holds."""
    inputs: int = 3
    """Number of inputs of the neuron, which has one output."""
    pace: float = 0.005
    """Step size times the factor of the loss; smaller values are closer to continuous time."""
    rate: float = 10.0
    """Rate k, which is σ² c_0 of the lemma; the factor of the loss is chosen accordingly."""
    lag: float = 0.05
    """μ/k, the size of C - C* due to the drift."""
    spread: float = 0.006
    """s²/(2k), the part of E(C - C*)² due to the diffusion."""
    teacher: float = 1.0
    """Start of the teacher."""
    away: float = 0.3
    """C - C* at the start, with a resting teacher."""
    relaxations: float = 2.0
    """Length of each run in units of 1/k; 1.5 times as long with a resting teacher."""


def _loss(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return jnp.sum((p[0] * (p[1] @ x) - y) ** 2)


def _sample(key: Key[Array, ""]) -> tuple[Array, Array]:
    """Return x and y with white x and label noise; the true neuron has |u| |w| = 1 along the first axes."""
    white = jax.random.normal(key, (INPUTS + OUTPUTS,), jnp.float32)
    x = white[:INPUTS]
    return x, white[INPUTS:].at[0].add(x[0])


def _charge(p: PyTree) -> Array:
    return (jnp.sum(p[0] ** 2) - jnp.sum(p[1] ** 2)) / 2


def _squares(charge: float) -> tuple[float, float]:
    """Return |u|^2 and |w|^2 at the minimum with this charge; their product is 1."""
    half = np.sqrt(charge**2 + 1)
    return half + charge, half - charge


def _speed(charge: np.ndarray) -> np.ndarray:
    """Return dC/dt in units of sigma^2, at the minimum: Tr[Sigma A] = 4 (Tr Sigma_eps |w|^2 - Tr Sigma_x |u|^2)."""
    half = np.sqrt(charge**2 + 1)
    return 4 * (OUTPUTS * (half - charge) - INPUTS * (half + charge))


END = float((np.sqrt(OUTPUTS / INPUTS) - np.sqrt(INPUTS / OUTPUTS)) / 2)
"""The equilibrium charge C*, where OUTPUTS |w|^2 = INPUTS |u|^2."""


def _rate(charge: float) -> float:
    """Return 2 Tr[Sigma A^2]/(theta'A^2 theta); A^2 is the identity."""
    u, w = _squares(charge)
    return 8 * (OUTPUTS * w + INPUTS * u) / (u + w)


def _bound() -> float:
    """Return the printed lower bound of Corollary B.4: Tr[Sigma* A_+^2]/(theta*'A_+^2 theta*)."""
    u, w = _squares(END)
    return 4 * OUTPUTS * w / u


def _measured_rate(
    parameters: Relaxing, step_size: float, key: Key[Array, ""]
) -> tuple[float, float, float, Trajectory]:
    """Return the mean relaxation rate in units of sigma^2, its error, the rate of the flow, and the run."""
    p = parameters
    sigma2 = step_size / (2 * p.size)
    start = END - p.below
    u, w = np.sqrt(_squares(start))
    point = tuple(jnp.asarray(length * np.eye(n)[0], jnp.float32) for length, n in ((u, OUTPUTS), (w, INPUTS)))
    steps = round(p.relaxations / (sigma2 * _rate(END)) / step_size)
    run = descend(
        Minibatch(Population(_loss, _sample), p.size), point, step_size=step_size, steps=steps, every=-(-steps // 20),
        key=key, observe={"charge": _charge}, seeds=p.seeds, lane_width=p.seeds, progress=False,
    )  # fmt: skip
    clock = sigma2 * run.time[-1]
    left, error = statistics.mean((END - run.observed["charge"][:, -1]) / p.below)
    flow = solve_ivp(lambda _, c: _speed(c), (0, clock), [start], rtol=1e-9)
    predicted = -np.log((END - flow.y[0, -1]) / p.below) / clock
    return -np.log(left) / clock, error / left / clock, float(predicted), run


class _Orbit(NamedTuple):
    """A diagonal generator A, and the diagonals of the noise Sigma* and of theta* theta*' at an equilibrium."""

    a: np.ndarray
    noise: np.ndarray
    squares: np.ndarray

    def speed(self, amount: float) -> float:
        """Return Tr[Sigma A] at exp(-amount A) theta*."""
        return float(np.sum(self.a * np.exp(2 * amount * self.a) * self.noise))

    def distance(self, amount: float) -> float:
        """Return C - C* at exp(-amount A) theta*, with C = 1/2 theta'A theta."""
        return float(np.sum(self.a * (np.exp(-2 * amount * self.a) - 1) * self.squares) / 2)

    def rate(self, amount: float) -> float:
        """Return 2 Tr[Sigma A^2]/(theta'A^2 theta) at exp(-amount A) theta*."""
        noise = np.sum(self.a**2 * np.exp(2 * amount * self.a) * self.noise)
        return float(2 * noise / np.sum(self.a**2 * np.exp(-2 * amount * self.a) * self.squares))

    def plus(self, part: np.ndarray) -> float:
        """Return Tr[part A_+^2]."""
        return float(np.sum(np.maximum(self.a, 0) ** 2 * part))


def _orbit(rng: np.random.Generator, dimension: int) -> _Orbit:
    """Return a random generator with eigenvalues of both signs, a random point, and balanced noise."""
    a = np.append(rng.normal(size=dimension - 2), [1.0, -1.0])
    noise, squares = rng.exponential(size=(2, dimension))
    sums = [np.sum(np.abs(a) * noise, where=a * sign > 0) for sign in (1, -1)]
    return _Orbit(a, noise / np.where(a > 0, *sums), squares)


def _measure(parameters: Relaxing, key: Key[Array, ""]) -> Measurement:
    p = parameters
    rates = [_measured_rate(p, f * p.step_size, jax.random.fold_in(key, f)) for f in (1, 2)]
    (small, e1, predicted, run), (large, e2, _, _) = rates
    bound = _bound()
    value, error = 2 * small - large, float(np.hypot(2 * e1, e2))
    inside, half, least, distances = [], [], [], []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for _ in range(p.draws):
        orbit = _orbit(rng, p.dimension)
        for amount in (1e-3, 0.1, 0.3, 0.6):
            rates_between = [orbit.rate(a) for a in np.linspace(0, amount, 200)]
            rate = -orbit.speed(amount) / orbit.distance(amount)
            inside.append(min(rates_between) <= rate <= max(rates_between))
            half.append(min(rates_between) <= rate / 2 <= max(rates_between))
            least.append(orbit.speed(amount) / (2 * amount * orbit.plus(orbit.noise)))
        distances.append(-orbit.distance(1e-3) / (1e-3 * orbit.plus(orbit.squares)))
    u, w = _squares(END)
    checks = (
        Check("relaxation rate of SGD / lower bound of Corollary B.4", value / bound, predicted / bound, error / bound,
              Within(0.02, 0.1), printed=1.0, alternative=predicted / bound / 2),
        Check("neuron near the equilibrium: -(C - C*)/λ* / upper bound of Lemma B.3",
              _local(1e-6) / u, 1 + w / u, 0.0, Within(1e-4, 1e-2), printed=1.0),
        Check("random equilibria: least -(C - C*)/λ* / upper bound of Lemma B.3", min(distances), 1.0, 0.0, Above(1.0)),
        Check("least dC/dt / lower bound of Lemma B.2, along the orbits", min(least), 1.0, 0.0, Above(1.0)),
        Check("share of points whose rate is 2σ² Tr[ΣA²]/θ'A²θ at a point between θ and θ*",
              float(np.mean(inside)), 1.0, 0.0, Above(0.999), alternative=float(np.mean(half))),
    )  # fmt: skip
    data = xarray.Dataset(
        {"charge": (("seed", "time"), run.observed["charge"])},
        coords={"time": run.time * p.step_size / (2 * p.size)},
    )
    return Measurement(checks, data, p.seeds, int(run.diverged.sum()))


def _local(amount: float) -> float:
    """Return -(C - C*)/lambda* of the neuron at exp(-lambda* A) theta*, with C = 1/2 theta'A theta."""
    u, w = _squares(END)
    moved = (u * np.exp(-2 * amount) - w * np.exp(2 * amount)) / 2
    return float((END - moved) / amount)


def _draw(measurement: Measurement, parameters: Relaxing) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    time = data.time.values
    fine = np.linspace(0, time[-1], 100)
    flow = solve_ivp(lambda _, c: _speed(c), (0, time[-1]), [END - parameters.below], t_eval=fine, rtol=1e-9)
    style.theory(axes, fine, (END - flow.y[0]) / parameters.below, "flow of the charge")
    style.theory(axes, fine, np.exp(-_bound() * fine), "upper bound by Corollary B.4 as printed", "red")
    left = (END - data.charge.values) / parameters.below
    style.points(axes, time, left.mean(axis=0), standard_error(left), "SGD")
    axes.set(xlabel="σ² × time", ylabel="distance to the equilibrium / distance at the start", yscale="log")
    axes.legend()
    return figure


class Teacher(eqx.Module):
    """The loss scale (u (w.x) - v x_1 - noise)^2, in which the teacher v drifts and diffuses.

    The gradient of v is -drift plus noise with standard deviation `diffusion`; it does not depend on the fit.
    """

    scale: Float[Array, ""]
    drift: Float[Array, ""]
    diffusion: Float[Array, ""]

    def __call__(self, params: dict[str, Array], sample: tuple[Array, Array, Array]) -> Float[Array, ""]:
        x, noise, kick = sample
        aim = jax.lax.stop_gradient(params["v"]) * x[0] + noise
        moved = (self.drift + self.diffusion * kick) * params["v"]
        return self.scale * (params["u"] * (params["w"] @ x) - aim) ** 2 - moved


class _Gap(eqx.Module):
    """The observable C - C*, where C* is `share` times the teacher."""

    share: Float[Array, ""]

    def __call__(self, params: dict[str, Array]) -> Float[Array, ""]:
        return (params["u"] ** 2 - jnp.sum(params["w"] ** 2)) / 2 - self.share * params["v"]


@functools.cache
def _stream(inputs: int) -> Callable[[Key[Array, ""]], tuple[Array, Array, Array]]:
    """Return the sampler of inputs, label noise and the teacher's noise, the same object for the same `inputs`."""

    def sample(key: Key[Array, ""]) -> tuple[Array, Array, Array]:
        white = jax.random.normal(key, (inputs + 2,), jnp.float32)
        return white[:inputs], white[inputs], white[inputs + 1]

    return sample


def _chase(
    p: Chase, drift: float, diffusion: float, away: float, relaxations: float, seeds: int, key: Array
) -> tuple[np.ndarray, int]:
    """Return C - C* at the end of every run with this drift and diffusion of C*, and the number of diverged runs."""
    n = p.inputs
    # at the minimum u^2 = 1/sqrt(n) and w^2 = sqrt(n) times the teacher, and k = 16 sigma^2 n/(n + 1) times the scale
    share = (n**-0.5 - n**0.5) / 2
    scale = p.rate / (8 * p.pace * n / (n + 1))
    step = p.pace / scale
    numbers = scale, drift / share, diffusion / abs(share) / np.sqrt(step)
    loss = Teacher(*(jnp.asarray(x, jnp.float32) for x in numbers))
    charge = share * p.teacher + away
    half = np.hypot(charge, p.teacher)
    start = {"u": np.sqrt(half + charge), "w": np.sqrt(half - charge) * np.eye(n)[0], "v": p.teacher}
    run = descend(
        Minibatch(Population(loss, _stream(n)), 1), jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start),
        step_size=step, steps=round(relaxations / (p.rate * step)), key=key, seeds=seeds, lane_width=LANE,
        observe={"gap": _Gap(jnp.asarray(share, jnp.float32))}, progress=False,
    )  # fmt: skip
    return run.observed["gap"][:, -1], int(run.diverged.sum())


def _measure_chase(parameters: Chase, key: Key[Array, ""]) -> Measurement:
    """Compare the mean-square distance of SGD to a moving equilibrium with (71), and to a resting one with zero."""
    p, (k1, k2) = parameters, jax.random.split(key)
    # the teacher moves away from zero, because C* = share * teacher with a negative share
    drift, diffusion = -p.lag * p.rate, np.sqrt(2 * p.rate * p.spread)
    gaps, diverged = _chase(p, drift, diffusion, 0.0, p.relaxations, p.seeds, k1)
    resting, diverged_resting = _chase(p, 0.0, 0.0, p.away, 1.5 * p.relaxations, min(LANE, p.seeds), k2)
    left = np.exp(-p.relaxations)
    drifted, diffused = (p.lag * (1 - left)) ** 2, p.spread * (1 - left**2)
    right = drifted + diffused
    value, error = statistics.mean(gaps**2 / right)
    behind, behind_error = statistics.mean(gaps / (p.lag * (1 - left)))
    rest, rest_error = statistics.mean(resting**2 / p.away**2)
    checks = (
        Check("moving equilibrium: E(C - C*)² / (μ²/k² + s²/(2k))", value, 1.0, error,
              Within(0.1, 0.4), printed=(drifted + diffused / p.rate) / right,
              alternative=(drifted + 2 * diffused) / right),
        # the finite step size shifts the equilibrium itself by a tenth of the lag
        Check("moving equilibrium: E(C - C*) / (-μ/k)", behind, 1.0, behind_error, Within(0.2, 0.6), alternative=0.0),
        Check("resting equilibrium: E(C - C*)² / value at the start", rest, float(np.exp(-3 * p.relaxations)),
              rest_error, Below(0.02), alternative=1.0, samples=len(resting)),
    )  # fmt: skip
    return Measurement(checks, xarray.Dataset({"gap": ("run", gaps[:1000])}), p.seeds, diverged + diverged_resting)


def _draw_chase(measurement: Measurement, parameters: Chase) -> "Figure":
    """Draw the density of C - C* of the runs, beside the normal densities of linear relaxation."""
    figure, (axes,) = style.new_figure()
    p, gaps = parameters, measurement.data.gap.values
    left = np.exp(-p.relaxations)
    mean, variance = p.lag * (1 - left), p.spread * (1 - left**2)
    counts, edges = np.histogram(gaps, 14)
    fine = np.linspace(edges[0], edges[-1], 61)
    kinds = {"s²/(2k)": (1, "grey"), "s²/k": (2, "green"), "s²/(2k²), in print": (1 / p.rate, "red")}
    for name, (factor, colour) in kinds.items():
        scale = np.sqrt(factor * variance)
        style.theory(axes, fine, np.exp(-(((fine - mean) / scale) ** 2) / 2) / (np.sqrt(2 * np.pi) * scale),
                     f"normal with the variance {name}", colour)  # fmt: skip
    unit = len(gaps) * (edges[1] - edges[0])
    style.points(axes, (edges[1:] + edges[:-1]) / 2, counts / unit, np.sqrt(counts) / unit, "runs of SGD")
    axes.set(xlabel="C − C* at the end", ylabel="density of runs")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="charge-relaxes",
        paper="noise_equilibrium",
        place="Theorem 4.5, Lemmas B.2 and B.3, Corollary B.4",
        statement="A charge relaxes to its equilibrium at the rate 2σ² Tr[ΣA²]/θ'A²θ, evaluated at a point between "
        "the current one and the equilibrium. The paper's lower bound has only A_+ or A_- in both traces; it uses "
        "Lemma B.3, which drops a term of the wrong sign, and SGD is slower than the bound.",
        equation="-dC/dt/(C - C*) = 2σ² Tr[ΣA²]/θ'A²θ at a point between θ and θ*",
        alternative="SGD relaxes half as fast, at the rate σ² Tr[ΣA²]/θ'A²θ: the paper's form with A instead of A_+.",
        rests_on=("one-fixed-point", "charge-factor-two"),
        controls=True,
        scales={"smoke": Relaxing(64, 20), "default": Relaxing(512, 100), "full": Relaxing(4096, 1000)},
        measure=_measure,
        draw=_draw,
    ),
    Claim(
        id="charge-follows",
        paper="noise_equilibrium",
        place="Lemma B.5, Eq. (63), against Eq. (71), and Theorem B.6",
        statement="The charge of SGD converges to a resting equilibrium. It follows an equilibrium with drift μ and "
        "diffusion s up to μ²/k² + s²/(2k) in mean square, where k is the relaxation rate. The lemma divides s² by k "
        "once too often; for k above 1 its bound is violated.",
        equation="E(C - C*)² = μ²/k² + s²/(2k),  k = σ² c_0",
        alternative="The diffusion of the equilibrium adds s²/k to the mean-square distance, twice as much.",
        rests_on=("charge-relaxes",),
        scales={"smoke": Chase(512), "default": Chase(4096, pace=0.0025), "full": Chase(32_768, pace=0.0025)},
        measure=_measure_chase,
        draw=_draw_chase,
    ),
)
