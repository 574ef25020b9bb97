"""Exponential symmetries: l(exp(amount A) params, z) = l(params, z) for a symmetric generator A, or a family of them.

Each knows its orbit and its charge C = 1/2 params'A params. A family (all neurons of a layer, GL(d) between two
factors) has an array of charges, one for each generator.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike
from undertow.problem import AbstractSampled, Population
from undertow.symmetry import precision, selection
from undertow.symmetry.selection import Pick

__all__ = [
    "AbstractDiagonal",
    "AbstractSymmetry",
    "DoubleRotation",
    "Exponential",
    "Rescaling",
    "Scaling",
    "Violation",
]

Pair = tuple[Array, Array]


class Violation(eqx.Module):
    """How far a loss is from having a symmetry: both numbers are relative, and zero to rounding if it has it."""

    loss: float
    """The largest change of a sample's loss along random elements of the orbit, over the mean loss here and nearby."""
    gradient: float
    """The largest |<grad l_i, A params>| over |grad l_i| |A params|."""
    tolerance: float
    """What rounding explains."""

    @property
    def holds(self) -> bool:
        """Whether the loss has the symmetry."""
        return self.loss <= self.tolerance and self.gradient <= self.tolerance

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "is broken"
        return f"the symmetry {verdict}: loss changes by {self.loss:.1e}, gradient along it {self.gradient:.1e}"


class AbstractSymmetry(eqx.Module):
    """A generator A, or a family of them, that leaves the loss of every sample as it is."""

    label: eqx.AbstractVar[str]

    @abstractmethod
    def pair(self, a: PyTree, b: PyTree) -> Pair:
        """The positive and the negative part of a'A b, in the shape of the charge."""

    @abstractmethod
    def orbit(self, params: PyTree, amount: Any) -> PyTree:
        """exp(amount A) params; for a family, `amount` has the shape of the charge (or is one number for all).

        An amount that is not finite, or so large that exp(amount A) overflows in the type of params, is refused; inside
        `jit`, where it cannot be looked at, the result is then not finite.
        """

    @abstractmethod
    def norm(self, vector: PyTree) -> Float[Array, ""]:
        """The length of the part of a vector that A acts on."""

    @abstractmethod
    def refuse(self, params: PyTree) -> None:
        """Raises where params do not fit the symmetry."""

    @abstractmethod
    def dimension(self, params: PyTree) -> int:
        """How many independent generators the family has."""

    @abstractmethod
    def describe(self, params: PyTree) -> str:
        """What it is, in words."""

    def charge(self, params: PyTree) -> Float[Array, "..."]:
        """C = 1/2 params'A params, which gradient flow conserves."""
        self.refuse(params)
        plus, minus = self.pair(params, params)
        return (plus - minus) / 2

    def change(
        self, params: PyTree, gradient: PyTree, *, step_size: Any, weight_decay: Any = 0.0, momentum: Any = 0.0
    ) -> Float[Array, "..."]:
        """What one step of SGD with this stochastic gradient changes the charge by, exactly.

        -eta lambda (2 - eta lambda) C + eta^2/2 g'Ag for theta+ = (1 - eta lambda) theta - eta g. Momentum mixes
        gradients of several points, for which there is no such identity.
        """
        if not (isinstance(momentum, float | int) and momentum == 0):
            raise ValueError(
                f"`change(momentum={momentum})`: the identity is for one step without momentum; `noether_flow` gives "
                "the continuous flow with momentum."
            )
        shrink = step_size * weight_decay
        plus, minus = self.pair(gradient, gradient)
        return -2 * shrink * (1 - shrink / 2) * self.charge(params) + step_size**2 / 2 * (plus - minus)

    def check(
        self, problem: AbstractSampled | Population, params: PyTree, key: KeyLike, samples: int = 64
    ) -> Violation:
        """Whether the loss of `problem` has this symmetry at params, by how much not."""
        self.refuse(params)
        key = validate.as_key("check", key)
        problem, params = precision.widened((problem, params))
        if isinstance(problem, Population):
            problem = problem.sample(jax.random.fold_in(key, 0), samples)
        few = _some(problem, jax.random.fold_in(key, 1), samples)
        loss, gradient = _violation(self, few, params, jax.random.fold_in(key, 2))
        return Violation(float(loss), float(gradient), precision.rounding(params) ** 0.5)


def _some(problem: AbstractSampled, key: Key[Array, ""], samples: int) -> Any:
    """At most `samples` samples of a problem."""
    if problem.size <= samples:
        return problem
    chosen = jax.random.choice(key, problem.size, (samples,), replace=False)
    few = eqx.tree_at(lambda p: p.data, problem, trees.take(problem.data, chosen))
    return eqx.tree_at(lambda p: p.weights, few, None, is_leaf=lambda x: x is None)


