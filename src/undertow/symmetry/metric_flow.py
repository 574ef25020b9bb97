"""The flow of charges under Adam and related optimisers: noise, decay and the change of the metric.

For diagonal generators the charge is C_S = 1/2 sum_i A_i theta_i^2/S_i, and in continuous time, t = steps * eta,

    dC_S/dt = -theta'A grad L + eta/2 sum_i A_i Sigma_ii S_i - 2 lambda C_S + metric + fluctuations

with S = 1/(sqrt(v) + eps). For other generators the charge is the plain one, which the metric changes at first order:

    dC/dt = -theta'A S grad L + eta/2 Tr[S Sigma S A] - 2 lambda C.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.noise.base import AbstractNoise
from undertow.optimisers.adaptive import AbstractAdaptive
from undertow.symmetry.fluctuations import LIMIT, Entries, Fluctuations, fluctuations, leading_entries
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.metric_charge import sides, signed_sum, square_sum
from undertow.symmetry.powers import form_error, mean_gradient
from undertow.symmetry.relaxation import metric_relaxation

__all__ = ["metric_flow", "plain_flow"]

Fields = dict[str, Array]
"""The fields of a `Flow`."""


@eqx.filter_jit
def metric_flow(
    noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry, eta: Array, optimiser: AbstractAdaptive, v: PyTree
) -> tuple[Fields, Fluctuations | None]:
    """Return the flow of C_S; v None is E g^2 at params, with the fluctuations across the manifold."""
    mean = mean_gradient(noise, params)
    unravel = jax.flatten_util.ravel_pytree(params)[1]
    second = jax.tree.map(lambda s, g: s + g**2, _variance(noise, params), mean)
    now = second if v is None else v
    lead = leading_entries(noise, params, optimiser, now)
    total = lambda entries: signed_sum(symmetry, unravel(entries))
    decay, b2 = (jnp.asarray(x, lead.noise.dtype) for x in (optimiser.weight_decay, optimiser.b2))
    metric = optimiser.metric({"v": now}, params)
    charge, power = total(lead.weight) / 2, total(lead.noise)
    along = signed_sum(symmetry, jax.tree.map(jnp.multiply, params, mean))
    drift = (1 - b2) / eta * total(_drift(params, now, second))
    rest, found = jnp.zeros_like(charge), None
    if v is None and trees.count(params) <= LIMIT:
        found = fluctuations(noise, params, optimiser, eta)
        drift = drift + total(found.entries.metric) / eta
        heavier = (1 - eta * decay / 2) * found.entries.weight - lead.weight
        rest = total(eta / 2 * (found.entries.noise - lead.noise) - decay * heavier)
    fields = {
        "charge": charge,
        "rate": -along - 2 * decay * charge + eta / 2 * power + drift + rest,
        "noise": power,
        "gradient": signed_sum(symmetry, jax.tree.map(lambda g, s: g**2 * s, mean, metric)),
        "breaking": -along,
        "standard_error": eta / 2 * form_error(noise, params, _power(symmetry, metric)),
        "relaxation_steps": _relaxation(symmetry, lead, trees.ravel(now), unravel, eta, optimiser),
        "metric": drift,
        "fluctuations": rest,
    }
    return fields, found


@eqx.filter_jit
def plain_flow(
    noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry, eta: Array, optimiser: AbstractAdaptive, v: PyTree
) -> Fields:
    """Return the flow of the plain charge of a generator that is not diagonal; v None is E g^2 at params."""
    mean = mean_gradient(noise, params)
    if v is None:
        v = jax.tree.map(lambda s, g: s + g**2, _variance(noise, params), mean)
    metric = optimiser.metric({"v": v}, params)
    scaled = lambda g: jax.tree.map(jnp.multiply, metric, g)
    form = lambda g: jnp.subtract(*symmetry.pair(scaled(g), scaled(g)))
    first = jnp.subtract(*symmetry.pair(params, scaled(mean)))
    first = (first + first.T) / 2 if first.ndim == 2 else first
    charge, power = symmetry.charge(params), noise.covariance(params).moment(form)
    decay = jnp.asarray(optimiser.weight_decay, charge.dtype)
    shape = charge.shape[:1] if charge.ndim == 2 else charge.shape
    return {
        "charge": charge,
        "rate": -first - 2 * decay * charge + eta / 2 * power,
        "noise": power,
        "gradient": form(mean),
        "breaking": -first,
        "standard_error": eta / 2 * form_error(noise, params, form),
        "relaxation_steps": jnp.full(shape, jnp.nan, charge.dtype),
        "metric": jnp.zeros_like(charge),
        "fluctuations": jnp.zeros_like(charge),
    }


def _variance(noise: AbstractNoise, params: PyTree) -> PyTree:
    return noise.covariance(params).moment(lambda g: jax.tree.map(jnp.square, g))


def _power(symmetry: AbstractSymmetry, metric: PyTree) -> Callable[[PyTree], Array]:
    return lambda g: signed_sum(symmetry, jax.tree.map(lambda x, s: s * x**2, g, metric))


def _drift(params: PyTree, v: PyTree, second: PyTree) -> Array:
    """Return 1/2 theta^2 d(1/S)/dt over (1 - b2)/eta for a state v that has not reached E g^2."""
    theta, v, second = (trees.ravel(tree) for tree in (params, v, second))
    live = v > 0
    return jnp.where(live, theta**2 * (second - v) / (4 * jnp.sqrt(jnp.where(live, v, 1))), 0)


def _relaxation(
    symmetry: AbstractSymmetry,
    lead: Entries,
    v: Array,
    unravel: Callable[[Array], PyTree],
    eta: Array,
    optimiser: AbstractAdaptive,
) -> Array:
    """Return the relaxation time at this point; infinite where the charge is pushed in one direction only."""
    root = jnp.sqrt(v)
    follows = root / jnp.where(v > 0, root + jnp.asarray(optimiser.eps, v.dtype), 1)
    squares = [
        square_sum(symmetry, unravel(x)) for x in (lead.noise, lead.weight, follows * lead.noise, follows * lead.weight)
    ]
    decay, b2 = (jnp.asarray(x, v.dtype) for x in (optimiser.weight_decay, optimiser.b2))
    times = metric_relaxation(*squares, eta, decay, 1 - b2)
    (up, down), (out, into) = (sides(symmetry, unravel(x)) for x in (lead.noise, lead.weight))
    return jnp.where((up + decay * into > 0) & (down + decay * out > 0), times, jnp.inf)
