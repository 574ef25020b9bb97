"""How a charge comes to its noise equilibrium: the rate, what the paper's bound on it misses, and a moving target."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree
from scipy.integrate import solve_ivp

from undertow.claims import statistics
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Check, Within
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.figures.compare import compare
from undertow.noise.minibatch import Minibatch
from undertow.problem import Population

OUTPUTS, INPUTS = 1, 8
"""Of the neuron: the more inputs for one output, the longer the input weights at the equilibrium."""


@dataclass(frozen=True)
class Relaxing:
    """SGD on a linear neuron u (w.x) with fresh data, from below its noise equilibrium; and random equilibria."""

    seeds: int
    """Runs at each step size."""
    draws: int
    """Random equilibria, each with its orbit."""
    dimension: int = 10
    """Parameters of those."""
    step_size: float = 0.008
    """The smaller of two step sizes."""
    size: int = 4
    """Samples in a batch."""
    below: float = 0.6
    """How far below the equilibrium the charge starts."""
    relaxations: float = 1.0
    """How long, in relaxation times at the equilibrium."""


@dataclass(frozen=True)
class Chase:
    """dC = -k (C - C*) dt behind a target that drifts and diffuses, dC* = mu dt + s dW, in small steps."""

    runs: int
    """Independent paths."""
    rate: float = 4.0
    """k, which is sigma^2 c_0 of the lemma."""
    drift: float = 1.0
    """mu."""
    diffusion: float = 2.0
    """s."""
    time: float = 2.0
    """When the paths are looked at."""
    steps: int = 2000
    """Steps of each path."""


def _loss(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return jnp.sum((p[0] * (p[1] @ x) - y) ** 2)


def _sample(key: Key[Array, ""]) -> tuple[Array, Array]:
    """x and the label noise are white; the true neuron has |u| |w| = 1 along the first axes."""
    white = jax.random.normal(key, (INPUTS + OUTPUTS,), jnp.float32)
    x = white[:INPUTS]
    return x, white[INPUTS:].at[0].add(x[0])


def _charge(p: PyTree) -> Array:
    return (jnp.sum(p[0] ** 2) - jnp.sum(p[1] ** 2)) / 2


def _squares(charge: Any) -> tuple[Any, Any]:
    """|u|^2 and |w|^2 at the minimum, of the charge: their product is 1."""
    half = np.sqrt(charge**2 + 1)
    return half + charge, half - charge


def _speed(charge: Any) -> Any:
    """dC/dt over sigma^2, at the minimum: Tr[Sigma A] = 4 (Tr Sigma_eps |w|^2 - Tr Sigma_x |u|^2)."""
    u, w = _squares(charge)
    return 4 * (OUTPUTS * w - INPUTS * u)


END = float((np.sqrt(OUTPUTS / INPUTS) - np.sqrt(INPUTS / OUTPUTS)) / 2)
"""C*: there OUTPUTS |w|^2 = INPUTS |u|^2."""


def _rate(charge: float) -> float:
    """2 Tr[Sigma A^2]/(theta'A^2 theta): A^2 is the identity."""
    u, w = _squares(charge)
    return 8 * (OUTPUTS * w + INPUTS * u) / (u + w)


def _bound() -> float:
    """Corollary B.4 from below, as printed: Tr[Sigma* A_+^2]/(theta*'A_+^2 theta*)."""
    u, w = _squares(END)
    return 4 * OUTPUTS * w / u


def _measured_rate(parameters: Relaxing, step_size: float, key: Key[Array, ""]) -> tuple[float, float, float, Any]:
    """-log of the distance to C* that is left over the time, in units of sigma^2; its error; the flow's; the run."""
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
    told = -np.log((END - flow.y[0, -1]) / p.below) / clock
    return -np.log(left) / clock, error / left / clock, float(told), run


class _Orbit(NamedTuple):
    """A diagonal generator A, the noise Sigma* and the point theta* of an equilibrium, entry by entry."""

    a: np.ndarray
    noise: np.ndarray
    squares: np.ndarray

    def speed(self, amount: float) -> float:
        """Tr[Sigma A] at exp(-amount A) theta*."""
        return float(np.sum(self.a * np.exp(2 * amount * self.a) * self.noise))

    def distance(self, amount: float) -> float:
        """C - C* there, C = 1/2 theta'A theta."""
        return float(np.sum(self.a * (np.exp(-2 * amount * self.a) - 1) * self.squares) / 2)

    def rate(self, amount: float) -> float:
        """2 Tr[Sigma A^2]/(theta'A^2 theta) there."""
        noise = np.sum(self.a**2 * np.exp(2 * amount * self.a) * self.noise)
        return float(2 * noise / np.sum(self.a**2 * np.exp(-2 * amount * self.a) * self.squares))

    def plus(self, part: np.ndarray) -> float:
        """Tr[. A_+^2]."""
        return float(np.sum(np.maximum(self.a, 0) ** 2 * part))


def _orbit(rng: np.random.Generator, dimension: int) -> _Orbit:
    """A random generator with eigenvalues of both signs, a random point, and noise that balances."""
    a = np.append(rng.normal(size=dimension - 2), [1.0, -1.0])
    noise, squares = rng.exponential(size=(2, dimension))
    sums = [np.sum(np.abs(a) * noise, where=a * sign > 0) for sign in (1, -1)]
    return _Orbit(a, noise / np.where(a > 0, *sums), squares)


def _measure(parameters: Relaxing, key: Key[Array, ""]) -> Measurement:
    p = parameters
    found = [_measured_rate(p, f * p.step_size, jax.random.fold_in(key, f)) for f in (1, 2)]
    (small, e1, told, run), (large, e2, _, _) = found
    bound = _bound()
    value, error = 2 * small - large, float(np.hypot(2 * e1, e2))
    inside, least, distances = [], [], []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for _ in range(p.draws):
        orbit = _orbit(rng, p.dimension)
        for amount in (1e-3, 0.1, 0.3, 0.6):
            way = [orbit.rate(a) for a in np.linspace(0, amount, 200)]
            rate = -orbit.speed(amount) / orbit.distance(amount)
            inside.append(min(way) <= rate <= max(way))
            least.append(orbit.speed(amount) / (2 * amount * orbit.plus(orbit.noise)))
        distances.append(-orbit.distance(1e-3) / (1e-3 * orbit.plus(orbit.squares)))
    u, w = _squares(END)
    checks = (
        Check("SGD: rate to the equilibrium over the bound of Corollary B.4, which is 1 at least",
              value / bound, told / bound, error / bound, Within(0.02, 0.1), printed=1.0),
        Check("neuron: -(C - C*)/lambda* over that of Lemma B.3, which is 1 at most, near the equilibrium",
              _local(1e-6) / u, 1 + w / u, 0.0, Within(1e-4, 1e-2), printed=1.0),
        Check("random equilibria: the same, least of the draws", min(distances), 1.0, 0.0, Above(1.0)),
        Check("Lemma B.2: dC/dt over its bound, least along the orbits", min(least), 1.0, 0.0, Above(1.0)),
        Check("share of points whose rate is 2 sigma^2 Tr[Sigma A^2]/theta'A^2 theta somewhere on their way",
              float(np.mean(inside)), 1.0, 0.0, Above(0.999)),
    )  # fmt: skip
    data = xarray.Dataset(
        {"charge": (("seed", "time"), run.observed["charge"])},
        coords={"time": run.time * p.step_size / (2 * p.size)},
    )
    return Measurement(checks, data, p.seeds, int(run.diverged.sum()))


def _local(amount: float) -> float:
    """-(C - C*)/lambda* of the neuron at exp(-lambda* A) theta*, C = 1/2 theta'A theta."""
    u, w = _squares(END)
    moved = (u * np.exp(-2 * amount) - w * np.exp(2 * amount)) / 2
    return float((END - moved) / amount)


def _draw(measurement: Measurement, parameters: Relaxing) -> Any:
    figure, (axes,) = style.new_figure()
    data = measurement.data
    time = data.time.values
    fine = np.linspace(0, time[-1], 100)
    flow = solve_ivp(lambda _, c: _speed(c), (0, time[-1]), [END - parameters.below], t_eval=fine, rtol=1e-9)
    style.theory(axes, fine, (END - flow.y[0]) / parameters.below, "flow of the charge")
    style.theory(axes, fine, np.exp(-_bound() * fine), "Corollary B.4 as printed: not above this", "red")
    left = (END - data.charge.values) / parameters.below
    style.points(axes, time, left.mean(axis=0), left.std(axis=0, ddof=1) / np.sqrt(len(left)), "SGD")
    axes.set(xlabel="σ² × time", ylabel="distance to the equilibrium, over the start's", yscale="log")
    axes.legend()
    return figure


def _measure_chase(parameters: Chase, key: Key[Array, ""]) -> Measurement:
    """(C - C*)^2 at the end of Euler's steps, against mu^2/k^2 + s^2/(2k)."""
    p = parameters
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    step = p.time / p.steps
    gap = np.zeros(p.runs)
    for _ in range(p.steps):
        gap += -p.rate * step * gap - p.drift * step - p.diffusion * np.sqrt(step) * rng.standard_normal(p.runs)
    value, error = statistics.mean(gap**2)
    right = (p.drift / p.rate) ** 2 + p.diffusion**2 / (2 * p.rate)
    printed = (2 * p.drift**2 + p.diffusion**2) / (2 * p.rate**2)
    checks = (
        # Euler's steps add half of k times the step
        Check("E(C - C*)^2 over mu^2/k^2 + s^2/(2k)", value / right, 1.0, error / right, Within(p.rate * step, 0.1),
              printed=printed / right),
    )  # fmt: skip
    return Measurement(checks, xarray.Dataset({"square": ("run", gap[:1000] ** 2)}), p.runs)


def _draw_chase(measurement: Measurement, parameters: Chase) -> Any:
    return compare(measurement.checks)


CLAIMS = (
    Claim(
        id="charge-relaxes",
        paper="noise_equilibrium",
        place="Theorem 4.5, Lemmas B.2 and B.3, Corollary B.4",
        statement="A charge relaxes to its equilibrium at the rate 2 sigma^2 Tr[Sigma A^2]/theta'A^2 theta, taken "
        "somewhere on its way. The paper's lower bound has A_+ or A_- alone in both traces; it rests on Lemma B.3, "
        "which drops a term of the wrong sign, and SGD is slower than it.",
        equation="-dC/dt/(C - C*) = 2 sigma^2 Tr[Sigma A^2]/theta'A^2 theta at a point between theta and theta*",
        scales={"smoke": Relaxing(64, 20), "default": Relaxing(512, 100), "full": Relaxing(4096, 1000)},
        measure=_measure,
        draw=_draw,
    ),
    Claim(
        id="charge-follows",
        paper="noise_equilibrium",
        place="Lemma B.5, Eq. (63), against Eq. (71)",
        statement="A charge that relaxes at the rate k follows an equilibrium with drift mu and diffusion s up to "
        "mu^2/k^2 + s^2/(2k). The lemma divides s^2 by k once too often; for k above 1 its bound is violated.",
        equation="E(C - C*)^2 = mu^2/k^2 + s^2/(2k),  k = sigma^2 c_0",
        scales={"smoke": Chase(20_000), "default": Chase(100_000), "full": Chase(1_000_000)},
        measure=_measure_chase,
        draw=_draw_chase,
    ),
)
