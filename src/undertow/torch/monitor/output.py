"""Output of measurements: TensorBoard, CSV and a figure."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from undertow.torch.census.census import Census
from undertow.torch.monitor.reading import COLUMNS, Row

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["ScalarWriter", "log_rows", "open_writer", "plot_rows", "write_csv"]

LOGGED = ("charge", "noise_plus", "noise_minus", "flow", "change", "distance", "farthest", "relaxation", "slowest")
"""Columns that are logged as scalars."""


@runtime_checkable
class ScalarWriter(Protocol):
    """An object such as TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Log a number."""


def open_writer(writer: ScalarWriter | str | Path | None) -> tuple[ScalarWriter | None, bool]:
    """Return the writer, and whether it was created here and has to be closed."""
    if not isinstance(writer, str | Path):
        if writer is not None and not hasattr(writer, "add_scalar"):
            raise TypeError(
                f"`NoiseMonitor(writer=...)`: a {type(writer).__name__} has no `add_scalar`; give a SummaryWriter."
            )
        return writer, False
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"`NoiseMonitor(writer={str(writer)!r})` needs TensorBoard: install it with `pip install tensorboard`."
        ) from error
    return SummaryWriter(str(writer)), True


def log_rows(writer: ScalarWriter, rows: Sequence[Row], step: int) -> None:
    """Log the numbers of all rows of a step."""
    for row in rows:
        for name in LOGGED:
            value = row[name]
            if isinstance(value, int | float):
                writer.add_scalar(f"{row['symmetry']}/{name}", value, step)


def write_csv(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows as a table; unknown numbers are empty."""
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)


def plot_rows(census: Census, measurements: Sequence[Sequence[Row]]) -> "matplotlib.figure.Figure":
    """Return a figure of charges, noise on both sides and distances to equilibrium over the steps."""
    from undertow.figures import style

    steps = np.array([rows[0]["step"] for rows in measurements], int)
    colours = list(style.COLOURS.values())
    with style.applied():
        figure, (charges, noises, distances) = style.new_figure(3, width=4.4)
        for place, symmetry in enumerate(census):
            column = lambda name, place=place: np.array([rows[place][name] for rows in measurements], float)
            colour = colours[place % len(colours)]
            label = f"{symmetry.kind}, {symmetry.size}" if place < len(colours) else None
            charges.plot(steps, column("charge"), color=colour, label=label)
            noises.plot(steps, column("noise_plus"), color=colour, label="plus" if place == 0 else None)
            noises.plot(steps, column("noise_minus"), color=colour, ls="--", label="minus" if place == 0 else None)
            distances.plot(steps, column("distance"), color=colour)
        noises.set_yscale("log")
        titles = ("charge", "noise power", "log distance to equilibrium")
        for axes, title in zip((charges, noises, distances), titles, strict=True):
            axes.set_title(title)
            axes.set_xlabel("step")
        charges.legend()
        noises.legend()
    return figure
