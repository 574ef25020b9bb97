"""The regularisers of the normal part: the trace under label noise, the log determinant under isotropic noise."""

import functools
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
from undertow.dynamics.settle import settle
from undertow.figures import style
from undertow.manifold.drift import Parts, second_derivative
from undertow.manifold.geometry import frame_at
from undertow.manifold.limit import Limit
from undertow.noise.isotropic import Isotropic
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.claims.derivatives import end_of, parts_at
from undertow.papers.zero_loss.models.tanh_net import TanhNet
from undertow.problem import Problem, Regression
from undertow.verification.claim import Claim, Measurement, Scale
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Networks:
    """Tanh networks at zero loss."""

    networks: int
    """Number of random networks."""
    hidden: int = 6
    """Number of hidden units of each."""
    samples: int = 4
    """Number of training samples of each."""


def _networks(parameters: Networks, key: Key[Array, ""]) -> list[tuple[Regression, PyTree]]:
    """Return the problems, each with a point of zero loss."""
    settled = []
    for k in jax.random.split(key, parameters.networks):
        net = TanhNet.draw(k, inputs=4, hidden=parameters.hidden, n=parameters.samples, dtype=jnp.float64)
        settled.append((net.problem, settle(net.problem, net.params, tolerance=1e-11).params))
    return settled


@eqx.filter_jit
def _second_order(problem: Regression, point: PyTree) -> PyTree:
    """Return 1/2 d2Phi[H] from the general formula for the second derivative of Phi, with H = J'J/n at zero loss."""
    rows = jax.jacobian(problem.predictions)(point)
    factor = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1) / jnp.sqrt(1.0 * problem.size), rows)
    return trees.scale(0.5, functools.reduce(trees.add, second_derivative(problem, point, factor)))


@eqx.filter_jit
def _fitted(
    part: PyTree, problem: Regression, point: PyTree, regulariser: Callable[..., Array]
) -> tuple[Array, Array, Array]:
    """Return c of part = c P grad regulariser by least squares, NaN if `part` is not a multiple; and both vectors."""
    frame, part = frame_at(problem, point), trees.ravel(part)
    against = frame.project(jax.grad(lambda x: regulariser(problem, frame.unravel, x))(frame.point))
    value = jnp.vdot(part, against) / jnp.vdot(against, against)
    rest = jnp.linalg.norm(part - value * against) / jnp.linalg.norm(part)
    return jnp.where(rest < 1e-5, value, jnp.nan), part, against


def _trace(problem: Regression, unravel: Callable[[Array], PyTree], x: Array) -> Array:
    """Return Tr H."""
    return jnp.trace(jax.hessian(lambda y: problem.loss(unravel(y)))(x))


def _log_determinant(problem: Regression, unravel: Callable[[Array], PyTree], x: Array) -> Array:
    """Return ln |H|_+ of least squares at zero loss: ln det(J J'/n)."""
    rows = jax.jacobian(lambda y: problem.predictions(unravel(y)))(x)
    return jnp.linalg.slogdet(rows @ rows.T / problem.size)[1]


def _measure_label(parameters: Networks, key: Key[Array, ""]) -> Measurement:
    """Compare the general formula for any noise, and the shorter formula for label noise in `Limit`."""
    networks = _networks(parameters, key)
    fits = [_fitted(_second_order(*network), *network, _trace) for network in networks]
    general = [float(value) for value, *_ in fits]
    short = [
        float(_fitted(Limit(LabelNoise(problem, 0.7)).drift(point), problem, point, _trace)[0]) / 0.49
        for problem, point in networks
    ]
    worst = lambda values: max(values, key=lambda v: abs(v + 0.25))
    checks = (
        Check("1/2 d²Φ[H] / P ∇ tr H", worst(general), -0.25, 0.0, Within(1e-5, 1e-3), alternative=-0.5),
        Check("drift of `Limit` / c P ∇ tr H", worst(short), -0.25, 0.0, Within(1e-5, 1e-3), alternative=-0.5),
    )
    data = xarray.Dataset({"value": ("network", general), "short": ("network", short)} | _components(fits))
    return Measurement(checks, data, len(networks))


def _components(fits: list[tuple[Array, Array, Array]]) -> dict[str, tuple[tuple[str, str], np.ndarray]]:
    """Return the components of the measured vectors and of the gradients, for the figure."""
    parts, gradients = (np.array([np.asarray(fit[k]) for fit in fits]) for k in (1, 2))
    return {"part": (("network", "component"), parts), "gradient": (("network", "component"), gradients)}


def _measure_isotropic(parameters: Networks, key: Key[Array, ""]) -> Measurement:
    fits = [
        _fitted(Limit(Isotropic(problem)).parts(point).normal, problem, point, _log_determinant)
        for problem, point in _networks(parameters, key)
    ]
    values = [float(value) for value, *_ in fits]
    worst = max(values, key=lambda v: abs(v + 0.25))
    check = Check("normal part / P ∇ ln |H|_+", worst, -0.25, 0.0, Within(1e-5, 1e-3), printed=-0.5, alternative=-0.5)
    return Measurement((check,), xarray.Dataset({"value": ("network", values)} | _components(fits)), len(values))


def _draw(measurement: Measurement, names: tuple[str, str], other: str) -> "Figure":
    """Draw the components of the drift over those of the gradient, with the slopes of the claim and of its rival."""
    figure, (axes,) = style.new_figure()
    data = measurement.data
    gradient, part = data.gradient.values.ravel(), data.part.values.ravel()
    ends = 1.05 * np.array([gradient.min(), gradient.max()])
    style.theory(axes, ends, -ends / 4, "slope −1/4")
    style.theory(axes, ends, -ends / 2, other, "red")
    style.points(axes, style.some(gradient), style.some(part), None, "components, all networks")
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.legend()
    return figure


