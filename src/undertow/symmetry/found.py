"""The symmetries of a loss that a search found, as a tuple that prints and plots them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from undertow._table import ResultTable, shortened, span
from undertow.figures import results
from undertow.symmetry.generators import AbstractSymmetry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Symmetries"]


class Symmetries(tuple[AbstractSymmetry, ...]):
    """A tuple of symmetries, with the params by whose leaves they are named; `print` shows a table.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.found import Symmetries
    >>> params = {"u": jnp.array(2.0), "w": jnp.array(0.5)}
    >>> found = Symmetries([ut.Rescaling(lambda p: p["u"], lambda p: p["w"])], params)
    >>> print(found)
    1 symmetry, 1 generator
    symmetry                generators  charge
    rescaling, w against u           1   1.875
    """

    params: PyTree

    def __new__(cls, symmetries: Iterable[AbstractSymmetry], params: PyTree) -> "Symmetries":
        self = super().__new__(cls, symmetries)
        self.params = params
        return self

    def _table(self) -> ResultTable:
        dimensions = [symmetry.dimension(self.params) for symmetry in self]
        rows = [(s.describe(self.params), str(n), span(np.asarray(s.charge(self.params))))
                for s, n in zip(self, dimensions, strict=True)]  # fmt: skip
        shown, notes = shortened(rows, "symmetries")
        total = sum(dimensions)
        title = f"{len(self)} symmetr{'y' if len(self) == 1 else 'ies'}, {total} generator{'' if total == 1 else 's'}"
        return ResultTable(title, ("symmetry", "generators", "charge"), shown, "lrr", notes)

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def plot(self, *, ax: "Axes | None" = None) -> "Axes":
        """Draw the charge of every generator, one colour for each symmetry.

        >>> import jax.numpy as jnp
        >>> import undertow as ut
        >>> from undertow.symmetry.found import Symmetries
        >>> params = {"out": jnp.ones((1, 3)), "in": jnp.array([[1.0], [2.0], [3.0]])}
        >>> neurons = ut.Rescaling(lambda p: p["out"], lambda p: p["in"], neurons=True)
        >>> axes = Symmetries([neurons], params).plot()
        >>> print(axes.get_xlabel(), axes.get_ylabel())
        generator charge
        """
        axes = results.new_axes(ax)
        for symmetry in self:
            symmetry.plot(self.params, ax=axes)
        return axes
