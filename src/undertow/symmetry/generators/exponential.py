"""A general symmetric generator, given as a linear map or as a diagonal."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow import spectral
from undertow._calls import check_function, check_repeats, checked_call, output_of
from undertow.symmetry.generators._checks import check_amount, check_label, check_shape, largest_exponent
from undertow.symmetry.generators.base import AbstractSymmetry, Pair

__all__ = ["Exponential"]

POWER_STEPS = 19
"""Steps of the power iteration for the norm of a generator."""


class Exponential(AbstractSymmetry):
    """A symmetric generator A: a function v -> A v of vectors like params, or its diagonal as a pytree like params.

    `label` is the description in tables.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> swap = ut.Exponential(lambda v: v[::-1])
    >>> print(swap.charge(jnp.array([2.0, 3.0])), swap.orbit(jnp.array([1.0, 0.0]), 1.0).round(4))
    6.0 [1.5431 1.1752]
    """

    generator: Callable[[PyTree], PyTree] | PyTree
    label: str = eqx.field(static=True)

    @checked_call("Exponential")
    def __init__(self, generator: Callable[[PyTree], PyTree] | PyTree, label: str = ""):
        if callable(generator):
            check_function("Exponential", "generator(vector)", generator)
        self.generator = generator
        self.label = check_label("Exponential", label)

    def apply(self, vector: PyTree) -> PyTree:
        """Return A v."""
        if callable(self.generator):
            return self.generator(vector)
        return jax.tree.map(jnp.multiply, self.generator, vector)

    def pair(self, a: PyTree, b: PyTree) -> Pair:
        value = trees.dot(a, self.apply(b))
        return value, jnp.zeros_like(value)

    def orbit(self, params: PyTree, amount: ArrayLike) -> PyTree:
        self.check_params(params)
        check_shape("Exponential", amount, ())
        leaves = [leaf for leaf in jax.tree.leaves((params, self.generator)) if eqx.is_array(leaf)]
        size = float(_largest(self, params)) if all(map(validate.concrete, leaves)) else 0.0
        check_amount("Exponential", amount, params, size)
        if not callable(self.generator):
            return jax.tree.map(lambda a, p: p * jnp.exp(amount * jnp.asarray(a, p.dtype)), self.generator, params)
        return _exponential(self, params, jnp.asarray(amount, jax.tree.leaves(params)[0].dtype))

    def norm(self, vector: PyTree) -> Float[Array, ""]:
        image = self.apply(vector)
        return jnp.sqrt(trees.dot(image, image))

    def check_params(self, params: PyTree) -> None:
        validate.params_of_floats("Exponential", params)
        called = "generator(vector)"
        given = callable(self.generator)
        image = output_of("Exponential", called, self.generator, params) if given else self.generator
        shapes = lambda tree: [getattr(leaf, "shape", validate.shown(leaf)) for leaf in jax.tree.leaves(tree)]
        numeric = all(np.dtype(getattr(leaf, "dtype", object)).kind in "iufV" for leaf in jax.tree.leaves(image))
        if jax.tree.structure(image) != jax.tree.structure(params) or shapes(image) != shapes(params) or not numeric:
            what = f"`{called}` returns" if given else f"`generator` is {validate.shown(self.generator)},"
            listed = ", ".join(map(str, shapes(image))) or "nothing"
            raise ValueError(
                f"`Exponential(generator=...)`: {what} {trees.outline(image)} with the shapes {listed}; give "
                f"{'a function that returns ' if given else ''}a vector like params, {trees.outline(params)} with "
                "the shapes "
                f"{', '.join(map(str, shapes(params)))}."
            )
        if all(validate.concrete(leaf) for leaf in jax.tree.leaves((params, self.generator)) if eqx.is_array(leaf)):
            if given:
                check_repeats("Exponential", called, self.generator, params)
            gap = float(_asymmetry(self, params))
            if not gap < 1e-3:
                raise ValueError(
                    f"`Exponential(generator)`: the generator is not symmetric (x'Ay and y'Ax differ by {gap:.1e}, "
                    "relatively); a rotation, for example, conserves no quadratic charge."
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
    """Return the largest eigenvalue of A in absolute value, by power iteration (from below)."""
    start = spectral.unit(trees.standard_normal(jax.random.key(0), params))
    return spectral.norm(symmetry.apply(spectral.power_iteration(symmetry.apply, start, POWER_STEPS)))


def _exponential(symmetry: Exponential, vector: PyTree, amount: Array) -> PyTree:
    """Return exp(amount A) v by a Taylor series of 18 terms in steps with |amount A| <= 1; NaN where it overflows."""
    length = jnp.abs(amount) * _largest(symmetry, vector)
    within = length <= largest_exponent(vector)  # false for NaN
    count = jnp.ceil(2 * jnp.where(within, length, 0)) + 1  # twice: the power iteration finds the norm from below

    def step(_: Array, v: PyTree) -> PyTree:
        def term(carry: tuple[PyTree, PyTree], k: Array) -> tuple[tuple[PyTree, PyTree], None]:
            total, last = carry
            last = trees.scale(amount / (count * k), symmetry.apply(last))
            return (trees.add(total, last), last), None

        return jax.lax.scan(term, (v, v), jnp.arange(1.0, 19.0, dtype=amount.dtype))[0][0]

    moved = jax.lax.fori_loop(0, count.astype(int), step, vector)
    return jax.tree.map(lambda x: jnp.where(within, x, jnp.nan), moved)
