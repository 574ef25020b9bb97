"""The fixed point of the charge in discrete time, for SGD and gradient descent, with weight decay of both signs."""

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
    """Random points of a linear neuron and of a loss of directions, and their orbits."""

    draws: int
    """Number of points of each model."""
    samples: int = 12
    """Number of training samples."""
    step_size: float = 0.05
    """Step size."""
    weight_decay: float = 0.02
    """Absolute value of the paper's γ, used with both signs."""
    reach: float = 1.5
    """Largest amount along an orbit, to both sides."""
    points: int = 60
    """Number of points on each orbit."""


class Model(NamedTuple):
    """The function that returns the gradients of all samples as rows, and the diagonal of the generator."""

    gradients: Callable[[np.ndarray], np.ndarray]
    a: np.ndarray

    def change(self, point: np.ndarray, eta: float, gamma: float, whole: bool) -> float:
        """Return the change of C = 1/2 theta'A theta in a step: the mean over batches of one, or by the full batch."""
        rows = self.gradients(point)
        steps = rows.mean(axis=0, keepdims=True) if whole else rows
        after = (1 - 2 * eta * gamma) * point - eta * steps
        return float(np.mean(after**2 @ self.a) - point**2 @ self.a) / 2


def _neuron(rng: np.random.Generator, samples: int) -> tuple[Model, np.ndarray]:
    """Return the model (u (w.x) - y)^2 with the rescaling of u against w, and a random point."""
    x, y = rng.normal(size=(samples, 3)), rng.normal(size=samples)

    def gradients(p: np.ndarray) -> np.ndarray:
        hidden = x @ p[1:]
        r = 2 * (p[0] * hidden - y)
        return np.concatenate([(r * hidden)[:, None], (r * p[0])[:, None] * x], axis=1)

    return Model(gradients, np.array([1.0, -1.0, -1.0, -1.0])), rng.normal(size=4)


def _direction(rng: np.random.Generator, samples: int) -> tuple[Model, np.ndarray]:
    """Return the model |theta/|theta| - z|^2, invariant under scaling, and a random point."""
    z = rng.normal(size=(samples, 3))

    def gradients(p: np.ndarray) -> np.ndarray:
        size = np.linalg.norm(p)
        n = p / size
        return -2 * (z - (z @ n)[:, None] * n) / size

    return Model(gradients, np.ones(3)), rng.normal(size=3)


def _root(model: Model, point: np.ndarray, eta: float, gamma: float, whole: bool = False) -> float:
    """Return lambda*, where the expected change is zero."""
    return brentq(lambda t: model.change(np.exp(t * model.a) * point, eta, gamma, whole), -12, 12, xtol=1e-14)


def _slope(model: Model, point: np.ndarray, direction: np.ndarray, eta: float, gamma: float) -> tuple[float, float]:
    """Return d lambda*/d theta along `direction` by a difference of roots, and by -(dG/d theta)/(dG/d lambda)."""
    h = 1e-4
    measured = (_root(model, point + h * direction, eta, gamma) - _root(model, point - h * direction, eta, gamma)) / (
        2 * h
    )
    root = _root(model, point, eta, gamma)
    at = lambda t, p: model.change(np.exp(t * model.a) * p, eta, gamma, False)
    by_point = (at(root, point + h * direction) - at(root, point - h * direction)) / (2 * h)
    by_amount = (at(root + h, point) - at(root - h, point)) / (2 * h)
    return measured, -by_point / by_amount


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
            # in proportion to the point, because near u = 0 the equilibrium diverges and no fixed difference is small
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
        Check("SGD and gradient descent: largest increase of E dC along an orbit", max(rises), 0.0, 0.0, Below(0.0)),
        Check("SGD and gradient descent: share of orbits with exactly one zero of E dC", float(np.mean(zeros)), 1.0,
              0.0, Above(0.999)),
        Check("largest relative error of the implicit derivative dλ*/dθ", gap, 0.0, 0.0, Below(1e-4)),
        Check("scale invariance, γ < 0: least E dC / (2 √(noise × growth))",
              max(lowest, key=lambda v: abs(v - 1)), 1.0, 0.0, Within(1e-9, 1e-3), alternative=0.0),
    )  # fmt: skip
    data = xarray.Dataset(
        {"flow": (("orbit", "amount"), np.array(flows)), "grown": ("distance", values / values.min())},
        coords={"amount": np.linspace(-p.reach, p.reach, p.points), "distance": amounts - middle},
    )
    return Measurement(checks, data, p.draws)


def _draw(measurement: Measurement, parameters: Steps) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    left.plot(data.amount, style.some(data.flow, 8).T, color=style.COLOURS["grey"], lw=1)
    left.plot([0], [0], "o", color=style.COLOURS["blue"], label="fixed point")
    left.set(xlabel="amount λ − λ* along the orbit", ylabel="E dC / max |E dC|, neuron")
    left.legend()
    style.points(right, data.distance, data.grown, None, "scale invariance, γ < 0")
    style.theory(right, data.distance, np.cosh(2 * data.distance), "cosh 2λ: no zero")
    right.set(xlabel="amount λ from the lowest point", ylabel="E dC / its minimum")
    right.legend()
    return figure


CLAIMS = (
    Claim(
        id="discrete-fixed-point",
        paper="noise_equilibrium",
        place="Theorem D.1, Theorem 4.3 (4) and Remark 4.4",
        statement="In discrete time, too, the expected change of the charge falls along every orbit and has exactly "
        "one zero, which depends smoothly on the point. This holds for SGD and for gradient descent, with and without "
        "weight decay. It does not hold for negative weight decay, which the theorem admits: under scale invariance "
        "there is then no zero.",
        equation="E dC = -4η γ (1 - η γ) C + η²/2 Tr[E[gg'] A]",
        alternative="Under scale invariance the expected change has a zero for negative weight decay too, as the "
        "theorem says.",
        rests_on=("expected-change",),
        controls=True,
        scales={"smoke": Steps(20), "default": Steps(200), "full": Steps(2000)},
        measure=_measure,
        draw=_draw,
    ),
)