@eqx.filter_jit
def _violation(symmetry: AbstractSymmetry, problem: Any, params: PyTree, key: Array) -> Pair:
    before = problem.losses(params)
    shape = jax.eval_shape(symmetry.charge, params)
    drawn = 0.3 * jax.random.normal(key, (3, *shape.shape), before.dtype)
    amounts = (drawn + jnp.swapaxes(drawn, -1, -2)) / 2 if drawn.ndim == 3 else drawn
    after = jax.lax.map(lambda amount: problem.losses(symmetry.orbit(params, amount)), amounts)
    # off the orbit, by a tenth: what the loss could have changed by, where it is zero itself
    tenth = jax.tree.map(
        lambda p, z: p + 0.1 * jnp.sqrt(jnp.mean(p**2)) * z, params, trees.standard_normal(key, params)
    )
    scale = jnp.mean(jnp.abs(before)) + jnp.mean(jnp.abs(problem.losses(tenth)))
    change = jnp.max(jnp.abs(after - before[None])) / jnp.maximum(scale, 1e-30)

    def along(sample: PyTree) -> Array:
        gradient = problem.sample_gradient(params, sample)
        plus, minus = symmetry.pair(params, gradient)
        return jnp.max(jnp.abs(plus - minus)) / (symmetry.norm(params) * symmetry.norm(gradient) + 1e-30)

    return change, jnp.max(jax.lax.map(along, problem.data))


class AbstractDiagonal(AbstractSymmetry):
    """A family of commuting generators that are diagonal in the entries of params, with eigenvalues 1, -1 and 0."""

    @abstractmethod
    def sums(self, tree: PyTree) -> Pair:
        """The sums of a tree's entries where A is 1, and where it is -1."""

    @abstractmethod
    def logs(self, like: PyTree, amount: Any) -> PyTree:
        """amount A as a diagonal, like params."""

    def pair(self, a: PyTree, b: PyTree) -> Pair:
        return self.sums(jax.tree.map(jnp.multiply, a, b))

    def orbit(self, params: PyTree, amount: Any) -> PyTree:
        self.refuse(params)
        _refuse_amount(type(self).__name__, amount, params)
        return jax.tree.map(lambda p, log: p * jnp.exp(log), params, self.logs(params, amount))

    def norm(self, vector: PyTree) -> Float[Array, ""]:
        plus, minus = self.pair(vector, vector)
        return jnp.sqrt(jnp.sum(plus) + jnp.sum(minus))


class Rescaling(AbstractDiagonal):
    """Outgoing weights times exp(amount), incoming weights (and biases) times exp(-amount).

    ReLU, leaky ReLU and linear neurons have it. **Arguments:** `outgoing(params)` and `incoming(params)` pick entries
    of params, as for `equinox.tree_at`: leaves, or slices, transposes and tuples of them. With `neurons=True` there is
    one generator for each neuron: the last axis of what `outgoing` picks, and the first of what `incoming` picks.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> params = {"out": jnp.array([[1.0, 2.0]]), "in": jnp.array([[1.0], [1.0]]), "bias": jnp.array([0.0, 1.0])}
    >>> neurons = ut.Rescaling(lambda p: p["out"], lambda p: (p["in"], p["bias"]), neurons=True)
    >>> print(neurons.charge(params), neurons.orbit(params, jnp.log(jnp.array([1.0, 2.0])))["in"].ravel())
    [0. 1.] [1.  0.5]
    """

    outgoing: Pick
    incoming: Pick
    neurons: bool = eqx.field(static=True)
    label: str = eqx.field(static=True)

    def __init__(self, outgoing: Pick, incoming: Pick, neurons: bool = False, label: str = ""):
        for name, pick in (("outgoing", outgoing), ("incoming", incoming)):
            _refuse_no_pick("Rescaling", name, pick)
        self.outgoing = outgoing
        self.incoming = incoming
        self.neurons = neurons
        self.label = label

    def sums(self, tree: PyTree) -> Pair:
        return _sums(self.outgoing, tree, -1 if self.neurons else None), _sums(
            self.incoming, tree, 0 if self.neurons else None
        )

    def logs(self, like: PyTree, amount: Any) -> PyTree:
        amount = jnp.asarray(amount)
        first = lambda x: amount.reshape(amount.shape + (1,) * (x.ndim - amount.ndim))
        up = selection.scatter(self.outgoing, like, jax.tree.map(lambda x: amount, self.outgoing(like)))
        down = selection.scatter(self.incoming, like, jax.tree.map(first, self.incoming(like)))
        return trees.subtract(up, down)

    def refuse(self, params: PyTree) -> None:
        validate.params_of_floats("Rescaling", params)
        _refuse_overlap("Rescaling", params, outgoing=self.outgoing, incoming=self.incoming)
        if self.neurons:
            outs = [x.shape[-1] if x.ndim else None for x in selection.selected(self.outgoing, params)]
            ins = [x.shape[0] if x.ndim else None for x in selection.selected(self.incoming, params)]
            if len({*outs, *ins}) != 1 or None in (*outs, *ins):
                raise ValueError(
                    f"`Rescaling(neurons=True)`: the leaves do not multiply: the last axes of `outgoing` have {outs} "
                    f"neurons, the first axes of `incoming` {ins}; transpose in the function, such as "
                    "`lambda p: p['w'].T`."
                )

    def dimension(self, params: PyTree) -> int:
        return selection.selected(self.incoming, params)[0].shape[0] if self.neurons else 1

    def describe(self, params: PyTree) -> str:
        where = f"{selection.describe(self.incoming, params)} against {selection.describe(self.outgoing, params)}"
        return (
            self.label
            or (f"rescaling of {self.dimension(params)} neurons, " if self.neurons else "rescaling, ") + where
        )


