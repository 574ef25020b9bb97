"""What noise is, to the theory: the covariance Sigma of one stochastic gradient, as an operator on vectors.

Every type answers the same questions and none of them ever forms a D x D matrix:

    mv(v)            Sigma v
    white()          the shapes of the standard normals z a draw consumes
    root(z)          Sigma^(1/2) z: any square root, root(z) ~ N(0, Sigma)
    gaussian(key)    a draw of N(0, Sigma)
    trace(A)         Tr[Sigma A], exactly
    moment(form)     E form(x), x ~ N(0, Sigma), for quadratic forms: many traces at once
    factor()         B with Sigma = B B', explicit
    split(project)   the tangent, normal and mixed parts under a projector

The theory dispatches on the concrete type, and is linear in `Sum`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow import _validate as validate
from undertow.estimate import Estimate
from undertow.problem import AbstractSampled, Regression

__all__ = [
    "AbstractCovariance",
    "Factored",
    "LabelCovariance",
    "Operator",
    "Projected",
    "SampleCovariance",
    "ScaledIdentity",
    "Split",
    "Sum",
]

Linear = Callable[[PyTree], PyTree]
Scalar = Float[Array, ""]


class Split(NamedTuple):
    """A covariance seen from a manifold: P Sigma P, Q Sigma Q (both covariances) and the operator Q Sigma P."""

    tangent: "Projected"
    normal: "Projected"
    mixed: Linear


class AbstractCovariance(eqx.Module):
    """The covariance of one stochastic gradient."""

    @abstractmethod
    def mv(self, vector: PyTree) -> PyTree:
        """Sigma v."""

    @abstractmethod
    def white(self) -> PyTree:
        """The shapes (`jax.ShapeDtypeStruct`s) of the standard normals that `root` takes."""

    @abstractmethod
    def root(self, white: PyTree) -> PyTree:
        """Sigma^(1/2) z for standard normals z shaped like `white()`."""

    @abstractmethod
    def moment(self, form: Linear) -> PyTree:
        """E form(x) for x ~ N(0, Sigma), exactly: `form` is quadratic, from vectors to any pytree of arrays."""

    @abstractmethod
    def trace(self, matrix: Linear | None = None) -> Scalar:
        """Tr[Sigma A] for a linear map A of vectors (None: the identity), exactly."""

    @abstractmethod
    def factor(self) -> PyTree:
        """B with Sigma = B B': like params with one extra trailing axis."""

    def gaussian(self, key: Key[Array, ""]) -> PyTree:
        """A draw of N(0, Sigma)."""
        return self.root(trees.standard_normal(key, self.white()))

    def split(self, project: Linear) -> Split:
        """The parts under an orthogonal projector P (a function of vectors), with Q = I - P."""

        def complement(vector: PyTree) -> PyTree:
            return trees.subtract(vector, project(vector))

        return Split(
            Projected(self, project),
            Projected(self, complement),
            lambda vector: complement(self.mv(project(vector))),
        )

    def trace_estimate(self, key: Key[Array, ""], matrix: Linear | None = None, probes: int = 128) -> Estimate:
        """Tr[Sigma A] by `probes` Gaussian draws x, as the mean of x'A x with its standard error."""
        probes = validate.positive_integer("trace_estimate", "probes", probes)

        def one(k: Key[Array, ""]) -> Scalar:
            x = self.gaussian(k)
            return trees.dot(x, x if matrix is None else matrix(x))

        return Estimate.of(jax.lax.map(one, jax.random.split(key, probes)))


class Factored(AbstractCovariance):
    """Sigma = B B' with an explicit factor B (params with a trailing axis k).

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import Factored
    >>> sigma = Factored(jnp.array([[1.0], [2.0]]))
    >>> print(sigma.mv(jnp.array([1.0, 0.0])), sigma.trace())
    [1. 2.] 5.0
    """

    columns: PyTree

    def mv(self, vector: PyTree) -> PyTree:
        return trees.columns(self.columns, self._coefficients(vector))

    def white(self) -> PyTree:
        leaf = jax.tree.leaves(self.columns)[0]
        return jax.ShapeDtypeStruct((leaf.shape[-1],), leaf.dtype)

    def root(self, white: PyTree) -> PyTree:
        return trees.columns(self.columns, white)

    def moment(self, form: Linear) -> PyTree:
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(form, in_axes=-1)(self.columns))

    def trace(self, matrix: Linear | None = None) -> Scalar:
        if matrix is None:
            return trees.dot(self.columns, self.columns)
        image = jax.vmap(matrix, in_axes=-1, out_axes=-1)(self.columns)
        return trees.dot(self.columns, image)

    def factor(self) -> PyTree:
        return self.columns

    def _coefficients(self, vector: PyTree) -> Float[Array, " k"]:
        """B'v."""
        parts = [
            jnp.tensordot(leaf, column, axes=leaf.ndim)
            for leaf, column in zip(jax.tree.leaves(vector), jax.tree.leaves(self.columns), strict=True)
        ]
        return sum(parts[1:], parts[0])


