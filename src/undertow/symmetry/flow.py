"""The Noether flow: how fast noise, weight decay and a broken symmetry move a charge."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractSampled, Population
from undertow.symmetry import precision
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.powers import mean_gradient, powers, route

__all__ = ["Flow", "check_order", "noether_flow", "refuse_broken"]


class Flow(eqx.Module):
    """How a charge C moves at a point. Everything has the shape of the charge."""

    charge: Float[Array, "..."]
    """C = 1/2 params'A params."""
    rate: Float[Array, "..."]
    """dC/dt in continuous time, t = steps * eta (eta/(1 - beta) with momentum): -2 lambda C + eta/2 Tr[Sigma A]."""
    per_step: Float[Array, "..."] | None
    """The expected change in one step, exactly: it includes the mean gradient. None with momentum."""
    noise: Float[Array, "..."]
    """Tr[Sigma A], Sigma the covariance of one stochastic gradient."""
    gradient: Float[Array, "..."]
    """g'A g for the mean gradient g: what the continuous flow leaves out."""
    breaking: Float[Array, "..."]
    """-g'A params for the mean gradient g: zero for a true symmetry."""
    standard_error: Float[Array, "..."]
    """Of `rate`, where the noise is estimated from a draw of samples; else zero."""
    route: str = eqx.field(static=True)
    """How the noise was computed."""


def noether_flow(
    noise: AbstractNoise,
    params: PyTree,
    symmetry: AbstractSymmetry,
    *,
    step_size: Number,
    weight_decay: Number = 0.0,
    momentum: Number = 0.0,
    approximate: bool = False,
    key: KeyLike | None = None,
) -> Flow:
    """How SGD moves the charge of a symmetry at params, in expectation.

    In continuous time dC/dt = -2 lambda C + eta/2 Tr[Sigma A]; in one step, exactly,
    E dC = -eta lambda (2 - eta lambda) C + eta^2/2 (g'Ag + Tr[Sigma A]), g the mean gradient. A loss that has the
    symmetry only approximately is refused unless `approximate=True`; then both carry the term -g'A params.
    Half-precision params and data are computed with in float32.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> params = {"u": jnp.array(2.0), "w": jnp.array(0.5)}
    >>> flow = ut.noether_flow(ut.Minibatch(product, 1), params, balance, step_size=0.1)
    >>> print(f"C = {flow.charge}, moving at {flow.rate:.3f}")
    C = 1.875, moving at -0.750
    """
    check_order("noether_flow", params, "symmetry")
    _refuse(noise, symmetry, step_size, weight_decay)
    validate.finite_number("noether_flow", "momentum", momentum, below=1.0)
    noise, params = precision.widened((noise, params))
    if not approximate:
        refuse_broken("noether_flow", noise, params, symmetry, key)
    dtype = jnp.result_type(*jax.tree.leaves(params))
    numbers = (jnp.asarray(x, dtype) for x in (step_size, weight_decay, momentum))
    plain = isinstance(momentum, float | int) and momentum == 0
    fields = _flow(noise, params, symmetry, *numbers)
    per_step = fields.pop("per_step")
    return Flow(**fields, per_step=per_step if plain else None, route=route(noise, params, symmetry))


@eqx.filter_jit
def _flow(
    noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry, eta: Array, decay: Array, beta: Array
) -> dict[str, Array]:
    found = powers(noise, params, symmetry)
    mean = mean_gradient(noise, params)
    charge = symmetry.charge(params)
    along = jnp.subtract(*symmetry.pair(params, mean))
    square = jnp.subtract(*symmetry.pair(mean, mean))
    trace = found.plus - found.minus
    shrink = eta * decay
    return {
        "charge": charge,
        "rate": -along - 2 * decay * charge + eta / (1 - beta) / 2 * trace,
        "per_step": -2 * shrink * (1 - shrink / 2) * charge
        - (1 - shrink) * eta * along
        + eta**2 / 2 * (square + trace),
        "noise": trace,
        "gradient": square,
        "breaking": -along,
        "standard_error": eta / (1 - beta) / 2 * found.error,
    }


def _refuse(noise: Any, symmetry: Any, step_size: Any, weight_decay: Any) -> None:
    if not isinstance(noise, AbstractNoise):
        raise TypeError(f"got a {type(noise).__name__} where a noise is meant, such as `Minibatch(problem, 32)`.")
    if not isinstance(symmetry, AbstractSymmetry):
        raise TypeError(f"got a {type(symmetry).__name__} where a symmetry is meant, such as `Rescaling(...)`.")
    validate.finite_number("symmetry", "step_size", step_size)
    validate.finite_number("symmetry", "weight_decay", weight_decay)


def check_order(function: str, params: PyTree, name: str) -> None:
    """Raise where a symmetry is given in the place of params: `name` is the argument that holds symmetries."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, AbstractSymmetry))
    if any(isinstance(leaf, AbstractSymmetry) for leaf in leaves):
        raise TypeError(
            f"`{function}(noise, {name}, params, ...)`: a symmetry is in the place of `params`; the order is "
            f"`{function}(noise, params, {name}, ...)` now."
        )


def refuse_broken(
    function: str, noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry, key: KeyLike | None
) -> None:
    """Raises where the loss does not have the symmetry, and says by how much."""
    symmetry.refuse(params)
    problem = noise.problem
    leaves = jax.tree.leaves((params, problem))
    concrete = all(validate.concrete(leaf) for leaf in leaves if eqx.is_array(leaf))
    if not concrete or not isinstance(problem, AbstractSampled | Population):
        return
    found = symmetry.check(problem, params, 0 if key is None else key)
    if not found.holds:
        raise ValueError(
            f"`{function}`: the loss does not have the symmetry ({symmetry.describe(params)}): along the orbit it "
            f"changes by {found.loss:.1e} of itself, and gradients have a part {found.gradient:.1e} along it; "
            "`noether_flow(..., approximate=True)` gives the flow with the breaking term."
        )
