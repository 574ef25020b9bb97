"""Two factors U W: the noise of rows and of columns, their balance, and the trace of the Hessian."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.problem import Problem
from undertow.symmetry.closed_forms import balanced_factors
from undertow.symmetry.equilibrium import equilibrium
from undertow.symmetry.flow import noether_flow
from undertow.symmetry.generators import DoubleRotation
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS, COLUMNS = 4, 5
"""Number of outputs and of inputs of the factorisation."""

INSIDE = DoubleRotation(lambda p: p["U"], lambda p: p["W"])


@dataclass(frozen=True)
class Factorisations:
    """Draws of a factorisation with 4 outputs and 5 inputs."""

    draws: int
    """Number of draws."""
    width: int = 4
    """Number of columns of U and of rows of W."""
    samples: int = 40
    """Number of training samples."""
    size: int = 3
    """Samples in a batch."""
    step_size: float = 0.02
    """Step size of SGD."""
    weight_decay: float = 0.01
    """The paper's gamma, where weight decay is on; the library's `weight_decay` is twice it."""
    batches: int = 20_000
    """Number of one-step changes."""


def _loss(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return jnp.sum((p["U"] @ (p["W"] @ x) - y) ** 2)


@eqx.filter_jit
def _at_minimum(key: Key[Array, ""], samples: int, width: int) -> tuple[Problem, PyTree, Array]:
    """Return a problem with correlated inputs and noisy labels, random factors of its solution V, and V."""
    keys = jax.random.split(key, 6)
    normal = lambda k, *shape: jax.random.normal(k, shape, jnp.float64)
    x = normal(keys[0], samples, COLUMNS) @ (jnp.eye(COLUMNS) + 0.2 * normal(keys[1], COLUMNS, COLUMNS))
    y = x @ normal(keys[2], COLUMNS, ROWS) + normal(keys[3], samples, ROWS)
    product = jnp.linalg.solve(x.T @ x, x.T @ y).T
    first, _, last = jnp.linalg.svd(normal(keys[4], ROWS, width), full_matrices=False)
    left = (first * jnp.linspace(0.5, 2.0, ROWS)[None]) @ last
    inverse = jnp.linalg.pinv(left)
    hidden = normal(keys[5], width, COLUMNS)
    right = inverse @ product + hidden - inverse @ (left @ hidden)
    return Problem(_loss, (x, y)), {"U": left, "W": right}, product


@eqx.filter_jit
def _moments(problem: Problem, params: PyTree) -> tuple[Array, Array]:
    """Return Gamma_U = E[|x|^2 rr'] and Gamma_W = E[|r|^2 xx']."""
    x, y = problem.data
    r = x @ params["W"].T @ params["U"].T - y
    second = lambda weights, rows: (rows * weights[:, None]).T @ rows / rows.shape[0]
    return second(jnp.sum(x**2, axis=1), r), second(jnp.sum(r**2, axis=1), x)


@eqx.filter_jit
def _by_rows(problem: Problem, params: PyTree) -> Array:
    """Return the summed covariances of the gradients of the rows of U minus those of the columns of W."""
    gradients = problem.sample_gradients(params)

    def summed(vectors: Array) -> Array:
        """Return the summed covariances (width, width) of vectors (samples, vectors, width)."""
        centred = vectors - vectors.mean(axis=0, keepdims=True)
        return jnp.einsum("nik,nil->kl", centred, centred) / vectors.shape[0]

    return summed(gradients["U"]) - summed(jnp.swapaxes(gradients["W"], 1, 2))


@eqx.filter_jit
def _changes(noise: Minibatch, params: PyTree, keys: Key[Array, " batches"], eta: float) -> Array:
    """Return the change of the charge in one step, for one batch per key."""

    def one(key: Key[Array, ""]) -> Array:
        after = jax.tree.map(lambda p, g: p - eta * g, params, noise.draw(key, params))
        return INSIDE.charge(after) - INSIDE.charge(params)

    return jax.lax.map(one, keys, batch_size=1000)


def _measure_rows(parameters: Factorisations, key: Key[Array, ""]) -> Measurement:
    exact, closed, scores, wrong, ratios, errors, entries = [], [], [], [], [], [], []
    relative = lambda a, b: float(np.abs(np.asarray(a) - b).max() / np.abs(b).max())
    for k in jax.random.split(key, parameters.draws):
        problem, params, _ = _at_minimum(k, parameters.samples, parameters.width)
        noise = Minibatch(problem, parameters.size)
        flow = noether_flow(noise, params, INSIDE, step_size=parameters.step_size)
        rows = np.asarray(_by_rows(problem, params)) / parameters.size
        u, w = np.asarray(params["U"]), np.asarray(params["W"])
        gamma_u, gamma_w = map(np.asarray, _moments(problem, params))
        exact.append(relative(flow.noise, rows))
        closed.append(relative(flow.noise, 4 / parameters.size * (w @ gamma_w @ w.T - u.T @ gamma_u @ u)))
        keys = jax.random.split(jax.random.fold_in(k, 1), parameters.batches)
        change = np.asarray(_changes(noise, params, keys, parameters.step_size))
        theory = parameters.step_size**2 / 2 * rows
        error = standard_error(change)
        scores.append(np.abs((change.mean(axis=0) - theory) / error).max())
        wrong.append(np.abs((change.mean(axis=0) - theory / 2) / error).max())
        along = theory / np.sum(theory**2)
        each = np.sum(change * along, axis=(1, 2))
        ratios.append(each.mean())
        errors.append(standard_error(each, ddof=0))
        entries.append(np.array([theory, change.mean(axis=0), error])[:, *np.triu_indices(parameters.width)])
    error = float(np.linalg.norm(errors) / parameters.draws)
    checks = (
        Check("mean one-step change of the charge / prediction", float(np.mean(ratios)), 1.0, error, Within(0.0, 0.2),
              alternative=0.5, samples=parameters.batches),
        Check("mean one-step change of the charge: largest |z| of an entry", float(max(scores)), 0.0, 0.0, Below(5.0),
              alternative=float(min(wrong))),
        Check("noise of rows minus columns: largest relative error", max(exact), 0.0, 0.0, Below(1e-12),
              alternative=0.5),
        Check("4/S (W Γ_W W' - U'Γ_U U) at the minimum: largest relative error", max(closed), 0.0, 0.0, Below(1e-10),
              alternative=0.5),
    )  # fmt: skip
    columns = dict(zip(("predicted", "measured", "error"), np.concatenate(entries, axis=1), strict=True))
    data = xarray.Dataset({"ratio": ("draw", ratios)} | {name: ("entry", values) for name, values in columns.items()})
    return Measurement(checks, data, parameters.draws)


def _draw_rows(measurement: Measurement, parameters: Factorisations) -> "Figure":
    figure, (axes,) = style.new_figure()
    predicted, measured, error = (style.some(measurement.data[name], 20) for name in ("predicted", "measured", "error"))
    style.proportional(axes, predicted, "rows − columns")
    style.proportional(axes, predicted, "half of it", 0.5, "red")
    style.points(axes, predicted, measured, error, f"mean of {parameters.batches:,} steps")
    axes.set(xlabel="entry of η²/2S (∑ Σ_ui − ∑ Σ_wj)", ylabel="change of (U'U − WW')/2 per step")
    axes.legend()
    return figure


def _measure_equilibrium(parameters: Factorisations, key: Key[Array, ""]) -> Measurement:
    residuals, moved, gaps, balances, printed, entries = [], [], [], [], [], []
    apart = lambda one, other: float(np.linalg.norm(one - other) / np.linalg.norm(other))
    for index, k in enumerate(jax.random.split(key, parameters.draws)):
        # every second draw has more hidden units than the rank of the product
        width = parameters.width + 2 * (index % 2)
        problem, params, product = _at_minimum(k, parameters.samples, width)
        noise = Minibatch(problem, parameters.size)
        gammas, product = [np.asarray(gamma) for gamma in _moments(problem, params)], np.asarray(product)
        for gamma in (0.0, parameters.weight_decay):
            balanced = equilibrium(noise, params, INSIDE, step_size=parameters.step_size, weight_decay=2 * gamma)
            u, w = np.asarray(balanced.params["U"]), np.asarray(balanced.params["W"])
            gamma_u, gamma_w = (g + gamma * parameters.size / parameters.step_size * np.eye(len(g)) for g in gammas)
            left, right = map(np.asarray, balanced_factors(*jax.device_put((product, gamma_u, gamma_w)), width))
            grams = [(u @ u.T, w.T @ w), (left @ left.T, right.T @ right)]
            gaps += [apart(u @ u.T, left @ left.T), apart(w.T @ w, right.T @ right)]
            if gamma > 0:
                doubled = [g + 2 * gamma * np.eye(len(g)) for g in gammas]
                left, right = map(np.asarray, balanced_factors(*jax.device_put((product, *doubled)), width))
                printed += [apart(u @ u.T, left @ left.T), apart(w.T @ w, right.T @ right)]
                grams.append((left @ left.T, right.T @ right))
                flat = [[g[np.triu_indices(len(g))] for g in pair] for pair in grams]
                entries.append([np.concatenate(pair) for pair in flat])
            a, b = w @ gamma_w @ w.T, u.T @ gamma_u @ u
            residuals.append(float(balanced.residual))
            balances.append(float(np.linalg.norm(a - b) / np.linalg.norm(a)))
            moved.append(apart(u @ w, product))
    checks = (
        Check(
            "largest relative error of UU' and W'W against the closed form",
            max(gaps),
            0.0,
            0.0,
            Below(1e-9),
            alternative=min(printed),
        ),
        Check("largest residual of the flow", max(residuals), 0.0, 0.0, Below(1e-10)),
        Check("largest |W Γ_W W' - U'Γ_U U|/|W Γ_W W'|", max(balances), 0.0, 0.0, Below(1e-10)),
        Check("largest relative change of the product", max(moved), 0.0, 0.0, Below(1e-12)),
    )
    columns = dict(zip(("found", "closed", "printed"), np.concatenate(entries, axis=1), strict=True))
    data = xarray.Dataset({"gap": ("case", gaps)} | {name: ("entry", values) for name, values in columns.items()})
    return Measurement(checks, data, parameters.draws)


def _draw_equilibrium(measurement: Measurement, parameters: Factorisations) -> "Figure":
    figure, (axes,) = style.new_figure()
    found, closed, printed = (style.some(measurement.data[name], 60) for name in ("found", "closed", "printed"))
    style.proportional(axes, found)
    style.points(axes, printed, found, None, "closed form with 2γ, in print", "red", "x")
    style.points(axes, closed, found, None, "closed form with γS/η")
    axes.set(xlabel="entry of UU' or W'W, closed form", ylabel="entry at the equilibrium with weight decay")
    axes.legend()
    return figure


def _measure_trace(parameters: Factorisations, key: Key[Array, ""]) -> Measurement:
    """Compare the trace of jax.hessian at random points with the printed formula."""
    traces = []
    for index, k in enumerate(jax.random.split(key, parameters.draws)):
        problem, params, _ = _at_minimum(k, parameters.samples, parameters.width)
        off = 0.5 * (index % 2)  # every second point lies off the minimum
        params = {name: np.asarray(p) + off * np.sin(7 * np.asarray(p)) for name, p in params.items()}
        x = np.asarray(problem.data[0])
        second = x.T @ x / x.shape[0]
        u, w = params["U"], params["W"]
        printed = ROWS * np.trace(w @ second @ w.T) + np.sum(u**2) * np.trace(second)
        traces.append((float(_hessian_trace(problem, params)), float(printed)))
    measured, printed = np.array(traces).T
    ratios = measured / printed
    worst = max(ratios, key=lambda value: abs(value - 2))
    check = Check("Tr H / printed formula", worst, 2.0, 0.0, Within(1e-10, 1e-3), printed=1.0, alternative=1.0)
    columns = {"ratio": ratios, "trace": measured, "printed": printed}
    data = xarray.Dataset({name: ("draw", values) for name, values in columns.items()})
    return Measurement((check,), data, parameters.draws)


def _draw_trace(measurement: Measurement, parameters: Factorisations) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    ends = np.array([0.0, 1.05 * float(data.printed.max())])
    style.theory(axes, ends, 2 * ends, "slope 2")
    style.theory(axes, ends, ends, "slope 1, in print", "red")
    style.points(axes, style.some(data.printed), style.some(data.trace), None, "random points")
    axes.set(xlabel="printed formula for Tr H", ylabel="Tr H by automatic differentiation")
    axes.legend()
    return figure


@eqx.filter_jit
def _hessian_trace(problem: Problem, params: PyTree) -> Array:
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    return jnp.trace(jax.hessian(lambda v: problem.loss(unravel(v)))(flat))


CLAIMS = (
    Claim(
        id="rows-and-columns",
        paper="noise_equilibrium",
        place="Proposition 5.1",
        statement="The charge of two factors, the matrix (U'U - WW')/2, changes by the noise of the rows of U minus "
        "that of the columns of W. At the minimum both have a closed form.",
        equation="d/dt (U'U - WW')/2 = η/2S (∑_i Σ_ui - ∑_j Σ_wj) = 2η/S (W Γ_W W' - U'Γ_U U)",
        alternative="The noise of the rows minus that of the columns changes U'U - WW' at this rate, as for the "
        "paper's charge without 1/2, and (U'U - WW')/2 at half the rate.",
        rests_on=("stationary-condition",),
        scales={
            "smoke": Factorisations(4),
            "default": Factorisations(20),
            "full": Factorisations(100, batches=200_000),
        },
        measure=_measure_rows,
        draw=_draw_rows,
    ),
    Claim(
        id="factors-balance",
        paper="noise_equilibrium",
        place="Theorem 5.2 and Eq. (90)-(92)",
        statement="On every orbit of GL(d) there is exactly one pair of factors with balanced noise, up to an inner "
        "rotation. The geometric mean of two matrices gives it, and so does a singular value decomposition.",
        equation="W Γ_W W' = U'Γ_U U,  P = X^1/2,  X b X = a",
        alternative="With weight decay, 2γ I is added to the noise moments, as printed, not (γ S/η) I.",
        rests_on=("decay-in-the-balance",),
        controls=True,
        scales={"smoke": Factorisations(4), "default": Factorisations(20), "full": Factorisations(200)},
        measure=_measure_equilibrium,
        draw=_draw_equilibrium,
    ),
    Claim(
        id="hessian-trace",
        paper="noise_equilibrium",
        place="Proposition 5.3",
        statement="The trace of the Hessian of the two-layer linear network is twice the printed formula, at every "
        "point.",
        equation="Tr H = 2 d_y |W Σ_x^1/2|² + 2 |U|² Tr Σ_x",
        alternative="The trace is the printed formula.",
        scales={"smoke": Factorisations(4), "default": Factorisations(20), "full": Factorisations(200)},
        measure=_measure_trace,
        draw=_draw_trace,
    ),
)
