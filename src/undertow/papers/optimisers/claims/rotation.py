"""A scale-invariant weight vector under AdamW: its angle per step and its norm at equilibrium."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.optimisers import AdamW
from undertow.problem import Population
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSION = 32
SETTINGS = ((0.01, 0.1), (0.03, 0.1), (0.01, 0.3), (0.1, 0.1), (0.01, 1.0))
"""Pairs of the step size η and the decay λ; η λ covers a decade and η/λ another."""
MOMENTA = (0.0, 0.9)


@dataclass(frozen=True)
class Rotation:
    """AdamW on the loss x.θ/|θ| with Gaussian x, whose gradient is noise alone and orthogonal to θ."""

    seeds: int
    """Number of runs with each setting."""
    length: float = 6.0
    """Length of each run in units of 1/(η λ) steps; the second half is measured."""
    b2: float = 0.99
    """Rate b2 of Adam's average of squared gradients."""


def _loss(params: Float[Array, " d"], x: Float[Array, " d"]) -> Float[Array, ""]:
    return x @ params / jnp.linalg.norm(params)


def _draw_input(key: Key[Array, ""]) -> Float[Array, " d"]:
    return jax.random.normal(key, (DIMENSION,), jnp.result_type(float))


def _point(params: Float[Array, " d"]) -> Float[Array, " d"]:
    return params


def predicted_angle(step_size: float, decay: float, b1: float) -> float:
    """Return the angle per step at equilibrium, √(2 η λ (1 - b1)/(1 + b1))."""
    return (2 * step_size * decay * (1 - b1) / (1 + b1)) ** 0.5


def predicted_square(step_size: float, decay: float) -> float:
    """Return |θ|² at equilibrium, d η/(2 λ)."""
    return DIMENSION * step_size / (2 * decay)


