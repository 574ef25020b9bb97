"""Noise powers of weight matrices without per-sample gradients, from the jaxpr of the loss.

The gradient of one sample with respect to the weights of a dense layer is b a', with a the input of the layer and b the
derivative of the loss with respect to its output. The sums of squares of its rows are b_i^2 |a|^2, and other moments
follow in the same way. To compute a and b for any loss, its jaxpr is evaluated with a zero (a *tap*) added to the
result of each product with a weight leaf, and differentiated with respect to the taps. A leaf that is used in another
way, or more than once, is treated with per-sample gradients, a chunk of samples at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.problem import AbstractSampled

__all__ = ["Entries", "Gram", "Request", "Squares", "TapMoments", "moments", "routes"]

INLINED = {"pjit", "jit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"}
"""Primitives whose inner jaxpr is evaluated when one of their arguments is a weight."""


class _Outer(NamedTuple):
    """One sample's gradient in a tapped leaf: sum_t out_t in_t' with named axes."""

    out: Array
    into: Array
    axes: tuple[int, ...]
    """The axes of the leaf for the output and (flattened, in this order) for the inputs."""
    shape: tuple[int, ...]
    """The shape of the leaf."""

    def sides(self, axis: int) -> tuple[Array, Array] | None:
        """Return the factor along an axis of the leaf and the other factor; None where the axis is one of several."""
        if axis == self.axes[0]:
            return self.out, self.into
        if len(self.shape) == 2:
            return self.into, self.out
        return None

    def dense(self) -> Array:
        """Return the gradient as an array of the leaf's shape."""
        unordered = (self.out.T @ self.into).reshape([self.shape[axis] for axis in self.axes])
        return jnp.transpose(unordered, [self.axes.index(k) for k in range(len(self.axes))])


def _dense_is_smaller(own: Array, other: Array) -> bool:
    """Return whether the gradient is smaller than its two factors, as for long sequences."""
    positions, width, rest = own.shape[0], own.shape[1], other.shape[1]
    return positions * (width + rest) > width * rest


@dataclass(frozen=True)
class Squares:
    """A request for the sums of squares of a leaf's gradient for each index along one axis."""

    leaf: int
    axis: int

    def of_array(self, gradient: Array) -> Array:
        """Return the requested value for a gradient given as an array."""
        return jnp.sum(_matrix(gradient, self.axis) ** 2, axis=1)

    def of_outer(self, gradient: _Outer) -> Array:
        """Return the requested value for a gradient given as an outer product."""
        sides = gradient.sides(self.axis)
        if sides is None:
            return self.of_array(gradient.dense())
        own, other = sides
        if own.shape[0] == 1:
            return jnp.sum(other**2) * own[0] ** 2
        if _dense_is_smaller(own, other):
            return jnp.sum((own.T @ other) ** 2, axis=1)
        return jnp.sum(own * ((other @ other.T) @ own), axis=0)


@dataclass(frozen=True, eq=False)
class Gram:
    """A request for the inner products of a leaf's gradient along one axis, of indices `own`, summed over `other`."""

    leaf: int
    axis: int
    own: np.ndarray
    other: np.ndarray | None

    def of_array(self, gradient: Array) -> Array:
        """Return the requested value for a gradient given as an array."""
        matrix = _matrix(gradient, self.axis)
        matrix = matrix[self.own] if self.other is None else matrix[self.own][:, self.other]
        return matrix @ matrix.T

    def of_outer(self, gradient: _Outer) -> Array:
        """Return the requested value for a gradient given as an outer product."""
        sides = gradient.sides(self.axis)
        if sides is None:
            return self.of_array(gradient.dense())
        own, other = sides[0][:, self.own], sides[1]
        other = other if self.other is None else other[:, self.other]
        if own.shape[0] == 1:
            return jnp.sum(other**2) * jnp.outer(own[0], own[0])
        if _dense_is_smaller(own, other):
            matrix = own.T @ other
            return matrix @ matrix.T
        return own.T @ (other @ other.T) @ own