class ScaledIdentity(AbstractCovariance):
    """Sigma = variance * I on vectors shaped like `like`.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import ScaledIdentity
    >>> print(ScaledIdentity(jnp.array(4.0), jnp.zeros(3)).trace())
    12.0
    """

    variance: Scalar
    like: PyTree

    def mv(self, vector: PyTree) -> PyTree:
        return trees.scale(self.variance, vector)

    def white(self) -> PyTree:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.like)

    def root(self, white: PyTree) -> PyTree:
        return trees.scale(jnp.sqrt(self.variance), white)

    def moment(self, form: Linear) -> PyTree:
        unit = trees.elements(self.like)
        return trees.scale(self.variance, _sum_over(lambda i: form(unit(i)), trees.count(self.like)))

    def trace(self, matrix: Linear | None = None) -> Scalar:
        if matrix is None:
            return self.variance * trees.count(self.like)
        return self.variance * _trace_of(matrix, self.like)

    def factor(self) -> PyTree:
        basis = jax.vmap(trees.elements(self.like), out_axes=-1)(jnp.arange(trees.count(self.like)))
        return trees.scale(jnp.sqrt(self.variance), basis)


class SampleCovariance(AbstractCovariance):
    """The covariance of a sampled gradient: amount * (sum_i p_i g_i g_i' - sum_e p_e gbar_e gbar_e').

    g_i is the gradient of sample i and gbar_e the mean over group e; without groups there is one, and the bracket is
    the covariance of a sample's gradient. Products go by forward and reverse differentiation of the losses: no
    per-sample gradient is stored except in `factor`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: w * x, jnp.array([1.0, 3.0]))
    >>> print(ut.Minibatch(problem, size=2).covariance(jnp.array(0.0)).trace())
    0.5
    """

    problem: AbstractSampled
    params: PyTree
    amount: Scalar | float
    groups: Int[Array, " samples"] | None = None
    group_count: int = eqx.field(static=True, default=1)

    def mv(self, vector: PyTree) -> PyTree:
        p = self.problem.probabilities
        s = self.problem.along(self.params, vector).astype(p.dtype)
        return self.problem.combine(self.params, self.amount * p * (s - self._group_mean(s)))

    def white(self) -> PyTree:
        dtype = jax.tree.leaves(self.params)[0].dtype
        return jax.ShapeDtypeStruct((self.problem.size,), dtype)

    def root(self, white: PyTree) -> PyTree:
        # G' diag(sqrt p) (I - Pi) z, Pi the projector on the vectors sqrt(p) of each group
        half = jnp.sqrt(self.problem.probabilities)
        z = white.astype(half.dtype)
        along = self._group_sum(half * z) / self._group_sum(half**2)
        return self.problem.combine(self.params, jnp.sqrt(self.amount) * half * (z - half * along))

    def moment(self, form: Linear) -> PyTree:
        second = self.problem.quadratic(self.params, form)
        return trees.scale(self.amount, trees.subtract(second, self.between(form)))

    def between(self, form: Linear) -> PyTree:
        """sum_e p_e form(gbar_e), what the group means take away; without groups form of the mean gradient."""
        if self.groups is None:
            return form(self.problem.gradient(self.params))
        p = self.problem.probabilities

        def one(e: Array) -> PyTree:
            inside = jnp.where(self.groups == e, p, 0)
            share = jnp.sum(inside)
            return trees.scale(share, form(self.problem.combine(self.params, inside / share)))

        return _sum_over(one, self.group_count)

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return self.moment(_form(matrix))

    def trace_error(self, matrix: Linear | None = None) -> Scalar:
        """The standard error of `trace` when the samples are a draw from a population (one group, equal weights)."""
        if self.groups is not None or self.problem.weights is not None:
            raise ValueError("`trace_error`: only for equally weighted samples of one population.")
        return self.moment_error(_form(matrix))

    def moment_error(self, form: Linear) -> PyTree:
        """The standard error of `moment` in the same case."""
        mean = self.problem.gradient(self.params)
        centred = lambda g: form(trees.subtract(g, mean))
        first = self.problem.quadratic(self.params, centred)
        squares = lambda g: jax.tree.map(lambda x, m: (x - m) ** 2, centred(g), first)
        second = self.problem.quadratic(self.params, squares)
        return jax.tree.map(lambda x: self.amount * jnp.sqrt(x / (self.problem.size - 1)), second)

    def factor(self) -> PyTree:
        p = self.problem.probabilities
        gradients = self.problem.sample_gradients(self.params)

        def leaf(stacked: Array) -> Array:
            flat = stacked.reshape(stacked.shape[0], -1)
            centred = flat - jax.vmap(self._group_mean, in_axes=1, out_axes=1)(flat)
            weighted = jnp.sqrt(self.amount * p).astype(flat.dtype)[:, None] * centred
            return jnp.moveaxis(weighted.reshape(stacked.shape), 0, -1)

        return jax.tree.map(leaf, gradients)

    def _group_sum(self, values: Float[Array, " samples"]) -> Float[Array, " samples"]:
        if self.groups is None:
            return jnp.full_like(values, jnp.sum(values))
        return jax.ops.segment_sum(values, self.groups, self.group_count)[self.groups]

    def _group_mean(self, values: Float[Array, " samples"]) -> Float[Array, " samples"]:
        p = self.problem.probabilities.astype(values.dtype)
        return self._group_sum(p * values) / self._group_sum(p)


