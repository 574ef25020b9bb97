"""The experiment behind the claims on covariances: the draws of a noise have the covariance that it states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key, PyTree
from scipy import special

from undertow import _trees as trees
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.base import AbstractNoise
from undertow.papers.zero_loss.models.tanh_net import TanhNet
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import AtLevel, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Draws", "Rival", "covariance_claim"]

Rival = Callable[..., PyTree]
"""The covariance that an alternative states, as a function of noise, params and the vector it multiplies."""

RESOLUTION = 0.05
"""The relative deviation of the variances that a check must be able to detect."""
GROUPS = 50
"""Number of independent groups of draws. The standard error comes from the spread of the group means."""


@dataclass(frozen=True)
class Draws:
    """Draws of the stochastic gradient of a tanh network, and the directions along which its variance is measured."""

    draws: int
    """Number of stochastic gradients."""
    directions: int = 12
    """Number of random directions along which the variance is measured."""
    inputs: int = 5
    """Number of inputs of the tanh network."""
    hidden: int = 6
    """Number of hidden units."""
    samples: int = 12
    """Number of training samples."""


def covariance_claim(
    claim_id: str,
    paper: str,
    place: str,
    statement: str,
    equation: str,
    build: Callable[[TanhNet], dict[str, AbstractNoise]],
    alternative: str,
    rivals: dict[str, Rival],
) -> Claim:
    """Return the claim that the named noises have the covariance they state, on a tanh network away from zero loss.

    `rivals` gives the covariance under the alternative, for the noises that `alternative` is about.
    """

    def measure(parameters: Draws, key: Key[Array, ""]) -> Measurement:
        return _measure(build, rivals, parameters, key)

    return Claim(
        id=claim_id,
        paper=paper,
        place=place,
        statement=statement,
        equation=equation,
        scales={"smoke": Draws(40_000), "default": Draws(200_000), "full": Draws(2_000_000)},
        controls=True,
        measure=measure,
        draw=_draw,
        alternative=alternative,
    )


def _measure(
    build: Callable[[TanhNet], dict[str, AbstractNoise]],
    rivals: dict[str, Rival],
    parameters: Draws,
    key: Key[Array, ""],
) -> Measurement:
    net_key, direction_key, draw_key = jax.random.split(key, 3)
    net = TanhNet.draw(
        net_key, inputs=parameters.inputs, hidden=parameters.hidden, n=parameters.samples, dtype=jnp.float64
    )
    draw_direction = jax.jit(jax.vmap(lambda k: trees.standard_normal(k, net.params)))
    directions = draw_direction(jax.random.split(direction_key, parameters.directions))
    checks, variances = [], {}
    for name, noise in build(net).items():
        predicted, groups = _variances(noise, net.params, directions, parameters.draws, draw_key)
        ratios = groups / predicted
        total = ratios.mean(axis=1)
        rival = rivals.get(name)
        other = None if rival is None else np.asarray(_along(rival, noise, net.params, directions))
        # some alternatives change single directions but hardly their mean, which then cannot decide
        changed = None if other is None else float((other / predicted).mean())
        decides = changed is not None and abs(changed - 1) > RESOLUTION
        checks.append(
            Check(
                f"{name}: measured variance / predicted variance",
                float(total.mean()),
                1.0,
                float(standard_error(total)),
                Within(tolerance=0.0, resolution=RESOLUTION),
                alternative=changed if decides else None,
                samples=GROUPS,
            )
        )
        wrong = None if other is None else _p_value(groups, other)
        test = f"largest |t| of {parameters.directions} directions, Bonferroni"
        level = AtLevel(1e-4, test)
        checks.append(
            Check(
                f"{name}: p-value of the t-test of all variances",
                _p_value(groups, predicted),
                1.0,
                0.0,
                level,
                alternative=wrong,
            )
        )
        variances[name] = (predicted, groups.mean(0), standard_error(groups))
    names = list(variances)
    data = xarray.Dataset(
        {
            "predicted": (("noise", "direction"), np.stack([variances[n][0] for n in names])),
            "measured": (("noise", "direction"), np.stack([variances[n][1] for n in names])),
            "error": (("noise", "direction"), np.stack([variances[n][2] for n in names])),
        },
        attrs={"noises": names},
    )
    return Measurement(tuple(checks), data, seeds=parameters.draws)


def _p_value(groups: np.ndarray, predicted: np.ndarray) -> float:
    """Return the Bonferroni-corrected p-value of the largest deviation from the predicted variances."""
    z = (groups.mean(0) - predicted) / (standard_error(groups))
    return min(1.0, 2 * groups.shape[1] * float(special.stdtr(GROUPS - 1, -np.abs(z).max())))


@eqx.filter_jit
def _along(mv: Rival, noise: AbstractNoise, params: PyTree, directions: PyTree) -> Float[Array, " directions"]:
    """Return a'Σa for each direction a; `mv(noise, params, a)` is Σa."""
    return jax.vmap(lambda a: trees.dot(a, mv(noise, params, a)))(directions)


def _covariance_mv(noise: AbstractNoise, params: PyTree, vector: PyTree) -> PyTree:
    return noise.covariance(params).mv(vector)


def _variances(
    noise: AbstractNoise, params: PyTree, directions: PyTree, draws: int, key: Key[Array, ""]
) -> tuple[np.ndarray, np.ndarray]:
    """Return a'Σa for each direction a, and the mean of (a.(g - E g))^2 in each group of draws (groups, directions)."""
    predicted = np.asarray(_along(_covariance_mv, noise, params, directions))

    @eqx.filter_jit
    def group(noise: AbstractNoise, k: Key[Array, ""]) -> Array:
        mean = noise.mean(params)

        def one(j: Key[Array, ""]) -> Array:
            deviation = trees.subtract(noise.draw(j, params), mean)
            return jax.vmap(lambda a: trees.dot(a, deviation) ** 2)(directions)

        return jnp.mean(jax.vmap(one)(jax.random.split(k, draws // GROUPS)), axis=0)

    return predicted, np.stack([group(noise, k) for k in jax.random.split(key, GROUPS)])


def _draw(measurement: Measurement, parameters: Draws) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    for index, (name, colour) in enumerate(zip(data.attrs["noises"], style.COLOURS, strict=False)):
        row = data.isel(noise=index)
        style.points(axes, row.predicted, row.measured, row.error, name, colour)
    ends = [float(data.predicted.min()), float(data.predicted.max())]
    style.theory(axes, ends, ends, "theory")
    axes.set(xscale="log", yscale="log", xlabel="predicted variance a'Σa", ylabel="measured variance along a")
    axes.legend()
    return figure
