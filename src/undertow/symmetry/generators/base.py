"""The interface of exponential symmetries, and the test whether a loss has one.

A symmetry is a symmetric generator A, or a family of generators, with l(exp(amount A) params, z) = l(params, z). A
symmetry computes its orbit and its charge C = 1/2 params'A params. A family (all neurons of a layer, GL(d) between two
factors) has an array of charges, one for each generator.
"""

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._table import ResultTable
from undertow._validate import KeyLike, Number
from undertow.figures import results
from undertow.problem import AbstractSampled, Population
from undertow.symmetry import precision
from undertow.symmetry.generators._checks import check_amount, check_shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AbstractDiagonal", "AbstractSymmetry", "Pair", "Violation"]

Pair = tuple[Array, Array]


class Violation(eqx.Module):
    """The violation of a symmetry by a loss. Both numbers are relative, and zero to rounding for a true symmetry.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> product = ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> violation = ut.Scaling(lambda p: p).check(product, jnp.array([1.0, 2.0]), key=0)
    >>> print(violation.holds, round(violation.gradient, 3))
    False 0.8
    """

    loss: float
    """The largest change of a sample's loss along random elements of the orbit, over the mean loss here and nearby."""
    gradient: float
    """The largest |<grad l_i, A params>| over |grad l_i| |A params|."""
    tolerance: float
    """The violation that rounding explains."""

    @property
    def holds(self) -> bool:
        """Whether the loss has the symmetry."""
        return self.loss <= self.tolerance and self.gradient <= self.tolerance

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "is broken"
        return f"the symmetry {verdict}: loss changes by {self.loss:.1e}, gradient along it {self.gradient:.1e}"


