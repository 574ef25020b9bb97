"""The Noether flow: the rate at which noise, weight decay and a broken symmetry change a charge."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._table import ResultTable, indexed, number, shortened
from undertow._validate import KeyLike, Number
from undertow.figures import results
from undertow.noise.base import AbstractNoise
from undertow.optimisers.adaptive import AbstractAdaptive
from undertow.optimisers.base import AbstractOptimiser, squares_of
from undertow.optimisers.sgd import SGD
from undertow.optimisers.transformation import theory_optimiser
from undertow.problem import AbstractSampled, Population
from undertow.regime import Regime
from undertow.symmetry import precision
from undertow.symmetry.fluctuations import LIMIT
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.metric_flow import metric_flow, plain_flow
from undertow.symmetry.powers import mean_gradient, powers, route
from undertow.symmetry.recession import is_diagonal
from undertow.symmetry.relaxation import orbit_relaxation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Flow", "check_order", "check_symmetry", "known_optimiser", "noether_flow"]


class Flow(eqx.Module):
    """The change of a charge C at a point. All arrays but the relaxation times of a matrix have the charge's shape.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> params = {"u": jnp.array(2.0), "w": jnp.array(0.5)}
    >>> flow = ut.noether_flow(ut.Minibatch(product, 1), params, balance, step_size=0.1, weight_decay=0.04)
    >>> print(f"{flow.rate:.2f} per unit of time, {flow.per_step:.2f} per step, Tr[Sigma A] = {flow.noise:.0f}")
    -0.90 per unit of time, -0.09 per step, Tr[Sigma A] = -15
    """

    charge: Float[Array, "..."]
    """C = 1/2 params'A params; for a diagonal generator under Adam C_S = 1/2 sum_i A_i params_i^2/S_i."""
    rate: Float[Array, "..."]
    """dC/dt in continuous time, t = steps * eta (eta/(1 - beta) with momentum): -2 lambda C + eta/2 Tr[Sigma A]."""
    per_step: Float[Array, "..."] | None
    """The exact expected change in one step, which includes the mean gradient. None with momentum and under Adam."""
    noise: Float[Array, "..."]
    """Tr[Sigma A], Sigma the covariance of one stochastic gradient; in a metric Tr[Sigma S A], or Tr[S Sigma S A] for a
    generator that is not diagonal."""
    gradient: Float[Array, "..."]
    """g'A g for the mean gradient g, a term that the continuous flow omits; in a metric g'A S g, or g'S A S g."""
    breaking: Float[Array, "..."]
    """-g'A params for the mean gradient g: zero for a true symmetry. In a metric, a generator that is not diagonal has
    -g'S A params, which is not zero."""
    standard_error: Float[Array, "..."]
    """The standard error of `rate`, where the noise is estimated from a draw of samples; zero otherwise."""
    relaxation_steps: Float[Array, "..."]
    """The relaxation time: the number of steps in which the charge approaches its equilibrium by a factor e, linearised
    along the orbit at this point (see `noether_flow`). Infinite where noise and weight decay have no restoring force.
    A matrix of charges (`DoubleRotation`) has d times, the slowest first."""
    route: str = eqx.field(static=True)
    """The method by which the noise was computed."""
    metric: Float[Array, "..."] | None = None
    """The part of the rate that the change of the metric causes; None for SGD."""
    fluctuations: Float[Array, "..."] | None = None
    """The part of the rate from fluctuations across the manifold in the noise and the decay; None for SGD."""
    regime: Regime = eqx.field(static=True, default=Regime())
    """The small parameters under Adam; empty for SGD, and inside `jit`."""

    def _table(self) -> ResultTable:
        fields = [self.charge, self.rate, self.standard_error, self.noise, self.breaking]
        arrays = [np.asarray(values) for values in fields]
        rows = [(name, *(number(x[index]) for x in arrays)) for name, index in indexed("generator", arrays[0])]
        shown, notes = shortened(rows, "generators")
        header = ("", "charge", "rate", "standard error", "noise", "breaking")
        slowest = float(np.max(np.asarray(self.relaxation_steps)))
        if not np.isnan(slowest):
            notes = (*notes, f"relaxation time, at most: {slowest:.3g} steps")
        if self.regime.parameters:
            notes = (*notes, *self.regime.table().text().splitlines())
        return ResultTable(f"Noether flow, noise by {self.route}", header, shown, "lrrrrr", notes)

    def __str__(self) -> str:
        return self._table().text() if all(map(validate.concrete, jax.tree.leaves(self))) else repr(self)

    def _repr_html_(self) -> str:
        return self._table().html()

    def plot(self, *, label: str = "", ax: "Axes | None" = None) -> "Axes":
        """Draw the rate of every generator, with an interval of two standard errors, against its charge.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
        >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
        >>> params = {"u": jnp.array(2.0), "w": jnp.array(0.5)}
        >>> axes = ut.noether_flow(ut.Minibatch(product, 1), params, balance, step_size=0.1).plot()
        >>> print(axes.get_xlabel(), "|", axes.get_ylabel())
        charge | rate of the charge
        """
        axes = results.new_axes(ax)
        charge, rate, error = (np.ravel(np.asarray(x)) for x in (self.charge, self.rate, self.standard_error))
        results.draw_points(axes, charge, rate, 2 * np.stack([error, error]), label or "rate of the charge")
        axes.axhline(0.0, color="black", lw=0.8)
        results.label_axes(axes, "charge", "rate of the charge")
        return axes


