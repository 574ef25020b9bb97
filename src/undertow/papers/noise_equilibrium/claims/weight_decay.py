"""Weight decay in the noise balance of two factors: it adds k I to both noise moments, with k = gamma S/eta."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.claims.fixed_point import Task
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Decay:
    """SGD with weight decay on a 6 x 6 factorisation with fresh data, from random factors."""

    seeds: int
    """Number of runs."""
    step_size: float = 0.01
    """Step size η."""
    size: int = 10
    """Number S of samples in a batch."""
    weight_decay: float = 0.01
    """The paper's γ, with γ S/η = 10; `weight_decay` is 2γ."""
    relaxations: float = 8.0
    """Length before the averages, and of the averages, in relaxation times 1/(4 γ η)."""


def _start(key: Key[Array, ""]) -> tuple[Array, Array]:
    u, w = jax.random.normal(key, (2, 6, 6), jnp.float32) / np.float32(np.sqrt(6))
    return u, w


def _balances(task: Task, size: int) -> Callable[[PyTree], dict[str, Array]]:
    """Return the observable with the terms of the balance: of the noise, of the mean gradient, of the weights.

    For Gaussian data E[|r|^2 xx'] and E[|x|^2 rr'] have closed forms, with r = (UW - V) x - noise.
    """
    x, e = task.inputs @ task.inputs.T, task.labels @ task.labels.T

    def terms(params: PyTree) -> dict[str, Array]:
        u, w = params
        m = u @ w - task.truth
        gamma_w = (jnp.trace(m @ x @ m.T) + jnp.trace(e)) * x + 2 * x @ m.T @ m @ x
        gamma_u = m @ (jnp.trace(x) * x + 2 * x @ x) @ m.T + jnp.trace(x) * e
        by_u, by_w = m @ x @ w.T, u.T @ m @ x  # the mean gradient, over 2
        return {
            "noise": w @ gamma_w @ w.T - u.T @ gamma_u @ u,
            "mean": (size - 1) * (by_u.T @ by_u - by_w @ by_w.T),
            "weights": w @ w.T - u.T @ u,
        }

    return terms


def _fit(balance: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the k that minimises |balance + k weights|, for each run."""
    return -np.sum(balance * weights, axis=(-2, -1)) / np.sum(weights**2, axis=(-2, -1))


def _measure(parameters: Decay, key: Key[Array, ""]) -> Measurement:
    task = Task.draw(key)
    eta, gamma = parameters.step_size, parameters.weight_decay
    steps = round(parameters.relaxations / (4 * gamma * eta))
    run = descend(
        Minibatch(task.population(), parameters.size), _start, step_size=eta, weight_decay=2 * gamma, steps=2 * steps,
        every=steps, key=jax.random.fold_in(key, 1), average={"terms": _balances(task, parameters.size)},
        seeds=parameters.seeds, lane_width=parameters.seeds, progress=False,
    )  # fmt: skip
    noise, mean, weights = (run.observed["terms"][name][:, -1] for name in ("noise", "mean", "weights"))
    right = gamma * parameters.size / eta
    plain, full = _fit(noise, weights) / right, _fit(noise + mean, weights) / right
    error = lambda values: float(standard_error(values))
    checks = (
        Check("fitted k / (γ S/η)", float(plain.mean()), 1.0, error(plain), Within(0.05, 0.2),
              printed=2 * gamma / right, alternative=0.5),
        # the theorem leaves out the mean gradient of the fluctuations, which is of the order of the step size
        Check("fitted k / (γ S/η), with the mean gradient in the balance", float(full.mean()), 1.0 - eta * gamma,
              error(full), Within(0.005, 0.1), alternative=0.5),
    )  # fmt: skip
    data = xarray.Dataset(
        {name: (("seed", "row", "column"), v) for name, v in (("noise", noise), ("weights", weights))}
    )
    return Measurement(checks, data, parameters.seeds, int(run.diverged.sum()))


def _draw(measurement: Measurement, parameters: Decay) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    x, y = -data.weights.values.ravel(), data.noise.values.ravel()
    ends = np.array([x.min(), x.max()])
    right = parameters.weight_decay * parameters.size / parameters.step_size
    style.points(axes, style.some(x, 2000), style.some(y, 2000), None, "entries, averaged over SGD")
    style.theory(axes, ends, right * ends, "slope γS/η")
    style.theory(axes, ends, 2 * parameters.weight_decay * ends, "slope 2γ, as printed", "red")
    axes.set(xlabel="U'U − WW'", ylabel="W Γ W' − U'Γ U without weight decay")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="decay-in-the-balance",
        paper="noise_equilibrium",
        place="Theorem 5.2",
        statement="With weight decay the noise moments of two factors balance after k I is added to both, with k = γ "
        "S/η. The paper prints k = 2γ.",
        equation="W (E[|r|² xx'] + k I) W' = U' (E[|x|² rr'] + k I) U,  k = γ S/η",
        alternative="k is γ S/(2η), as if γ were the weight decay λ of optimisers, which is 2γ.",
        rests_on=("stationary-condition",),
        scales={"smoke": Decay(6, relaxations=5.0), "default": Decay(32), "full": Decay(256)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
)