class AbstractSymmetry(eqx.Module):
    """A generator A, or a family of generators, under which the loss of every sample is invariant.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.generators import AbstractSymmetry
    >>> class Boost(AbstractSymmetry):  # A = [[0, 1], [1, 0]], under which x^2 - y^2 is invariant
    ...     label: str = ""
    ...     def pair(self, a, b):
    ...         return (a[0] + a[1]) * (b[0] + b[1]) / 2, (a[0] - a[1]) * (b[0] - b[1]) / 2
    ...     def orbit(self, params, amount):
    ...         return jnp.cosh(amount) * params + jnp.sinh(amount) * params[::-1]
    ...     def norm(self, vector): return jnp.linalg.norm(vector)
    ...     def check_params(self, params): assert params.shape == (2,)
    ...     def dimension(self, params): return 1
    ...     def describe(self, params): return "boost"
    >>> problem = ut.Problem(lambda p, z: (p[0] ** 2 - p[1] ** 2 - z) ** 2, jnp.array([0.0, 2.0]))
    >>> params = jnp.array([2.0, 1.0])
    >>> print(Boost().charge(params), Boost().check(problem, params, key=0).holds)
    2.0 True
    """

    label: eqx.AbstractVar[str]

    @abstractmethod
    def pair(self, a: PyTree, b: PyTree) -> Pair:
        """Return the positive and the negative part of a'A b, in the shape of the charge."""

    @abstractmethod
    def orbit(self, params: PyTree, amount: ArrayLike) -> PyTree:
        """Return exp(amount A) params; for a family, `amount` has the shape of the charge (or is one number for all).

        An amount that is not finite, or so large that exp(amount A) overflows in the type of params, raises an error.
        Inside `jit`, where its value is not known, the result is then not finite.
        """

    @abstractmethod
    def norm(self, vector: PyTree) -> Float[Array, ""]:
        """Return the length of the part of a vector that A acts on."""

    @abstractmethod
    def check_params(self, params: PyTree) -> None:
        """Raise an error where params do not fit the symmetry."""

    @abstractmethod
    def dimension(self, params: PyTree) -> int:
        """Return the number of independent generators of the family."""

    @abstractmethod
    def describe(self, params: PyTree) -> str:
        """Return a description of the symmetry in words."""

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> ResultTable:
        kind = type(self).__name__
        lines = (type(self).__doc__ or "").strip().splitlines()
        return ResultTable(f"{kind}: {self.label}" if self.label else kind, notes=tuple(lines[:1]))

    def plot(self, params: PyTree, *, ax: "Axes | None" = None) -> "Axes":
        """Draw the charge of every generator at params.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> params = {"out": jnp.ones((1, 3)), "in": jnp.array([[1.0], [2.0], [3.0]])}
        >>> axes = ut.Rescaling(lambda p: p["out"], lambda p: p["in"], neurons=True).plot(params)
        >>> print(axes.get_lines()[0].get_ydata())
        [ 0.  -1.5 -4. ]
        """
        axes = results.new_axes(ax)
        results.draw_groups(axes, {self.describe(params): self.charge(params)})
        results.label_axes(axes, "generator", "charge")
        return axes

    def charge(self, params: PyTree) -> Float[Array, "..."]:
        """Return C = 1/2 params'A params, which gradient flow conserves."""
        self.check_params(params)
        plus, minus = self.pair(params, params)
        return (plus - minus) / 2

    def change(
        self,
        params: PyTree,
        gradient: PyTree,
        *,
        step_size: float | int | Array,
        weight_decay: float | int | Array = 0.0,
        momentum: Number = 0.0,
    ) -> Float[Array, "..."]:
        """Return the exact change of the charge in one step of SGD with this stochastic gradient.

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
        """Return by how much the loss of `problem` violates this symmetry at params, on at most `samples` samples."""
        self.check_params(params)
        key = validate.as_key("check", key)
        problem, params = precision.widened((problem, params))
        if isinstance(problem, Population):
            problem = problem.sample(jax.random.fold_in(key, 0), samples)
        subset = _subset(problem, jax.random.fold_in(key, 1), samples)
        loss, gradient = _violation(self, subset, params, jax.random.fold_in(key, 2))
        return Violation(float(loss), float(gradient), trees.machine_epsilon(params) ** 0.5)


def _subset(problem: AbstractSampled, key: Key[Array, ""], samples: int) -> AbstractSampled:
    """Return the problem with at most `samples` of its samples."""
    if problem.size <= samples:
        return problem
    subset = eqx.tree_at(lambda p: p.data, problem, _chosen(problem.data, key, problem.size, samples))
    return eqx.tree_at(lambda p: p.weights, subset, None, is_leaf=lambda x: x is None)


@partial(jax.jit, static_argnums=(2, 3))
def _chosen(data: PyTree, key: Key[Array, ""], size: int, samples: int) -> PyTree:
    return trees.take(data, jax.random.choice(key, size, (samples,), replace=False))


@eqx.filter_jit
def _violation(symmetry: AbstractSymmetry, problem: AbstractSampled, params: PyTree, key: Array) -> Pair:
    before = problem.losses(params)
    shape = jax.eval_shape(symmetry.charge, params)
    drawn = 0.3 * jax.random.normal(key, (3, *shape.shape), before.dtype)
    amounts = (drawn + jnp.swapaxes(drawn, -1, -2)) / 2 if drawn.ndim == 3 else drawn
    after = jax.lax.map(lambda amount: problem.losses(symmetry.orbit(params, amount)), amounts)
    # the loss at a point a tenth off the orbit sets the scale where the loss itself is zero
    nearby = jax.tree.map(
        lambda p, z: p + 0.1 * jnp.sqrt(jnp.mean(p**2)) * z, params, trees.standard_normal(key, params)
    )
    scale = jnp.mean(jnp.abs(before)) + jnp.mean(jnp.abs(problem.losses(nearby)))
    change = jnp.max(jnp.abs(after - before[None])) / jnp.maximum(scale, 1e-30)

    def along(sample: PyTree) -> Array:
        gradient = problem.sample_gradient(params, sample)
        plus, minus = symmetry.pair(params, gradient)
        return jnp.max(jnp.abs(plus - minus)) / (symmetry.norm(params) * symmetry.norm(gradient) + 1e-30)

    return change, jnp.max(jax.lax.map(along, problem.data))


class AbstractDiagonal(AbstractSymmetry):
    """A family of commuting generators that are diagonal in the entries of params, with eigenvalues 1, -1 and 0.

    >>> import jax.numpy as jnp
    >>> from undertow.symmetry.generators import AbstractDiagonal
    >>> class FirstAgainstSecond(AbstractDiagonal):  # A = diag(1, -1, 0)
    ...     label: str = ""
    ...     def sums(self, tree): return tree[0], tree[1]
    ...     def logs(self, like, amount): return amount * jnp.array([1.0, -1.0, 0.0])
    ...     def check_params(self, params): assert params.shape == (3,)
    ...     def dimension(self, params): return 1
    ...     def describe(self, params): return "first against second"
    >>> params = jnp.array([2.0, 1.0, 5.0])
    >>> print(FirstAgainstSecond().charge(params), FirstAgainstSecond().orbit(params, jnp.log(2.0)).round(3))
    1.5 [4.  0.5 5. ]
    """

    @abstractmethod
    def sums(self, tree: PyTree) -> Pair:
        """Return the sums of a tree's entries where A is 1, and where it is -1."""

    @abstractmethod
    def logs(self, like: PyTree, amount: ArrayLike) -> PyTree:
        """Return the diagonal of amount A, like params."""

    def pair(self, a: PyTree, b: PyTree) -> Pair:
        return self.sums(jax.tree.map(jnp.multiply, a, b))

    def orbit(self, params: PyTree, amount: ArrayLike) -> PyTree:
        self.check_params(params)
        check_shape(type(self).__name__, amount, jax.eval_shape(self.sums, params)[0].shape)
        check_amount(type(self).__name__, amount, params)
        return jax.tree.map(lambda p, log: p * jnp.exp(log), params, self.logs(params, amount))

    def norm(self, vector: PyTree) -> Float[Array, ""]:
        plus, minus = self.pair(vector, vector)
        return jnp.sqrt(jnp.sum(plus) + jnp.sum(minus))