@checked_call("noether_flow")
def noether_flow(
    noise: AbstractNoise,
    params: PyTree,
    symmetry: AbstractSymmetry,
    *,
    step_size: Number,
    weight_decay: Number = 0.0,
    momentum: Number = 0.0,
    optimiser: AbstractOptimiser | None = None,
    optimiser_state: PyTree = None,
    approximate: bool = False,
    key: KeyLike | None = None,
) -> Flow:
    """Return the expected change of the charge of a symmetry under SGD, or under another optimiser, at params.

    In continuous time dC/dt = -2 lambda C + eta/2 Tr[Sigma A]; in one step, exactly,
    E dC = -eta lambda (2 - eta lambda) C + eta^2/2 (g'Ag + Tr[Sigma A]), g the mean gradient. A loss that has the
    symmetry only approximately raises an error unless `approximate=True`; then the rate has the additional term
    -g'A params, and the change in one step has -eta (1 - eta lambda) g'A params. `key` draws random elements of the
    orbit for the test of the symmetry (None: a fixed key).

    `relaxation_steps` is 1/(eta (2 lambda + eta Tr[Sigma A^2]/params'A^2 params)), the slope of the flow along the
    orbit. The time is exact for a charge near its equilibrium. Far from it the slope differs: for a neuron it stays
    between eta (2 lambda + eta s_u/|w|^2) and eta (2 lambda + eta s_w/|u|^2) on the whole orbit.
    `equilibrium(...).relaxation_steps` has the times at the equilibrium. With momentum beta, eta is
    step_size/(1 - beta). The breaking term is left out. Half-precision params and data are converted to float32.

    With `optimiser=Adam(...)`, `AdamW` or `RMSProp` the charge of a diagonal generator is
    C_S = 1/2 sum_i A_i params_i^2/S_i with S = 1/(sqrt(v) + eps), and the rate is
    eta/2 Tr[Sigma S A] - 2 lambda C_S + `metric` + `fluctuations`. v is E g^2 at params, or that of
    `optimiser_state={"v": ...}`. The last two terms are computed for at most 500 parameters, for v = E g^2, and hold at
    a minimiser. A diagonal metric conserves no charge of other generators (`DoubleRotation`): their rate is that of
    the plain charge, with a term of first order in the gradient.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> params = {"u": jnp.array(2.0), "w": jnp.array(0.5)}
    >>> flow = ut.noether_flow(ut.Minibatch(product, 1), params, balance, step_size=0.1)
    >>> print(f"C = {flow.charge}, moving at {flow.rate:.3f}")
    C = 1.875, moving at -0.750
    >>> print(flow)
    Noether flow, noise by per-sample gradients
               charge   rate  standard error  noise  breaking
    generator   1.875  -0.75               0    -15         0
    relaxation time, at most: 25 steps
    >>> print(f"relaxes in {flow.relaxation_steps:.0f} steps")
    relaxes in 25 steps
    """
    check_order("noether_flow", params, "symmetry")
    _check_arguments(noise, symmetry, step_size, weight_decay)
    validate.params_of_floats("noether_flow", params)
    validate.finite_number("noether_flow", "momentum", momentum, below=1.0)
    approximate = validate.flag("noether_flow", "approximate", approximate)
    given = None if optimiser is None else known_optimiser("noether_flow", optimiser, momentum, weight_decay)
    if isinstance(given, SGD):
        momentum, weight_decay = 0.0 if given.momentum is None else given.momentum, given.weight_decay
    noise, params = precision.widened((noise, params))
    if not approximate:
        check_symmetry("noether_flow", noise, params, symmetry, key)
    dtype = jnp.result_type(*jax.tree.leaves(params))
    if isinstance(given, AbstractAdaptive):
        return _adaptive(noise, params, symmetry, jnp.asarray(step_size, dtype), given, optimiser_state)
    numbers = (jnp.asarray(x, dtype) for x in (step_size, weight_decay, momentum))
    plain = isinstance(momentum, float | int) and momentum == 0
    fields = _flow(noise, params, symmetry, *numbers)
    per_step = fields.pop("per_step")
    return Flow(**fields, per_step=per_step if plain else None, route=route(noise, params, symmetry), regime=Regime())


