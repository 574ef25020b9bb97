"""The first derivative of Phi, a projector, and the second derivative with the correct signs."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow.dynamics.settle import settle
from undertow.figures import style
from undertow.manifold.drift import Parts, second_derivative
from undertow.manifold.geometry import frame_at
from undertow.papers.zero_loss.models import curves
from undertow.papers.zero_loss.models.linear import LinearModel
from undertow.papers.zero_loss.models.tanh_net import TanhNet
from undertow.problem import AbstractProblem
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP = 4e-3
"""Step of the finite differences; their error is of the fourth order."""


@dataclass(frozen=True)
class Directions:
    """Random directions at a point of the manifold of three losses."""

    directions: int
    """Number of directions in which the derivatives are taken."""


def second_difference(values: Sequence[Array | np.ndarray]) -> np.ndarray:
    """Return the second derivative at the middle of five values `STEP` apart, to the fourth order."""
    return np.tensordot([-1, 16, -30, 16, -1], np.stack([np.asarray(v) for v in values]), axes=1) / (12 * STEP**2)


@eqx.filter_jit
def parts_at(problem: AbstractProblem, point: PyTree, factor: PyTree) -> Parts:
    """Return `second_derivative`, compiled once per loss."""
    return second_derivative(problem, point, factor)


metric = functools.cache(curves.metric)
"""The loss as one shared object, so that all claims use the same compiled programs."""


def end_of(problem: AbstractProblem, params: PyTree) -> PyTree:
    """Return Phi(params), close to the rounding of double precision."""
    return settle(problem, params, tolerance=1e-12).params


def _losses(key: Key[Array, ""]) -> dict[str, tuple[AbstractProblem, PyTree]]:
    model = LinearModel.draw(key, d=6, n=3, sparsity=2, dtype=jnp.float64)
    net = TanhNet.draw(jax.random.key(0), inputs=5, hidden=8, n=5, dtype=jnp.float64)
    plain = metric()
    return {
        "linear model": (model.problem, model.start(1.0)),
        "tanh network": (net.problem, net.params),
        "metric": (plain, jnp.array([0.6, 0.7, 0.2, 0.3, 0.4])),
    }


def _pushed(problem: AbstractProblem, params: PyTree, vectors: PyTree) -> tuple[PyTree, np.ndarray]:
    """Return Phi(params), and dPhi(params) applied to stacked vectors, a flat row for each.

    There is no outer jit, because its program could not be cached.
    """
    push = lambda vector: jax.jvp(lambda p: end_of(problem, p), (params,), (vector,))
    end, images = jax.vmap(push, out_axes=(None, 0))(vectors)
    return end, _rows(images)


def _moved(point: PyTree, direction: PyTree, step: float) -> PyTree:
    return jax.tree.map(lambda x, d: jax.device_put(np.asarray(x) + step * d), point, direction)


def _flat(vector: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(vector)])


def _rows(stacked: PyTree) -> np.ndarray:
    """Return stacked vectors as the rows of a matrix."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(stacked)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


@eqx.filter_jit
def _projected(problem: AbstractProblem, point: PyTree, vectors: PyTree) -> Array:
    """Return P v for stacked vectors v, a flat row for each."""
    frame = frame_at(problem, point)
    return jax.vmap(lambda vector: frame.project(trees.ravel(vector)))(vectors)


@eqx.filter_jit
def _directions(keys: Key[Array, " directions"], like: PyTree) -> PyTree:
    """Return a random direction for each key, stacked."""
    return jax.vmap(lambda key: trees.standard_normal(key, like))(keys)