@dataclass(frozen=True)
class Entries:
    """A request for the square of every entry of a leaf's gradient."""

    leaf: int

    def of_array(self, gradient: Array) -> Array:
        """Return the requested value for a gradient given as an array."""
        return gradient**2

    def of_outer(self, gradient: _Outer) -> Array:
        """Return the requested value for a gradient given as an outer product."""
        if gradient.out.shape[0] == 1:
            return gradient._replace(out=gradient.out**2, into=gradient.into**2).dense()
        return gradient.dense() ** 2


Request = Squares | Gram | Entries


def _matrix(gradient: Array, axis: int) -> Array:
    """Return a gradient as a matrix whose rows are the indices along an axis."""
    return jnp.moveaxis(gradient, axis, 0).reshape(gradient.shape[axis], -1)


class TapMoments(NamedTuple):
    """Means over samples of the gradient and of the requested values."""

    gradient: PyTree
    value: PyTree


class _Site(NamedTuple):
    """One product with a weight leaf: the places of its axes, and the shape of the tap."""

    leaf: int
    shape: tuple[int, ...]
    dtype: np.dtype
    kind: str
    facts: tuple


class _Alias(NamedTuple):
    """A weight leaf, or a transpose of it: axis k here is axis order[k] of the leaf."""

    leaf: int
    order: tuple[int, ...]


class _Runner:
    """Evaluate a jaxpr, add taps at accepted leaves and record the inputs of their products."""

    def __init__(self, accepted: set[int] | None, taps: Sequence[Array] | None):
        self.accepted = accepted
        self.taps = taps
        self.sites: list[_Site] = []
        self.received: list[Array] = []
        self.spoilt: set[int] = set()

    def run(self, jaxpr: jex.Jaxpr, consts: Sequence, args: Sequence, tags: Sequence[_Alias | None]) -> list:
        values: dict = {}
        marks: dict = {}
        values |= dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))
        marks |= {v: t for v, t in zip(jaxpr.invars, tags, strict=True) if t is not None}
        read = lambda atom: atom.val if isinstance(atom, jex.Literal) else values[atom]
        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            aliases = [None if isinstance(atom, jex.Literal) else marks.get(atom) for atom in equation.invars]
            outputs, mark = self._equation(equation, inputs, aliases)
            values |= dict(zip(equation.outvars, outputs, strict=True))
            if mark is not None:
                marks[equation.outvars[0]] = mark
        for atom in jaxpr.outvars:
            if not isinstance(atom, jex.Literal) and atom in marks:
                self.spoilt.add(marks[atom].leaf)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: jex.JaxprEqn, inputs: list, aliases: list) -> tuple[list, _Alias | None]:
        name = equation.primitive.name
        tagged = [alias for alias in aliases if alias is not None]
        if tagged and name in INLINED:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            closed = getattr(inner, "jaxpr", inner)
            return self.run(closed, getattr(inner, "consts", ()), inputs, aliases), None
        outputs = _bind(equation, inputs)
        if not tagged:
            return outputs, None
        alias = tagged[0]
        if name == "transpose":
            return outputs, _Alias(alias.leaf, tuple(alias.order[k] for k in equation.params["permutation"]))
        if name == "convert_element_type" and jnp.issubdtype(equation.params["new_dtype"], jnp.floating):
            return outputs, alias
        facts = None
        if len(tagged) == 1 and len(alias.order) == 2 and name == "dot_general":
            facts = _dense(equation, aliases, inputs)
        elif len(tagged) == 1 and name == "conv_general_dilated" and aliases[1] is not None:
            facts = _convolution(equation, alias, inputs)
        if facts is None:
            self.spoilt |= {a.leaf for a in tagged}
            return outputs, None
        kind, received, rest = facts
        out = outputs[0]
        self.sites.append(_Site(alias.leaf, out.shape, out.dtype, kind, rest))
        if self.accepted is not None and alias.leaf in self.accepted:
            self.received.append(received)
            out = out + self.taps[len(self.received) - 1] if self.taps is not None else out
        return [out], None


