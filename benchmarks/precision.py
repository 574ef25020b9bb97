"""Where gradient descent with weight decay ends at each precision: at equal norms of both layers of a linear net.

|U|^2/|W|^2 is 1 there. A GPU multiplies float32 matrices in TF32, with eleven bits, unless JAX is told otherwise by
`jax.config.update("jax_default_matmul_precision", "highest")`; a charge that weight decay moves by parts in ten
thousand a step notices.

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

WAYS = {
    "float32": ("float32", "default"),
    "float32, highest": ("float32", "highest"),
    "float64": ("float64", "default"),
}
"""Of numbers and of their products."""


def norms(params: Any) -> Any:
    """|U|^2/|W|^2."""
    return jnp.sum(params["U"] ** 2) / jnp.sum(params["W"] ** 2)


def end(dtype: str, precision: str, *, inputs: int = 100, hidden: int = 2000, steps: int = 60_000) -> np.ndarray:
    """The ratio of the norms after so many steps, for each of 8 seeds."""
    law = GaussianPairs(split_variance(inputs, 1.0, dtype), jnp.ones(inputs, dtype))
    start = partial(fan_in, inputs=inputs, hidden=hidden, dtype=dtype)
    with jax.default_matmul_precision(precision):
        run = ut.descend(
            noiseless(law.mean_problem(two_layer_loss)), start, step_size=0.01, weight_decay=0.02, steps=steps, key=0,
            seeds=8, lane_width=8, observe={"norms": norms}, every=steps, progress=False,
        )  # fmt: skip
    return np.asarray(run.observed["norms"])[:, -1]


def main(**sizes: int) -> list[tuple[str, str, str]]:
    found = {}
    with jax.enable_x64(True):
        for way, (dtype, precision) in WAYS.items():
            found[way] = float(end(dtype, precision, **sizes).mean())
            print(f"  {way}: {found[way]:.5f}", flush=True)
    device = jax.devices()[0]
    if device.platform != "cpu" and not sizes:
        short = {way: round(1 - value, 5) for way, value in found.items()}
        save("precision_gpu", {"1 - |U|^2/|W|^2, to five digits": short, "kind": device.device_kind})
    return [(f"|U|^2/|W|^2, {way}", f"{value:.5f}", "1 is right") for way, value in found.items()]
