"""Runs of matrix sensing: the measures at the end, and the stationary error that measurement noise causes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.sensing.quadratic_net import QuadraticNet

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

__all__ = ["draw_learnt", "ends", "learnt_columns", "noise_square"]

MARKS = {"one": ("one environment per step", "blue", "o"), "pooled": ("pooled", "red", "s")}
"""Label, colour and marker of the runs of each kind."""


def ends(
    task: MatrixSensing | QuadraticNet,
    step_size: float,
    steps: int,
    seeds: int,
    key: Key[Array, ""],
    *,
    alpha: float = 1e-3,
    signed: bool = False,
) -> tuple[dict[str, np.ndarray], int]:
    """Return the measures at the end of the runs that stayed finite, one per run, and the number of diverged runs."""
    start = task.start(alpha, signed=True) if signed and isinstance(task, MatrixSensing) else task.start(alpha)
    run = descend(
        task, start, step_size=step_size, steps=steps, key=key, seeds=seeds, observe={"seen": task.measure},
        progress=False,
    )  # fmt: skip
    finite = ~run.diverged
    return {name: values[finite, -1] for name, values in run.observed["seen"].items()}, int((~finite).sum())


def learnt_columns(runs: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, tuple[str, np.ndarray]]:
    """Return the learnt signals of the runs of each kind as variables of a data set, for `draw_learnt`."""
    signals = ("true", "spurious")
    return {f"{kind}_{signal}": (f"{kind}_run", run[signal]) for kind, run in runs.items() for signal in signals}


def draw_learnt(axes: "Axes", data: "xarray.Dataset") -> None:
    """Draw every run by its learnt signals; lines are the invariant solution and the one with the spurious signal."""
    axes.axvline(1, color=style.COLOURS["grey"], lw=1.2, label="predicted")
    for (kind, (label, colour, marker)), height in zip(MARKS.items(), (0, 1), strict=True):
        axes.axhline(height, color=style.COLOURS[colour], lw=1.2)
        signals = (style.some(data[f"{kind}_{signal}"], 60) for signal in ("true", "spurious"))
        style.points(axes, *signals, None, f"runs, {label}", colour, marker)
    axes.set(xlabel="learnt true signal", ylabel="learnt spurious signal")
    axes.set_xlim(0, 1.1 * axes.get_xlim()[1])


def noise_square(learnt: list[float], d: int, m: int, step_size: float, square: float) -> float:
    """Return the stationary E|UU' - A|^2 under the noise of symmetric measurements; A has the eigenvalues `learnt`.

    To first order an entry of P = UU' in the basis of A changes by -eta (l_i + l_j) (P_ij - A_ij + W_ij) per step. The
    l_i are the eigenvalues (0 in the other d - len(learnt) dimensions). W_ij has the variance F/m on the diagonal and
    F/(2m) off it. F is the mean square of the residual matrix: `square` at P = A, plus the returned value.
    """
    values = np.concatenate([np.abs(learnt), np.zeros(d - len(learnt))])
    rates = step_size * (values[:, None] + values[None])
    share = float(np.sum(rates / (2 - rates) * (1 + np.eye(d)) / (2 * m)))
    return square * share / (1 - share)
