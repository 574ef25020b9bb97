"""The overparametrised linear model: the products that gradient flow conserves, their decay, and sparse recovery."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree
from scipy.optimize import linprog

from undertow.dynamics.descend import descend
from undertow.dynamics.settle import settle
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.manifold.limit import Limit
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.models.linear import LinearModel, predict, weights
from undertow.problem import Regression
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Rates:
    """Label-noise SGD at two step sizes, one twice the other, from the same point of the manifold."""

    seeds: int
    """Number of runs at each step size."""
    d: int = 20
    """Number of unknowns."""
    n: int = 10
    """Number of equations."""
    step_size: float = 4e-4
    """Smaller step size."""
    slow_time: float = 0.1
    """Length of each run in slow time, steps * step_size^2."""


@dataclass(frozen=True)
class DataSets:
    """Draws of the linear model."""

    draws: int
    """Number of independent draws of the data at each size."""
    d: int = 100
    """Number of unknowns."""
    sparsity: int = 3
    """Number of nonzero entries of the true vector."""
    slow_time: float = 8.0
    """Slow time of the limiting flow."""


def _measure_conserved(parameters: DataSets, key: Key[Array, ""]) -> Measurement:
    """Compare u_j v_j before and after gradient flow, integrated without the exact solution."""
    worst, otherwise, products = [], [], []
    for k in jax.random.split(key, parameters.draws):
        k1, k2, k3 = jax.random.split(k, 3)
        model = LinearModel.draw(k1, d=12, n=5, sparsity=2, dtype=jnp.float64)
        u, v = 1 + 0.3 * jax.random.normal(k2, (12,)), 1 + 0.3 * jax.random.normal(k3, (12,))
        end = settle(model.problem, (u, v), tolerance=1e-11).params
        worst.append(float(jnp.max(jnp.abs(end[0] * end[1] - u * v))))
        # with u_j^2 + v_j^2 conserved instead, (2 u v)^2 = (u^2 + v^2)^2 - w^2 changes with w
        total, w = u**2 + v**2, weights(end)
        other = jnp.sqrt(jnp.maximum(total**2 - w**2, 0)) / 2
        otherwise.append(float(jnp.max(jnp.abs(other - u * v))))
        products.append([np.asarray(x) for x in (u * v, end[0] * end[1], other)])
    check = Check(
        "largest change of u_j v_j along gradient flow", max(worst), 0.0, 0.0, Below(1e-8), alternative=min(otherwise)
    )
    before, after, other = np.array(products).transpose(1, 0, 2).reshape(3, -1)
    columns = {"before": before, "after": after, "other": other}
    data = xarray.Dataset({"change": ("draw", worst)} | {name: ("entry", values) for name, values in columns.items()})
    return Measurement((check,), data, parameters.draws)


def _draw_conserved(measurement: Measurement, parameters: DataSets) -> "Figure":
    figure, (axes,) = style.new_figure()
    before, after, other = (style.some(measurement.data[name], 40) for name in ("before", "after", "other"))
    style.proportional(axes, before, "conserved")
    style.points(axes, before, other, None, "if u_j² + v_j² were conserved", "red", "x")
    style.points(axes, before, after, None, "gradient flow")
    axes.set(xlabel="u_j v_j at the start", ylabel="u_j v_j at the end")
    axes.legend()
    return figure


def _measure_rate(parameters: Rates, key: Key[Array, ""]) -> Measurement:
    model = LinearModel.draw(key, d=parameters.d, n=parameters.n, sparsity=3, dtype=jnp.float64)
    start = model.settle(model.start(1.0))
    rates = np.asarray(model.rates())
    noise = LabelNoise(model.problem, 1.0)
    path = Limit(noise).solve(start, slow_time=parameters.slow_time, observe={"shapes": _steepness(model)})
    # a residual fluctuates with variance eta/2 |grad f_i|^2 (delta = 1), which adds to the label noise of its sample
    first_order = np.trapezoid(path.observed["shapes"], path.slow_time) / parameters.slow_time / 2
    ratios, errors = [], []
    for factor in (1, 2):
        eta = factor * parameters.step_size
        run = descend(
            noise, start, step_size=eta, steps=round(parameters.slow_time / eta**2),
            key=jax.random.fold_in(key, factor), observe={"uv": _product}, seeds=parameters.seeds, progress=False,
        )  # fmt: skip
        fallen = -(np.log(run.observed["uv"][:, -1]) - np.log(run.observed["uv"][:, 0])) / run.slow_time[-1]
        per_seed = (fallen / rates).mean(axis=1)
        ratios.append(per_seed.mean())
        errors.append(standard_error(per_seed))
    limit = 2 * ratios[0] - ratios[1]
    limit_error = float(np.hypot(2 * errors[0], errors[1]))
    doubling = (ratios[1] - 1) / (ratios[0] - 1)
    doubling_error = float(doubling * np.hypot(errors[1] / (ratios[1] - 1), errors[0] / (ratios[0] - 1)))
    checks = (
        Check("decay rate of u_j v_j / δ² s_j, extrapolated to small steps", limit, 1.0, limit_error,
              Within(0.005, 0.02), alternative=0.5),
        Check("excess of the rate at step size 2η / that at η", doubling, 2.0, doubling_error, Within(0.15, 0.6),
              alternative=4.0),
        Check("excess of the rate / its first-order prediction",
              (ratios[0] - 1) / (parameters.step_size * first_order), 1.0,
              errors[0] / (parameters.step_size * first_order), Within(0.1, 0.6), alternative=2.0),
    )  # fmt: skip
    data = xarray.Dataset(
        {"ratio": ("step", ratios), "error": ("step", errors)}, attrs={"first_order": float(first_order)}
    )
    return Measurement(checks, data, parameters.seeds, int(run.diverged.sum()))


def _draw_rate(measurement: Measurement, parameters: Rates) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    sizes = parameters.step_size * np.array([1, 2])
    fine = np.array([0.0, 1.1 * sizes[-1]])
    style.theory(axes, fine, 1 + data.attrs["first_order"] * fine, "δ² s_j and first order in η")
    style.theory(axes, fine, [0.5, 0.5], "rate of u_j or v_j alone", "red")
    style.points(axes, sizes, data.ratio, data.error, "label-noise SGD")
    axes.set(xlabel="step size η", ylabel="decay rate of u_j v_j / δ² s_j", ylim=(0.4, 1.2))
    axes.legend()
    return figure


def _steepness(model: LinearModel) -> Callable[[PyTree], Array]:
    """Return the observable |grad f_i|^2, averaged over samples with weights z_ij^2 and then over j."""
    squares = model.problem.inputs**2

    def value(params: PyTree) -> Array:
        each = 4 * squares @ (params[0] ** 2 + params[1] ** 2)
        return jnp.mean(each @ squares / jnp.sum(squares, axis=0))

    return value


def _product(params: PyTree) -> Array:
    return params[0] * params[1]


def _program(model: LinearModel, costs: np.ndarray) -> np.ndarray:
    """Return the minimiser of sum_j costs_j |w_j| subject to Z w = y, by a linear program in w = p - q, p, q >= 0."""
    z, d = np.asarray(model.problem.inputs), len(costs)
    solution = linprog(np.tile(costs, 2), A_eq=np.hstack([z, -z]), b_eq=np.asarray(model.problem.targets)).x
    return solution[:d] - solution[d:]


def _measure_program(parameters: DataSets, key: Key[Array, ""]) -> Measurement:
    """Compare the end of the limiting flow with the weighted l1 program.

    With many equations the solution is the true vector for all weights. With few equations and columns of two sizes the
    solution depends on the weights; the flow then converges slowly, so that the values of the norm are compared.
    """
    d = parameters.d
    sizes = jnp.where(jnp.arange(d) % 2 == 0, 1.0, 1.5)
    gaps, excess, plain, least = [], [], [], []
    for k in jax.random.split(key, parameters.draws):
        many, few = (
            LinearModel.draw(k, d=d, n=n, sparsity=parameters.sparsity, dtype=jnp.float64)
            for n in (2 * d // 5, d // 10)
        )
        z = few.problem.inputs * sizes[None]
        few = LinearModel(Regression(predict, z, z @ few.truth), few.truth)
        ends = []
        for model in (many, few):
            ends.append(np.asarray(weights(model.settle(model.decayed(model.start(1.0), parameters.slow_time, 1.0)))))
        gaps.append(
            float(np.linalg.norm(ends[0] - _program(many, np.asarray(4 * jnp.mean(many.problem.inputs**2, 0)))))
        )
        costs = np.asarray(4 * jnp.mean(z**2, axis=0))
        best = costs @ np.abs(_program(few, costs))
        excess.append(float(costs @ np.abs(ends[1]) / best) - 1)
        plain.append(float(costs @ np.abs(_program(few, np.ones(d))) / best) - 1)
        least.append(float(best))
    checks = (
        Check("n = d/10: largest relative excess of the weighted norm at the end of the flow", max(excess), 0.0, 0.0,
              Below(0.03), alternative=max(plain)),
        Check("n = 2d/5: median |w of the flow - w of the program|", float(np.median(gaps)), 0.0, 0.0, Below(0.01)),
    )  # fmt: skip
    columns = {"gap": gaps, "excess": excess, "plain": plain, "least": least}
    data = xarray.Dataset({name: ("draw", values) for name, values in columns.items()})
    return Measurement(checks, data, parameters.draws)


def _draw_program(measurement: Measurement, parameters: DataSets) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    least, excess, plain = (style.some(data[name], 40) for name in ("least", "excess", "plain"))
    style.proportional(axes, least, "least weighted norm")
    style.points(axes, least, least * (1 + plain), None, "minimiser of the plain l1 norm", "red", "x")
    style.points(axes, least, least * (1 + excess), None, "end of the limiting flow")
    axes.set(xlabel="least ∑ s_j |w_j|, by a linear program", ylabel="∑ s_j |w_j|", title="data sets with n = d/10")
    axes.legend()
    return figure


def _measure_recovery(parameters: DataSets, key: Key[Array, ""]) -> Measurement:
    sizes = (10, 20, 30, 40, 50)
    flow, plain = [], []
    for n in sizes:
        draw = lambda k, n=n: LinearModel.draw(k, d=parameters.d, n=n, sparsity=parameters.sparsity, dtype=jnp.float64)

        def errors(k: Key[Array, ""], draw: Callable[[Key[Array, ""]], LinearModel] = draw) -> tuple[Array, Array]:
            model = draw(k)
            size = jnp.sum(model.truth**2)
            relative = lambda p: model.error(p) ** 2 / size
            start = model.start(1.0)
            moved = model.decayed(start, parameters.slow_time, 1.0)
            return relative(model.settle(moved)), relative(model.settle(start))

        keys = jax.random.split(jax.random.fold_in(key, n), parameters.draws)
        late, early = eqx.filter_jit(jax.lax.map)(errors, keys)
        flow.append(np.asarray(late))
        plain.append(np.asarray(early))
    flow, plain = np.array(flow), np.array(plain)
    recovered = (flow < 1e-2).mean(axis=1)
    law = 1 - np.array(sizes) / parameters.d
    gap = plain.mean(axis=1) - law
    error = np.asarray(standard_error(plain, axis=1))
    share, spread = statistics.share(flow[2:] < 1e-2)
    never, never_error = statistics.share(plain < 1e-2)
    checks = (
        Check("limiting flow: share of vectors recovered at n ≥ 30", share, 1.0, spread, Above(0.8), alternative=never,
              samples=math.inf),
        Check("gradient descent: share of vectors recovered", never, 0.0, never_error, Below(0.05), alternative=share,
              samples=math.inf),
        *(
            Check(f"gradient descent at n = {n}: mean squared error / (1 - n/d)", 1 + g / w, 1.0, e / w,
                  Within(0.05, 0.5), alternative=(1 - n / (2 * parameters.d)) / w if n >= 30 else None)
            for n, g, w, e in zip(sizes, gap, law, error, strict=True)
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"recovered": ("n", recovered), "plain": ("n", plain.mean(axis=1)), "plain_error": ("n", error)},
        coords={"n": np.array(sizes)},
    )
    return Measurement(checks, data, parameters.draws)


def _draw_recovery(measurement: Measurement, parameters: DataSets) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    share = data.recovered.values
    style.points(left, data.n, share, np.sqrt(share * (1 - share) / parameters.draws), "limiting flow of label noise")
    left.axhline(0, color=style.COLOURS["red"], label="gradient descent: none")
    left.set(xlabel="equations n", ylabel="share of data sets recovered", ylim=(-0.06, 1.06))
    left.legend()
    style.theory(right, data.n, 1 - data.n / parameters.d, "1 − n/d")
    style.points(right, data.n, data.plain, data.plain_error, "gradient descent", "red")
    right.set(xlabel="equations n", ylabel="relative squared error")
    right.legend()
    return figure


CLAIMS = (
    Claim(
        id="uv-conserved",
        paper="zero_loss",
        place="Lemma D.3",
        statement="Gradient flow of the overparametrised linear model conserves every product u_j v_j.",
        equation="d/dt (u_j v_j) = 0",
        alternative="Gradient flow conserves u_j² + v_j² instead, so that u_j v_j changes with u_j² - v_j².",
        scales={"smoke": DataSets(3), "default": DataSets(10), "full": DataSets(50)},
        measure=_measure_conserved,
        draw=_draw_conserved,
    ),
    Claim(
        id="uv-rate",
        paper="zero_loss",
        place="Lemma D.13 and Eq. (17)",
        statement="Under label noise u_j v_j decays at the rate δ² s_j in slow time. The rate of SGD exceeds it by a "
        "share proportional to the step size, η/2 |∇f_i|² on average.",
        equation="d/dt (u_j v_j) = -δ² s_j u_j v_j,  s_j = (4/n) ∑_i z_ij²",
        alternative="The rate is δ² s_j/2, that of u_j or v_j alone; the excess is of second order in the step size, "
        "or η |∇f_i|² without the half.",
        rests_on=("uv-conserved", "label-noise-quarter"),
        scales={"smoke": Rates(16), "default": Rates(256), "full": Rates(4096)},
        measure=_measure_rate,
        draw=_draw_rate,
        accelerated=True,
    ),
    Claim(
        id="flow-minimises-l1",
        paper="zero_loss",
        place="Lemma 6.5",
        statement="The limiting flow of label noise on the overparametrised linear model ends at the minimiser of a "
        "weighted l1 norm among all solutions (from u = v = 1, with n = d/10 and n = 2d/5 equations).",
        equation="min ∑_j s_j |w_j| subject to Z w = y",
        alternative="It ends at the minimiser of the plain l1 norm, ∑_j |w_j|.",
        rests_on=("uv-rate",),
        controls=True,
        scales={"smoke": DataSets(5), "default": DataSets(20), "full": DataSets(200)},
        measure=_measure_program,
        draw=_draw_program,
    ),
    Claim(
        id="recovery",
        paper="zero_loss",
        place="Theorem 6.1 against Theorem 6.7",
        statement="The limiting flow recovers a 3-sparse vector in 100 dimensions from 30 equations or more. Gradient "
        "descent in the kernel regime never does; its mean squared error is 1 - n/d.",
        equation="E |w - w*|²/|w*|² = 1 - n/d for gradient descent",
        alternative="Gradient descent recovers the vector as often as the limiting flow, or its error is 1 - n/(2d), "
        "as for 2d free parameters.",
        rests_on=("flow-minimises-l1", "kernel-regime-bound"),
        controls=True,
        scales={"smoke": DataSets(64, slow_time=5.0), "default": DataSets(100), "full": DataSets(1000)},
        measure=_measure_recovery,
        draw=_draw_recovery,
    ),
)
