"""Search for the exponential symmetries of a loss, from its gradients alone.

A symmetric A is a symmetry when <grad l, A params> = 0 for every sample at every point. That is linear in A, so the
symmetries are a null space. Small models are searched in full. Larger models are searched for the kinds of symmetry
that networks have: for each axis length, combinations of rows and columns that scale against each other (neurons,
normalised weights); for each pair of matrices that can be multiplied, U'dL/dU = dL/dW W' in full or in blocks (linear
pairs, attention heads); and sets of whole leaves that scale together.
"""

import jax
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._validate import KeyLike
from undertow.problem import AbstractSampled, Population
from undertow.symmetry import precision
from undertow.symmetry.candidates import neuron_symmetries, rotations, without_contained_rescalings
from undertow.symmetry.evidence import gather_evidence
from undertow.symmetry.found import Symmetries
from undertow.symmetry.remainder import remaining_generators, scaled_leaves

__all__ = ["FULL_SEARCH", "find_symmetries"]

FULL_SEARCH = 30
"""The largest number of parameters for a full search of the null space, whose cost grows like the sixth power."""
MEMORY = 2**28
"""Bytes that points and gradients may take together in a larger search."""


@checked_call("find_symmetries")
def find_symmetries(
    problem: AbstractSampled | Population,
    params: PyTree,
    *,
    key: KeyLike | None = None,
    points: int | None = None,
) -> Symmetries:
    """Return the exponential symmetries of a loss: `Rescaling`, `DoubleRotation`, `Scaling` and `Exponential`.

    The result is a tuple; `print` shows it as a table, and `.plot()` draws the charges.

    **Arguments:**

    - `problem`: a problem with samples.
    - `params`: params of the shapes to search. Their values set the scale of the random points around them at which
      gradients are taken.
    - `key`: a key, or an int.
    - `points`: the number of these points (None: chosen by the size of the model).

    The symmetries are independent. `.describe(params)` of a symmetry describes it in words, `.dimension(params)` is its
    number of generators. Parameters without any gradient are left out, and so are neurons that are active in too few
    samples. Models of up to 30 parameters are searched in full, and generators of no known kind are returned as
    `Exponential`s. Larger models are searched for the kinds that networks have. Half-precision params and data are
    searched in float32. A loss that casts to half precision inside raises an error, because its rounding hides which
    directions are symmetries.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> def loss(p, sample):
    ...     x, y = sample
    ...     return (p["out"] @ jax.nn.relu(p["in"] @ x) - y) ** 2
    >>> data = (jax.random.normal(jax.random.key(0), (50, 2)), jnp.ones(50))
    >>> params = {"in": jnp.ones((3, 2)), "out": jnp.ones(3)}
    >>> print(ut.find_symmetries(ut.Problem(loss, data), params, key=0))
    1 symmetry, 3 generators
    symmetry                                generators  charge
    rescaling of 3 neurons, in against out           3    -0.5
    """
    kinds = AbstractSampled | Population
    validate.instance("find_symmetries", "problem", problem, kinds, "a Problem or a Regression, which has samples")
    validate.params_of_floats("find_symmetries", params)
    problem, params = precision.widened((problem, params))
    key = validate.as_key("find_symmetries", 0 if key is None else key)
    if points is not None:
        points = validate.positive_integer("find_symmetries", "points", points)
    size = trees.count(params)
    full = size <= FULL_SEARCH
    if points is None:
        least = 6 * size * (size + 1) // 2 if full else 4 * _most_axes(params)
        points = max(least, min(256, max(32, MEMORY // (16 * size))))
    evidence = gather_evidence(problem, params, key, points)
    symmetries = without_contained_rescalings(rotations(evidence) + neuron_symmetries(evidence))
    symmetries += scaled_leaves(evidence, symmetries, params)
    if full:
        symmetries += remaining_generators(evidence, symmetries, params)
    return Symmetries(symmetries, params)


def _most_axes(params: PyTree) -> int:
    """Return the largest number of axes of leaves that have the same length: the number of unknowns per neuron."""
    lengths = [n for leaf in jax.tree.leaves(params) for n in leaf.shape]
    return max((lengths.count(n) for n in set(lengths)), default=1)
