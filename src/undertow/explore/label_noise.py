"""Label noise on the sparse linear model: SGD leaves the solution of gradient descent and finds the sparse vector."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.explore.instrument import Instrument, Observables, Settings, Slider
from undertow.explore.picture import Axis, Panel, Picture, Row, Series, runs_and_mean
from undertow.noise.isotropic import Isotropic
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.models.linear import LinearModel, weights

__all__ = ["LABEL_NOISE", "LabelNoiseResult", "compute", "draw"]

SLOW_TIME, SAVES = 1.2, 30
DIMENSION, EQUATIONS, SPARSITY = 20, 14, 2


@dataclass(frozen=True)
class LabelNoiseResult:
    """Distances to the sparse vector over slow time, and the vectors at the end."""

    slow_time: np.ndarray
    sgd: np.ndarray
    """|w - w*| of the runs that stayed finite (runs, times), at the end of gradient flow from each of their points."""
    flow: np.ndarray
    """|w - w*| of the limiting flow."""
    descent: np.ndarray
    """|w - w*| of gradient descent, over as many steps."""
    truth: np.ndarray
    ends: dict[str, np.ndarray]
    """w at the end by "sgd" (mean), "flow" and "descent"."""
    rate: tuple[float, float]
    """The mean decay rate of u_j v_j over the rate of theory, and its standard error."""
    diverged: int


@functools.cache
def _model() -> LinearModel:
    return LinearModel.draw(
        jax.random.key(1), d=DIMENSION, n=EQUATIONS, sparsity=SPARSITY, dtype=jnp.result_type(float)
    )


@functools.cache
def _observables() -> Observables:
    # the same functions at every call: others would be compiled again
    return {"error": _settled_error, "w": weights, "uv": _log_products}


def _settled_error(params: PyTree) -> Float[Array, ""]:
    """Return |w - w*| at Phi(params), without the fluctuations across the solutions."""
    return _model().error(_model().settle(params))


def _log_products(params: PyTree) -> Float[Array, " d"]:
    return jnp.log(jnp.abs(params[0] * params[1]))


@functools.cache
def _flow_path():
    model = _model()
    # noise of strength 1 for the time t is noise of strength delta for the time t/delta^2
    at = lambda t: weights(model.settle(model.decayed(model.start(1.0), t, 1.0)))
    return jax.jit(jax.vmap(at))


def compute(settings: Settings) -> LabelNoiseResult:
    """Run SGD with label noise and gradient descent, and solve the limiting flow exactly."""
    model, step_size, batch = _model(), float(settings["step_size"]), int(settings["batch_size"])
    steps = SAVES * round(SLOW_TIME / step_size**2 / SAVES)
    noise = LabelNoise(model.problem, float(settings["noise"]), batch_size=batch)
    run = descend(
        noise, model.start(1.0), step_size=step_size, steps=steps, every=steps // SAVES, seeds=int(settings["seeds"]),
        key=0, observe=_observables(), progress=False,
    )  # fmt: skip
    plain = descend(
        Isotropic(model.problem, 0.0), model.start(1.0), step_size=step_size, steps=steps, every=steps // SAVES, key=0,
        observe=_observables(), progress=False,
    )  # fmt: skip
    strength = float(settings["noise"]) / batch**0.5
    flow = np.asarray(_flow_path()(jnp.asarray(strength**2 * run.slow_time)))
    finite = {name: values[~run.diverged] for name, values in run.observed.items()}
    theory = strength**2 * np.asarray(model.rates()) * run.slow_time[-1]
    ratios = ((finite["uv"][:, 0] - finite["uv"][:, -1]) / theory).mean(axis=1) if strength else np.zeros(0)
    rate = (float(ratios.mean()), float(standard_error(ratios))) if len(ratios) > 1 else (np.nan, np.nan)
    ends = {"sgd": finite["w"][:, -1].mean(axis=0), "flow": flow[-1], "descent": plain.observed["w"][-1]}
    truth = np.asarray(model.truth)
    distance = np.linalg.norm(flow - truth, axis=1)
    return LabelNoiseResult(
        run.slow_time, finite["error"], distance, plain.observed["error"], truth, ends, rate, int(run.diverged.sum())
    )


def draw(result: LabelNoiseResult) -> Picture:
    """Draw the distance to the sparse vector over slow time, and the vectors at the end."""
    time, numbers = result.slow_time, np.arange(1, DIMENSION + 1)
    distances = Panel(
        "Distance to the sparse vector",
        Axis("slow time, steps · η²"),
        Axis("|w − w*|", low=0.0),
        (
            *runs_and_mean("SGD", time, result.sgd),
            Series("line", "limiting flow (theory)", "red", time, result.flow),
            Series("dashed", "gradient descent", "green", time, result.descent),
        ),
    )
    vectors = Panel(
        "The vector at the end",
        Axis("coordinate j", low=0.0, high=DIMENSION + 1.0),
        Axis("wⱼ = uⱼ² − vⱼ²"),
        (
            Series("dashed", "gradient descent", "green", numbers, result.ends["descent"]),
            Series("line", "limiting flow (theory)", "red", numbers, result.ends["flow"]),
            Series("dots", "SGD, mean", "blue", numbers, result.ends["sgd"]),
        ),
    )
    ends = result.sgd[:, -1]
    error = float(standard_error(ends)) if len(ends) > 1 else None
    rows = (
        Row("|w − w*| at the end", float(result.flow[-1]), float(ends.mean()), error),
        Row("decay rate of uⱼvⱼ / its value in the limit of small steps, δ²sⱼ / batch size", 1.0, *result.rate),
    )
    lost = (f"{result.diverged} runs diverged and are left out.",) if result.diverged else ()
    return Picture((distances, vectors), rows, lost)


CODE = """\
import jax, jax.numpy as jnp, undertow as ut
from undertow.papers.zero_loss.models.linear import LinearModel, weights

