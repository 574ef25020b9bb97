"""Noise powers of every weight matrix without per-sample gradients, read off the program of the loss itself.

The gradient of one sample in the weights of a dense layer is b a', with a what the layer receives and b the derivative
of the loss in what it puts out. So sums of squares of rows are b_i^2 |a|^2, and the like. To get a and b of any loss,
its jaxpr is run with a zero (a *tap*) added to the result of each product with a weight leaf, and differentiated in the
taps. A leaf that enters otherwise, or more than once, goes by per-sample gradients, a chunk of samples at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.problem import AbstractSampled

__all__ = ["Entries", "Gram", "Moments", "Request", "Squares", "moments", "routes"]

INLINED = {"pjit", "jit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"}
"""Primitives that are run from the inside when a weight enters them."""


@dataclass(frozen=True)
class Squares:
    """Sums of squares of a leaf's gradient for each index along one axis."""

    leaf: int
    axis: int


@dataclass(frozen=True, eq=False)
class Gram:
    """The matrix of inner products of a leaf's gradient along one axis, of the indices `own`, over those in `other`."""

    leaf: int
    axis: int
    own: np.ndarray
    other: np.ndarray | None


@dataclass(frozen=True)
class Entries:
    """The square of every entry of a leaf's gradient."""

    leaf: int


Request = Squares | Gram | Entries


class Moments(NamedTuple):
    """Means over samples: the gradient, and what was asked for."""

    gradient: PyTree
    value: PyTree


class _Site(NamedTuple):
    """One product with a weight leaf: where its axes went, and the shape of the tap."""

    leaf: int
    shape: tuple[int, ...]
    dtype: Any
    kind: str
    facts: tuple


class _Alias(NamedTuple):
    """A weight leaf, or a transpose of it: axis k here is axis order[k] of the leaf."""

    leaf: int
    order: tuple[int, ...]


class _Runner:
    """Runs a jaxpr, adding taps at accepted leaves and keeping what the products received."""

    def __init__(self, accepted: set[int] | None, taps: Sequence[Array] | None):
        self.accepted = accepted
        self.taps = taps
        self.sites: list[_Site] = []
        self.received: list[Array] = []
        self.spoilt: set[int] = set()

    def run(self, jaxpr: Any, consts: Sequence, args: Sequence, tags: Sequence[_Alias | None]) -> list:
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

    def _equation(self, equation: Any, inputs: list, aliases: list) -> tuple[list, _Alias | None]:
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


