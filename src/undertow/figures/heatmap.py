"""Phase diagrams: a measured quantity as colours over two parameters, with the boundary that theory predicts."""

from typing import TYPE_CHECKING

import numpy as np

from undertow.figures.style import Values, applied

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["boundary", "heat_map"]

EDGE = "#0f0f0f"
"""The edge colour of the boundary, the same on light and dark pages, as are the colours under it."""

COLOUR_MAP = "cividis"
"""A map of increasing lightness, readable for people with colour vision deficiency."""


def heat_map(
    axes: "Axes",
    x: Values,
    y: Values,
    values: Values,
    label: str,
    *,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw `values[j, i]` as a colour around (x[i], y[j]), with a colour bar labelled `label`.

    x and y are the centres of the cells. An axis whose centres are in geometric progression becomes logarithmic. Cells
    without a value (NaN) stay empty. `limits` fixes the range of colours, to compare several maps.

    >>> from undertow.figures import heatmap, style
    >>> figure, (axes,) = style.new_figure()
    >>> heatmap.heat_map(axes, [1, 2, 3], [0.01, 0.1], [[0, 0, 1], [0, 1, 1]], "share of runs that end")
    >>> axes.get_xscale(), axes.get_yscale()
    ('linear', 'log')
    """
    x, y, values = np.asarray(x, float), np.asarray(y, float), np.ma.masked_invalid(np.asarray(values, float))
    if values.shape != (y.size, x.size):
        raise ValueError(
            f"`heat_map`: values of shape {values.shape} for {x.size} columns x and {y.size} rows y; "
            f"give one value per cell, shape ({y.size}, {x.size})."
        )
    low, high = limits if limits is not None else (values.min(), values.max())
    (columns, x_scale), (rows, y_scale) = _edges(x, "x"), _edges(y, "y")
    axes.set_xscale(x_scale)
    axes.set_yscale(y_scale)
    with applied():
        mesh = axes.pcolormesh(columns, rows, values, cmap=COLOUR_MAP, vmin=low, vmax=high, rasterized=True, zorder=1)
        bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
    axes.grid(visible=False)
    axes.set_xlim(columns[0], columns[-1])
    axes.set_ylim(rows[0], rows[-1])


def boundary(axes: "Axes", x: Values, y: Values, label: str) -> None:
    """Draw a predicted boundary over a heat map: a white line with a dark edge, visible on every colour.

    The map keeps its limits; the boundary outside them is not shown.
    """
    from matplotlib import patheffects

    limits = axes.get_xlim(), axes.get_ylim()
    edge = patheffects.withStroke(linewidth=4.2, foreground=EDGE)
    axes.plot(np.asarray(x), np.asarray(y), color="white", linewidth=2.2, label=label, path_effects=[edge], zorder=3)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])


def _edges(centres: np.ndarray, name: str) -> tuple[np.ndarray, str]:
    """Return the edges half way between the centres, and the scale on which the centres are evenly spread."""
    if centres.size < 2 or np.any(np.diff(centres) <= 0):
        raise ValueError(f"`heat_map`: {name} must hold at least two centres, growing; got {centres.tolist()}.")
    steps = np.diff(centres)
    even = np.ptp(steps) <= 1e-6 * steps.max()
    ratios = np.diff(np.log(centres)) if centres[0] > 0 else np.array([0.0, 1.0])
    geometric = np.ptp(ratios) <= 1e-6 * ratios.max() and centres[-1] > 4 * centres[0]
    if geometric and (not even or centres.size == 2):
        return np.exp(_half_way(np.log(centres))), "log"
    return _half_way(centres), "linear"


def _half_way(centres: np.ndarray) -> np.ndarray:
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
