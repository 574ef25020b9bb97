"""The fluctuations of SGD at a finite step depend on the different curvatures of different batches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.average import average
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.manifold.averaged import Observe
from undertow.manifold.fluctuations import Closure
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.papers.optimisers.models.networks import HessianTrace, linear, sine_net
from undertow.problem import Regression
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS_TIMES_TRACE = (0.1, 0.2, 0.3, 0.4)
"""Step sizes of the linear regression, times the trace of its Hessian."""
RELAXATIONS = 300.0
"""Length of a run of the linear regression, times the least curvature."""


@dataclass(frozen=True)
class Curvatures:
    """Minibatch SGD on a linear regression that does not fit, and label-noise SGD on the network of sin(2x)."""

    seeds: int
    """Number of runs of either experiment at each step size."""
    step_size: float = 0.04
    """Step size on the network."""
    time: float = 300.0
    """Length of a run on the network, steps * step_size."""
    problem: int = 0
    """Seed of the data of the linear regression, and of the start of the network."""


def stationary_excess(problem: Regression, minimiser: Array, eta: float) -> float:
    """Return the stationary E L - min L of SGD with one sample per step, from its second moments, without undertow.

    The deviation x changes by -eta (H_i x + g_i) in a step, so that E xx' = S solves a linear equation.
    """
    z, residuals = np.asarray(problem.inputs), np.asarray(problem.residuals(minimiser))
    d, identity = z.shape[1], np.eye(z.shape[1])
    keep = [identity - eta * np.outer(row, row) for row in z]
    second = np.mean([np.kron(matrix, matrix) for matrix in keep], axis=0)
    pushes = eta * z * residuals[:, None]
    covariance = np.linalg.solve(np.eye(d * d) - second, (pushes.T @ pushes / len(z)).reshape(-1)).reshape(d, d)
    return float(np.trace(z.T @ z / len(z) @ covariance) / 2)


def _linear_checks(parameters: Curvatures, key: Key[Array, ""]) -> tuple[list[Check], xarray.Dataset, int]:
    problem, minimiser = linear(jax.random.key(parameters.problem))
    noise, least = Minibatch(problem, 1), float(problem.loss(minimiser))
    curvature = np.linalg.eigvalsh(problem.inputs.T @ problem.inputs / problem.size)
    excess = lambda eta, closure="averaged_noise": float(
        average(
            noise,
            minimiser,
            step_size=eta,
            time=RELAXATIONS / curvature.min(),
            num_saves=1,
            closure=closure,
            estimate_error=False,
        ).observed["excess_loss"][-1]
    )
    rows, gaps, diverged = [], [], 0
    for index, share in enumerate(STEPS_TIMES_TRACE):
        eta = share / curvature.sum()
        third = round(RELAXATIONS / curvature.min() / eta / 3)
        run = descend(
            noise, minimiser, step_size=eta, steps=3 * third, every=third, average={"loss": problem.loss},
            seeds=parameters.seeds, key=jax.random.fold_in(key, index), progress=False,
        )  # fmt: skip
        diverged += int(run.diverged.sum())
        # the observation at step 0 is not an average, and the first third is left out
        late = run.observed["loss"][~run.diverged][:, 2:].mean(axis=1) - least
        rows.append((*statistics.mean(late), excess(eta), excess(eta, "finite_step")))
        gaps.append(abs(rows[-1][2] / stationary_excess(problem, minimiser, eta) - 1))
    value, error, flow, rival = rows[-1]
    checks = [
        Check("linear regression, largest step: mean excess loss of SGD / (η/2) tr(HX)", value / flow, 1.0,
              error / flow, Within(0.01, 0.1), alternative=rival / flow),
        Check("linear regression: largest relative difference of (η/2) tr(HX) from the exact second moments",
              max(gaps), 0.0, 0.0, Below(1e-4), alternative=abs(1 - rival / flow)),
    ]  # fmt: skip
    columns = dict(zip(("sgd", "error", "flow", "rival"), np.array(rows).T, strict=True))
    data = {f"excess_{name}": ("share", column) for name, column in columns.items()}
    return checks, xarray.Dataset(data, coords={"share": list(STEPS_TIMES_TRACE)}), diverged


def _network_check(parameters: Curvatures, key: Key[Array, ""]) -> tuple[Check, xarray.Dataset, int]:
    p, saves = parameters, 6
    problem, start = sine_net(jax.random.key(p.problem))
    noise = LabelNoise(problem)
    observe: Observe = {"trace": HessianTrace(problem)}
    steps = round(p.time / p.step_size)
    run = descend(
        noise, start, step_size=p.step_size, steps=steps, every=steps // saves, observe=observe, seeds=p.seeds,
        key=key, progress=False,
    )  # fmt: skip

    def path(closure: Closure = "averaged_noise") -> np.ndarray:
        solved = average(
            noise,
            start,
            step_size=p.step_size,
            time=p.time,
            observe=observe,
            num_saves=saves,
            closure=closure,
            estimate_error=False,
        )
        return solved.observed["mean_trace"]

    flow, without = path(), path("finite_step")
    traces = run.observed["trace"][~run.diverged]
    value, error = statistics.mean(traces[:, -1] / flow[-1])
    check = Check(
        "network: mean tr H of SGD at the end / averaged flow", value, 1.0, error, Within(0.01, 0.02),
        alternative=without[-1] / flow[-1],
    )  # fmt: skip
    columns = {
        "sgd": traces.mean(axis=0),
        "error": traces.std(axis=0, ddof=1) / len(traces) ** 0.5,
        "flow": flow,
        "without": without,
    }
    data = {f"trace_{name}": ("time", column) for name, column in columns.items()}
    return check, xarray.Dataset(data, coords={"time": np.linspace(0, p.time, saves + 1)}), int(run.diverged.sum())


def _measure(parameters: Curvatures, key: Key[Array, ""]) -> Measurement:
    first, second = jax.random.split(key)
    checks, excess, diverged = _linear_checks(parameters, first)
    check, traces, also_diverged = _network_check(parameters, second)
    return Measurement((*checks, check), xarray.merge([excess, traces]), parameters.seeds, diverged + also_diverged)


def _draw(measurement: Measurement, parameters: Curvatures) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.4)
    data = measurement.data
    style.theory(left, data.share, data.excess_flow, "with the curvatures of batches")
    style.theory(left, data.share, data.excess_rival, "without", "red")
    style.points(left, data.share, data.excess_sgd, data.excess_error, "SGD, one sample per step")
    left.set(xlabel="step size × tr H", ylabel="excess loss", title="linear regression", ylim=(0, None))
    left.legend()
    style.theory(right, data.time, data.trace_flow, "with the curvatures of batches")
    style.theory(right, data.time, data.trace_without, "without", "red")
    style.points(right, data.time, data.trace_sgd, data.trace_error, "label-noise SGD")
    right.set(xlabel="time, steps × step size", ylabel="tr H", title="tanh network", ylim=(0, None))
    right.legend()
    return figure


CLAIMS = (
    Claim(
        id="batch-curvatures",
        paper="optimisers",
        place="Fluctuations",
        statement="At a finite step the covariance η X of SGD around its mean contains a term with the different "
        "curvatures H_i of different batches. The equation for X is exact for linear regression.",
        equation="H X + X H - η H X H = Σ + η (∑_i p_i H_i X H_i - H X H)",
        alternative="The noise is that at the mean: H X + X H - η H X H = Σ.",
        scales={"smoke": Curvatures(96), "default": Curvatures(256), "full": Curvatures(1024)},
        measure=_measure,
        draw=_draw,
    ),
)