jax.config.update("jax_enable_x64", True)
model = LinearModel.draw(jax.random.key(1), d=20, n=14, sparsity=2, dtype=jnp.float64)
start, steps = model.start(1.0), 30 * round(1.2 / $step_size**2 / 30)
run = ut.descend(ut.LabelNoise(model.problem, $noise, batch_size=$batch_size), start, step_size=$step_size,
                 steps=steps, every=steps // 30, seeds=$seeds, key=0,
                 observe={"error": lambda p: model.error(model.settle(p))})
strength = $noise / $batch_size**0.5
flow = [model.error(model.settle(model.decayed(start, t, strength))) for t in run.slow_time]
theory, simulation = float(flow[-1]), float(run.observed["error"][~run.diverged, -1].mean())
print(f"|w - w*| at the end: limiting flow {theory:.3g}, mean of SGD {simulation:.3g}")
"""

LABEL_NOISE = Instrument(
    name="label-noise",
    title="Label noise finds the sparse vector",
    summary="14 equations, 20 unknowns, two of them nonzero, and the model w = u² − v² from u = v = 1. Gradient "
    "descent ends at a dense solution. Noise in the labels moves SGD along the solutions to the sparse vector, at a "
    "rate of order η² per step, which the limiting flow predicts. Distances are those at the solution to which "
    "gradient flow leads. At a finite step size SGD is ahead of the flow, by a share proportional to η.",
    theory="theory/zero-loss",
    sliders=(
        Slider("step_size", "step size η", (0.003, 0.004, 0.005, 0.006, 0.008), 0.005, (0.003, 0.005, 0.008)),
        Slider("noise", "label noise δ", (0.0, 0.25, 0.5, 0.75, 1.0, 1.25), 1.0, (0.0, 0.5, 0.75, 1.0, 1.25)),
        Slider("batch_size", "batch size", (1, 2, 4), 1, (1, 2, 4), programs=(2, 4)),
        Slider("seeds", "number of runs", (2, 4, 8, 16, 32, 64), 16, small_programs=(2, 4, 8, 32, 64)),
    ),
    compute=compute,
    draw=draw,
    code=CODE,
)