def _measure_first(parameters: Directions, key: Key[Array, ""]) -> Measurement:
    checks, all_errors, compared = [], [], []
    for name, (problem, start) in _losses(key).items():
        vectors = _directions(jax.random.split(key, parameters.directions), start)
        point, _ = _pushed(problem, start, vectors)
        _, images = _pushed(problem, point, vectors)
        projected = np.asarray(_projected(problem, point, vectors))
        errors = np.linalg.norm(images - projected, axis=1)
        across = np.linalg.norm(_rows(vectors) - projected, axis=1)
        checks.append(
            Check(f"{name}: largest |dΦ v - P v|", float(errors.max()), 0.0, 0.0, Below(1e-6),
                  alternative=float(across.min()))
        )  # fmt: skip
        all_errors.append(errors)
        compared.append([style.some(rows[0], 12) for rows in (images, projected, _rows(vectors))])
        if name == "tanh network":
            off, (second, predicted) = _gradient_checks(name, problem, start)
            checks += off
    columns = dict(zip(("image", "projected", "vector"), map(np.concatenate, zip(*compared, strict=True)), strict=True))
    data = xarray.Dataset(
        {"error": (("loss", "direction"), np.array(all_errors)), "second": ("entry", style.some(second, 24)),
         "predicted": ("entry", style.some(predicted, 24))}
        | {name: ("component", values) for name, values in columns.items()}
    )  # fmt: skip
    return Measurement(tuple(checks), data, seeds=parameters.directions)


@eqx.filter_jit
def _gradient_and_line(problem: AbstractProblem, start: PyTree) -> tuple[PyTree, PyTree]:
    """Return g = grad L and H g, stacked, and five points on the line along g, `STEP` apart, around the start."""
    gradient, bent = jax.jvp(problem.gradient, (start,), (problem.gradient(start),))
    line = lambda x, g: x[None] + jnp.arange(-2, 3).reshape(-1, *[1] * x.ndim) * STEP * g[None]
    return jax.tree.map(lambda *pair: jnp.stack(pair), gradient, bent), jax.tree.map(line, start, gradient)


def _gradient_checks(
    name: str, problem: AbstractProblem, start: PyTree
) -> tuple[list[Check], tuple[np.ndarray, np.ndarray]]:
    """Check Lemma C.2 at a point off the manifold, g = grad L: dPhi g = 0 and d2Phi[g, g] = -dPhi H g.

    The second value is d2Phi[g, g] by finite differences, and -dPhi H g.
    """
    vectors, points = _gradient_and_line(problem, start)
    size = float(np.linalg.norm(_rows(vectors)[0]))
    pushed = [_pushed(problem, jax.tree.map(lambda x, m=m: x[m], points), vectors)[1] for m in range(5)]
    before, at, after = [rows[0] for rows in pushed[:2]], pushed[2], [rows[0] for rows in pushed[3:]]
    second = np.tensordot([1, -8, 8, -1], np.stack([*before, *after]), axes=1) / (12 * STEP)
    predicted = -at[1]
    gap = float(np.linalg.norm(second - predicted) / np.linalg.norm(predicted))
    checks = [
        Check(f"{name}, off the manifold: |dΦ ∇L|/|∇L|", float(np.linalg.norm(at[0])) / size, 0.0, 0.0,
              Below(1e-6)),
        Check(f"{name}, off the manifold: |d²Φ[g, g] + dΦ H g|/|dΦ H g|, g = ∇L", gap, 0.0, 0.0, Below(1e-5),
              alternative=1.0),
    ]  # fmt: skip
    return checks, (second, predicted)


def _draw_first(measurement: Measurement, parameters: Directions) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.0)
    data = measurement.data
    style.proportional(left, data.projected)
    style.points(left, data.vector, data.image, None, "over v, if Φ kept it", "red", "x")
    style.points(left, data.projected, data.image, None, "over P v, three losses")
    left.set(xlabel="component of v or P v", ylabel="component of dΦ v", title="on the manifold")
    left.legend()
    style.proportional(right, data.predicted)
    style.theory(right, [data.predicted.min(), data.predicted.max()], [0, 0], "constant along the gradient", "red")
    style.points(right, data.predicted, data.second, None, "by differences")
    right.set(xlabel="component of −dΦ H ∇L", ylabel="component of d²Φ[∇L, ∇L]", title="off the manifold")
    right.legend()
    return figure


