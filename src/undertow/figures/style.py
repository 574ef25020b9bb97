"""The look of every figure: theory is a line, experiment is points with intervals."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "applied", "new_figure", "points", "some", "theory"]

COLOURS = {"blue": "#2166ac", "red": "#b2182b", "green": "#1b7837", "purple": "#762a83", "grey": "#666666"}
"""Told apart in print and by people who do not see all colours."""

INK, GRID = "#1c1c1c", "#e4e4e0"

STYLE: Any = {
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
"""Text stays text in SVG and PDF. Only white is painted behind a figure, which `inline` takes off for a page."""


def applied() -> Any:
    """A context in which matplotlib draws in this style."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(panels: int = 1, *, width: float = 5.2, height: float = 3.4) -> "tuple[Figure, list[Axes]]":
    """A figure with so many panels side by side, made without a screen."""
    from matplotlib.figure import Figure

    with applied():
        figure = Figure(figsize=(width * panels, height), layout="constrained")
        axes = [figure.add_subplot(1, panels, k + 1) for k in range(panels)]
    return figure, axes


def some(values: Any, most: int = 200) -> Any:
    """At most so many of the first axis, evenly spread: more lines or marks show nothing and make large files."""
    return values[:: -(-len(values) // most)] if len(values) else values


def theory(axes: "Axes", x: Any, y: Any, label: str, colour: str = "grey") -> None:
    """A prediction: a line."""
    axes.plot(x, y, color=COLOURS[colour], label=label, zorder=2)


def points(axes: "Axes", x: Any, y: Any, error: Any, label: str, colour: str = "blue", marker: str = "o") -> None:
    """A measurement: points with intervals of two standard errors, or (low, high) offsets where they are given."""
    offsets = None if error is None else 2 * np.asarray(error) if np.ndim(error) < 2 else np.asarray(error)
    axes.errorbar(
        x,
        y,
        yerr=offsets,
        fmt=marker,
        color=COLOURS[colour],
        label=label,
        markersize=4.5,
        capsize=2.5,
        lw=1.2,
        zorder=3,
    )
