"""Output of measurements: TensorBoard, dictionaries for loggers, CSV and xarray."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from undertow._validate import kind_of, shown
from undertow.torch.census.census import Census
from undertow.torch.monitor.noise_scale import NoiseScale, NoiseScales
from undertow.torch.monitor.reading import COLUMNS, Row

if TYPE_CHECKING:
    import xarray

__all__ = [
    "DictLogger",
    "ScalarWriter",
    "Writer",
    "labels",
    "log_measurement",
    "measured_columns",
    "open_writer",
    "scalars",
    "symmetry_labels",
    "to_xarray",
    "write_csv",
]

IDENTIFIERS = {"step", "symmetry", "kind", "generators", "samples", "note"}
"""Columns that say what was measured, and where."""


@runtime_checkable
class ScalarWriter(Protocol):
    """An object such as TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Log a number."""


@runtime_checkable
class DictLogger(Protocol):
    """An object such as a run of wandb."""

    def log(self, values: dict[str, float]) -> object:
        """Log numbers by name."""


Writer = ScalarWriter | DictLogger | Callable[[dict[str, float]], object]
"""Where measurements are logged."""


def open_writer(writer: Writer | str | Path | None) -> tuple[Writer | None, bool]:
    """Return the writer, and whether it was created here and has to be closed."""
    if not isinstance(writer, str | Path):
        if writer is not None and not (isinstance(writer, ScalarWriter | DictLogger) or callable(writer)):
            raise TypeError(
                f"`NoiseMonitor(writer={shown(writer)})`: `writer`, {kind_of(writer)}, has no `add_scalar` and no "
                "`log`, and cannot "
                "be called; give a SummaryWriter, a function of a dict, or an object with `log(dict)`."
            )
        return writer, False
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"`NoiseMonitor(writer={str(writer)!r})` needs TensorBoard: install it with `pip install tensorboard`."
        ) from error
    return SummaryWriter(str(writer)), True


def measured_columns(row: Row) -> dict[str, float]:
    """Return the numbers of a row, by column, whatever its columns are."""
    numbers = {name: value for name, value in row.items() if name not in IDENTIFIERS}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}


def scalars(scales: NoiseScales) -> dict[str, float]:
    """Return the numbers of the total noise scale that are finite, by names that every logger accepts."""
    total = scales.total
    numbers = {
        "scale": total.value,
        "scale_error": total.error,
        "scale_low": total.low,
        "scale_high": total.high,
        "share": total.noise_share,
        "power": total.noise,
        "signal": total.signal,
    }
    return {f"noise/{name}": value for name, value in numbers.items() if math.isfinite(value)}


def layer_scalars(layers: Mapping[str, NoiseScale]) -> dict[str, float]:
    """Return the noise scale of every layer that is finite."""
    return {f"noise_scale/{name}": scale.value for name, scale in layers.items() if math.isfinite(scale.value)}


def labels(symmetries: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return a short name for each symmetry, given as its kind and its parameters: the first layer and the kind.

    >>> from undertow.torch.monitor.output import labels
    >>> print(labels([("OV", ["layers.0.v.weight", "layers.0.o.weight"]), ("OV", ["layers.0.v.weight"])]))
    ['layers.0.v: OV', 'layers.0.v: OV (2)']
    """
    names: list[str] = []
    for kind, parameters in symmetries:
        plain = name = f"{parameters[0].rpartition('.')[0] or parameters[0]}: {kind}"
        repeated = 1
        while name in names:
            repeated += 1
            name = f"{plain} ({repeated})"
        names.append(name)
    return names


def symmetry_labels(census: Census) -> list[str]:
    """Return the labels of all symmetries, each with the layer of its side minus: a gain, the first layer of two."""
    return labels([(s.kind, [axis.parameter for axis in (*s.minus, *s.plus)]) for s in census])


def log_measurement(writer: Writer, rows: Sequence[Row], scales: NoiseScales, step: int) -> None:
    """Log the numbers of a step: of all symmetries, and the noise scale in total and by layer."""
    numbers = {f"{row['symmetry']}/{name}": value for row in rows for name, value in measured_columns(row).items()}
    numbers |= scalars(scales) | layer_scalars(scales.layers)
    if isinstance(writer, ScalarWriter):
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
    elif isinstance(writer, DictLogger):
        writer.log({"step": step} | numbers)
    else:
        writer({"step": step} | numbers)


def write_csv(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows as a table; unknown numbers are empty."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]) if rows else COLUMNS)
        table.writeheader()
        table.writerows(rows)


def to_xarray(census: Census, measurements: Sequence[Sequence[Row]], scales: NoiseScales) -> "xarray.Dataset":
    """Return the numeric columns over (step, symmetry), and the noise scale over (scale_step, layer)."""
    import xarray

    named = symmetry_labels(census)
    columns = dict.fromkeys(name for rows in measurements for row in rows for name in measured_columns(row))
    values = {
        name: (
            ("step", "symmetry"),
            np.array([[measured_columns(row).get(name, np.nan) for row in rows] for rows in measurements], float),
        )
        for name in columns
    }
    history = list(scales.history)
    layers = list(dict.fromkeys(layer for record in history for layer in record.value))
    cell = lambda record, field: [getattr(record, field).get(layer, np.nan) for layer in layers]
    over = lambda field: (("scale_step", "layer"), np.array([cell(record, field) for record in history]))
    values |= {f"noise_scale{end}": over(field) for end, field in (("", "value"), ("_low", "low"), ("_high", "high"))}
    values["noise_share"] = over("share")
    steps = [int(rows[0]["step"] or 0) for rows in measurements if rows] if columns else []
    coordinates = {"scale_step": [record.step for record in history], "layer": layers}
    if columns:
        coordinates |= {"step": steps, "symmetry": named}
    return xarray.Dataset(values, coordinates)