def known_optimiser(function: str, optimiser: object, momentum: Number, weight_decay: Number) -> SGD | AbstractAdaptive:
    """Return the optimiser of a function that knows SGD and optimisers with the metric of Adam."""
    given = theory_optimiser(function, optimiser, momentum, weight_decay)
    if not isinstance(given, SGD | AbstractAdaptive):
        raise TypeError(
            f"`{function}(optimiser={type(given).__name__}(...))`: the charges of this optimiser are not known; give "
            "`SGD`, `RMSProp`, `Adam` or `AdamW`."
        )
    return given


def _adaptive(
    noise: AbstractNoise,
    params: PyTree,
    symmetry: AbstractSymmetry,
    eta: Array,
    optimiser: AbstractAdaptive,
    state: PyTree,
) -> Flow:
    v = None if state is None else squares_of("noether_flow", "optimiser_state", state, params)
    ready = optimiser.prepared()
    if not is_diagonal(symmetry):
        fields = plain_flow(noise, params, symmetry, eta, ready, v)
        return Flow(**fields, per_step=None, route="covariance", regime=Regime())
    fields, found = metric_flow(noise, params, symmetry, eta, ready, v)
    regime = Regime(notes=() if trees.count(params) <= LIMIT else (f"More than {LIMIT} parameters: no fluctuations.",))
    if found is not None and validate.concrete(found.slowest):
        regime = optimiser.regime(float(eta), float(found.slowest))
    return Flow(**fields, per_step=None, route="covariance", regime=regime)


@eqx.filter_jit
def _flow(
    noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry, eta: Array, decay: Array, beta: Array
) -> dict[str, Array]:
    power = powers(noise, params, symmetry)
    mean = mean_gradient(noise, params)
    charge = symmetry.charge(params)
    along = jnp.subtract(*symmetry.pair(params, mean))
    square = jnp.subtract(*symmetry.pair(mean, mean))
    trace = power.plus - power.minus
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
        "standard_error": eta / (1 - beta) / 2 * power.error,
        "relaxation_steps": orbit_relaxation(symmetry, noise, params, power, eta / (1 - beta), decay),
    }


def _check_arguments(noise: object, symmetry: object, step_size: Number, weight_decay: Number) -> None:
    validate.instance("noether_flow", "noise", noise, AbstractNoise, "a noise, such as `Minibatch(problem, 32)`")
    validate.instance("noether_flow", "symmetry", symmetry, AbstractSymmetry, "a symmetry, such as `Rescaling(...)`")
    validate.finite_number("noether_flow", "step_size", step_size)
    validate.finite_number("noether_flow", "weight_decay", weight_decay)


def check_order(function: str, params: PyTree, name: str) -> None:
    """Raise where a symmetry is given in the place of params: `name` is the argument that holds symmetries."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, AbstractSymmetry))
    if any(isinstance(leaf, AbstractSymmetry) for leaf in leaves):
        raise TypeError(
            f"`{function}(noise, {name}, params, ...)`: a symmetry is in the place of `params`; the order is "
            f"`{function}(noise, params, {name}, ...)` now."
        )


def check_symmetry(
    function: str, noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry, key: KeyLike | None
) -> None:
    """Raise where the loss does not have the symmetry; the message contains the violation."""
    symmetry.check_params(params)
    key = validate.as_key(function, 0 if key is None else key)
    problem = noise.problem
    leaves = jax.tree.leaves((params, problem))
    concrete = all(validate.concrete(leaf) for leaf in leaves if eqx.is_array(leaf))
    if not concrete or not isinstance(problem, AbstractSampled | Population):
        return
    violation = symmetry.check(problem, params, key)
    if not violation.holds:
        raise ValueError(
            f"`{function}`: the loss does not have the symmetry ({symmetry.describe(params)}): along the orbit its "
            f"relative change is {violation.loss:.1e}, and the relative gradient along the orbit is "
            f"{violation.gradient:.1e}; `noether_flow(..., approximate=True)` gives the flow with the breaking term."
        )
