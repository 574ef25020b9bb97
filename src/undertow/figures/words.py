"""The description of a figure in words, computed from the figure, for screen readers and captions."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

__all__ = ["describe"]


def describe(figure: "Figure") -> str:
    """Describe the panels: their axes, and every labelled line, set of points and map with its first and last values.

    A figure with a label (`figure.set_label`) is described by that label.

    >>> from undertow.figures import style, words
    >>> figure, (axes,) = style.new_figure()
    >>> style.theory(axes, [0, 1, 2], [1, 0.5, 0.25], "flow")
    >>> style.points(axes, [1, 2], [0.52, 0.24], [0.01, 0.01], "SGD")
    >>> _ = axes.set_xlabel("time"), axes.set_ylabel("charge")
    >>> words.describe(figure)
    'charge against time. flow, a line: 1 at 0 to 0.25 at 2. SGD, 2 points with intervals: 0.52 at 1 to 0.24 at 2.'
    """
    if figure.get_label():
        return str(figure.get_label())
    panels = [axes for axes in figure.axes if not hasattr(axes, "_colorbar")]
    sentences = [_panel(axes) for axes in panels]
    if len(sentences) == 1:
        return sentences[0]
    return " ".join(f"Panel {k}: {sentence}" for k, sentence in enumerate(sentences, 1))


def _panel(axes: "Axes") -> str:
    from matplotlib.collections import QuadMesh

    x, y = axes.get_xlabel(), axes.get_ylabel()
    title = next((t for t in (axes.get_title(loc=place) for place in ("left", "center", "right")) if t), "")
    sentences = [f"{y} against {x}" if x and y else y or x]
    sentences += [_map(mesh) for mesh in axes.collections if isinstance(mesh, QuadMesh)]
    handles, names = axes.get_legend_handles_labels()
    sentences += [_series(name, handle) for handle, name in zip(handles, names, strict=True)]
    sentences += [text.get_text() for text in axes.texts if text.get_text()]
    return " ".join(f"{sentence}." for sentence in [title, *sentences] if sentence)


def _series(name: str, handle: "Artist | ErrorbarContainer") -> str:
    """Describe a labelled line or set of points: their number, the first and the last."""
    from matplotlib.container import ErrorbarContainer
    from matplotlib.lines import Line2D

    line, intervals = handle, False
    if isinstance(handle, ErrorbarContainer):
        line, _, bars = handle.lines
        intervals = bool(bars)
    if not isinstance(line, Line2D):
        return name
    data = np.asarray(line.get_xydata(), float)
    data = data[np.isfinite(data).all(axis=1)]
    if not len(data):
        return f"{name}: no finite values"
    drawn = line.get_linestyle() not in ("None", "none", "", " ")
    count = f"{len(data)} point{'s' if len(data) > 1 else ''}"
    kind = "a line" if drawn else f"{count} with intervals" if intervals else count
    (x0, y0), (x1, y1) = data[0], data[-1]
    place = f"{y0:.4g} at {x0:.4g}"
    if len(data) > 1:
        place = f"{y0:.4g} throughout" if drawn and np.ptp(data[:, 1]) == 0 else f"{place} to {y1:.4g} at {x1:.4g}"
    return f"{name}, {kind}: {place}"


def _map(mesh: "QuadMesh") -> str:
    array = mesh.get_array()
    assert array is not None
    values = np.ma.masked_invalid(array)
    name = mesh.colorbar.ax.get_ylabel() if mesh.colorbar is not None else "values"
    rows, columns = (size - 1 for size in np.shape(mesh.get_coordinates())[:2])
    shown = f"{values.min():.4g} to {values.max():.4g}" if values.count() else "no finite values"
    return f"{name}, a heat map of {columns} by {rows} cells: {shown}"
