"""Predictions of the averaged flow that the claims compare with SGD."""

from collections.abc import Callable

import numpy as np
from jaxtyping import PyTree

from undertow.trajectory import Trajectory

__all__ = ["Observe", "predicted_mean"]

Observe = dict[str, Callable[[PyTree], PyTree]]
"""Functions of params by name, the argument `observe`."""


def predicted_mean(flow: Trajectory, name: str) -> np.ndarray:
    """Return the predicted mean of an observable over seeds of SGD: its value at the mean plus its excess.

    >>> import jax.numpy as jnp
    >>> from undertow import LabelNoise, average
    >>> from undertow.papers.optimisers._flows import predicted_mean
    >>> from undertow.papers.optimisers.models.networks import product
    >>> problem, start = product()
    >>> flow = average(LabelNoise(problem, 0.5), start, step_size=0.01, time=100.0, num_saves=1)
    >>> print(flow.observed["loss"][-1] < 1e-4, predicted_mean(flow, "loss")[-1].round(3))
    True 0.002
    """
    return flow.observed[name] + flow.observed[f"excess_{name}"]
