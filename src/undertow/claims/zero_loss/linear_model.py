"""The overparametrised linear model: what gradient flow conserves, how label noise breaks it, and where that ends."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key
from scipy.optimize import linprog

from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Below, Check, Within
from undertow.dynamics.descend import descend
from undertow.dynamics.settle import settle
from undertow.figures import style
from undertow.figures.compare import compare
from undertow.manifold.limit import Limit
from undertow.models.linear import LinearModel, weights
from undertow.noise.label import LabelNoise


@dataclass(frozen=True)
class Rates:
    """Label-noise SGD at two step sizes, one twice the other, from the same point of the manifold."""

    seeds: int
    """Runs at each step size."""
    d: int = 20
    """Unknowns."""
    n: int = 10
    """Equations."""
    step_size: float = 4e-4
    """The smaller step size."""
    slow_time: float = 0.1
    """How long, in units of steps * step_size^2."""


@dataclass(frozen=True)
class DataSets:
    """Draws of the linear model."""

    draws: int
    """Independent draws of the data at each size."""
    d: int = 100
    """Unknowns."""
    sparsity: int = 3
    """Nonzero entries of the true vector."""
    slow_time: float = 8.0
    """How long the limiting flow runs."""


def _measure_conserved(parameters: DataSets, key: Key[Array, ""]) -> Measurement:
    """u_j v_j before and after gradient flow, integrated without knowing the exact solution."""
    worst = []
    for k in jax.random.split(key, parameters.draws):
        k1, k2, k3 = jax.random.split(k, 3)
        model = LinearModel.draw(k1, d=12, n=5, sparsity=2, dtype=jnp.float64)
        u, v = 1 + 0.3 * jax.random.normal(k2, (12,)), 1 + 0.3 * jax.random.normal(k3, (12,))
        end = settle(model.problem, (u, v), tolerance=1e-11)
        worst.append(float(jnp.max(jnp.abs(end[0] * end[1] - u * v))))
    check = Check("largest change of u_j v_j", max(worst), 0.0, 0.0, Below(1e-8))
    return Measurement((check,), xarray.Dataset({"change": ("draw", worst)}), parameters.draws)


def _measure_rate(parameters: Rates, key: Key[Array, ""]) -> Measurement:
    model = LinearModel.draw(key, d=parameters.d, n=parameters.n, sparsity=3, dtype=jnp.float64)
    start = model.settle(model.start(1.0))
    rates = np.asarray(model.rates())
    noise = LabelNoise(model.problem, 1.0)
    path = Limit(noise).solve(start, time=parameters.slow_time, observe={"shapes": _steepness(model)})
    # a residual fluctuates by eta/2 |grad f_i|^2 (delta = 1) and adds to the label noise of its sample
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
        errors.append(per_seed.std(ddof=1) / np.sqrt(parameters.seeds))
    limit = 2 * ratios[0] - ratios[1]
    limit_error = float(np.hypot(2 * errors[0], errors[1]))
    doubling = (ratios[1] - 1) / (ratios[0] - 1)
    doubling_error = float(doubling * np.hypot(errors[1] / (ratios[1] - 1), errors[0] / (ratios[0] - 1)))
    checks = (
        Check("rate over delta^2 s_j, extrapolated", limit, 1.0, limit_error, Within(0.005, 0.02)),
        Check("excess at twice the step size", doubling, 2.0, doubling_error, Within(0.15, 0.6)),
        Check("excess over its first order", (ratios[0] - 1) / (parameters.step_size * first_order), 1.0,
              errors[0] / (parameters.step_size * first_order), Within(0.1, 0.6)),
    )  # fmt: skip
    data = xarray.Dataset({"ratio": ("step", ratios), "error": ("step", errors)})
    return Measurement(checks, data, parameters.seeds, int(run.diverged.sum()))


def _steepness(model: LinearModel) -> Any:
    """|grad f_i|^2 as u_j v_j sees it: the mean over samples weighted by z_ij^2, then over j."""
    squares = model.problem.inputs**2

    def value(params: Any) -> Array:
        each = 4 * squares @ (params[0] ** 2 + params[1] ** 2)
        return jnp.mean(each @ squares / jnp.sum(squares, axis=0))

    return value


def _product(params: Any) -> Array:
    return params[0] * params[1]


def _measure_program(parameters: DataSets, key: Key[Array, ""]) -> Measurement:
    """The end of the limiting flow against the weighted-l1 program, solved as a linear program."""
    gaps = []
    for k in jax.random.split(key, parameters.draws):
        d, n = parameters.d, 2 * parameters.d // 5
        model = LinearModel.draw(k, d=d, n=n, sparsity=parameters.sparsity, dtype=jnp.float64)
        end = model.settle(model.decayed(model.start(1.0), parameters.slow_time, 1.0))
        z, s = np.asarray(model.problem.inputs), np.asarray(model.rates())
        # minimise sum_j s_j |w_j| subject to Z w = y, with w = p - q, p, q >= 0
        program = linprog(np.concatenate([s, s]), A_eq=np.hstack([z, -z]), b_eq=np.asarray(model.problem.targets))
        best = program.x[:d] - program.x[d:]
        gaps.append(float(np.linalg.norm(np.asarray(weights(end)) - best)))
    check = Check("|w of the flow - w of the program|", float(np.median(gaps)), 0.0, 0.0, Below(0.01))
    return Measurement((check,), xarray.Dataset({"gap": ("draw", gaps)}), parameters.draws)


def _measure_recovery(parameters: DataSets, key: Key[Array, ""]) -> Measurement:
    sizes = (10, 20, 30, 40, 50)
    flow, plain = [], []
    for n in sizes:
        draw = lambda k, n=n: LinearModel.draw(k, d=parameters.d, n=n, sparsity=parameters.sparsity, dtype=jnp.float64)

        def errors(k: Key[Array, ""], draw: Any = draw) -> tuple[Array, Array]:
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
    error = plain.std(axis=1, ddof=1) / np.sqrt(parameters.draws)
    share = float(recovered[2:].mean())
    spread = float(np.sqrt(max(share * (1 - share), 1 / parameters.draws) / (3 * parameters.draws)))
    checks = (
        Check("limiting flow: share recovered at n >= 30", share, 1.0, spread, Above(0.8)),
        Check("gradient descent: share recovered", float((plain < 1e-2).mean()), 0.0, 0.0, Below(0.05)),
        *(
            Check(f"gradient descent at n = {n}: error over 1 - n/d", 1 + g / w, 1.0, e / w, Within(0.05, 0.5))
            for n, g, w, e in zip(sizes, gap, law, error, strict=True)
        ),
    )
    data = xarray.Dataset(
        {"recovered": ("n", recovered), "plain": ("n", plain.mean(axis=1)), "plain_error": ("n", error)},
        coords={"n": np.array(sizes)},
    )
    return Measurement(checks, data, parameters.draws)


def _draw(measurement: Measurement, parameters: Any) -> Any:
    return compare(measurement.checks)


def _draw_recovery(measurement: Measurement, parameters: DataSets) -> Any:
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    share = data.recovered.values
    style.points(left, data.n, share, np.sqrt(share * (1 - share) / parameters.draws), "limiting flow of label noise")
    left.axhline(0, color=style.COLOURS["red"], label="gradient descent: never")
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
        scales={"smoke": DataSets(3), "default": DataSets(10), "full": DataSets(50)},
        measure=_measure_conserved,
        draw=_draw,
    ),
    Claim(
        id="uv-rate",
        paper="zero_loss",
        place="Lemma D.13 and Eq. (17)",
        statement="Label noise makes u_j v_j decay at the rate delta^2 s_j in slow time; SGD approaches that with an "
        "excess proportional to the step size, eta/2 |grad f_i|^2 on average.",
        equation="d/dt (u_j v_j) = -delta^2 s_j u_j v_j,  s_j = (4/n) sum_i z_ij^2",
        scales={"smoke": Rates(16), "default": Rates(256), "full": Rates(4096)},
        measure=_measure_rate,
        draw=_draw,
        accelerated=True,
    ),
    Claim(
        id="flow-minimises-l1",
        paper="zero_loss",
        place="Lemma 6.5",
        statement="The limiting flow of label noise on the overparametrised linear model ends at the minimiser of a "
        "weighted l1 norm among all solutions (from u = v = 1, n = 2d/5).",
        equation="min sum_j s_j |w_j| subject to Z w = y",
        scales={"smoke": DataSets(5), "default": DataSets(20), "full": DataSets(200)},
        measure=_measure_program,
        draw=_draw,
    ),
    Claim(
        id="recovery",
        paper="zero_loss",
        place="Theorem 6.1 against Theorem 6.7",
        statement="The limiting flow recovers a 3-sparse vector in 100 dimensions from 30 equations or more; gradient "
        "descent in the kernel regime never does, its mean squared error is 1 - n/d.",
        equation="E |w - w*|^2/|w*|^2 = 1 - n/d for gradient descent",
        scales={"smoke": DataSets(20), "default": DataSets(100), "full": DataSets(1000)},
        measure=_measure_recovery,
        draw=_draw_recovery,
    ),
)
