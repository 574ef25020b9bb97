"""The group GL(d) between two factors of a product."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from undertow import _validate as validate
from undertow._calls import checked_call
from undertow.symmetry import selection
from undertow.symmetry.generators._checks import check_amount, check_label, check_overlap, check_pick, check_shape
from undertow.symmetry.generators.base import AbstractSymmetry, Pair
from undertow.symmetry.selection import Pick

__all__ = ["DoubleRotation"]


class DoubleRotation(AbstractSymmetry):
    """GL(d) between two factors: (U, W) -> (U P, P^-1 W), P = exp(amount), amount a symmetric d x d matrix.

    `left(params)` picks U, whose last axis is the inner one; `right(params)` picks W, whose first axis is the inner
    one. The charge is the matrix 1/2 (U'U - WW'). `label` replaces the description in tables.

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

    @checked_call("DoubleRotation")
    def __init__(self, left: Pick, right: Pick, label: str = ""):
        for name, pick in (("left", left), ("right", right)):
            check_pick("DoubleRotation", name, pick)
        self.left = left
        self.right = right
        self.label = check_label("DoubleRotation", label)

    def factors(self, params: PyTree) -> Pair:
        """Return U and W as matrices."""
        (u,), (w,) = selection.selected(self.left, params), selection.selected(self.right, params)
        return u.reshape(-1, u.shape[-1]), w.reshape(w.shape[0], -1)

    def replace(self, params: PyTree, u: Array, w: Array) -> PyTree:
        """Return params with the factors replaced."""
        old_u, old_w = self.left(params), self.right(params)
        params = selection.replace(self.left, params, u.reshape(old_u.shape))
        return selection.replace(self.right, params, w.reshape(old_w.shape))

    def pair(self, a: PyTree, b: PyTree) -> Pair:
        (ua, wa), (ub, wb) = self.factors(a), self.factors(b)
        return ua.T @ ub, wb @ wa.T

    def orbit(self, params: PyTree, amount: ArrayLike) -> PyTree:
        self.check_params(params)
        u, w = self.factors(params)
        check_shape("DoubleRotation", amount, (u.shape[1], u.shape[1]))
        amount = jnp.asarray(amount, u.dtype)
        if amount.ndim == 0:
            amount = amount * jnp.eye(u.shape[1], dtype=u.dtype)
        check_amount("DoubleRotation", amount, params)
        values, vectors = jnp.linalg.eigh((amount + amount.T) / 2)
        forward = (vectors * jnp.exp(values)[None]) @ vectors.T
        backward = (vectors * jnp.exp(-values)[None]) @ vectors.T
        return self.replace(params, u @ forward, backward @ w)

    def norm(self, vector: PyTree) -> Float[Array, ""]:
        u, w = self.factors(vector)
        return jnp.sqrt(jnp.sum(u**2) + jnp.sum(w**2))

    def check_params(self, params: PyTree) -> None:
        validate.params_of_floats("DoubleRotation", params)
        check_overlap("DoubleRotation", params, left=self.left, right=self.right)
        left, right = (selection.selected(pick, params) for pick in (self.left, self.right))
        if len(left) != 1 or len(right) != 1:
            counts = f"{len(left)} and {len(right)} arrays"
            raise ValueError(
                f"`DoubleRotation`: `left` and `right` return {counts}; return one array each, as they are."
            )
        u, w = left[0].shape, right[0].shape
        if not u or not w or u[-1] != w[0]:
            raise ValueError(
                f"`DoubleRotation`: the leaves of params do not multiply: `left` has shape {u}, `right` {w}; the "
                "last axis of "
                "`left` must be the first of `right`: transpose in the function, such as `lambda p: p['w'].T`."
            )

    def dimension(self, params: PyTree) -> int:
        width = selection.selected(self.left, params)[0].shape[-1]
        return width * (width + 1) // 2

    def describe(self, params: PyTree) -> str:
        width = selection.selected(self.left, params)[0].shape[-1]
        names = f"{selection.describe(self.left, params)} and {selection.describe(self.right, params)}"
        return self.label or f"GL({width}) between {names}"
