"""The figure of a sweep, finished or not: a line for one axis, a heat map for two."""

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from undertow.execution import store
from undertow.execution.error_text import error_message
from undertow.execution.registry import diagrams
from undertow.execution.sweeps.results import Results
from undertow.execution.sweeps.spec import Spec
from undertow.figures import export, heatmap, style

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["Drawer", "draw"]

SHARE = 50
"""A partial figure is drawn again after this many times the seconds of the last one: at most 2 % of the time."""


def draw(spec: Spec, data: "xarray.Dataset") -> "Figure | None":
    """Draw means over the seeds and over axes after the second; return None if no value is finite yet."""
    if ":" not in spec.experiment and spec.experiment in diagrams and diagrams[spec.experiment].drawable(data):
        return diagrams[spec.experiment].draw(data)
    name = spec.show if spec.show in data else next((str(n) for n in data.data_vars if n != "done"), None)
    axes = [axis.name for axis in spec.axes if axis.size > 1 and data[axis.name].dtype.kind in "fiu"]
    if name is None or not axes:
        return None
    shown = axes[:2]
    values = data[name]
    label = name
    if "check" in values.dims:
        values, label = values.isel(check=0), f"{name}, first check"
    others = [d for d in values.dims if d not in shown]
    means = values.mean(others, skipna=True).sortby(shown)
    if not np.isfinite(means.values).any():
        return None
    figure, (panel,) = style.new_figure(width=6.0, height=4.2)
    if len(shown) == 2:
        y, x = shown
        heatmap.heat_map(panel, means[x], means[y], means.transpose(y, x).values, label)
        panel.set(xlabel=x, ylabel=y)
    else:
        spread, count = values.std(others).sortby(shown), values.count(others).sortby(shown)
        error = (spread / np.sqrt(np.maximum(count - 1, 1))).values
        style.points(panel, means[shown[0]].values, means.values, error, f"mean over {spec.seeds} seeds")
        panel.set(xlabel=shown[0], ylabel=label)
    return figure


class Drawer:
    """Draw figure.svg from time to time while a sweep runs. A figure that cannot be drawn causes one warning."""

    def __init__(self, spec: Spec, folder: Path, first: float = 5.0):
        self.spec, self.folder = spec, folder
        self.due = time.monotonic() + first
        self.warned = False

    def draw_if_due(self, results: Results | None) -> None:
        """Draw if enough time has passed since the last figure."""
        if results is not None and time.monotonic() >= self.due:
            self.draw(results)

    def draw(self, results: Results) -> Path | None:
        """Draw and return the file; None if there is nothing to show, or the figure cannot be drawn."""
        began = time.monotonic()
        try:
            return write_figure(self.spec, self.folder, results.open())
        except Exception as error:
            if not self.warned:
                self.warned = True
                reason = error_message(error)
                warnings.warn(
                    f"{self.folder}: the figure cannot be drawn: {reason}; the results are not affected.", stacklevel=2
                )
            return None
        finally:
            self.due = time.monotonic() + SHARE * (time.monotonic() - began)


def write_figure(spec: Spec, folder: Path, data: "xarray.Dataset") -> Path | None:
    """Write figure.svg from the finished runs."""
    with style.applied():
        figure = draw(spec, data.load())
        if figure is None:
            return None
        return store.write_bytes(folder / "figure.svg", export.to_svg(figure).encode())
