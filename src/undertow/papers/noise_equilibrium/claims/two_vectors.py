"""The product of two vectors, a solvable factorisation: the decay of its charge under SGD, and the signs at the end."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.problem import Problem
from undertow.trajectory import Trajectory
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Vectors:
    """SGD on a product of two vectors, from random pairs on the manifold of minima."""

    seeds: int
    """Number of starts at each setting."""
    neurons: int = 4
    """Number of entries of each vector."""
    samples: int = 200
    """Number of training samples."""
    step_size: float = 0.005
    """The smaller of two step sizes, at batches of one."""
    relaxations: float = 3.0
    """Length of the runs that measure the rates, in relaxation times."""
    long_relaxations: float = 12.0
    """Length of the runs whose final signs are compared, in relaxation times."""


def _vector_loss(p: PyTree, sample: PyTree) -> Array:
    x, y = sample
    return (p[0] @ p[1] * x - y) ** 2


def _itself(params: PyTree) -> PyTree:
    return params


def _size(p: PyTree) -> Array:
    """Return log |U'U - WW'|; all entries of this matrix decay by the same factor in every step."""
    return jnp.log(jnp.sum((jnp.outer(p[0], p[0]) - jnp.outer(p[1], p[1])) ** 2)) / 2


def _measure_vectors(parameters: Vectors, key: Key[Array, ""]) -> Measurement:
    """Measure the decay rate of the charge at two step sizes and two batch sizes, and the signs at the end."""
    k1, k2, k3 = jax.random.split(key, 3)
    x = jax.random.normal(k1, (parameters.samples,), jnp.float64)
    y = 0.5 * x + jax.random.normal(k2, (parameters.samples,), jnp.float64)
    slope = float(x @ y / (x @ x))
    variance = float(jnp.var((slope * x - y) * x))
    problem = Problem(_vector_loss, (x.astype(jnp.float32), y.astype(jnp.float32)))

    def start(k: Key[Array, ""]) -> PyTree:
        """Return random vectors, the second moved along the first until U W is the least-squares slope."""
        u, w = jax.random.normal(k, (2, parameters.neurons), jnp.float32)
        return u, w + (jnp.float32(slope) - u @ w) / (u @ u) * u

    def rate(eta: float, size: int, relaxations: float, k: Array) -> tuple[np.ndarray, Trajectory]:
        """Return the decay rate in units of 4 eta Var[rx], without the batch size, and the run."""
        unit = 4 * eta * variance
        run = descend(
            Minibatch(problem, size), start, step_size=eta, steps=round(relaxations * size / (unit * eta)), key=k,
            observe={"log": _size, "params": _itself}, seeds=parameters.seeds, lane_width=parameters.seeds,
            progress=False,
        )  # fmt: skip
        logs = run.observed["log"]
        return (logs[:, 0] - logs[:, -1]) / (run.time[-1] * unit), run

    eta, keys = parameters.step_size, jax.random.split(k3, 4)
    settings = [(eta, 1), (2 * eta, 1), (2 * eta, 4)]
    rates = [rate(e, s, parameters.relaxations, k)[0] for (e, s), k in zip(settings, keys, strict=False)]
    means = [f.mean() for f in rates]
    errors = [standard_error(f) for f in rates]
    long = rate(2 * eta, 1, parameters.long_relaxations, keys[3])[1]
    u, w = (leaf[:, -1] for leaf in long.observed["params"])
    alike = lambda signs: statistics.share(np.abs(np.sign(signs).sum(axis=1)) == parameters.neurons)
    chance = 2.0 ** (1 - parameters.neurons)
    (products, products_error), (signs, signs_error) = alike(u * w), alike(u)
    batches = means[1] / means[2]
    checks = (
        Check("decay rate / (4η/S Var[rx]), extrapolated to small steps", 2 * means[0] - means[1], 1.0,
              float(np.hypot(2 * errors[0], errors[1])), Within(0.02, 0.1), alternative=0.5),
        Check("decay rate at step size 2η / that at η", 2 * means[1] / means[0], 2.0,
              float(2 * means[1] / means[0] * np.hypot(errors[0] / means[0], errors[1] / means[1])), Within(0.15, 0.6),
              printed=1.0, alternative=1.0),
        Check("decay rate at batch size 1 / that at batch size 4", batches, 4.0,
              float(batches * np.hypot(errors[1] / means[1], errors[2] / means[2])), Within(0.3, 1.0), printed=1.0,
              alternative=1.0),
        Check("share of runs in which all U_k W_k end with the same sign", products, 1.0, products_error,
              Within(0.02, 0.2), alternative=chance, samples=math.inf),
        Check("share of runs in which all U_k end with the same sign", signs, chance, signs_error, Within(0.0, 0.3),
              printed=1.0, alternative=1.0, samples=math.inf),
    )  # fmt: skip
    data = xarray.Dataset(
        {"u": (("seed", "neuron"), u), "w": (("seed", "neuron"), w)},
        attrs={"rates": [float(m) for m in means], "errors": [float(e) for e in errors]},
    )
    return Measurement(checks, data, parameters.seeds, int(long.diverged.sum()))


def _draw_vectors(measurement: Measurement, parameters: Vectors) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    u, w = data.u.values.ravel(), data.w.values.ravel()
    reach = float(np.abs(np.concatenate([u, w])).max())
    for sign in (1, -1):
        style.theory(axes, [-reach, reach], [-sign * reach, sign * reach], "U = ±W'" if sign == 1 else "_")
    style.points(axes, style.some(u, 2000), style.some(w, 2000), None, "neurons at the end of SGD")
    axes.set(xlabel="entry U_k", ylabel="entry W_k")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="vectors-decay",
        paper="noise_equilibrium",
        place="Section 5.1, U a row and W a column",
        statement="WW' - U'U decays exponentially at the rate (4η/S) Var[rx], which falls with the batch size. The "
        "products U_k W_k end with the same sign, not the U_k.",
        equation="dC/dt = -(4η/S) Var[rx] C",
        alternative="The charge decays at half the rate, (2η/S) Var[rx].",
        scales={"smoke": Vectors(128), "default": Vectors(1024), "full": Vectors(8192)},
        measure=_measure_vectors,
        draw=_draw_vectors,
        accelerated=True,
    ),
)