def _equilibrium(
    parameters: Rotation, step_size: float, decay: float, b1: float, key: Key[Array, ""]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the angle per step and |θ|² of every run, averaged over its second half."""
    p = parameters
    steps = round(p.length / (step_size * decay))
    start = jnp.full(DIMENSION, (2 * predicted_square(step_size, decay) / DIMENSION) ** 0.5)
    run = descend(
        Minibatch(Population(_loss, _draw_input), 1), start, step_size=step_size, steps=steps, every=1,
        observe={"point": _point}, seeds=p.seeds, key=key, progress=False,
        optimiser=AdamW(b1=b1, b2=p.b2, weight_decay=decay),
    )  # fmt: skip
    points = np.asarray(run.observed["point"])[:, steps // 2 :]
    sizes = np.linalg.norm(points, axis=-1)
    cosines = np.sum(points[:, 1:] * points[:, :-1], axis=-1) / (sizes[:, 1:] * sizes[:, :-1])
    return np.arccos(cosines).mean(axis=1), (sizes**2).mean(axis=1)


def _mean_of_settings(values: list[np.ndarray]) -> tuple[float, float]:
    """Return the mean over settings of the means over runs, with its standard error."""
    pairs = np.array([statistics.mean(row) for row in values])
    return float(pairs[:, 0].mean()), float(np.linalg.norm(pairs[:, 1]) / len(pairs))


def _measure(parameters: Rotation, key: Key[Array, ""]) -> Measurement:
    checks, angles, squares = [], [], []
    product = np.log([step_size * decay for step_size, decay in SETTINGS])
    ratio = np.log([step_size / decay for step_size, decay in SETTINGS])
    for row, b1 in enumerate(MOMENTA):
        runs = [
            _equilibrium(parameters, *setting, b1, jax.random.fold_in(key, len(SETTINGS) * row + column))
            for column, setting in enumerate(SETTINGS)
        ]
        angle, square = (np.array([statistics.mean(run[part]) for run in runs]) for part in (0, 1))
        order, order_error = statistics.slope(product, np.log(angle[:, 0]), angle[:, 1] / angle[:, 0])
        power, power_error = statistics.slope(ratio, np.log(square[:, 0]), square[:, 1] / square[:, 0])
        relative = [run[0] / predicted_angle(*setting, b1) for run, setting in zip(runs, SETTINGS, strict=True)]
        sizes = [run[1] / predicted_square(*setting) for run, setting in zip(runs, SETTINGS, strict=True)]
        turned, turned_error = _mean_of_settings(relative)
        size, size_error = _mean_of_settings(sizes)
        with_momentum = (1 - b1) / (1 + b1)
        checks += [
            Check(f"b1 = {b1:g}: angle per step / √(2ηλ(1 - b1)/(1 + b1)), mean of {len(SETTINGS)} settings",
                  turned, 1.0, turned_error, Within(0.03, 0.1), alternative=with_momentum**-0.5 if b1 else None),
            Check(f"b1 = {b1:g}: |θ|² / (dη/(2λ)), mean of {len(SETTINGS)} settings", size, 1.0, size_error,
                  Within(0.06, 0.1), alternative=with_momentum if b1 else None),
            Check(f"b1 = {b1:g}: power of ηλ in the angle per step", order, 0.5, order_error, Within(0.03, 0.2),
                  alternative=1.0),
            Check(f"b1 = {b1:g}: power of η/λ in |θ|²", power, 1.0, power_error, Within(0.05, 0.2), alternative=0.5),
        ]  # fmt: skip
        angles.append(angle)
        squares.append(square)
    columns = {"angle": np.stack(angles), "square": np.stack(squares)}
    data = xarray.Dataset(
        {name: (("b1", "setting", "part"), column) for name, column in columns.items()},
        coords={
            "b1": list(MOMENTA),
            "part": ["mean", "error"],
            "step_size": ("setting", [step_size for step_size, _ in SETTINGS]),
            "decay": ("setting", [decay for _, decay in SETTINGS]),
        },
    )
    return Measurement(tuple(checks), data, parameters.seeds)


def _draw(measurement: Measurement, parameters: Rotation) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    product, ratio = data.step_size * data.decay, data.step_size / data.decay
    ends = np.array([product.min(), product.max()])
    sizes = np.array([ratio.min(), ratio.max()])
    style.theory(right, sizes, DIMENSION * sizes / 2, "dη/(2λ)")
    for b1, colour, marker in zip(MOMENTA, ("blue", "red"), ("o", "s"), strict=True):
        row = data.sel(b1=b1)
        style.theory(left, ends, [predicted_angle(end, 1.0, b1) for end in ends], "")
        style.points(left, product, row.angle[:, 0], row.angle[:, 1], f"b1 = {b1:g}", colour, marker=marker)
        style.points(right, ratio, row.square[:, 0], row.square[:, 1], f"b1 = {b1:g}", colour, marker=marker)
    left.set(xscale="log", yscale="log", xlabel="step size × decay, ηλ", ylabel="angle per step",
             title="lines: √(2ηλ(1 − b1)/(1 + b1))")  # fmt: skip
    right.set(xscale="log", yscale="log", xlabel="step size / decay, η/λ", ylabel="|θ|²")
    left.legend()
    right.legend()
    return figure


CLAIMS = (
    Claim(
        id="adamw-rotation",
        paper="optimisers",
        place="Kosson et al., arXiv 2305.17212: rotational equilibrium",
        statement="A scale-invariant weight vector whose gradient is noise turns under AdamW by √(2ηλ) per step at "
        "equilibrium, and |θ|² is dη/(2λ). Momentum multiplies the angle per step by √((1 - b1)/(1 + b1)), 0.23 for "
        "b1 = 0.9, and leaves |θ|² unchanged.",
        equation="angle per step = √(2ηλ (1 - b1)/(1 + b1)),  |θ|² = d η/(2λ)",
        alternative="The angle per step is proportional to ηλ, |θ|² to √(η/λ), and momentum does not change the angle.",
        controls=True,
        scales={"smoke": Rotation(8), "default": Rotation(64), "full": Rotation(512)},
        measure=_measure,
        draw=_draw,
    ),
)
