"""A phase diagram: a batched experiment, the grid it is usually shown on, and its figure."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["Diagram", "fixed", "means"]


@dataclass(frozen=True)
class Diagram:
    """`run(key, *, parameters...)` at every point of two axes, and how to draw what comes out.

    `axes(points)` gives the usual grid with so many points along each axis. `drawable(data)` says whether a dataset has
    what `draw` shows: the diagram's own axes and some finite values.
    """

    id: str
    run: Callable[..., dict[str, Any]]
    axes: Callable[[int], dict[str, Any]]
    points: int
    seeds: int
    shown: tuple[str, str]
    """The parameters of the horizontal and the vertical axis."""
    draw: "Callable[[xarray.Dataset], Figure]"

    def drawable(self, data: "xarray.Dataset") -> bool:
        """Whether both axes are there, at least two points long, and some run is finished."""
        return all(data.sizes.get(name, 0) > 1 for name in self.shown) and bool((data["done"] == 1).any())


def fixed(data: "xarray.Dataset", name: str, usual: Any) -> Any:
    """The value of a parameter that is the same at every point."""
    return json.loads(data.attrs.get("parameters", "{}")).get(name, usual)


def means(data: "xarray.Dataset", name: str, x: str, y: str) -> "xarray.DataArray":
    """An output over two axes, growing, averaged over the seeds that have it and over any other axis."""
    values = data[name]
    return values.mean([d for d in values.dims if d not in (x, y)]).sortby([x, y]).transpose(y, x)