class Scaling(AbstractDiagonal):
    """Params picked by `where`, times exp(amount): what batch, layer and weight normalisation leave invariant (A = I).

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> symmetry = ut.Scaling(lambda p: p["w"])
    >>> print(symmetry.charge({"w": jnp.array([3.0, 4.0]), "gain": jnp.array(2.0)}))
    12.5
    """

    where: Pick
    label: str = eqx.field(static=True)

    def __init__(self, where: Pick, label: str = ""):
        _refuse_no_pick("Scaling", "where", where)
        self.where = where
        self.label = label

    def sums(self, tree: PyTree) -> Pair:
        plus = _sums(self.where, tree, None)
        return plus, jnp.zeros_like(plus)

    def logs(self, like: PyTree, amount: Any) -> PyTree:
        return selection.scatter(self.where, like, jax.tree.map(lambda x: jnp.asarray(amount), self.where(like)))

    def refuse(self, params: PyTree) -> None:
        validate.params_of_floats("Scaling", params)
        _refuse_overlap("Scaling", params, where=self.where)

    def dimension(self, params: PyTree) -> int:
        return 1

    def describe(self, params: PyTree) -> str:
        return self.label or f"scaling of {selection.describe(self.where, params)}"


class DoubleRotation(AbstractSymmetry):
    """GL(d) between two factors: (U, W) -> (U P, P^-1 W), P = exp(amount), amount a symmetric d x d matrix.

    `left(params)` picks U, its last axis inside; `right(params)` picks W, its first axis inside. The charge is the
    matrix 1/2 (U'U - WW').

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> symmetry = ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"])
    >>> print(symmetry.charge({"U": jnp.eye(2), "W": 2 * jnp.eye(2)}))
    [[-1.5  0. ]
     [ 0.  -1.5]]
    """

    left: Pick
    right: Pick
    label: str = eqx.field(static=True)

    def __init__(self, left: Pick, right: Pick, label: str = ""):
        for name, pick in (("left", left), ("right", right)):
            _refuse_no_pick("DoubleRotation", name, pick)
        self.left = left
        self.right = right
        self.label = label

    def factors(self, params: PyTree) -> Pair:
        """U and W as matrices."""
        (u,), (w,) = selection.selected(self.left, params), selection.selected(self.right, params)
        return u.reshape(-1, u.shape[-1]), w.reshape(w.shape[0], -1)

    def replace(self, params: PyTree, u: Array, w: Array) -> PyTree:
        """params with other factors."""
        old_u, old_w = self.left(params), self.right(params)
        params = selection.replace(self.left, params, u.reshape(old_u.shape))
        return selection.replace(self.right, params, w.reshape(old_w.shape))

    def pair(self, a: PyTree, b: PyTree) -> Pair:
        (ua, wa), (ub, wb) = self.factors(a), self.factors(b)
        return ua.T @ ub, wb @ wa.T

    def orbit(self, params: PyTree, amount: Any) -> PyTree:
        self.refuse(params)
        u, w = self.factors(params)
        amount = jnp.asarray(amount, u.dtype)
        if amount.ndim == 0:
            amount = amount * jnp.eye(u.shape[1], dtype=u.dtype)
        _refuse_amount("DoubleRotation", amount, params)
        values, vectors = jnp.linalg.eigh((amount + amount.T) / 2)
        there = (vectors * jnp.exp(values)[None]) @ vectors.T
        back = (vectors * jnp.exp(-values)[None]) @ vectors.T
        return self.replace(params, u @ there, back @ w)

    def norm(self, vector: PyTree) -> Float[Array, ""]:
        u, w = self.factors(vector)
        return jnp.sqrt(jnp.sum(u**2) + jnp.sum(w**2))

    def refuse(self, params: PyTree) -> None:
        validate.params_of_floats("DoubleRotation", params)
        left, right = (selection.selected(pick, params) for pick in (self.left, self.right))
        if len(left) != 1 or len(right) != 1:
            raise ValueError("`DoubleRotation`: `left` and `right` pick one array each.")
        u, w = left[0].shape, right[0].shape
        if not u or not w or u[-1] != w[0]:
            raise ValueError(
                f"`DoubleRotation`: the leaves do not multiply: `left` has shape {u}, `right` {w}; the last axis of "
                "`left` must be the first of `right`: transpose in the function, such as `lambda p: p['w'].T`."
            )
        _refuse_overlap("DoubleRotation", params, left=self.left, right=self.right)

    def dimension(self, params: PyTree) -> int:
        width = selection.selected(self.left, params)[0].shape[-1]
        return width * (width + 1) // 2

    def describe(self, params: PyTree) -> str:
        width = selection.selected(self.left, params)[0].shape[-1]
        names = f"{selection.describe(self.left, params)} and {selection.describe(self.right, params)}"
        return self.label or f"GL({width}) between {names}"