class LabelCovariance(AbstractCovariance):
    """Noise on the labels of a `Regression`: Sigma = amount * sum_i p_i J_i'J_i, J_i the Jacobian of prediction i.

    At a point of zero loss this is amount * H, H the Hessian of the loss.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.covariance import LabelCovariance
    >>> line = ut.Regression(lambda w, x: w * x, inputs=jnp.array([1.0, 2.0]), targets=jnp.array([1.0, 2.0]))
    >>> print(LabelCovariance(line, jnp.array(1.0), jnp.array(2.0)).trace())
    5.0
    """

    problem: Regression
    params: PyTree
    amount: Scalar

    def mv(self, vector: PyTree) -> PyTree:
        _, pushed = jax.jvp(self.problem.predictions, (self.params,), (vector,))
        return self._pull(self._weighted(self.amount * self.problem.probabilities, pushed))

    def white(self) -> PyTree:
        output = jax.eval_shape(self.problem.predictions, self.params)
        return jax.ShapeDtypeStruct(output.shape, output.dtype)

    def root(self, white: PyTree) -> PyTree:
        return self._pull(self._weighted(jnp.sqrt(self.amount * self.problem.probabilities), white))

    def moment(self, form: Linear) -> PyTree:
        p = (self.amount * self.problem.probabilities).astype(self.white().dtype)

        def one(rows: PyTree) -> PyTree:
            weights, inputs = rows

            def quadratic(x: PyTree) -> PyTree:
                values = jax.vmap(form)(self.problem.rows(self.params, x))
                return jax.tree.map(lambda v: jnp.sum(v, axis=0), values)

            return trees.weigh(weights, jax.vmap(quadratic)(inputs))

        return chunks.sum_samples(one, (p, self.problem.inputs), self._chunk())

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return self.moment(_form(matrix))

    def factor(self) -> PyTree:
        p = jnp.sqrt(self.amount * self.problem.probabilities)
        rows = chunks.map_samples(lambda x: self.problem.rows(self.params, x), self.problem.inputs, self._chunk())

        def leaf(stacked: Array) -> Array:  # (n, q, ...) -> (..., n q)
            weighted = stacked * p.astype(stacked.dtype).reshape(-1, *[1] * (stacked.ndim - 1))
            return jnp.moveaxis(weighted.reshape(-1, *stacked.shape[2:]), 0, -1)

        return jax.tree.map(leaf, rows)

    def _pull(self, cotangent: Array) -> PyTree:
        """J' c, in chunks of samples."""

        def block(rows: PyTree) -> PyTree:
            inputs, weights = rows

            def weighted(p: PyTree) -> Scalar:
                return jnp.vdot(weights, jax.vmap(lambda x: self.problem.predict(p, x))(inputs))

            return jax.grad(weighted)(self.params)

        return chunks.sum_samples(block, (self.problem.inputs, cotangent), self._chunk())

    def _weighted(self, weights: Array, outputs: Array) -> Array:
        return weights.astype(outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1)) * outputs

    def _chunk(self) -> int:
        outputs = max(1, self.problem.targets[0].size)
        return max(1, self.problem.chunk(self.params) // outputs)


class Operator(AbstractCovariance):
    """Any Sigma that can be applied: `matvec(v)` = Sigma v and `square_root(z)` for z shaped like `normals`.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.covariance import Operator
    >>> shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    >>> sigma = Operator(lambda v: 9 * v, lambda z: 3 * z, shape, like=jnp.zeros(2))
    >>> print(sigma.trace())
    18.0
    """

    matvec: Linear
    square_root: Linear
    normals: PyTree = eqx.field(static=True)
    like: PyTree

    def mv(self, vector: PyTree) -> PyTree:
        return self.matvec(vector)

    def white(self) -> PyTree:
        return self.normals

    def root(self, white: PyTree) -> PyTree:
        return self.square_root(white)

    def moment(self, form: Linear) -> PyTree:
        return Factored(self.factor()).moment(form)

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return _trace_of(self.mv if matrix is None else lambda v: matrix(self.mv(v)), self.like)

    def factor(self) -> PyTree:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.normals)
        unit = trees.elements(zeros)
        return jax.vmap(lambda i: self.root(unit(i)), out_axes=-1)(jnp.arange(trees.count(zeros)))


