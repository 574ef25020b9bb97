"""Exact consequences of a symmetry: gradient flow conserves the charge, and a step of SGD changes it as predicted."""

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.problem import Problem
from undertow.symmetry.flow import noether_flow
from undertow.symmetry.generators import AbstractSymmetry, DoubleRotation, Rescaling, Scaling
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = 50
"""Number of independent groups of batches. The standard error comes from the spread of the group means."""

FLOW_STEPS = (50, 100, 200, 400)
"""Numbers of Runge-Kutta steps with which the same time of gradient flow is integrated."""

FLOW_TIME = 0.4

RUNGE_KUTTA = ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0))
"""For each stage of the classical method: the fraction of the step along the last slope, and six times its weight."""

EULER = ((0.0, 6.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
"""Gradient descent in the same format."""


@dataclass(frozen=True)
class Flows:
    """Gradient flow on random draws of three models."""

    draws: int
    """Number of draws of each model."""


@dataclass(frozen=True)
class Batches:
    """Random batches at a random point of three models, away from any minimum."""

    batches: int
    """Number of batches for each model and setting."""
    size: int = 4
    """Samples in a batch."""
    step_size: float = 0.05
    """Step size of the step."""
    weight_decay: float = 0.02
    """The paper's gamma, where weight decay is on; the library's `weight_decay` is twice it."""


class Kind(NamedTuple):
    """A problem with its symmetry, and a random point."""

    problem: Problem
    params: PyTree
    symmetry: AbstractSymmetry


@eqx.filter_jit
def kinds(key: Key[Array, ""]) -> dict[str, Kind]:
    """Return a ReLU network (one rescaling per neuron), a factorisation (GL(3)) and a scale-invariant network."""
    relu, factors, scaled = jax.random.split(key, 3)
    return {
        "ReLU neurons": _relu(relu),
        "factorisation": _factorisation(factors),
        "scale-invariant net": _scaled(scaled),
    }


def _data(key: Key[Array, ""], inputs: int, outputs: int, samples: int = 30) -> tuple[Array, Array]:
    """Return inputs, and labels that depend on them with noise."""
    k1, k2, k3 = jax.random.split(key, 3)
    x = jax.random.normal(k1, (samples, inputs), jnp.float64)
    truth = jax.random.normal(k2, (inputs, outputs), jnp.float64) / np.sqrt(inputs)
    return x, x @ truth + jax.random.normal(k3, (samples, outputs), jnp.float64)


def _normal(key: Key[Array, ""], **shapes: tuple[int, ...]) -> dict[str, Array]:
    """Return weights of variance 1/fan-in."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape, jnp.float64) / np.sqrt(shape[-1])
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _relu_loss(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return jnp.sum((p["out"] @ jax.nn.relu(p["in"] @ x + p["bias"]) - y) ** 2)


def _relu(key: Key[Array, ""]) -> Kind:
    k1, k2 = jax.random.split(key)
    params = _normal(k2, **{"in": (5, 4), "bias": (5,), "out": (2, 5)})
    return Kind(Problem(_relu_loss, _data(k1, 4, 2)), params, NEURONS)


def _product_loss(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return jnp.sum((p["U"] @ (p["W"] @ x) - y) ** 2)


def _factorisation(key: Key[Array, ""]) -> Kind:
    k1, k2 = jax.random.split(key)
    return Kind(Problem(_product_loss, _data(k1, 5, 4)), _normal(k2, U=(4, 3), W=(3, 5)), FACTORS)


def _scaled_loss(p: PyTree, sample: PyTree) -> Array:
    """Return the loss with both layers divided by the norm of all weights."""
    x, y = sample
    norm = jnp.sqrt(trees.dot(p, p))
    return jnp.sum((3 * p["u"] @ jnp.tanh(3 * p["w"] @ x / norm) / norm - y) ** 2)


def _scaled(key: Key[Array, ""]) -> Kind:
    k1, k2 = jax.random.split(key)
    return Kind(Problem(_scaled_loss, _data(k1, 4, 2)), _normal(k2, u=(2, 5), w=(5, 4)), ALL)


NEURONS = Rescaling(lambda p: p["out"], lambda p: (p["in"], p["bias"]), neurons=True)
FACTORS = DoubleRotation(lambda p: p["U"], lambda p: p["W"])
ALL = Scaling(lambda p: (p["u"], p["w"]))


@eqx.filter_jit
def _conserved(
    problem: Problem, params: PyTree, symmetry: AbstractSymmetry, steps: Array, stages: Float[Array, "4 2"]
) -> Array:
    """Return the largest change of a charge along gradient flow, over |params|^2, by a Runge-Kutta method."""
    h = FLOW_TIME / steps

    def step(_: object, p: PyTree) -> PyTree:
        def stage(carry: tuple[PyTree, PyTree], numbers: Array) -> tuple[tuple[PyTree, PyTree], None]:
            last, total = carry
            slope = problem.gradient(trees.add(p, trees.scale(-h * numbers[0], last)))
            return (slope, trees.add(total, trees.scale(numbers[1] / 6, slope))), None

        zero = trees.zeros_like(p)
        (_, total), _ = jax.lax.scan(stage, (zero, zero), stages)
        return trees.add(p, trees.scale(-h, total))

    end = jax.lax.fori_loop(0, steps, step, params)
    return jnp.max(jnp.abs(symmetry.charge(end) - symmetry.charge(params))) / trees.dot(params, params)


def _measure_conserved(parameters: Flows, key: Key[Array, ""]) -> Measurement:
    """Measure the change of the charge at several steps of the integrator, and the order at which it falls."""
    changes = {name: [] for name in kinds(key)}
    change = lambda kind, steps, stages: float(_conserved(*kind, jnp.asarray(steps), jnp.asarray(stages)))
    for k in jax.random.split(key, parameters.draws):
        for name, kind in kinds(k).items():
            changes[name].append([change(kind, steps, RUNGE_KUTTA) for steps in FLOW_STEPS])
    descent = {name: change(kind, FLOW_STEPS[-1], EULER) for name, kind in kinds(k).items()}
    curves = {name: np.array(values) for name, values in changes.items()}
    orders = {name: -np.polyfit(np.log(FLOW_STEPS), np.log(values).T, 1)[0] for name, values in curves.items()}
    last = {name: values[:, -1] for name, values in curves.items()}
    smooth = max(values.max() for name, values in last.items() if "ReLU" not in name)
    checks = (
        Check("smooth models: largest change of a charge / |params|²", float(smooth), 0.0, 0.0, Below(1e-8),
              alternative=max(value for name, value in descent.items() if "ReLU" not in name)),
        Check("ReLU neurons: median of the largest change of a charge / |params|²",
              float(np.median(last["ReLU neurons"])), 0.0, 0.0, Below(1e-6), alternative=descent["ReLU neurons"]),
        *(
            # a step across a kink of a ReLU is of second order, with an error that depends on the place of the kink
            Check(f"{name}: order of the change in the integrator's step", float(np.median(order)),
                  2.0 if kinked else 4.0, 0.0, Above(1.0 if kinked else 3.8), alternative=None if kinked else 1.0)
            for name, order in orders.items() for kinked in ["ReLU" in name]
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"change": (("kind", "draw", "steps"), np.stack(list(curves.values())))},
        coords={"steps": list(FLOW_STEPS)},
        attrs={"kinds": list(curves)},
    )
    return Measurement(checks, data, parameters.draws)


@eqx.filter_jit
def _steps(
    noise: Minibatch, symmetry: AbstractSymmetry, params: PyTree, keys: Key[Array, " batches"], eta: Array, gamma: Array
) -> tuple[Array, Array]:
    """Return the change of the charge in a step and the prediction of the identity, for one batch per key."""

    def one(key: Key[Array, ""]) -> tuple[Array, Array]:
        gradient = noise.draw(key, params)
        after = jax.tree.map(lambda p, g: (1 - 2 * eta * gamma) * p - eta * g, params, gradient)
        change = symmetry.charge(after) - symmetry.charge(params)
        return change, symmetry.change(params, gradient, step_size=eta, weight_decay=2 * gamma)

    return jax.vmap(one)(keys)


def _spread(predicted: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a few pairs whose values are spread over their range, for a figure."""
    order = np.argsort(values)
    picked = order[np.searchsorted(values[order], np.linspace(values.min(), values.max(), 10))]
    return np.stack([predicted[picked], values[picked]])


def _measure_identity(parameters: Batches, key: Key[Array, ""]) -> Measurement:
    worst, shown = {}, {name: [] for name in kinds(key)}
    eta, keys = parameters.step_size, jax.random.split(key, parameters.batches)
    for name, kind in kinds(key).items():
        noise = Minibatch(kind.problem, parameters.size)
        for gamma in (0.0, parameters.weight_decay):
            numbers = jax.device_put((eta, gamma))
            change, identity = map(np.asarray, _steps(noise, kind.symmetry, kind.params, keys, *numbers))
            words = "with weight decay" if gamma else "without weight decay"
            size = float(np.max(np.abs(change)))
            # the error if the decay of continuous time is used for a step
            missed = float(np.max(np.abs(_charge(kind)))) * 4 * (eta * gamma) ** 2
            worst[f"{name}, {words}"] = float(np.max(np.abs(change - identity))) / size, missed / size
            shown[name].append(_spread(np.ravel(identity) / size, np.ravel(change) / size))
    checks = tuple(
        Check(f"{name}: largest relative error of the change of the charge", error, 0.0, 0.0, Below(1e-12),
              alternative=missed or None)
        for name, (error, missed) in worst.items()
    )  # fmt: skip
    columns = {name: (("row", f"point_{name}"), np.concatenate(pairs, axis=1)) for name, pairs in shown.items()}
    data = xarray.Dataset({"error": ("case", [error for error, _ in worst.values()])} | columns)
    return Measurement(checks, data, parameters.batches)


@eqx.filter_jit
def _charge(kind: Kind) -> Array:
    return kind.symmetry.charge(kind.params)


@eqx.filter_jit
def _after(gradients: Array, eta: Array, gamma: Array, kind: Kind) -> Array:
    """Return the change of the charge in a step, for each of many batch gradients as vectors."""
    _, unravel = jax.flatten_util.ravel_pytree(kind.params)

    def one(gradient: Array) -> Array:
        after = jax.tree.map(lambda p, g: (1 - 2 * eta * gamma) * p - eta * g, kind.params, unravel(gradient))
        return jnp.ravel(kind.symmetry.charge(after) - kind.symmetry.charge(kind.params))

    return jax.vmap(one)(gradients)


@eqx.filter_jit
def _gradient_rows(kind: Kind) -> Array:
    """Return the gradient of each sample as a row."""
    return jax.vmap(trees.ravel)(kind.problem.sample_gradients(kind.params))


def _over_all_batches(kind: Kind, size: int, replace: bool, eta: float, gamma: float) -> np.ndarray:
    """Return the expected change of the charge: the mean over all possible batches, weighted by probability."""
    rows = np.asarray(_gradient_rows(kind))
    choose = itertools.combinations_with_replacement if replace else itertools.combinations
    batches = np.array(list(choose(range(len(rows)), size)))
    if replace:
        repeats = np.stack([np.sum(batches == batches[:, [i]], axis=1) for i in range(size)], axis=1)
        # S! over the product of the factorials of the repeats; an index with k repeats enters k times, hence the root
        factors = np.array([math.factorial(k) ** (1 / k) for k in range(1, size + 1)])
        weights = math.factorial(size) / np.prod(factors[repeats - 1], axis=1) / len(rows) ** size
    else:
        weights = np.full(len(batches), 1 / len(batches))
    mean = sum((rows[batches[:, i]] for i in range(size)), np.zeros(())) / size
    return weights @ np.asarray(_after(*jax.device_put((mean, eta, gamma)), kind))


def _measure_expected(parameters: Batches, key: Key[Array, ""]) -> Measurement:
    """Compare the formula and draws with the sum over all batches, and measure what continuous time leaves out."""
    p, checks, columns = parameters, [], []
    batches = p.batches // GROUPS * GROUPS
    for index, (name, kind) in enumerate(kinds(key).items()):
        gaps, scores, missed = [], [], []
        for replace in (True, False):
            noise = Minibatch(kind.problem, p.size, replace=replace)
            for gamma in (0.0, p.weight_decay):
                keys = jax.random.split(jax.random.fold_in(key, 4 * index + 2 * replace + (gamma > 0)), batches)
                numbers = jax.device_put((p.step_size, gamma))
                change, _ = _steps(noise, kind.symmetry, kind.params, keys, *numbers)
                groups = np.asarray(change).reshape(GROUPS, batches // GROUPS, -1).mean(axis=1)
                flow = noether_flow(noise, kind.params, kind.symmetry, step_size=p.step_size, weight_decay=2 * gamma)
                exact = _over_all_batches(kind, p.size, replace, p.step_size, gamma)
                formula, continuous = np.ravel(np.asarray(flow.per_step)), p.step_size * np.ravel(flow.rate)
                size = np.abs(exact).max()
                gaps.append((np.abs(formula - exact).max() / size, np.abs(continuous - exact).max() / size))
                # a dead neuron has no noise, so its error is rounding
                error = np.maximum(standard_error(groups), 1e-9 * size)
                scores.append([np.abs((groups.mean(axis=0) - value) / error).max() for value in (exact, continuous)])
                columns.append((exact, groups.mean(axis=0), error))
                along = exact / (exact @ exact)
                missed.append(((exact - continuous) @ along, p.step_size**2 / 2 * np.ravel(flow.gradient) @ along))
        share, expected = missed[0]
        (error, wrong), (score, wrong_score) = np.max(gaps, axis=0), np.max(scores, axis=0)
        checks += [
            Check(f"{name}: largest relative error of the formula against the sum over all batches", float(error), 0.0,
                  0.0, Below(1e-12), alternative=float(wrong)),
            Check(f"{name}: largest |z| of the mean change over drawn batches", float(score), 0.0, 0.0, Below(5.0),
                  alternative=float(wrong_score)),
            Check(f"{name}: share of the sum that the flow in continuous time misses",
                  float(share), float(expected), 0.0, Within(1e-10, 1e-3), alternative=0.0),
        ]  # fmt: skip
    names = ("predicted", "measured", "error")
    data = xarray.Dataset(
        {n: ("case", np.concatenate(c)) for n, c in zip(names, zip(*columns, strict=True), strict=True)}
    )
    return Measurement(tuple(checks), data, batches)


def _draw_identity(measurement: Measurement, parameters: Batches) -> "Figure":
    figure, (axes,) = style.new_figure()
    style.proportional(axes, [-1, 1])
    names = [str(name) for name in measurement.data if name != "error"]
    for name, colour, marker in zip(names, style.COLOURS, "osD", strict=False):
        style.points(axes, *measurement.data[name].values, None, name, colour, marker)
    axes.set(xlabel="change of a charge by the identity / largest", ylabel="change in a step of SGD / largest")
    axes.legend()
    return figure


def _draw_conserved(measurement: Measurement, parameters: Flows) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    h = FLOW_TIME / data.steps.values
    for index, (name, colour) in enumerate(zip(data.attrs["kinds"], style.COLOURS, strict=False)):
        values = data.change.values[index]
        middle = np.median(values, axis=0)
        style.points(axes, h, middle, np.stack([middle - values.min(0), values.max(0) - middle]), name, colour)
        order = 2 if "ReLU" in name else 4
        style.theory(axes, h, middle[0] * (h / h[0]) ** order, f"slope {order}", colour)
    axes.set(xscale="log", yscale="log", xlabel="step of the integrator", ylabel="change of the charge / |params|²")
    axes.legend()
    return figure


def _draw_expected(measurement: Measurement, parameters: Batches) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.points(axes, data.predicted, data.measured, data.error, f"mean of {measurement.seeds:,} steps")
    ends = [float(data.predicted.min()), float(data.predicted.max())]
    style.theory(axes, ends, ends, "exact expectation")
    axes.set(xlabel="expected change of a charge", ylabel="measured change")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="charge-conserved",
        paper="noise_equilibrium",
        place="Eq. (4)",
        statement="Gradient flow conserves the charge of every exponential symmetry: under an integrator of the "
        "fourth order, the charge changes by the fourth power of the step (the second power across kinks of a ReLU).",
        equation="dC/dt = 0,  C = 1/2 θ'Aθ",
        alternative="Gradient flow conserves the charge no better than gradient descent: its change is of the first "
        "order in the step.",
        controls=True,
        scales={"smoke": Flows(5), "default": Flows(20), "full": Flows(200)},
        measure=_measure_conserved,
        draw=_draw_conserved,
    ),
    Claim(
        id="step-identity",
        paper="noise_equilibrium",
        place="Appendix D, Eq. (97), with weight decay",
        statement="The change of the charge in a step of SGD is a function of the point and the batch gradient, "
        "exactly and for every batch.",
        equation="dC = -4η γ (1 - η γ) C + η²/2 g'A g",
        alternative="Weight decay changes the charge by -4η γ C per step, as in continuous time.",
        controls=True,
        scales={"smoke": Batches(5000), "default": Batches(20_000), "full": Batches(200_000)},
        measure=_measure_identity,
        draw=_draw_identity,
    ),
    Claim(
        id="expected-change",
        paper="noise_equilibrium",
        place="Eq. (7) and Appendix D",
        statement="The expected change of the charge per step has an exact formula, with and without replacement, "
        "which agrees with the mean over all batches. The flow in continuous time leaves out the mean gradient, which "
        "contributes a large part away from minima.",
        equation="E dC = -4η γ (1 - η γ) C + η²/2 (∇L'A ∇L + c Tr[ΣA]/S)",
        alternative="The expected change per step is the flow in continuous time times the step size: the mean "
        "gradient contributes nothing.",
        rests_on=("step-identity", "minibatch-covariance"),
        scales={"smoke": Batches(5_000), "default": Batches(100_000), "full": Batches(1_000_000)},
        measure=_measure_expected,
        draw=_draw_expected,
    ),
)
