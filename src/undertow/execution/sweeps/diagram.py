"""A phase diagram: a batched experiment, the grid it is usually shown on, and its figure."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import jax
    import xarray
    from matplotlib.figure import Figure

__all__ = ["Diagram", "Grid", "fixed", "means"]

Grid = dict[str, list[int] | dict[str, list[float | int]]]
"""Axes by name: a list of values, or `linear` or `log` with [low, high, count]."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Diagram:
    """`run(key, *, parameters...)` at every point of two axes, and the figure of its outputs.

    `axes(points)` returns the usual grid with `points` points along each axis. `drawable(data)` returns whether a
    dataset has what `draw` shows: both axes of the diagram and some finished runs.
    """

    id: str
    run: "Callable[..., dict[str, jax.Array]]"
    axes: Callable[[int], Grid]
    points: int
    seeds: int
    shown: tuple[str, str]
    """The parameters of the horizontal and the vertical axis."""
    draw: "Callable[[xarray.Dataset], Figure]"

    def drawable(self, data: "xarray.Dataset") -> bool:
        """Return whether both axes have at least two points and some run is finished."""
        return all(data.sizes.get(name, 0) > 1 for name in self.shown) and bool((data["done"] == 1).any())


def fixed(data: "xarray.Dataset", name: str, usual: Number) -> Number:
    """Return the value of a parameter that is the same at every point, or `usual`."""
    return json.loads(data.attrs.get("parameters", "{}")).get(name, usual)


def means(data: "xarray.Dataset", name: str, x: str, y: str) -> "xarray.DataArray":
    """Return an output over two axes in increasing order, averaged over the seeds that have it and any other axis."""
    values = data[name]
    return values.mean([d for d in values.dims if d not in (x, y)]).sortby([x, y]).transpose(y, x)
