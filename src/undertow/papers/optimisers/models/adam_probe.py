"""Adam with label noise on the model u^2 - v^2, beside the slow motion that `Limit` predicts for it."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow.dynamics.descend import descend
from undertow.manifold.geometry import jacobian
from undertow.manifold.limit import Limit
from undertow.noise.base import second_moment
from undertow.noise.label import LabelNoise
from undertow.optimisers.adaptive import Adam
from undertow.papers.zero_loss.models.linear import LinearModel

__all__ = ["AdamProbe", "RunEnd", "draw_probe", "predict_adam", "run_adam"]


class RunEnd(NamedTuple):
    """The points of the manifold at which runs of Adam end, and tr diag(H)^(1/2) there."""

    points: np.ndarray
    traces: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The mean over seeds."""
        return self.points.mean(axis=0)

    @property
    def standard_error(self) -> float:
        """The standard error of the mean, as a distance."""
        return float(np.sqrt(np.sum(self.points.var(axis=0, ddof=1)) / len(self.points)))


class AdamProbe(NamedTuple):
    """A model with boolean inputs, its label noise with Sigma = 2 H, and a point of zero loss near u = v = 0.8."""

    model: LinearModel
    noise: LabelNoise
    start: PyTree

    def adam(self, b1: float, b2: float) -> Adam:
        """Return Adam without bias correction, whose v starts at E g^2."""
        return Adam(b1=b1, b2=b2, eps=1e-12, bias_correction=False)

    def trace(self, params: PyTree) -> Array:
        """Return tr diag(H)^(1/2), which is 2 (|u|_1 + |v|_1) for inputs of size 1."""
        return 2 * jnp.sum(jnp.abs(trees.ravel(params)))

    def least_curvature(self, params: PyTree) -> float:
        """Return the least curvature of S^(1/2) H S^(1/2) across the manifold, for v = E g^2."""
        return float(_least_curvature(self, params))


@eqx.filter_jit
def _least_curvature(probe: AdamProbe, params: PyTree) -> Array:
    rows = jacobian(probe.model.problem, params)
    gram = (rows / jnp.sqrt(trees.ravel(second_moment(probe.noise, params)))[None]) @ rows.T
    return jnp.linalg.eigvalsh(gram / probe.model.problem.size)[0]


def run_adam(
    probe: AdamProbe, b1: float, b2: float, step_size: float, slow_time: float, seeds: int, key: Key[Array, ""]
) -> RunEnd:
    """Run Adam, let each run coast to the end of its momentum, and end it by the flow -S grad L with its last S."""
    state = {"m": trees.zeros_like(probe.start), "v": second_moment(probe.noise, probe.start)}
    run = descend(
        probe.noise,
        probe.start,
        optimiser=probe.adam(b1, b2),
        optimiser_state=state,
        step_size=step_size,
        steps=round(slow_time / step_size**2),
        seeds=seeds,
        key=key,
    )
    ahead = jax.device_put(step_size * b1 / (1 - b1))
    return RunEnd(*map(np.asarray, _ends(probe, run.params, run.optimiser_state, ahead)))


@eqx.filter_jit
def _ends(probe: AdamProbe, params: PyTree, state: PyTree, ahead: Array) -> tuple[Array, Array]:
    """Return the points of the manifold at which runs end after they coast, and the traces there."""

    def end(p: PyTree, m: PyTree, v: PyTree) -> tuple[Array, Array]:
        metric = jax.tree.map(lambda v: 1 / jnp.sqrt(v), v)
        coasted = jax.tree.map(lambda p, s, m: p - ahead * s * m, p, metric, m)
        settled = probe.model.settle(coasted, metric=metric)
        return trees.ravel(settled), probe.trace(settled)

    return jax.vmap(end)(params, state["m"], state["v"])


def predict_adam(
    probe: AdamProbe, b1: float, b2: float, step_size: float, slow_time: float, corrections: bool | tuple[str, ...]
) -> np.ndarray:
    """Return the end of the limiting flow of Adam, flat."""
    path = Limit(probe.noise, optimiser=probe.adam(b1, b2)).solve(
        probe.start, slow_time=slow_time, step_size=step_size, corrections=corrections, num_saves=1, tolerance=1e-5
    )
    return np.concatenate(path.params)


def draw_probe(key: Key[Array, ""]) -> AdamProbe:
    """Return the probe with 10 equations for 2 * 20 parameters.

    >>> import jax
    >>> from undertow.papers.optimisers.models.adam_probe import draw_probe
    >>> probe = draw_probe(jax.random.key(0))
    >>> print(bool(probe.model.problem.loss(probe.start) < 1e-10))
    True
    """
    model = LinearModel.draw(key, d=20, n=10, sparsity=2, law="boolean", dtype=jnp.result_type(float))
    return AdamProbe(model, LabelNoise(model.problem, 2**0.5), model.settle(model.start(0.8)))
