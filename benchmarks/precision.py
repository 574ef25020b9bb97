"""The norms of both layers of a linear net after gradient descent with weight decay, at each precision.

The exact limit of |U|^2/|W|^2 is 1. A GPU multiplies float32 matrices in TF32, with eleven bits, unless
`jax.config.update("jax_default_matmul_precision", "highest")` is set. This rounding affects a charge that weight decay
changes by a relative 1e-4 per step.

Not part of `make bench`: run `python -m benchmarks precision` on a machine with a GPU.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from benchmarks.harness import save
from undertow.noise.additive import noiseless
from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, fan_in, split_variance, two_layer_loss

PRECISIONS = {
    "float32": ("float32", "default"),
    "float32, highest": ("float32", "highest"),
    "float64": ("float64", "default"),
}
"""The dtype and the precision of matrix products, by label."""


def norms(params: Any) -> Any:
    """Return |U|^2/|W|^2."""
    return jnp.sum(params["U"] ** 2) / jnp.sum(params["W"] ** 2)


def end(dtype: str, precision: str, *, inputs: int = 100, hidden: int = 2000, steps: int = 60_000) -> np.ndarray:
    """Return the ratio of the norms after `steps` steps, for each of 8 seeds."""
    law = GaussianPairs(split_variance(inputs, 1.0, dtype), jnp.ones(inputs, dtype))
    start = partial(fan_in, inputs=inputs, hidden=hidden, dtype=dtype)
    with jax.default_matmul_precision(precision):
        run = ut.descend(
            noiseless(law.mean_problem(two_layer_loss)), start, step_size=0.01, weight_decay=0.02, steps=steps, key=0,
            seeds=8, lane_width=8, observe={"norms": norms}, every=steps, progress=False,
        )  # fmt: skip
    return np.asarray(run.observed["norms"])[:, -1]


def main(**sizes: int) -> list[tuple[str, str, str]]:
    ratios = {}
    with jax.enable_x64(True):
        for label, (dtype, precision) in PRECISIONS.items():
            ratios[label] = float(end(dtype, precision, **sizes).mean())
            print(f"  {label}: {ratios[label]:.5f}", flush=True)
    device = jax.devices()[0]
    if device.platform != "cpu" and not sizes:
        deviations = {label: round(1 - value, 5) for label, value in ratios.items()}
        save("precision_gpu", {"1 - |U|^2/|W|^2, to five digits": deviations, "kind": device.device_kind})
    return [(f"|U|^2/|W|^2, {label}", f"{value:.5f}", "exact limit: 1") for label, value in ratios.items()]
