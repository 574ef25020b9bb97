"""The pictures of results that `.plot()` draws, on given axes or on a new pyplot figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from undertow.figures import style
from undertow.figures.style import Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = [
    "Band",
    "draw_band",
    "draw_bars",
    "draw_diverged",
    "draw_groups",
    "draw_points",
    "draw_windows",
    "label_axes",
    "new_axes",
]

BAND = "95% interval of the mean"
SERIES = "series"
"""The mark of a line or of points that has a colour of its own."""


@dataclass(frozen=True, eq=False)
class Band:
    """A curve with its interval; `low` and `high` may be NaN."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def new_axes(axes: "Axes | None", height: float = 3.6) -> "Axes":
    """Return the given axes, or those of a new pyplot figure in the style of undertow."""
    import matplotlib.pyplot as plt

    if axes is not None:
        return axes
    with style.applied():
        return plt.subplots(figsize=(5.6, height), layout="constrained")[1]


def draw_band(axes: "Axes", band: Band, label: str, line: str = "-") -> None:
    """Draw a curve, and its interval as a band where it is known."""
    colour = _next_colour(axes)
    marker = "o" if len(band.x) == 1 else None
    axes.plot(band.x, band.middle, color=colour, ls=line, marker=marker, label=label, gid=SERIES)
    if np.isfinite(band.low).any():
        axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.2, lw=0, label=_once(axes, BAND))


def draw_diverged(axes: "Axes", x: Values, runs: int) -> None:
    """Mark the times at which runs diverged, at the lower edge of the axes."""
    at = np.asarray(x)
    axes.plot(
        at, np.full(at.shape, 0.02), "x", transform=axes.get_xaxis_transform(), color=style.COLOURS["red"],
        markersize=6, markeredgewidth=1.5, clip_on=False, label=f"diverged ({at.size} of {runs} runs)",
    )  # fmt: skip


def draw_points(axes: "Axes", x: Values, y: Values, offsets: Values | None, label: str) -> None:
    """Draw points, with (low, high) offsets where they are known."""
    at, values = np.asarray(x, float), np.asarray(y, float)
    known = None if offsets is None or not np.isfinite(np.asarray(offsets)).all() else np.asarray(offsets)
    drawn = axes.errorbar(at, values, yerr=known, fmt="o", color=_next_colour(axes), label=label, markersize=4.5,
                          capsize=2.5, lw=1.2, zorder=3)  # fmt: skip
    drawn[0].set_gid(SERIES)


def draw_groups(axes: "Axes", groups: Mapping[str, Values]) -> None:
    """Draw the entries of arrays beside each other and to the right of those that are drawn already.

    Each array has a colour of its own. Entries that are not finite are left out.
    """
    drawn = [np.max(np.asarray(line.get_xdata())) for line in _series(axes) if len(np.asarray(line.get_xdata()))]
    start = int(max(drawn)) + 1 if drawn else 0
    for name, values in groups.items():
        flat = np.ravel(np.asarray(values, float))
        shown = np.isfinite(flat)
        draw_points(axes, start + np.flatnonzero(shown), flat[shown], None, name)
        start += flat.size


def draw_bars(axes: "Axes", names: Sequence[str], values: dict[str, Values]) -> None:
    """Draw groups of bars, one group for each name, one bar of each group for each entry of `values`."""
    places, width = np.arange(len(names)), 0.8 / len(values)
    for k, (label, heights) in enumerate(values.items()):
        offset = (k - (len(values) - 1) / 2) * width
        axes.bar(places + offset, np.asarray(heights), width, label=label, color=list(style.COLOURS.values())[k])
    axes.set_xticks(places, names, rotation=30 if len(names) > 4 else 0)
    axes.grid(visible=False, axis="x")


def draw_windows(
    axes: "Axes", windows: dict[str, tuple[float, float] | None], marked: tuple[float, str] | None
) -> None:
    """Draw intervals of a positive quantity on a logarithmic axis, one below the other; None is an empty interval."""
    for row, (name, window) in enumerate(reversed(windows.items())):
        if window is not None:
            axes.plot(window, [row, row], lw=9, solid_capstyle="butt", color=style.COLOURS["blue"], alpha=0.45)
        axes.annotate(
            name if window is not None else f"{name}: empty", (0, row + 0.2), xycoords=("axes fraction", "data"),
            va="bottom",
        )  # fmt: skip
    if marked is not None:
        axes.axvline(marked[0], color=style.COLOURS["red"], label=marked[1])
        with style.applied():
            axes.legend(loc="lower left")
    axes.set_xscale("log")
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(windows) - 0.2)


def label_axes(axes: "Axes", x: str, y: str = "") -> None:
    """Write the names of the axes, and a legend where it has more than one entry; one entry names the vertical axis."""
    with style.applied():
        axes.set_xlabel(x)
        labels = axes.get_legend_handles_labels()[1]
        if len(labels) > 1:
            axes.set_ylabel(y)
            axes.legend()
        elif labels:
            axes.set_ylabel(y or labels[0])


def _next_colour(axes: "Axes") -> str:
    return list(style.COLOURS.values())[len(_series(axes)) % len(style.COLOURS)]


def _series(axes: "Axes") -> "list[Line2D]":
    return [line for line in axes.get_lines() if line.get_gid() == SERIES]


def _once(axes: "Axes", label: str) -> str | None:
    return None if label in axes.get_legend_handles_labels()[1] else label