class Sum(AbstractCovariance):
    """Sigma = sum of independent parts.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import ScaledIdentity, Sum
    >>> part = ScaledIdentity(jnp.array(1.0), jnp.zeros(3))
    >>> print(Sum((part, part)).trace())
    6.0
    """

    parts: tuple[AbstractCovariance, ...]

    def mv(self, vector: PyTree) -> PyTree:
        return self._total([part.mv(vector) for part in self.parts])

    def white(self) -> PyTree:
        return tuple(part.white() for part in self.parts)

    def root(self, white: PyTree) -> PyTree:
        return self._total([part.root(z) for part, z in zip(self.parts, white, strict=True)])

    def moment(self, form: Linear) -> PyTree:
        return self._total([part.moment(form) for part in self.parts])

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return self._total([part.trace(matrix) for part in self.parts])

    def factor(self) -> PyTree:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=-1), *[p.factor() for p in self.parts])

    def _total(self, terms: list[PyTree]) -> PyTree:
        total = terms[0]
        for term in terms[1:]:
            total = trees.add(total, term)
        return total


class Projected(AbstractCovariance):
    """M Sigma M for a symmetric linear map M of vectors: what is left of a noise after a projection.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import Projected, ScaledIdentity
    >>> onto_first = lambda v: v * jnp.array([1.0, 0.0])
    >>> print(Projected(ScaledIdentity(jnp.array(4.0), jnp.zeros(2)), onto_first).trace())
    4.0
    """

    covariance: AbstractCovariance
    project: Linear

    def mv(self, vector: PyTree) -> PyTree:
        return self.project(self.covariance.mv(self.project(vector)))

    def white(self) -> PyTree:
        return self.covariance.white()

    def root(self, white: PyTree) -> PyTree:
        return self.project(self.covariance.root(white))

    def moment(self, form: Linear) -> PyTree:
        return self.covariance.moment(lambda v: form(self.project(v)))

    def trace(self, matrix: Linear | None = None) -> Scalar:
        inner = (lambda v: v) if matrix is None else matrix
        return self.covariance.trace(lambda v: self.project(inner(self.project(v))))

    def factor(self) -> PyTree:
        return jax.vmap(self.project, in_axes=-1, out_axes=-1)(self.covariance.factor())


def _form(matrix: Linear | None) -> Callable[[PyTree], Scalar]:
    """x'Ax as a function of x."""
    return lambda x: trees.dot(x, x if matrix is None else matrix(x))


def _sum_over(function: Callable[[Array], PyTree], count: int) -> PyTree:
    """The sum of function(i) over range(count), one at a time."""
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.lax.map(function, jnp.arange(count)))


def _trace_of(matrix: Linear, like: PyTree) -> Scalar:
    """Tr A, one unit vector at a time."""
    unit = trees.elements(like)
    return _sum_over(lambda i: _form(matrix)(unit(i)), trees.count(like))
