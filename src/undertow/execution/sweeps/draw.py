"""A sweep as a picture, finished or not: a line for one axis, a heat map for two."""

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from undertow.execution import store
from undertow.execution.registry import diagrams
from undertow.execution.sweeps.experiments import sentence
from undertow.execution.sweeps.results import Results
from undertow.execution.sweeps.spec import Spec

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["Drawer", "draw"]

SHARE = 50
"""A partial figure is drawn again after so many times the seconds that the last one took: 2 % of the time at most."""


def draw(spec: Spec, data: "xarray.Dataset") -> "Figure | None":
    """Means over the seeds, and over axes after the second. None where there is nothing to show yet."""
    from undertow.figures import heatmap, style

    if ":" not in spec.experiment and spec.experiment in diagrams and diagrams[spec.experiment].drawable(data):
        return diagrams[spec.experiment].draw(data)
    name = spec.show if spec.show in data else next((str(n) for n in data.data_vars if n != "done"), None)
    axes = [axis.name for axis in spec.axes if axis.size > 1 and data[axis.name].dtype.kind in "fiu"]
    if name is None or not axes:
        return None
    kept = axes[:2]
    values = data[name]
    label = name
    if "check" in values.dims:
        values, label = values.isel(check=0), f"{name}, first check"
    others = [d for d in values.dims if d not in kept]
    means = values.mean(others, skipna=True).sortby(kept)
    if not np.isfinite(means.values).any():
        return None
    figure, (panel,) = style.new_figure(width=6.0, height=4.2)
    if len(kept) == 2:
        y, x = kept
        heatmap.heat_map(panel, means[x], means[y], means.transpose(y, x).values, label)
        panel.set(xlabel=x, ylabel=y)
    else:
        spread, count = values.std(others).sortby(kept), values.count(others).sortby(kept)
        error = (spread / np.sqrt(np.maximum(count - 1, 1))).values
        style.points(panel, means[kept[0]].values, means.values, error, f"mean over {spec.seeds} seeds")
        panel.set(xlabel=kept[0], ylabel=label)
    return figure


class Drawer:
    """Draws figure.svg now and then while a sweep runs. A figure that cannot be drawn stops nothing; it warns once."""

    def __init__(self, spec: Spec, folder: Path, first: float = 5.0):
        self.spec, self.folder = spec, folder
        self.due = time.monotonic() + first
        self.warned = False

    def maybe(self, results: Results | None) -> None:
        """Draws, if enough time has passed."""
        if results is not None and time.monotonic() >= self.due:
            self.now(results)

    def now(self, results: Results) -> Path | None:
        """Draws; None where there is nothing to show, or it cannot be shown."""
        began = time.monotonic()
        try:
            return write_figure(self.spec, self.folder, results.open())
        except Exception as error:
            if not self.warned:
                self.warned = True
                warnings.warn(
                    f"{self.folder}: the figure cannot be drawn ({sentence(error)}); the results are not affected.",
                    stacklevel=2,
                )
            return None
        finally:
            self.due = time.monotonic() + SHARE * (time.monotonic() - began)


def write_figure(spec: Spec, folder: Path, data: Any) -> Path | None:
    """figure.svg of what is there."""
    from undertow.figures import export, style

    with style.applied():
        figure = draw(spec, data.load())
        if figure is None:
            return None
        return store.write_bytes(folder / "figure.svg", export.to_svg(figure).encode())
