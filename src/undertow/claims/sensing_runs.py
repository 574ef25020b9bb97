"""Runs of matrix sensing as the claims look at them: what was learnt at the end, and how many runs diverged."""

import numpy as np
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.environments.quadratic_net import QuadraticNet
from undertow.noise.sensing import MatrixSensing

__all__ = ["ends"]


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
    """The measures at the end of the runs that did not diverge, one number a run, and how many did."""
    start = task.start(alpha, signed=True) if signed and isinstance(task, MatrixSensing) else task.start(alpha)
    run = descend(
        task, start, step_size=step_size, steps=steps, key=key, seeds=seeds, observe={"seen": task.measure},
        progress=False,
    )  # fmt: skip
    lived = ~run.diverged
    return {name: values[lived, -1] for name, values in run.observed["seen"].items()}, int((~lived).sum())