def _measure_second(parameters: Directions, key: Key[Array, ""]) -> Measurement:
    """Fit finite differences of Phi by the three parts; a coefficient is 1 if its sign and factor are right."""
    checks, coefficients, compared = [], [], {}
    # Eq. (9) prints the tangent and the mixed part with the opposite signs
    printed = {"tangent": -1.0, "normal": None, "mixed": -1.0}
    others = {"tangent": -1.0, "normal": 2.0, "mixed": -1.0}
    for name, (problem, start) in _losses(key).items():
        measured, parts = [], []
        point = end_of(problem, start)
        vectors = _directions(jax.random.split(key, parameters.directions), point)
        for index in range(parameters.directions):
            v = jax.tree.map(lambda leaf, i=index: np.asarray(leaf)[i], vectors)
            ends = [end_of(problem, _moved(point, v, m * STEP)) for m in (-2, -1, 0, 1, 2)]
            measured.append(second_difference([_flat(end) for end in ends]))
            factor = jax.tree.map(lambda leaf: jax.device_put(leaf[..., None]), v)
            parts.append([_flat(part) for part in parts_at(problem, point, factor)])
        design = np.concatenate([np.stack(p, axis=1) for p in parts])
        fitted, *_ = np.linalg.lstsq(design, np.concatenate(measured), rcond=None)
        for value, (part, wrong) in zip(fitted, printed.items(), strict=True):
            checks.append(
                Check(
                    f"{name}: fitted coefficient of the {part} part",
                    float(value),
                    1.0,
                    0.0,
                    Within(1e-4, 1e-3),
                    wrong,
                    alternative=others[part],
                )
            )
        coefficients.append(fitted)
        signs = [1.0 if wrong is None else wrong for wrong in printed.values()]
        columns = {"difference": np.concatenate(measured), "formula": design.sum(axis=1), "printed": design @ signs}
        compared |= {f"{column}_{name}": (f"component_{name}", values) for column, values in columns.items()}
    data = xarray.Dataset({"coefficient": (("loss", "part"), np.array(coefficients))} | compared)
    return Measurement(tuple(checks), data, seeds=parameters.directions)


def _draw_second(measurement: Measurement, parameters: Directions) -> "Figure":
    """Draw every component of the differences over the formula, and over the formula with the signs in print."""
    data = measurement.data
    names = [str(name).removeprefix("formula_") for name in data if str(name).startswith("formula_")]
    figure, panels = style.new_figure(len(names), width=3.4, height=3.2)
    for axes, name in zip(panels, names, strict=True):
        difference, formula, printed = (
            data[f"{column}_{name}"].values for column in ("difference", "formula", "printed")
        )
        ends = 1.05 * np.array([difference.min(), difference.max()])
        style.theory(axes, ends, ends, "equality")
        style.points(axes, style.some(printed, 60), style.some(difference, 60), None, "signs in print", "red", "x")
        style.points(axes, style.some(formula, 60), style.some(difference, 60), None, "three minus signs")
        axes.set(xlabel="component of the formula", ylabel="component of d²Φ, by differences", title=name)
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="dphi-projector",
        paper="zero_loss",
        place="Lemmas 4.3 and C.2",
        statement="On the manifold the derivative of Φ (the end of gradient flow) is the projector on the tangent "
        "space. Off the manifold Φ does not change along the gradient, to second order.",
        equation="dΦ(x) = P(x) for x in Γ;  dΦ ∇L = 0 and d²Φ[∇L, ∇L] = -dΦ H ∇L anywhere",
        alternative="Φ keeps normal displacements; and along the gradient it is constant to second order on straight "
        "lines, d²Φ[∇L, ∇L] = 0.",
        controls=True,
        scales={"smoke": Directions(2), "default": Directions(10), "full": Directions(100)},
        measure=_measure_first,
        draw=_draw_first,
    ),
    Claim(
        id="d2phi-signs",
        paper="zero_loss",
        place="Lemma 4.5, Eq. (9)",
        statement="The second derivative of Φ has three parts, all with a minus sign; the paper prints a plus before "
        "the tangent and the mixed part. A fit of finite differences of Φ by the three parts decides.",
        equation="d²Φ[S] = -H⁺ d³L[PSP] - P d³L[L_H⁻¹(QSQ)] - 2 P d³L[H⁺ QSP]",
        alternative="The tangent and the mixed part have a plus sign, as printed in Eq. (9), and the normal part is "
        "twice as large, with H⁻¹ in place of L_H⁻¹.",
        rests_on=("dphi-projector",),
        scales={"smoke": Directions(3), "default": Directions(8), "full": Directions(40)},
        measure=_measure_second,
        draw=_draw_second,
    ),
)
