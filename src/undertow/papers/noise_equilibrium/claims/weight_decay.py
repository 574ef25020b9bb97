"""Weight decay in the noise balance: of a charge, and of two factors, where it adds (gamma S/eta) I to the moments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.papers._lanes import lanes
from undertow.papers.noise_equilibrium.claims.fixed_point import Task
from undertow.problem import Problem
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sphere:
    """SGD with weight decay on a loss that depends on the direction of its parameters only."""

    seeds: int
    """Number of runs."""
    step_size: float = 0.01
    """Step size."""
    weight_decay: float = 0.005
    """The paper's γ; `weight_decay` is 2γ."""
    size: int = 2
    """Samples in a batch."""
    samples: int = 8
    """Number of training samples."""
    steps: int = 20_000
    """Number of steps before the averages, and over which they are taken."""


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


def _direction(p: Array, sample: Array) -> Array:
    return jnp.sum((p / jnp.linalg.norm(p) - sample) ** 2)


def _measure_stationary(parameters: Sphere, key: Key[Array, ""]) -> Measurement:
    """Compare gamma C with eta Tr[Sigma A], both averaged over the stationary state."""
    z = 0.6 * jax.random.normal(key, (parameters.samples, 3), jnp.float64)
    z = z - z.mean(axis=0, keepdims=True) + jnp.array([[1.0, 0.0, 0.0]])
    problem = Problem(_direction, z.astype(jnp.float32))

    def terms(p: Array) -> dict[str, Array]:
        gradients = problem.sample_gradients(p)
        centred = gradients - gradients.mean(axis=0, keepdims=True)
        return {"charge": trees.dot(p, p) / 2, "trace": jnp.mean(jnp.sum(centred**2, axis=1))}

    run = descend(
        Minibatch(problem, parameters.size), jnp.array([1.0, 0.0, 0.0], jnp.float32), step_size=parameters.step_size,
        weight_decay=2 * parameters.weight_decay, steps=2 * parameters.steps, every=parameters.steps,
        key=jax.random.fold_in(key, 1), average={"terms": terms}, seeds=parameters.seeds, lane_width=lanes(256),
        progress=False,
    )  # fmt: skip
    charge, trace = (run.observed["terms"][name][:, -1] for name in ("charge", "trace"))
    ratios = parameters.weight_decay * charge / (parameters.step_size * trace.mean())
    right = 1 / (8 * parameters.size)
    value, error = ratios.mean() / right, standard_error(ratios) / right
    check = Check("γ C / (η Tr[ΣA]/(8S))", float(value), 1.0, float(error), Within(0.05, 0.2),
                  printed=1 / right, alternative=2.0)  # fmt: skip
    data = xarray.Dataset({"charge": ("seed", charge), "trace": ("seed", trace)})
    return Measurement((check,), data, parameters.seeds, int(run.diverged.sum()))


def _draw_stationary(measurement: Measurement, parameters: Sphere) -> "Figure":
    """Draw the rates of decay and noise over the charge; the noise of a function of the direction falls like 1/C."""
    figure, (axes,) = style.new_figure()
    p, charge, trace = parameters, measurement.data.charge.values, measurement.data.trace.values
    noise = p.step_size / (2 * p.size) * trace
    fine = np.linspace(0.5, 2.5, 41) * charge.mean()
    style.theory(axes, fine, 4 * p.weight_decay * fine, "decay 4γC")
    style.theory(axes, fine, 2 * p.weight_decay * fine, "decay 2γC", "green")
    style.theory(axes, fine, noise.mean() * charge.mean() / fine, "noise σ² Tr[ΣA] ∝ 1/C", "purple")
    style.points(axes, [charge.mean()], [noise.mean()], [standard_error(noise)], "SGD in the stationary state")
    printed = np.sqrt(p.step_size / p.weight_decay * np.mean(charge) * np.mean(trace))
    axes.set(xlabel="charge C = |θ|²/2", ylabel="rate of change of C per unit of time",
             title=f"In print, γC = η Tr[ΣA], the balance would be at C = {printed:.2g}.")  # fmt: skip
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="stationary-condition",
        paper="noise_equilibrium",
        place="Section 4.3, first paragraph, against Eq. (9)",
        statement="Weight decay and noise balance where 4γ C = σ² Tr[ΣA], not where γ C = η Tr[ΣA].",
        equation="4γ C = η/(2S) Tr[ΣA]",
        alternative="Weight decay and noise balance where 2γ C = σ² Tr[ΣA].",
        rests_on=("charge-factor-two",),
        scales={"smoke": Sphere(256, steps=12_000), "default": Sphere(1024), "full": Sphere(8192)},
        measure=_measure_stationary,
        draw=_draw_stationary,
        accelerated=True,
    ),
    Claim(
        id="decay-in-the-balance",
        paper="noise_equilibrium",
        place="Theorem 5.2",
        statement="With weight decay the noise moments of two factors balance after k I is added to both, with k = γ "
        "S/η. The paper prints k = 2γ.",
        equation="W (E[|r|² xx'] + k I) W' = U' (E[|x|² rr'] + k I) U,  k = γ S/η",
        alternative="k is γ S/(2η), as if γ were the weight decay λ of optimisers, which is 2γ.",
        rests_on=("stationary-condition",),
        scales={"smoke": Decay(10, relaxations=5.0), "default": Decay(32), "full": Decay(256)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
)