def _draw_label(measurement: Measurement, parameters: Networks) -> "Figure":
    return _draw(measurement, ("component of P ∇ tr H", "component of 1/2 d²Φ[H]"), "slope −1/2")


def _draw_isotropic(measurement: Measurement, parameters: Networks) -> "Figure":
    return _draw(measurement, ("component of P ∇ ln |H|_+", "component of the normal part"), "slope −1/2, in print")


class _Square(eqx.Module):
    """Half the square of a constraint."""

    shape: Array

    def constraint(self, x: Array) -> Array:
        """Return the constraint, which is zero on the manifold."""
        return x[0] ** 2 + 2 * x[1] ** 2 + jnp.sin(self.shape @ x) - 1

    def __call__(self, x: Array, _: object) -> Array:
        return self.constraint(x) ** 2 / 2


class _Weighted(eqx.Module):
    """The square of the same constraint times a positive function."""

    plain: _Square

    def __call__(self, x: Array, _: object) -> Array:
        return jnp.exp(x[0] + x[2] / 2) * self.plain.constraint(x) ** 2


def _measure_shape(parameters: Networks, key: Key[Array, ""]) -> Measurement:
    """Compare two losses with the same minimisers: the square of a constraint, alone and times a positive function."""
    tangent, mixed, normal, components = [], [], [], []
    for k in jax.random.split(key, parameters.networks):
        k1, k2 = jax.random.split(k)
        square = _Square(jax.random.normal(k1, (3,), jnp.float64))
        plain, other = Problem(square, jnp.zeros(1)), Problem(_Weighted(square), jnp.zeros(1))
        point = end_of(plain, jnp.array([0.6, 0.5, 0.1]))
        factor = jax.random.normal(k2, (3, 2), jnp.float64)
        one, two = (parts_at(p, point, factor) for p in (plain, other))
        gap = lambda a, b: float(np.linalg.norm(a - b) / np.linalg.norm(a))
        tangent.append(gap(one.tangent, two.tangent))
        mixed.append(gap(one.mixed, two.mixed))
        normal.append(gap(one.normal, two.normal))
        components.append([[np.asarray(part) for part in parts] for parts in (one, two)])
    checks = (
        Check(
            "relative difference of the tangent parts of two losses",
            max(tangent),
            0.0,
            0.0,
            Below(1e-8),
            alternative=min(normal),
        ),
        Check(
            "relative difference of the mixed parts of two losses",
            max(mixed),
            0.0,
            0.0,
            Below(1e-8),
            alternative=min(normal),
        ),
    )
    data = xarray.Dataset(
        {"tangent": ("pair", tangent), "mixed": ("pair", mixed), "normal": ("pair", normal),
         "component": (("pair", "loss", "part", "axis"), np.array(components))},
        coords={"part": list(Parts._fields)},
    )  # fmt: skip
    note = f"The normal parts, which may differ, differ by {min(normal):.2g} to {max(normal):.2g}."
    return Measurement(checks, data, len(tangent), note=note)


def _draw_shape(measurement: Measurement, parameters: Networks) -> "Figure":
    figure, (axes,) = style.new_figure()
    components = measurement.data.component[:10]
    style.proportional(axes, components[:, 0])
    kinds = {"normal": ("red", "x"), "tangent": ("blue", "o"), "mixed": ("green", "s")}
    for name, (colour, marker) in kinds.items():
        one, two = components.sel(part=name).transpose("loss", "pair", "axis").values.reshape(2, -1)
        style.points(axes, one, two, None, f"{name} part", colour, marker)
    axes.set(xlabel="component, square of a constraint", ylabel="component, times a positive function")
    axes.legend()
    return figure


SCALES: dict[Scale, Networks] = {"smoke": Networks(3), "default": Networks(10), "full": Networks(50)}

CLAIMS = (
    Claim(
        id="label-noise-quarter",
        paper="zero_loss",
        place="Corollary 5.2",
        statement="Under label noise, Σ = c H, the limit is a flow against the gradient of the trace of the Hessian, "
        "with the coefficient c/4.",
        equation="1/2 d²Φ[c H] = -(c/4) P ∇ tr H",
        alternative="The coefficient is c/2: L_H⁻¹(H) is I - P instead of half of it.",
        rests_on=("d2phi-signs", "label-noise-covariance"),
        scales=SCALES,
        measure=_measure_label,
        draw=_draw_label,
    ),
    Claim(
        id="isotropic-quarter",
        paper="zero_loss",
        place="Corollary 5.1, Eq. (11)",
        statement="Under isotropic noise the normal part is a flow against the gradient of ln |H|_+ with the "
        "coefficient 1/4. The paper's proof loses a factor 1/2 and gets 1/2.",
        equation="normal part = -(1/4) P ∇ ln |H|_+",
        alternative="The coefficient is 1/2, as in the paper's proof: L_H⁻¹(I - P) is H⁺ instead of half of it.",
        rests_on=("d2phi-signs", "isotropic-covariance"),
        scales=SCALES,
        measure=_measure_isotropic,
        draw=_draw_isotropic,
    ),
    Claim(
        id="manifold-only",
        paper="zero_loss",
        place="Lemma C.7, extended",
        statement="The tangent compensation depends only on the manifold, not on the loss that defines it. The same "
        "holds for the mixed part.",
        equation="H⁺ d³L[PSP] and P d³L[H⁺ QSP] are the same for all losses with the same minimisers",
        alternative="The tangent and the mixed part depend on the loss, as the normal part does.",
        rests_on=("d2phi-signs", "second-fundamental-form"),
        scales=SCALES,
        measure=_measure_shape,
        draw=_draw_shape,
    ),
)