def _bind(equation: jex.JaxprEqn, inputs: list) -> list:
    bound = equation.primitive.get_bind_params(equation.params)
    functions, parameters = bound if isinstance(bound, tuple) else ([], bound)  # older versions of JAX return a pair
    outputs = equation.primitive.bind(*functions, *inputs, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _dense(equation: jex.JaxprEqn, aliases: list, inputs: list) -> tuple[str, Array, tuple] | None:
    """Return which axes of a weight matrix, of the other operand and of the output of a product correspond."""
    (contracting, batch) = equation.params["dimension_numbers"]
    if any(len(axes) for axes in batch):
        return None
    side = 0 if aliases[0] is not None else 1
    if len(contracting[0]) != 1:
        return None
    alias, other = aliases[side], inputs[1 - side]
    inside, across = contracting[side][0], contracting[1 - side][0]
    free = 1 - inside
    # the output lists the free axes of the left operand, then those of the right
    output_axis = 0 if side == 0 else other.ndim - 1
    return "dense", other, (alias.order[free], alias.order[inside], output_axis, across)


def _convolution(equation: jex.JaxprEqn, alias: _Alias, inputs: list) -> tuple[str, Array, tuple] | None:
    """Return a convolution as a dense layer on patches of its input."""
    given = equation.params
    if (
        given["feature_group_count"] != 1
        or given["batch_group_count"] != 1
        or alias.order != tuple(range(len(alias.order)))
    ):
        return None
    if any(d != 1 for d in given["lhs_dilation"]):
        return None
    numbers = given["dimension_numbers"]
    image, kernel = inputs
    out_axis, in_axis, *space = numbers.rhs_spec
    patches = jax.lax.conv_general_dilated_patches(
        image, [kernel.shape[k] for k in space], given["window_strides"], given["padding"],
        rhs_dilation=given["rhs_dilation"],
        dimension_numbers=jax.lax.ConvDimensionNumbers(numbers.lhs_spec, tuple(range(kernel.ndim)), numbers.out_spec),
    )  # fmt: skip
    feature = numbers.out_spec[1]
    # patches list (input channel, *window) in this order
    return "convolution", patches, ((out_axis, in_axis, *space), feature, tuple(kernel.shape))


class _Plan(NamedTuple):
    """The accepted sites in the order of evaluation, and the leaves that need per-sample gradients."""

    closed: jex.ClosedJaxpr
    sites: list[_Site]
    others: list[int]


def _plan(loss: Callable, params: PyTree, sample: PyTree) -> _Plan:
    leaves = jax.tree.leaves(params)
    closed = jax.make_jaxpr(loss)(params, sample)
    arguments = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    tags: list = [_Alias(k, tuple(range(leaf.ndim))) for k, leaf in enumerate(leaves)]
    tags += [None] * (len(arguments) - len(leaves))
    runner = _Runner(None, None)

    def trace(*values: Array) -> list:
        return runner.run(closed.jaxpr, closed.consts, values, tags)

    jax.eval_shape(trace, *arguments)
    counts = [sum(site.leaf == k for site in runner.sites) for k in range(len(leaves))]
    accepted = {k for k in range(len(leaves)) if counts[k] == 1 and k not in runner.spoilt}
    others = [k for k in range(len(leaves)) if k not in accepted]
    return _Plan(closed, [site for site in runner.sites if site.leaf in accepted], others)


def routes(problem: AbstractSampled, params: PyTree) -> dict[str, str]:
    """Return how the noise of every leaf is computed: "taps" or "per-sample gradients"."""
    plan = _plan(problem.sample_loss, params, trees.take(problem.data, 0))
    route = lambda k: "per-sample gradients" if k in plan.others else "taps"
    return {name: route(k) for k, name in enumerate(trees.names(params))}


def moments(
    problem: AbstractSampled,
    params: PyTree,
    requests: Sequence[Request],
    combine: Callable[[list[Array]], PyTree] = lambda values: values,
) -> TapMoments:
    """Return the weighted means over samples of `combine` of the requested values of a sample's gradient."""
    leaves, structure = jax.tree.flatten(params)
    plan = _plan(problem.sample_loss, params, trees.take(problem.data, 0))
    accepted = {site.leaf for site in plan.sites}
    tags: list = [_Alias(k, tuple(range(leaf.ndim))) for k, leaf in enumerate(leaves)]
    zeros = [jnp.zeros(site.shape, site.dtype) for site in plan.sites]

    def tapped(taps: list[Array], others: list[Array], sample: PyTree) -> tuple[Array, list[Array]]:
        values = list(leaves)
        for k, leaf in zip(plan.others, others, strict=True):
            values[k] = leaf
        rest = jax.tree.leaves(sample)
        runner = _Runner(accepted, taps)
        (loss,) = runner.run(plan.closed.jaxpr, plan.closed.consts, [*values, *rest], tags + [None] * len(rest))
        return loss, runner.received

    def one(sample: PyTree) -> dict[int, Array | _Outer]:
        """Return the gradient of one sample in every leaf, as an array or as an outer product."""
        derivative = jax.grad(tapped, argnums=(0, 1), has_aux=True)
        (taps, others), received = derivative(zeros, [leaves[k] for k in plan.others], sample)
        gradients: dict[int, Array | _Outer] = dict(zip(plan.others, others, strict=True))
        for site, tap, a in zip(plan.sites, taps, received, strict=True):
            gradients[site.leaf] = _outer(site, tap, a)
        return gradients

    def block(rows: tuple[PyTree, Array]) -> tuple[list[Array], PyTree]:
        samples, weights = rows
        gradients = jax.vmap(one)(samples)
        means = [_mean(gradients[k], weights, leaf) for k, leaf in enumerate(leaves)]
        values = jax.vmap(lambda g: combine([_value(r, g[r.leaf]) for r in requests]))(gradients)
        mean = lambda v: jnp.sum(weights.astype(v.dtype).reshape(-1, *[1] * (v.ndim - 1)) * v, axis=0)
        return means, jax.tree.map(mean, values)

    sizes = jax.eval_shape(one, trees.take(problem.data, 0))
    chunk = chunks.chunk_length(2 * trees.floats_bytes(sizes))
    means, value = chunks.sum_samples(block, (problem.data, problem.probabilities), chunk)
    return TapMoments(jax.tree.unflatten(structure, means), value)


jax.tree_util.register_pytree_node(
    _Outer,
    lambda o: ((o.out, o.into), (o.axes, o.shape)),
    lambda facts, arrays: _Outer(*arrays, *facts),
)


def _outer(site: _Site, tap: Array, received: Array) -> _Outer:
    if site.kind == "dense":
        out_leaf_axis, in_leaf_axis, output_axis, across = site.facts
        out = jnp.moveaxis(tap, output_axis, -1).reshape(-1, tap.shape[output_axis])
        into = jnp.moveaxis(received, across, -1).reshape(-1, received.shape[across])
        sizes = (out.shape[-1], into.shape[-1])
        return _Outer(out, into, (out_leaf_axis, in_leaf_axis), sizes if out_leaf_axis == 0 else sizes[::-1])
    axes, feature, shape = site.facts
    out = jnp.moveaxis(tap, feature, -1).reshape(-1, tap.shape[feature])
    into = jnp.moveaxis(received, feature, -1).reshape(-1, received.shape[feature])
    return _Outer(out, into, axes, shape)


def _mean(gradients: Array | _Outer, weights: Float[Array, " samples"], leaf: Array) -> Array:
    """Return sum_n weights_n g_n, by one matrix product for outer products."""
    if not isinstance(gradients, _Outer):
        return trees.weigh(weights, gradients)
    flat = gradients._replace(
        out=(gradients.out * weights.astype(gradients.out.dtype)[:, None, None]).reshape(-1, gradients.out.shape[-1]),
        into=gradients.into.reshape(-1, gradients.into.shape[-1]),
    )
    return flat.dense().astype(leaf.dtype)


def _value(request: Request, gradient: Array | _Outer) -> Array:
    """Return the requested value for one sample's gradient."""
    return request.of_outer(gradient) if isinstance(gradient, _Outer) else request.of_array(gradient)


def value_of(request: Request, gradient: PyTree) -> Array:
    """Return the requested value for a gradient given as a pytree, for example the mean."""
    return request.of_array(jax.tree.leaves(gradient)[request.leaf])