class Exponential(AbstractSymmetry):
    """Any symmetric generator A: a function v -> A v of vectors like params, or its diagonal as a pytree like params.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> swap = ut.Exponential(lambda v: v[::-1])
    >>> print(swap.charge(jnp.array([2.0, 3.0])), swap.orbit(jnp.array([1.0, 0.0]), 1.0).round(4))
    6.0 [1.5431 1.1752]
    """

    generator: Callable[[PyTree], PyTree] | PyTree
    label: str = eqx.field(static=True)

    def __init__(self, generator: Callable[[PyTree], PyTree] | PyTree, label: str = ""):
        self.generator = generator
        self.label = label

    def apply(self, vector: PyTree) -> PyTree:
        """A v."""
        if callable(self.generator):
            return self.generator(vector)
        return jax.tree.map(jnp.multiply, self.generator, vector)

    def pair(self, a: PyTree, b: PyTree) -> Pair:
        value = trees.dot(a, self.apply(b))
        return value, jnp.zeros_like(value)

    def orbit(self, params: PyTree, amount: Any) -> PyTree:
        self.refuse(params)
        leaves = [leaf for leaf in jax.tree.leaves((params, self.generator)) if eqx.is_array(leaf)]
        size = float(_largest(self, params)) if all(map(validate.concrete, leaves)) else 0.0
        _refuse_amount("Exponential", amount, params, size)
        if not callable(self.generator):
            return jax.tree.map(lambda a, p: p * jnp.exp(amount * jnp.asarray(a, p.dtype)), self.generator, params)
        return _exponential(self, params, jnp.asarray(amount, jax.tree.leaves(params)[0].dtype))

    def norm(self, vector: PyTree) -> Float[Array, ""]:
        image = self.apply(vector)
        return jnp.sqrt(trees.dot(image, image))

    def refuse(self, params: PyTree) -> None:
        validate.params_of_floats("Exponential", params)
        shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
        try:
            image = jax.eval_shape(self.apply, params)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"`Exponential(generator)`: the generator does not act on vectors like params: {error}"
            ) from None
        if shapes(image) != shapes(params):
            raise ValueError("`Exponential(generator)`: the generator must return a vector like params.")
        if all(validate.concrete(leaf) for leaf in jax.tree.leaves((params, self.generator)) if eqx.is_array(leaf)):
            gap = float(_asymmetry(self, params))
            if not gap < 1e-3:
                raise ValueError(
                    f"`Exponential(generator)`: the generator is not symmetric (x'Ay and y'Ax differ by {gap:.1e}, "
                    "relatively); a rotation, say, conserves no quadratic charge."
                )

    def dimension(self, params: PyTree) -> int:
        return 1

    def describe(self, params: PyTree) -> str:
        return self.label or "a generator of no known kind"


