"""Charges in the metric of Adam: conserved by gradient flow in a frozen metric, and their exact change in one step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow.figures import style
from undertow.noise.base import second_moment
from undertow.noise.minibatch import Minibatch
from undertow.optimisers.adaptive import AbstractAdaptive, Adam, AdamW, RMSProp
from undertow.papers.optimisers.models.factorisation import Factors, noisy_factorisation
from undertow.symmetry.generators import Rescaling
from undertow.symmetry.metric_charge import charge_change, metric_charge
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMISERS: dict[str, AbstractAdaptive] = {
    "RMSProp": RMSProp(b2=0.9),
    "Adam": Adam(b2=0.99),
    "Adam without bias correction": Adam(b2=0.99, bias_correction=False),
    "AdamW": AdamW(b2=0.99, weight_decay=0.3),
    "AdamW without bias correction": AdamW(b2=0.99, weight_decay=0.3, bias_correction=False),
}
BOUND = 1e-11
"""Largest error of the change in one step / size."""
SHOWN = 12
"""Number of steps of each optimiser in a figure."""
UNITS = Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True)
"""One generator for each unit between the two factors."""


@dataclass(frozen=True)
class FrozenMetric:
    """Gradient flow of a matrix factorisation in the metric 1/√E g² of random starts."""

    problems: int
    """Number of random factorisations."""
    time: float = 20.0
    """Length of the flow."""
    tolerance: float = 1e-11
    """Relative and absolute error of the solver per step."""


@dataclass(frozen=True)
class Steps:
    """Steps of five optimisers on a matrix factorisation with noisy labels, with batches of one sample."""

    steps: int
    """Number of steps of each optimiser."""
    step_size: float = 0.05
    """Step size η."""


def _start(key: Key[Array, ""]) -> tuple[Minibatch, Factors]:
    """Return a factorisation and a random point that is far from its minimisers."""
    problem, minimiser = noisy_factorisation(key)
    return Minibatch(problem, 1), _shifted(jax.random.fold_in(key, 1), minimiser)


@jax.jit
def _shifted(key: Key[Array, ""], params: PyTree) -> PyTree:
    keys = iter(jax.random.split(key, 2))
    return jax.tree.map(lambda x: x + jax.random.normal(next(keys), x.shape), params)


def _size(params: PyTree, metric: PyTree) -> Float[Array, ""]:
    """Return 1/2 sum_i theta_i^2/S_i, the scale of the charges."""
    return jnp.sum(trees.ravel(params) ** 2 / trees.ravel(metric)) / 2


def _against(gradient: Array, metric: Array) -> Array:
    return -metric * gradient


@eqx.filter_jit
def _flow_charges(noise: Minibatch, start: Factors, time: float, tolerance: float) -> tuple[Array, Array, Array]:
    """Return the charges at both ends of the flow in its metric, in this metric and in none, their sizes, and the fall.

    The fall is that of the loss, as a factor.
    """
    metric = jax.tree.map(lambda v: 1 / jnp.sqrt(v), second_moment(noise, start))
    end = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, theta, args: jax.tree.map(_against, noise.mean(theta), metric)), diffrax.Dopri8(),
        0.0, time, 1e-3, start, stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=100_000,
    ).ys  # fmt: skip
    end = jax.tree.map(lambda x: x[0], end)
    metrics = metric, jax.tree.map(jnp.ones_like, metric)
    pairs = jnp.stack([jnp.stack([metric_charge(UNITS, point, m) for point in (start, end)]) for m in metrics])
    sizes = jnp.stack([_size(start, m) for m in metrics])
    return pairs, sizes, noise.problem.loss(start) / noise.problem.loss(end)


def _conserved(parameters: FrozenMetric, key: Key[Array, ""]) -> Measurement:
    p, rows, charges = parameters, [], []
    for k in jax.random.split(key, p.problems):
        noise, start = _start(k)
        pairs, sizes, fall = map(np.asarray, _flow_charges(noise, start, p.time, p.tolerance))
        relative = pairs / sizes[:, None, None]
        charges.append(relative)
        rows.append((*np.abs(relative[:, 1] - relative[:, 0]).max(axis=1), fall))
    in_metric, plain, fall = np.array(rows).T
    checks = (
        Check("largest change of C_S / size, over problems and units", in_metric.max(), 0.0, 0.0, Below(1e-7),
              alternative=float(plain.max())),
        Check("least change of the plain charges / size, over problems", plain.min(), 0.0, 0.0, Above(1e-3),
              alternative=0.0),
        Check("least fall of the loss, a factor", fall.min(), 1.0, 0.0, Above(1.5), alternative=1.0),
    )  # fmt: skip
    data = xarray.Dataset(
        {"metric": ("problem", in_metric), "plain": ("problem", plain),
         "charge": (("problem", "kind", "point", "unit"), np.array(charges))}
    )  # fmt: skip
    return Measurement(checks, data, p.problems)


def _draw_conserved(measurement: Measurement, parameters: FrozenMetric) -> "Figure":
    figure, (axes,) = style.new_figure()
    before, after = style.some(measurement.data.charge, 10).transpose(2, 1, 0, 3).reshape(2, 2, -1)
    style.proportional(axes, before, "conserved")
    style.points(axes, before[1], after[1], None, "plain charges ½ θ'Aθ", "red", "x")
    style.points(axes, before[0], after[0], None, "charges C_S in the metric")
    axes.set(xlabel="charge at the start / size", ylabel="charge at the end of the flow / size")
    axes.legend()
    return figure


def _identity(parameters: Steps, key: Key[Array, ""]) -> Measurement:
    p = parameters
    noise, start = _start(key)
    made = {name: _errors(noise, start, optimiser, p, key) for name, optimiser in OPTIMISERS.items()}
    sizes = {name: errors for name, (errors, _) in made.items()}
    checks = tuple(
        Check(f"{name}: sum of the parts - change of C_S, largest / size", float(error), 0.0, 0.0, Below(BOUND),
              alternative=float(metric))
        for name, (error, _, metric) in sizes.items()
    )  # fmt: skip
    checks += tuple(
        Check(f"{name}: first order + η kept θ'A m, largest / size", float(memory), 0.0, 0.0, Below(BOUND))
        for name, (_, memory, _) in sizes.items()
    )
    table = np.array(list(sizes.values()), float)
    shown = np.array([rows for _, rows in made.values()])
    data = xarray.Dataset(
        {"errors": (("optimiser", "part"), table), "shown": (("optimiser", "step", "part"), shown)},
        coords={"optimiser": list(sizes)},
    )
    return Measurement(checks, data, p.steps)


def _draw_identity(measurement: Measurement, parameters: Steps) -> "Figure":
    """Draw the error of the sum in some steps over the part of the metric, the error of the sum without it."""
    figure, (axes,) = style.new_figure()
    errors, _, metric = np.maximum(measurement.data.shown.values.reshape(-1, 3).T, 1e-18)  # zero has no logarithm
    ends = [metric.min(), metric.max()]
    style.theory(axes, ends, ends, "sum without the change of the metric", "red")
    style.theory(axes, ends, [BOUND, BOUND], "largest error that the claim allows")
    style.points(axes, metric, errors, None, "steps of five optimisers, sum of all parts")
    axes.set(xlabel="change of C_S by that of the metric / size", ylabel="error of the sum of the parts / size",
             xscale="log", yscale="log")  # fmt: skip
    axes.legend()
    return figure


def _errors(
    noise: Minibatch, start: Factors, optimiser: AbstractAdaptive, parameters: Steps, key: Key[Array, ""]
) -> tuple[tuple[Array, Array, Array], np.ndarray]:
    """Return the largest errors of the sum and of the first-order part, and the largest metric part, over the steps.

    The second value has these numbers in some of the steps.
    """
    p, eta = parameters, jnp.asarray(parameters.step_size)
    slices = noise.randomness(key, p.steps, start)

    def charge(params: Factors, state: PyTree, count: Array) -> Array:
        """Return C_S after a number of steps, with the bias correction written out."""
        share = jnp.where((count > 0) & optimiser.bias_correction, 1 - jnp.asarray(optimiser.b2) ** count, 1)
        return metric_charge(UNITS, params, jax.tree.map(lambda v: 1 / (jnp.sqrt(v / share) + 1e-8), state["v"]))

    def body(carry: tuple[Factors, PyTree], inputs: tuple[Array, Array]) -> tuple[tuple[Factors, PyTree], Array]:
        (params, state), (index, one) = carry, inputs
        gradient = noise.gradient(params, one)
        rates = optimiser.rates(index, eta)
        after = optimiser.update(params, state, gradient, rates)
        change = charge_change(UNITS, optimiser, carry, after, step=index, step_size=eta)
        direct = charge(*after, index + 1) - charge(*carry, index)
        momentum = after[1].get("m", gradient)
        memory = -rates["step"] * rates["kept"] * jnp.subtract(*UNITS.pair(params, momentum))
        size = _size(*(after[0], jax.tree.map(lambda v: 1 / (jnp.sqrt(v) / rates["root"] + 1e-8), after[1]["v"])))
        worst = lambda x: jnp.max(jnp.abs(x)) / size
        rows = (change.total - direct, change.first_order - memory, change.metric)
        return after, jnp.stack([worst(row) for row in rows])

    state = optimiser.init(start)
    rows = jax.lax.scan(body, (start, state), (jnp.arange(p.steps), slices))[1]
    # in the first step C_S is that of v = 0
    return tuple(jnp.max(rows[1:], axis=0)), style.some(np.asarray(rows)[1:], SHOWN)


CLAIMS = (
    Claim(
        id="metric-charge-conserved",
        paper="optimisers",
        place="Charges in a metric",
        statement="Gradient flow in a frozen diagonal metric S conserves C_S for every diagonal generator of a "
        "symmetry, and changes the plain charge.",
        equation="dθ/dt = -S ∇L,  C_S = ½ ∑_i A_i θ_i²/S_i,  dC_S/dt = -θ'A ∇L = 0",
        alternative="The flow conserves the plain charge ½ θ'Aθ.",
        scales={"smoke": FrozenMetric(4), "default": FrozenMetric(16), "full": FrozenMetric(64)},
        measure=_conserved,
        draw=_draw_conserved,
    ),
    Claim(
        id="metric-charge-step",
        paper="optimisers",
        place="Change of a charge in one step of Adam",
        statement="The change of C_S in one step of RMSProp, Adam and AdamW, with and without bias correction, is "
        "exactly the sum of four parts: memory of momentum, noise and gradient, decay, and change of the metric.",
        equation="ΔC_S = -η κ θ'A m + (η²/2) ∑_i A_i S_i m_i² - (1 - κ²) C_S + ½ ∑_i A_i θ_i² Δ(1/S_i),  κ = 1 - ηλ",
        alternative="The change of the metric does not matter: the other three parts are the change.",
        rests_on=("metric-charge-conserved",),
        controls=True,
        scales={"smoke": Steps(1000), "default": Steps(10_000), "full": Steps(100_000)},
        measure=_identity,
        draw=_draw_identity,
    ),
)
