"""Pictures as plain numbers: panels with lines, points, clouds of runs and cells, which `explorer.js` draws as SVG.

Theory is a line; simulation is a cloud of runs, and points for their mean with intervals of two standard errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from undertow.estimate import standard_error

__all__ = ["Axis", "Colour", "Json", "Panel", "Picture", "Row", "Series", "runs_and_mean"]

Json = str | float | int | bool | None | Sequence["Json"] | dict[str, "Json"]
Colour = Literal["blue", "red", "green", "purple", "grey"]
Kind = Literal["line", "dashed", "dots", "scatter", "cloud", "curves", "cells", "target"]

DIGITS = 4
"""Significant digits of the numbers of a picture: more than its pixels show."""
MOST_RUNS = 24
"""The largest number of runs in a cloud; the mean is that of all runs."""


@dataclass(frozen=True)
class Series:
    """One set of numbers in a panel.

    `y` has the shape of `x` for a line, dots, a scatter plot or a target (one point with a ring), and one row per run
    for a cloud (points) and for curves (thin lines). `error` is the half length of the intervals of dots. Cells have
    one row of `y` per value of `rows`.
    """

    kind: Kind
    label: str
    colour: Colour
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None = None
    rows: np.ndarray | None = None

    def to_json(self) -> Json:
        parts: dict[str, Json] = {"kind": self.kind, "label": self.label, "colour": self.colour}
        arrays = {"x": self.x, "y": self.y, "error": self.error, "rows": self.rows}
        return parts | {name: _numbers(values) for name, values in arrays.items() if values is not None}


@dataclass(frozen=True)
class Axis:
    """An axis with its label and range; the range is that of the numbers where it is not given."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `pick` names the sliders that a click in the panel sets, for x and for y."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    equal: bool = False
    pick: tuple[str, str] | None = None

    def to_json(self) -> Json:
        axes: dict[str, Json] = {name: dict(vars(axis)) for name, axis in (("x", self.x), ("y", self.y))}
        series: list[Json] = [one.to_json() for one in self.series]
        pick: list[Json] | None = None if self.pick is None else list(self.pick)
        return {"title": self.title, "series": series, "equal": self.equal, "pick": pick} | axes


@dataclass(frozen=True)
class Row:
    """A predicted number beside the measured one and its standard error."""

    label: str
    theory: float | None
    simulation: float | None
    error: float | None = None

    def to_json(self) -> Json:
        return [self.label, *(_number(value) for value in (self.theory, self.simulation, self.error))]


@dataclass(frozen=True)
class Picture:
    """What an instrument shows at one setting: panels, numbers, and remarks in sentences."""

    panels: tuple[Panel, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Json]:
        return {
            "panels": [panel.to_json() for panel in self.panels],
            "rows": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
        }


def runs_and_mean(label: str, x: np.ndarray, runs: np.ndarray, colour: Colour = "blue") -> tuple[Series, Series]:
    """Return the cloud of runs (runs, times), and their mean with intervals of two standard errors.

    >>> import numpy as np
    >>> from undertow.explore.picture import runs_and_mean
    >>> cloud, mean = runs_and_mean("SGD", np.array([0.0, 1.0]), np.array([[1.0, 2.0], [1.0, 4.0]]))
    >>> print(mean.label, mean.y, mean.error)
    SGD, mean of 2 runs [1. 3.] [0. 2.]
    """
    cloud = Series("cloud", f"{label}, single runs", colour, x, runs[:MOST_RUNS])
    error = 2 * np.asarray(standard_error(runs)) if len(runs) > 1 else np.zeros(len(x))
    of = f"mean of {len(runs)} runs" if len(runs) > 1 else "one run"
    return cloud, Series("dots", f"{label}, {of}", colour, x, runs.mean(axis=0), error)


def _number(value: float | None) -> float | int | None:
    """Return a number with few digits; JSON has neither NaN nor infinity."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 10**DIGITS else short


def _numbers(values: np.ndarray) -> Json:
    return [_number(float(x)) for x in values] if values.ndim == 1 else [_numbers(row) for row in values]