def _bind(equation: Any, inputs: list) -> list:
    found = equation.primitive.get_bind_params(equation.params)
    functions, parameters = found if isinstance(found, tuple) else ([], found)  # older jax returns a pair
    outputs = equation.primitive.bind(*functions, *inputs, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _dense(equation: Any, aliases: list, inputs: list) -> tuple[str, Array, tuple] | None:
    """A matrix times something: which axis of the output and of the other operand belong to which axis of the leaf."""
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


def _convolution(equation: Any, alias: _Alias, inputs: list) -> tuple[str, Array, tuple] | None:
    """A convolution is a dense layer on patches of its input."""
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
    """How each leaf goes: the accepted sites in the order of running, and the leaves left for per-sample gradients."""

    closed: Any
    sites: list[_Site]
    others: list[int]


def _plan(loss: Callable, params: PyTree, sample: PyTree) -> _Plan:
    leaves = jax.tree.leaves(params)
    closed = jax.make_jaxpr(loss)(params, sample)
    arguments = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    tags: list = [_Alias(k, tuple(range(leaf.ndim))) for k, leaf in enumerate(leaves)]
    tags += [None] * (len(arguments) - len(leaves))
    runner = _Runner(None, None)

    def trace(*values: Any) -> list:
        return runner.run(closed.jaxpr, closed.consts, values, tags)

    jax.eval_shape(trace, *arguments)
    counts = [sum(site.leaf == k for site in runner.sites) for k in range(len(leaves))]
    accepted = {k for k in range(len(leaves)) if counts[k] == 1 and k not in runner.spoilt}
    others = [k for k in range(len(leaves)) if k not in accepted]
    return _Plan(closed, [site for site in runner.sites if site.leaf in accepted], others)


def routes(problem: AbstractSampled, params: PyTree) -> dict[str, str]:
    """How the noise of every leaf is computed: "taps" or "per-sample gradients"."""
    plan = _plan(problem.sample_loss, params, trees.take(problem.data, 0))
    way = lambda k: "per-sample gradients" if k in plan.others else "taps"
    return {name: way(k) for k, name in enumerate(trees.names(params))}


class _Outer(NamedTuple):
    """One sample's gradient in a tapped leaf: sum_t out_t in_t' with named axes."""

    out: Array
    into: Array
    axes: tuple[int, ...]
    """Which axes of the leaf are the output and (flattened, in this order) the inputs."""
    shape: tuple[int, ...]
    """Of the leaf."""

    @property
    def out_axis(self) -> int:
        return self.axes[0]


def moments(
    problem: AbstractSampled,
    params: PyTree,
    requests: Sequence[Request],
    combine: Callable[[list[Array]], PyTree] = lambda values: values,
) -> Moments:
    """The means over samples (with their weights) of `combine` of what is requested of a sample's gradient."""
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

    def one(sample: PyTree) -> dict[int, Any]:
        """The gradient of one sample in every leaf, as an array or as an outer product."""
        derivative = jax.grad(tapped, argnums=(0, 1), has_aux=True)
        (taps, others), received = derivative(zeros, [leaves[k] for k in plan.others], sample)
        found: dict[int, Any] = dict(zip(plan.others, others, strict=True))
        for site, tap, a in zip(plan.sites, taps, received, strict=True):
            found[site.leaf] = _outer(site, tap, a)
        return found

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
    return Moments(jax.tree.unflatten(structure, means), value)


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


def _dense_gradient(g: Any) -> Array:
    """One sample's gradient as an array of the leaf's shape."""
    if not isinstance(g, _Outer):
        return g
    unordered = (g.out.T @ g.into).reshape([g.shape[axis] for axis in g.axes])
    return jnp.transpose(unordered, [g.axes.index(k) for k in range(len(g.axes))])


def _mean(gradients: Any, weights: Float[Array, " samples"], leaf: Array) -> Array:
    """sum_n weights_n g_n, by one product for an outer product."""
    if not isinstance(gradients, _Outer):
        return trees.weigh(weights, gradients)
    flat = gradients._replace(
        out=(gradients.out * weights.astype(gradients.out.dtype)[:, None, None]).reshape(-1, gradients.out.shape[-1]),
        into=gradients.into.reshape(-1, gradients.into.shape[-1]),
    )
    return _dense_gradient(flat).astype(leaf.dtype)


def _value(request: Request, g: Any) -> Array:
    """What is requested of one sample's gradient."""
    if isinstance(request, Entries):
        if isinstance(g, _Outer) and g.out.shape[0] == 1:
            return _dense_gradient(g._replace(out=g.out**2, into=g.into**2))
        return _dense_gradient(g) ** 2
    short = isinstance(g, _Outer) and len(g.shape) == 2
    if not (isinstance(g, _Outer) and (short or request.axis == g.out_axis)):
        return _of_array(request, _dense_gradient(g))
    own, other = (g.out, g.into) if request.axis == g.out_axis else (g.into, g.out)
    if isinstance(request, Gram):
        own = own[:, request.own]
        other = other if request.other is None else other[:, request.other]
    positions, width, rest = own.shape[0], own.shape[1], other.shape[1]
    if positions == 1:
        power = jnp.sum(other**2)
        return power * (own[0] ** 2 if isinstance(request, Squares) else jnp.outer(own[0], own[0]))
    if positions * (width + rest) > width * rest:  # long sequences: the gradient itself is smaller
        matrix = own.T @ other
        return jnp.sum(matrix**2, axis=1) if isinstance(request, Squares) else matrix @ matrix.T
    inner = other @ other.T
    if isinstance(request, Squares):
        return jnp.sum(own * (inner @ own), axis=0)
    return own.T @ inner @ own


def _of_array(request: Squares | Gram, g: Array) -> Array:
    """The same of a gradient that is there as an array."""
    matrix = jnp.moveaxis(g, request.axis, 0).reshape(g.shape[request.axis], -1)
    if isinstance(request, Squares):
        return jnp.sum(matrix**2, axis=1)
    matrix = matrix[request.own] if request.other is None else matrix[request.own][:, request.other]
    return matrix @ matrix.T


def value_of(request: Request, gradient: PyTree) -> Array:
    """What is requested, of a gradient given as a pytree (the mean, say)."""
    leaf = jax.tree.leaves(gradient)[request.leaf]
    return leaf**2 if isinstance(request, Entries) else _of_array(request, leaf)