@eqx.filter_jit
def _asymmetry(symmetry: Exponential, params: PyTree) -> Array:
    x, y = (trees.standard_normal(jax.random.key(k), params) for k in (0, 1))
    one, two = symmetry.apply(x), symmetry.apply(y)
    scale = jnp.sqrt(trees.dot(one, one) * trees.dot(y, y)) + 1e-30
    return jnp.abs(trees.dot(x, two) - trees.dot(y, one)) / scale


@eqx.filter_jit
def _largest(symmetry: Exponential, params: PyTree) -> Array:
    """The largest eigenvalue of A in absolute value, by power iteration (from below)."""
    probe = trees.standard_normal(jax.random.key(0), params)

    def power(v: PyTree, _: None) -> tuple[PyTree, Array]:
        image = symmetry.apply(v)
        size = jnp.sqrt(trees.dot(image, image))
        return trees.scale(1 / jnp.maximum(size, 1e-30), image), size

    start = trees.scale(1 / jnp.sqrt(trees.dot(probe, probe)), probe)
    return jnp.max(jax.lax.scan(power, start, None, 20)[1])


def _exponential(symmetry: Exponential, vector: PyTree, amount: Array) -> PyTree:
    """exp(amount A) v by Taylor series of 18 terms, in steps with |amount A| <= 1; NaN where it overflows."""
    length = jnp.abs(amount) * _largest(symmetry, vector)
    within = length <= _reach(vector)  # false for NaN
    count = jnp.ceil(2 * jnp.where(within, length, 0)) + 1  # twice: the power iteration finds the norm from below

    def step(_: Any, v: PyTree) -> PyTree:
        def term(carry: tuple[PyTree, PyTree], k: Array) -> tuple[tuple[PyTree, PyTree], None]:
            total, last = carry
            last = trees.scale(amount / (count * k), symmetry.apply(last))
            return (trees.add(total, last), last), None

        return jax.lax.scan(term, (v, v), jnp.arange(1.0, 19.0, dtype=amount.dtype))[0][0]

    moved = jax.lax.fori_loop(0, count.astype(int), step, vector)
    return jax.tree.map(lambda x: jnp.where(within, x, jnp.nan), moved)


def _reach(params: PyTree) -> float:
    """The largest x for which exp(x) is finite in the types of all leaves."""
    return min(float(np.log(float(jnp.finfo(leaf.dtype).max))) for leaf in jax.tree.leaves(params))


def _refuse_amount(function: str, amount: Any, params: PyTree, size: float = 1.0) -> None:
    """Raises where an amount is not finite or exp(amount A) overflows, A having eigenvalues up to `size`."""
    if not validate.concrete(amount):
        return
    values = np.asarray(amount, np.float64)
    call = f"`{function}.orbit(params, amount)`"
    if not np.isfinite(values).all():
        raise ValueError(f"{call}: `amount` is {values.ravel()[~np.isfinite(values.ravel())][0]}; give finite numbers.")
    largest = float(np.linalg.norm(values, 2) if values.ndim == 2 else np.abs(values).max(initial=0))
    if largest * size > _reach(params):
        raise ValueError(
            f"{call}: with `amount` {largest:.3g} exp(amount A) overflows; give amounts between "
            f"-{_reach(params) / size:.3g} and {_reach(params) / size:.3g}."
        )


def _sums(pick: Pick, tree: PyTree, keep: int | None) -> Array:
    """The sum of the picked entries, in all or for each index of one axis."""

    def one(x: Array) -> Array:
        if keep is None:
            return jnp.sum(x)
        return jnp.sum(x, axis=tuple(k for k in range(x.ndim) if k != keep % x.ndim))

    parts = [one(x) for x in selection.selected(pick, tree)]
    return sum(parts[1:], parts[0])


def _refuse_no_pick(function: str, name: str, pick: Any) -> None:
    if not callable(pick):
        raise TypeError(
            f"`{function}({name}=...)`: a {type(pick).__name__}; give a function that picks entries of params, such as "
            '`lambda p: p["w"]`.'
        )


def _refuse_overlap(function: str, params: PyTree, **picks: Pick) -> None:
    """Raises where a pick takes no entries of params, or one entry twice."""
    taken = []
    for name, pick in picks.items():
        found = selection.entries(pick, params)
        if not found or any(not np.issubdtype(x.dtype, np.integer) for x in found):
            raise ValueError(f"`{function}({name}=...)` must pick entries of params as they are.")
        taken += [x.ravel() for x in found]
    if np.bincount(np.concatenate(taken)).max() > 1:
        raise ValueError(f"`{function}`: an entry of params is picked twice, by {' and '.join(picks)}.")
