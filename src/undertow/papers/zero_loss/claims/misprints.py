"""Misprints of the paper that a measurement decides: a projector, a starting point, a gradient, a constant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.manifold.geometry import frame_at
from undertow.manifold.limit import Limit
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.claims.derivatives import STEP, end_of, metric, parts_at, second_difference
from undertow.papers.zero_loss.models.linear import LinearModel, predict
from undertow.problem import Regression
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OBSERVATIONS = 40
"""Number of observations of a run that starts off the manifold."""


FLOW_STEP = 1e-3
"""Step size with which gradient descent follows gradient flow."""


@dataclass(frozen=True)
class Curves:
    """Random curves on a manifold of minimisers."""

    curves: int
    """Number of curves."""


@dataclass(frozen=True)
class Starts:
    """Label-noise SGD from a point off the manifold, observed shortly after it has reached the manifold."""

    seeds: int
    """Number of runs."""
    d: int = 20
    """Number of unknowns of the linear model."""
    n: int = 10
    """Number of equations of the linear model."""
    step_size: float = 4e-4
    """Step size of SGD."""
    slow_time: float = 0.02
    """Length of each run in slow time, steps * step_size^2."""


@dataclass(frozen=True)
class LinearModels:
    """Draws of the linear model."""

    draws: int
    """Number of draws."""
    d: int = 12
    """Number of unknowns."""
    n: int = 5
    """Number of equations."""
    alpha: float = 1.5
    """Scale α of the start u = v = α."""


def _measure_form(parameters: Curves, key: Key[Array, ""]) -> Measurement:
    """Fit H^+ d3L[v, v] by a Q c'' + b P c'', with c'' measured along curves with tangent and normal acceleration."""
    problem = metric()
    point = end_of(problem, jnp.array([0.6, 0.7, 0.2, 0.3, 0.4]))
    frame = eqx.filter_jit(frame_at)(problem, point)  # without jit a Hessian compiles a hundred small programs
    across, along, target = [], [], []
    for k in jax.random.split(key, parameters.curves):
        k1, k2 = jax.random.split(k)
        v, bend = (frame.project(jax.random.normal(k, point.shape, point.dtype)) for k in (k1, k2))
        values = [end_of(problem, point + t * v + t**2 * bend) for t in np.array([-2, -1, 0, 1, 2]) * STEP]
        second = jnp.asarray(second_difference(values))
        along.append(np.asarray(frame.project(second)))
        across.append(np.asarray(second) - along[-1])
        target.append(-np.asarray(trees.ravel(parts_at(problem, point, v[:, None]).tangent)))
    design = np.stack([np.concatenate(across), np.concatenate(along)], axis=1)
    (normal, tangent), *_ = np.linalg.lstsq(design, np.concatenate(target), rcond=None)
    checks = (
        Check("coefficient of (I - dΦ) c''", float(normal), -1.0, 0.0, Within(1e-5, 1e-3), 0.0, alternative=0.0),
        Check("coefficient of dΦ c''", float(tangent), 0.0, 0.0, Within(1e-5, 1e-3), -1.0, alternative=-1.0),
    )
    columns = {"across": across, "along": along, "target": target}
    data = xarray.Dataset(
        {"coefficient": ("part", [normal, tangent])}
        | {name: ("component", np.concatenate(values)) for name, values in columns.items()}
    )
    return Measurement(checks, data, parameters.curves)


def _measure_start(parameters: Starts, key: Key[Array, ""]) -> Measurement:
    """Measure the share of the way from x(0) to Y(t), with Y(0) = Phi(x(0)), that SGD has covered."""
    model = LinearModel.draw(key, d=parameters.d, n=parameters.n, sparsity=3, dtype=jnp.float64)
    noise, start, eta = LabelNoise(model.problem, 1.0), model.start(1.0), parameters.step_size
    steps = round(parameters.slow_time / eta**2)
    run = descend(
        noise, start, step_size=eta, steps=steps, every=-(-steps // OBSERVATIONS), key=jax.random.fold_in(key, 1),
        observe={"params": lambda p: p}, seeds=parameters.seeds, progress=False,
    )  # fmt: skip
    limit = Limit(noise).solve(
        model.settle(start), slow_time=parameters.slow_time, num_saves=OBSERVATIONS, observe={"params": lambda p: p}
    )
    predicted = np.concatenate(limit.observed["params"], axis=-1) - np.concatenate(start)
    displacement = np.concatenate(limit.params) - np.concatenate(start)
    covered = np.concatenate(run.observed["params"], axis=-1) - np.concatenate(start)
    path = covered @ displacement / (displacement @ displacement)
    share = path[:, -1]
    error = float(standard_error(share))
    what = "share of the way from x(0) to Y(t) that SGD has covered, Y(0) = Φ(x(0))"
    check = Check(what, share.mean(), 1.0, error, Within(0.02, 0.1), printed=0.0, alternative=0.0)
    columns = {"mean": path.mean(axis=0), "error": np.asarray(standard_error(path, axis=0))}
    data = xarray.Dataset(
        {"share": ("seed", share), "limit": ("limit_time", predicted @ displacement / (displacement @ displacement))}
        | {name: ("slow_time", values) for name, values in columns.items()},
        coords={"slow_time": run.slow_time, "limit_time": limit.slow_time},
    )
    return Measurement((check,), data, parameters.seeds)


def _measure_gradient(parameters: LinearModels, key: Key[Array, ""]) -> Measurement:
    factors, gradients, printed = [], [], []
    for k in jax.random.split(key, parameters.draws):
        model = LinearModel.draw(k, d=parameters.d, n=parameters.n, sparsity=2, dtype=jnp.float64)
        for z in model.problem.inputs:
            by_u, by_v = jax.grad(predict)(model.start(parameters.alpha), z)
            factors.append(float((by_u @ z - by_v @ z) / (2 * parameters.alpha * z @ z)))
            gradients.append(np.concatenate([by_u, by_v]))
            printed.append(parameters.alpha * np.concatenate([z, -z]))
    worst = max(factors, key=lambda value: abs(value - 2))
    check = Check("∇f_i / α [z_i, -z_i]", worst, 2.0, 0.0, Within(1e-12, 1e-3), 1.0, alternative=1.0)
    data = xarray.Dataset(
        {"factor": ("sample", factors), "gradient": (("sample", "component"), np.array(gradients)),
         "printed": (("sample", "component"), np.array(printed))}
    )  # fmt: skip
    return Measurement((check,), data, parameters.draws)


def _measure_constant(parameters: LinearModels, key: Key[Array, ""]) -> Measurement:
    """Measure the least |grad L|^2/(lambda min|uv| L), reached at u = v with the residual along an eigenvector."""
    least, courses = [], []
    for k in jax.random.split(key, parameters.draws):
        model = LinearModel.draw(k, d=parameters.d, n=parameters.n, sparsity=2, dtype=jnp.float64)
        z = model.problem.inputs
        values, vectors = jnp.linalg.eigh(z @ z.T)
        problem = Regression(predict, z, vectors[:, 0])
        product = parameters.alpha**2 * values[0]

        def constant(x: PyTree, task: Regression = problem, product: Array = product) -> Array:
            gradient = trees.ravel(task.gradient(x))
            return parameters.n * jnp.vdot(gradient, gradient) / (product * task.loss(x))

        start = model.start(parameters.alpha)
        least.append(float(constant(start)))

        def step(
            x: PyTree, _: None, task: Regression = problem, constant: Callable[[PyTree], Array] = constant
        ) -> tuple[PyTree, Array]:
            x = trees.add(x, trees.scale(-FLOW_STEP, task.gradient(x)))
            return x, constant(x)

        courses.append(np.asarray(jax.lax.scan(step, start, None, length=200)[1]))  # gradient flow by small steps
    later = [float(course.min()) for course in courses]
    worst = max(least, key=lambda value: abs(value - 16))
    checks = (
        Check("n × least |∇L|²/(λ min|uv| L)", worst, 16.0, 0.0, Within(1e-8, 1e-3),
              printed=16.0 * parameters.n, alternative=16.0 * parameters.n),
        Check("n × least |∇L|²/(λ min|uv| L) along gradient flow", min(later), 16.0, 0.0, Above(16 * (1 - 1e-6))),
    )  # fmt: skip
    data = xarray.Dataset({"least": ("draw", least), "course": (("draw", "step"), np.array(courses))})
    return Measurement(checks, data, parameters.draws)


def _draw_form(measurement: Measurement, parameters: Curves) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    target = data.target.values
    ends = 1.1 * np.array([target.min(), target.max()])
    style.theory(axes, -ends, ends, "slope −1")
    style.points(axes, style.some(data.along), style.some(target), None, "tangent part dΦ c'', in print", "red", "x")
    style.points(axes, style.some(data.across), style.some(target), None, "normal part (I − dΦ) c''")
    axes.set(xlabel="component of the acceleration of a curve", ylabel="component of H⁺ d³L[v, v]")
    axes.legend()
    return figure


def _draw_start(measurement: Measurement, parameters: Starts) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.theory(axes, data.limit_time, data.limit, "limit Y(t) from Φ(x(0))")
    style.theory(axes, [0, parameters.slow_time], [0, 0], "x(0), the start in print", "red")
    style.points(axes, data.slow_time, data["mean"], data.error, "label-noise SGD")
    axes.set(xlabel="slow time, steps × step size²", ylabel="share of the way from x(0) to the end")
    axes.legend()
    return figure


def _draw_gradient(measurement: Measurement, parameters: LinearModels) -> "Figure":
    figure, (axes,) = style.new_figure()
    printed, gradient = (measurement.data[name].values.ravel() for name in ("printed", "gradient"))
    ends = 1.05 * np.array([printed.min(), printed.max()])
    style.theory(axes, ends, 2 * ends, "slope 2")
    style.theory(axes, ends, ends, "slope 1, in print", "red")
    style.points(axes, style.some(printed), style.some(gradient), None, "automatic differentiation")
    axes.set(xlabel="component of α [z_i, −z_i]", ylabel="component of ∇f_i")
    axes.legend()
    return figure


def _draw_constant(measurement: Measurement, parameters: LinearModels) -> "Figure":
    figure, (axes,) = style.new_figure()
    courses = measurement.data.course.values
    time = FLOW_STEP * (1 + np.arange(courses.shape[1]))
    ends = [0, time[-1]]
    style.theory(axes, ends, [16, 16], "bound with 16/n")
    style.theory(axes, ends, [16 * parameters.n] * 2, "bound with 16, in print", "red")
    style.points(
        axes, style.some(time, 16), style.some(courses.min(axis=0), 16), None, "gradient flow, least of all draws"
    )
    axes.set(xlabel="time of gradient flow, steps × step size", ylabel="n |∇L|²/(λ min|u_j v_j| L)", ylim=(0, None))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="second-fundamental-form",
        paper="zero_loss",
        place="Lemma C.7, proof",
        statement="The tangent compensation is the second fundamental form, the normal part of a curve's "
        "acceleration. The proof prints dΦ c'', the tangent part, which depends on the curve.",
        equation="H⁺ d³L[v, v] = -(I - dΦ) c'',  c' = v",
        alternative="H⁺ d³L[v, v] = -dΦ c'', as printed in the proof.",
        scales={"smoke": Curves(4), "default": Curves(10), "full": Curves(100)},
        measure=_measure_form,
        draw=_draw_form,
    ),
    Claim(
        id="limit-starts-at-phi",
        paper="zero_loss",
        place="Theorem 4.6",
        statement="The limiting diffusion starts at Φ(x(0)), where gradient flow from x(0) ends, and not at x(0): the "
        "approach to the manifold takes no slow time.",
        equation="Y(0) = Φ(x(0))",
        alternative="Y(0) = x(0), as printed: the approach to the manifold takes slow time.",
        scales={"smoke": Starts(16), "default": Starts(64), "full": Starts(1024)},
        measure=_measure_start,
        draw=_draw_start,
    ),
    Claim(
        id="kernel-gradient",
        paper="zero_loss",
        place="Section 6.3",
        statement="In the kernel regime the gradient of the linear model is twice the printed one.",
        equation="∇f_i(α, α) = 2α [z_i, -z_i]",
        alternative="∇f_i(α, α) = α [z_i, -z_i], as printed.",
        scales={"smoke": LinearModels(3), "default": LinearModels(10), "full": LinearModels(100)},
        measure=_measure_gradient,
        draw=_draw_gradient,
    ),
    Claim(
        id="pl-constant",
        paper="zero_loss",
        place="Lemma D.2",
        statement="Along gradient flow, the squared gradient of the linear model is bounded below by its loss with "
        "the constant 16/n. The paper prints 16, which is violated.",
        equation="|∇L|² ≥ (16/n) λ_min(ZZ') min_j |u_j v_j| L",
        alternative="The constant is 16, as printed, for every number n of samples.",
        controls=True,
        scales={"smoke": LinearModels(3), "default": LinearModels(10), "full": LinearModels(100)},
        measure=_measure_constant,
        draw=_draw_constant,
    ),
)
