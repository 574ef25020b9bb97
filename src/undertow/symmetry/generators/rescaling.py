"""Rescaling symmetries of neurons: outgoing weights grow by the factor by which incoming weights shrink."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import checked_call
from undertow.symmetry import selection
from undertow.symmetry.generators._checks import check_label, check_overlap, check_pick, picked_sums
from undertow.symmetry.generators.base import AbstractDiagonal, Pair
from undertow.symmetry.selection import Pick

__all__ = ["Rescaling"]


class Rescaling(AbstractDiagonal):
    """Multiplication of outgoing weights with exp(amount), and of incoming weights (and biases) with exp(-amount).

    ReLU, leaky ReLU and linear neurons have this symmetry. **Arguments:** `outgoing(params)` and `incoming(params)`
    pick entries of params, as for `equinox.tree_at`: leaves, or slices, transposes and tuples of them. With
    `neurons=True` there is one generator for each neuron: the last axis of the arrays that `outgoing` picks, and the
    first axis of those that `incoming` picks. `label` replaces the description in tables.

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

    @checked_call("Rescaling")
    def __init__(self, outgoing: Pick, incoming: Pick, neurons: bool = False, label: str = ""):
        for name, pick in (("outgoing", outgoing), ("incoming", incoming)):
            check_pick("Rescaling", name, pick)
        self.outgoing = outgoing
        self.incoming = incoming
        self.neurons = validate.flag("Rescaling", "neurons", neurons)
        self.label = check_label("Rescaling", label)

    def sums(self, tree: PyTree) -> Pair:
        return picked_sums(self.outgoing, tree, -1 if self.neurons else None), picked_sums(
            self.incoming, tree, 0 if self.neurons else None
        )

    def logs(self, like: PyTree, amount: ArrayLike) -> PyTree:
        amount = jnp.asarray(amount)
        first = lambda x: amount.reshape(amount.shape + (1,) * (x.ndim - amount.ndim))
        up = selection.scatter(self.outgoing, like, jax.tree.map(lambda x: amount, self.outgoing(like)))
        down = selection.scatter(self.incoming, like, jax.tree.map(first, self.incoming(like)))
        return trees.subtract(up, down)

    def check_params(self, params: PyTree) -> None:
        validate.params_of_floats("Rescaling", params)
        check_overlap("Rescaling", params, outgoing=self.outgoing, incoming=self.incoming)
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
