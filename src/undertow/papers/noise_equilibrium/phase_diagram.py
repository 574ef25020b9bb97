"""Phase diagram of the stability of SGD from an unbalanced start, unchanged and moved to its noise equilibrium.

A two-layer linear network |UWx - y|^2 on fresh data y = x + eps; at the start U is multiplied and W divided by
`imbalance`.

Theory, for the linear motion of the residual A = UW - 1 at the start: A+ = A - 2 eta (UU'A X + A X W'W) with the second
moment X of a batch of S inputs, E X^2 = 1 + (n + 1)/S. The mean square of A shrinks while
eta (|U|^2 + |W|^2) (1 + (n + 1)/S) < 1, with spectral norms. Beyond it the loss rises at first and the layers shrink:
half of the runs still stay finite at about 2.3 times that step size from an unbalanced start, and at 1.3 times from
the equilibrium (measured), as in the catapult phase of gradient descent (Lewkowycz et al. 2020).
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from undertow._validate import Number
from undertow.dynamics.traced import run_traced
from undertow.execution.sweeps.diagram import Diagram, Grid, fixed, means
from undertow.figures import heatmap, style
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, fan_in, two_layer_loss
from undertow.symmetry.closed_forms import rotation

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DIAGRAM", "run"]

INPUTS, BATCH = 10, 10


def run(
    key: Key[Array, ""],
    *,
    step_size: Number,
    imbalance: Number,
    inputs: int = INPUTS,
    hidden: int = 20,
    batch: int = BATCH,
    steps: int = 1000,
) -> dict[str, Array]:
    """Return whether SGD stays finite, and the stiffness, from the start and from its noise equilibrium.

    `finite` is 1 if the run stays finite. `stiffness` is |U|^2 + |W|^2 of the start, in spectral norms.

    >>> import jax
    >>> from undertow.papers.noise_equilibrium import phase_diagram as stability
    >>> end = jax.jit(stability.run)(jax.random.key(0), step_size=0.02, imbalance=8.0)
    >>> print(end["finite"], end["finite_teleported"])
    0.0 1.0
    """
    first, rest = jax.random.split(key)
    dtype = jnp.result_type(float)
    start = fan_in(first, inputs=inputs, hidden=hidden, dtype=dtype)
    factor = jnp.asarray(imbalance, dtype)
    start = {"U": start["U"] * factor, "W": start["W"] / factor}
    law = GaussianPairs(jnp.ones(inputs, dtype), jnp.ones(inputs, dtype))
    of_inputs, of_residuals = law.gammas(start["U"] @ start["W"])
    u, w = start["U"], start["W"]
    # without weight decay the step size does not matter
    moved = rotation(u, w, w @ of_inputs @ w.T, u.T @ of_residuals @ u, 1.0, 0.0)
    results = {}
    for suffix, params in (("", start), ("_teleported", {"U": moved.left, "W": moved.right})):
        single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
        results[f"finite{suffix}"] = _finite(single, jnp.asarray(step_size, jnp.float32), rest, batch, steps)
        results[f"stiffness{suffix}"] = sum(jnp.linalg.norm(layer, ord=2) ** 2 for layer in params.values())
    return results


def _finite(params: dict[str, Array], step_size: Array, key: Array, batch: int, steps: int) -> Array:
    inputs = params["U"].shape[0]
    ones = jnp.ones(inputs, jnp.float32)
    noise = Minibatch(GaussianPairs(ones, ones).population(two_layer_loss), batch)
    end = run_traced(noise, params, step_size=step_size, steps=steps, key=key)
    return (~end.diverged).astype(jnp.float32)


def _axes(points: int) -> Grid:
    return {"step_size": {"log": [0.002, 0.5, points]}, "imbalance": {"log": [1.0, 10.0, points]}}


def _draw(data: "xarray.Dataset") -> "Figure":
    figure, panels = style.new_figure(2, width=5.4, height=4.2)
    shrink = 1 + (fixed(data, "inputs", INPUTS) + 1) / fixed(data, "batch", BATCH)
    for axes, suffix, title in zip(panels, ("", "_teleported"), ("as started", "at noise equilibrium"), strict=True):
        shown = means(data, f"finite{suffix}", "step_size", "imbalance")
        heatmap.heat_map(
            axes, shown.step_size, shown.imbalance, shown, "share of runs that stay finite", limits=(0.0, 1.0)
        )
        stiff = means(data, f"stiffness{suffix}", "step_size", "imbalance").mean("step_size")
        here = np.isfinite(stiff.values)
        limit = 1 / (shrink * stiff.values[here])
        heatmap.boundary(axes, limit, stiff.imbalance.values[here], "predicted: mean-square residual grows beyond")
        axes.set(xlabel="step size η", ylabel="imbalance of the start", title=title)
        axes.legend(loc="upper right", frameon=True, framealpha=0.85)
    return figure


DIAGRAM = Diagram("stability", run, _axes, points=16, seeds=20, shown=("step_size", "imbalance"), draw=_draw)
