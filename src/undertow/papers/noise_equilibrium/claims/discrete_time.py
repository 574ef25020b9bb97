"""The fixed point of single steps: of SGD and of gradient descent, with weight decay of either sign."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key
from scipy.optimize import brentq

from undertow.figures import style
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Steps:
    """Random points of a linear neuron and of a loss of directions, looked at along their orbits."""

    draws: int
    """Points of each."""
    samples: int = 12
    """Training samples."""
    step_size: float = 0.05
    """Step size."""
    weight_decay: float = 0.02
    """The size of gamma, of both signs."""
    reach: float = 1.5
    """How far an orbit is followed from the middle, to both sides."""
    points: int = 60
    """Points on each orbit."""


class Model(NamedTuple):
    """Gradients of every sample at a point, as rows, and the diagonal of the generator."""

    gradients: Callable[[np.ndarray], np.ndarray]
    a: np.ndarray

    def change(self, point: np.ndarray, eta: float, gamma: float, whole: bool) -> float:
        """What one step changes C = 1/2 theta'A theta by: the mean over batches of one, or by the whole gradient."""
        rows = self.gradients(point)
        steps = rows.mean(axis=0, keepdims=True) if whole else rows
        after = (1 - 2 * eta * gamma) * point - eta * steps
        return float(np.mean(after**2 @ self.a) - point**2 @ self.a) / 2


def _neuron(rng: np.random.Generator, samples: int) -> tuple[Model, np.ndarray]:
    """(u (w.x) - y)^2: u against w."""
    x, y = rng.normal(size=(samples, 3)), rng.normal(size=samples)

    def gradients(p: np.ndarray) -> np.ndarray:
        hidden = x @ p[1:]
        r = 2 * (p[0] * hidden - y)
        return np.concatenate([(r * hidden)[:, None], (r * p[0])[:, None] * x], axis=1)

    return Model(gradients, np.array([1.0, -1.0, -1.0, -1.0])), rng.normal(size=4)


def _direction(rng: np.random.Generator, samples: int) -> tuple[Model, np.ndarray]:
    """|theta/|theta| - z|^2: invariant under scaling."""
    z = rng.normal(size=(samples, 3))

    def gradients(p: np.ndarray) -> np.ndarray:
        size = np.linalg.norm(p)
        n = p / size
        return -2 * (z - (z @ n)[:, None] * n) / size

    return Model(gradients, np.ones(3)), rng.normal(size=3)


def _root(model: Model, point: np.ndarray, eta: float, gamma: float, whole: bool = False) -> float:
    """lambda*, where the expected change is zero."""
    return brentq(lambda t: model.change(np.exp(t * model.a) * point, eta, gamma, whole), -12, 12, xtol=1e-14)


def _slope(model: Model, point: np.ndarray, way: np.ndarray, eta: float, gamma: float) -> tuple[float, float]:
    """d lambda*/d theta along a way: by a difference of roots, and by -(dG/d theta)/(dG/d lambda)."""
    h = 1e-4
    found = (_root(model, point + h * way, eta, gamma) - _root(model, point - h * way, eta, gamma)) / (2 * h)
    there = _root(model, point, eta, gamma)
    at = lambda t, p: model.change(np.exp(t * model.a) * p, eta, gamma, False)
    by_point = (at(there, point + h * way) - at(there, point - h * way)) / (2 * h)
    by_amount = (at(there + h, point) - at(there - h, point)) / (2 * h)
    return found, -by_point / by_amount


