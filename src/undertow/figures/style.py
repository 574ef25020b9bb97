"""The look of every figure: theory is a line, experiment is points with intervals."""

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "applied", "new_figure", "points", "theory", "to_svg"]

COLOURS = {"blue": "#2166ac", "red": "#b2182b", "green": "#1b7837", "purple": "#762a83", "grey": "#666666"}
"""Told apart in print and by people who do not see all colours."""

STYLE: Any = {
    "figure.dpi": 110,
    "savefig.bbox": "tight",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "undertow",
    "svg.fonttype": "path",
}


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


def theory(axes: "Axes", x: Any, y: Any, label: str, colour: str = "grey") -> None:
    """A prediction: a line."""
    axes.plot(x, y, color=COLOURS[colour], label=label, zorder=2)


def points(axes: "Axes", x: Any, y: Any, error: Any, label: str, colour: str = "blue", marker: str = "o") -> None:
    """A measurement: points with intervals of two standard errors, or (low, high) offsets where they are given."""
    import numpy as np

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


def to_svg(figure: "Figure") -> str:
    """The figure as SVG text, the same bytes for the same figure."""
    buffer = io.StringIO()
    with applied():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
