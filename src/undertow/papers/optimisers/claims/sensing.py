"""Matrix sensing with label noise by a product of two factors: the matrix that SGD and Adam find."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Int, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.label import LabelNoise
from undertow.optimisers import SGD, Adam
from undertow.papers.optimisers.models.factorisation import Recovery, matrix_sensing, random_factors
from undertow.trajectory import Trajectory
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMISERS = ("SGD", "Adam")
SAVES = 10


@dataclass(frozen=True)
class Sensing:
    """Label noise on n Gaussian measurements <X, U V'> = <X, W> of a matrix W of rank one, from random factors."""

    seeds: int
    """Number of runs of each optimiser on each data set."""
    datasets: int = 2
    """Number of data sets."""
    size: int = 6
    """Number of rows and of columns of W, U and V."""
    measurements: int = 15
    """Number n of measurements; W has 36 entries and 11 degrees of freedom."""
    step_size: float = 0.015
    """Step size of both optimisers; it falls to zero in the last quarter of the steps."""
    steps: int = 15_000
    """Number of steps."""
    forgotten: float = 0.002
    """1 - b2 of Adam."""
    strength: float = 1.0
    """Size of the label noise."""


class LateDecay(eqx.Module):
    """A constant step size that falls linearly to zero in the last quarter of the steps."""

    peak: Float[Array, ""]
    steps: Float[Array, ""]

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Return the step size."""
        return self.peak * jnp.minimum(1.0, 4 * (1 - step / self.steps))


def _run(parameters: Sensing, name: str, dataset: int, key: Key[Array, ""]) -> Trajectory:
    p = parameters
    problem, truth = matrix_sensing(jax.random.key(dataset), size=p.size, measurements=p.measurements)
    # without momentum, as SGD has none
    optimiser = Adam(b1=0.0, b2=1 - p.forgotten) if name == "Adam" else SGD()
    return descend(
        LabelNoise(problem, p.strength), random_factors(p.size), steps=p.steps, every=p.steps // SAVES, seeds=p.seeds,
        step_size=LateDecay(jnp.asarray(p.step_size, float), jnp.asarray(p.steps, float)), key=key,
        optimiser=optimiser, observe={"recovery": Recovery(problem, truth)}, progress=False,
    )  # fmt: skip


def _ratio(adam: Float[np.ndarray, "datasets seeds"], sgd: Float[np.ndarray, "datasets seeds"]) -> tuple[float, float]:
    """Return the geometric mean of the ratios over pairs of runs from the same start, with its standard error.

    The error is that of other starts and other noise on the same data sets. Pairs with a diverged run are left out.
    """
    pairs = [np.log(a / s) for a, s in zip(adam, sgd, strict=True)]
    means, errors = np.array([statistics.mean(row[np.isfinite(row)]) for row in pairs]).T
    ratio = float(np.exp(means.mean()))
    return ratio, ratio * float(np.linalg.norm(errors) / len(errors))


def _measure(parameters: Sensing, key: Key[Array, ""]) -> Measurement:
    runs = [
        [_run(parameters, name, dataset, jax.random.fold_in(key, dataset)) for dataset in range(parameters.datasets)]
        for name in OPTIMISERS
    ]
    names = ("error", "trace", "root_trace")
    table = {name: np.array([[run.observed["recovery"][name] for run in row] for row in runs]) for name in names}
    error, error_u = _ratio(*table["error"][::-1, ..., -1])
    root, root_u = _ratio(*table["root_trace"][::-1, ..., -1])
    samples = parameters.seeds * parameters.datasets
    checks = (
        Check("|U V' - W| of Adam / of SGD, geometric mean", error, 0.0, error_u, Below(0.95), alternative=1.0),
        Check("tr diag(H)^½ of Adam / of SGD, geometric mean", root, 0.0, root_u, Below(0.8), alternative=1.0),
    )
    columns = {}
    for name, values in table.items():
        logarithms = np.log(values).reshape(len(OPTIMISERS), samples, -1)
        columns[name] = np.exp(np.nanmean(logarithms, axis=1))
        columns[f"{name}_error"] = columns[name] * np.nanstd(logarithms, axis=1) / samples**0.5
    data = xarray.Dataset(
        {name: (("optimiser", "index"), column) for name, column in columns.items()},
        coords={"optimiser": list(OPTIMISERS), "step": ("index", runs[0][0].step)},
    )
    diverged = sum(int(run.diverged.sum()) for row in runs for run in row)
    return Measurement(checks, data, samples, diverged)


def _draw(measurement: Measurement, parameters: Sensing) -> "Figure":
    figure, panels = style.new_figure(3, width=3.6)
    labels = {"error": "|U V' − W| / |W|", "trace": "tr H", "root_trace": "tr diag(H)^½"}
    for axes, (quantity, label) in zip(panels, labels.items(), strict=True):
        for name, colour, marker in (("SGD", "blue", "o"), ("Adam", "red", "s")):
            row = measurement.data.sel(optimiser=name)
            style.points(axes, row.step / 1000, row[quantity], row[f"{quantity}_error"], name, colour, marker=marker)
        axes.set(xlabel="thousands of steps", ylabel=label)
    panels[0].set(yscale="log", title="geometric means over runs")
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="adam-factorisation",
        paper="optimisers",
        place="Li, Wen and Lyu, arXiv 2511.02773: matrix factorisation",
        statement="Li, Wen and Lyu report that with label noise Adam can generalise worse than SGD on matrix "
        "factorisation. The opposite holds for Gaussian measurements of a matrix of rank one: with the same "
        "noise and step size Adam ends with a smaller error than SGD. Adam reduces tr diag(H)^½, about d times the "
        "sum of the norms of the columns of U and V, which favours few columns.",
        equation="tr diag(H)^½ ≈ d ∑_b (|U_b| + |V_b|),  tr H ≈ d (|U|² + |V|²)",
        alternative="Adam does not find a better matrix than SGD.",
        rests_on=("two-traces",),
        scales={"smoke": Sensing(16), "default": Sensing(64, datasets=8), "full": Sensing(256, datasets=16)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
)