def _measure(parameters: Steps, key: Key[Array, ""]) -> Measurement:
    p = parameters
    eta = p.step_size
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    rises, zeros, slopes, flows, lowest, crossed = [], [], [], [], [], []
    for _ in range(p.draws):
        model, point = _neuron(rng, p.samples)
        for gamma in (0.0, p.weight_decay):
            for whole in (False, True):
                middle = _root(model, point, eta, gamma, whole)
                amounts = middle + np.linspace(-p.reach, p.reach, p.points)
                values = np.array([model.change(np.exp(t * model.a) * point, eta, gamma, whole) for t in amounts])
                rises.append(np.diff(values).max() / np.ptp(values))
                zeros.append(np.sum(np.sign(values[:-1]) != np.sign(values[1:])) == 1)
                flows.append(values / np.abs(values).max())
            # in proportion to the point: near u = 0 the equilibrium runs away, and no fixed difference is small
            slopes.append(_slope(model, point, point * rng.normal(size=4), eta, gamma))
        scaled, away = _direction(rng, p.samples)
        noise = eta**2 / 2 * float(np.mean(np.sum(scaled.gradients(away) ** 2, axis=1)))
        grow = 2 * eta * p.weight_decay * (1 + eta * p.weight_decay) * float(away @ away)
        middle = np.log(noise / grow) / 4
        amounts = middle + np.linspace(-p.reach, p.reach, p.points + 1)
        values = np.array([scaled.change(np.exp(t) * away, eta, -p.weight_decay, False) for t in amounts])
        lowest.append(values.min() / (2 * np.sqrt(noise * grow)))
        crossed.append(bool((values <= 0).any()))
    gap = max(abs(a - b) / (1 + abs(b)) for a, b in slopes)
    checks = (
        Check("scale invariance, γ < 0: share of orbits with a zero of E dC", float(np.mean(crossed)), 0.0, 0.0,
              Within(0.0, 0.5), printed=1.0, alternative=1.0),
        Check("SGD and gradient descent: largest rise of E dC along an orbit", max(rises), 0.0, 0.0, Below(0.0)),
        Check("share of orbits with one zero of E dC", float(np.mean(zeros)), 1.0, 0.0, Above(0.999)),
        Check("dλ*/dθ: largest relative error of the implicit derivative", gap, 0.0, 0.0, Below(1e-4)),
        Check("scale invariance, γ < 0: least E dC over 2 √(noise * growth)",
              max(lowest, key=lambda v: abs(v - 1)), 1.0, 0.0, Within(1e-9, 1e-3), alternative=0.0),
    )  # fmt: skip
    data = xarray.Dataset(
        {"flow": (("orbit", "amount"), np.array(flows)), "grown": ("way", values / values.min())},
        coords={"amount": np.linspace(-p.reach, p.reach, p.points), "way": amounts - middle},
    )
    return Measurement(checks, data, p.draws)


def _draw(measurement: Measurement, parameters: Steps) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    left.plot(data.amount, style.some(data.flow).T, color=style.COLOURS["grey"], lw=1)
    left.plot([0], [0], "o", color=style.COLOURS["blue"], label="fixed point")
    left.set(xlabel="λ − λ*", ylabel="E dC / max |E dC|, neuron")
    left.legend()
    style.points(right, data.way, data.grown, None, "scale invariance, γ < 0")
    style.theory(right, data.way, np.cosh(2 * data.way), "cosh 2λ: no zero")
    right.set(xlabel="λ from the lowest point", ylabel="E dC over its least")
    right.legend()
    return figure


CLAIMS = (
    Claim(
        id="discrete-fixed-point",
        paper="noise_equilibrium",
        place="Theorem D.1, Theorem 4.3 (4) and Remark 4.4",
        statement="In discrete time too the expected change of the charge falls along every orbit and has one zero, "
        "which moves smoothly with the point: for SGD and for gradient descent, without weight decay and with. Not for "
        "negative weight decay, which the theorem admits: under scale invariance there is then no zero.",
        equation="E dC = -4η γ (1 - η γ) C + η²/2 Tr[E[gg'] A]",
        alternative="Under scale invariance the expected change has a zero for negative weight decay too, as the "
        "theorem says.",
        scales={"smoke": Steps(20), "default": Steps(200), "full": Steps(2000)},
        measure=_measure,
        draw=_draw,
    ),
)
