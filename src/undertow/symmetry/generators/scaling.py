"""Scale invariance: the generator A = I on a part of params."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PyTree

from undertow import _validate as validate
from undertow._calls import checked_call
from undertow.symmetry import selection
from undertow.symmetry.generators._checks import check_label, check_overlap, check_pick, picked_sums
from undertow.symmetry.generators.base import AbstractDiagonal, Pair
from undertow.symmetry.selection import Pick

__all__ = ["Scaling"]


class Scaling(AbstractDiagonal):
    """Multiplication of the params picked by `where` with exp(amount), A = I.

    Batch, layer and weight normalisation make a loss invariant under this symmetry. `where` picks entries of params as
    in `Rescaling`, and `label` replaces the description in tables.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> symmetry = ut.Scaling(lambda p: p["w"])
    >>> print(symmetry.charge({"w": jnp.array([3.0, 4.0]), "gain": jnp.array(2.0)}))
    12.5
    """

    where: Pick
    label: str = eqx.field(static=True)

    @checked_call("Scaling")
    def __init__(self, where: Pick, label: str = ""):
        check_pick("Scaling", "where", where)
        self.where = where
        self.label = check_label("Scaling", label)

    def sums(self, tree: PyTree) -> Pair:
        plus = picked_sums(self.where, tree, None)
        return plus, jnp.zeros_like(plus)

    def logs(self, like: PyTree, amount: ArrayLike) -> PyTree:
        return selection.scatter(self.where, like, jax.tree.map(lambda x: jnp.asarray(amount), self.where(like)))

    def check_params(self, params: PyTree) -> None:
        validate.params_of_floats("Scaling", params)
        check_overlap("Scaling", params, where=self.where)

    def dimension(self, params: PyTree) -> int:
        return 1

    def describe(self, params: PyTree) -> str:
        return self.label or f"scaling of {selection.describe(self.where, params)}"
