"""The style of every figure: theory is a line, experiment is points with intervals."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

__all__ = ["COLOURS", "Values", "applied", "new_figure", "points", "proportional", "some", "theory"]


@runtime_checkable
class SupportsArray(Protocol):
    """An array of any library that NumPy can read."""

    def __array__(self) -> np.ndarray: ...


Values = Sequence[object] | SupportsArray | float | int
"""Numbers along an axis of a figure: an array of any library, nested lists, or one number."""

COLOURS = {"blue": "#2166ac", "red": "#b2182b", "green": "#1b7837", "purple": "#762a83", "grey": "#666666"}
"""Colours that differ in print and for people with colour vision deficiency."""

INK, GRID = "#1c1c1c", "#e4e4e0"

STYLE: "dict[RcKeyType, object]" = {
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.06,
    "font.size": 10,
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 5),
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.8,
    "pdf.fonttype": 3,
    "svg.hashsalt": "undertow",
    "svg.fonttype": "none",
}
"""Text stays text in SVG and PDF. The background is white; `inline` removes it for a page."""


def applied() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws in this style."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(panels: int = 1, *, width: float = 5.2, height: float = 3.4) -> "tuple[Figure, list[Axes]]":
    """Return a figure with `panels` panels side by side, made without a display."""
    from matplotlib.figure import Figure

    with applied():
        figure = Figure(figsize=(width * panels, height), layout="constrained")
        axes = [figure.add_subplot(1, panels, k + 1) for k in range(panels)]
    return figure, axes


def some(values: Values, most: int = 200) -> np.ndarray:
    """Return at most `most` entries of the first axis, evenly spread: more marks only make larger files."""
    array = np.asarray(values)
    return array[:: -(-len(array) // most)] if len(array) else array


def theory(axes: "Axes", x: Values, y: Values, label: str, colour: str = "grey") -> None:
    """Draw a prediction as a line."""
    axes.plot(np.asarray(x), np.asarray(y), color=COLOURS[colour], label=label, zorder=2)


def proportional(axes: "Axes", x: Values, label: str = "equality", factor: float = 1.0, colour: str = "grey") -> None:
    """Draw the line y = factor x over the range of x: where two quantities are equal, or have a constant ratio."""
    values = np.asarray(x, float)
    ends = np.array([values.min(), values.max()]) + 0.05 * np.ptp(values) * np.array([-1, 1])
    theory(axes, ends, factor * ends, label, colour)


def points(
    axes: "Axes",
    x: Values,
    y: Values,
    error: Values | None,
    label: str,
    colour: str = "blue",
    marker: str = "o",
) -> None:
    """Draw a measurement as points with intervals of two standard errors, or with (low, high) offsets if given."""
    offsets = None if error is None else 2 * np.asarray(error) if np.asarray(error).ndim < 2 else np.asarray(error)
    axes.errorbar(
        np.asarray(x),
        np.asarray(y),
        yerr=offsets,
        fmt=marker,
        color=COLOURS[colour],
        label=label,
        markersize=4.5,
        capsize=2.5,
        lw=1.2,
        zorder=3,
    )
