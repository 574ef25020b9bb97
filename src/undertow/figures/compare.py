"""Measured numbers beside their predictions, for claims without a curve of their own."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from undertow.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Comparison", "compare"]

DECADES = 1.5
"""Positive numbers further apart than this many powers of ten go on a logarithmic axis."""
NARROW = 1e-4
"""Numbers whose range is this share of their size, or less, are drawn on an axis of a tenth of their size."""


@runtime_checkable
class Requirement(Protocol):
    """A criterion: `allowed` is the interval of values that it allows, None where the prediction is a number."""

    @property
    def allowed(self) -> tuple[float, float] | None: ...


@runtime_checkable
class Comparison(Protocol):
    """A measured number and its prediction, such as `undertow.verification.criterion.Check`."""

    @property
    def what(self) -> str: ...
    @property
    def measured(self) -> float: ...
    @property
    def predicted(self) -> float: ...
    @property
    def uncertainty(self) -> float: ...
    @property
    def printed(self) -> float | None: ...
    @property
    def criterion(self) -> Requirement: ...


def compare(checks: Sequence[Comparison]) -> "Figure":
    """Draw one line per check: the measurement with its interval, and the values that it is compared with.

    These are the prediction (a line), the values that a bound allows (a band), or the value in print where it is wrong
    (a cross). The axis is logarithmic where the numbers span several decades; numbers that are then too small to show,
    such as zero, are drawn at its left end.
    """
    figure, (axes,) = style.new_figure(width=6.4, height=0.85 + 0.5 * len(checks))
    low, high, scale = _range(checks)
    axes.set_xscale(scale)
    axes.set_xlim(low, high)
    labels: set[str] = set()

    def once(name: str) -> str | None:
        return None if name in labels else labels.add(name) or name

    for row, check in zip(reversed(range(len(checks))), checks, strict=True):
        _draw_check(axes, row, check, (low, high), once)
    axes.set_yticks([])
    axes.set_xlabel("measured and predicted value of each line")
    axes.set_ylim(-0.4, len(checks) - 0.3)
    axes.spines["left"].set_visible(False)
    axes.legend()
    figure.set_label(" ".join(map(_sentence, checks)))
    return figure


def _draw_check(
    axes: "Axes", row: int, check: Comparison, limits: tuple[float, float], once: Callable[[str], str | None]
) -> None:
    shown = lambda value: float(np.clip(value, *limits))
    blue, grey, red = (style.COLOURS[name] for name in ("blue", "grey", "red"))
    rows = [row - 0.22, row + 0.22]
    if check.criterion.allowed is None:
        axes.plot([shown(check.predicted)] * 2, rows, color=grey, lw=2.2, label=once("theory"))
    else:
        left, right = map(shown, check.criterion.allowed)
        axes.fill_betweenx(rows, left, right, color=grey, alpha=0.22, lw=0, label=once("allowed by the claim"))
    measured = shown(check.measured)
    reach = [[measured - shown(check.measured - 2 * check.uncertainty)],
             [shown(check.measured + 2 * check.uncertainty) - measured]]  # fmt: skip
    axes.errorbar(
        [measured], [row], xerr=reach, fmt="o", color=blue, capsize=2.5, markersize=5.5, lw=1.4,
        label=once("measured"), clip_on=False, zorder=3,
    )  # fmt: skip
    if check.printed is not None:
        axes.plot(
            [shown(check.printed)], [row], "x", color=red, markersize=7, markeredgewidth=2, clip_on=False,
            label=once("in print"),
        )  # fmt: skip
    axes.annotate(
        check.what, (0, row + 0.3), xycoords=("axes fraction", "data"), fontsize=9, va="bottom", clip_on=False
    )


def _sentence(check: Comparison) -> str:
    """Return a line of the figure as a sentence, for `words.describe`."""
    prediction = f"theory {check.predicted:.4g}" if check.criterion.allowed is None else str(check.criterion)
    error = f" ± {check.uncertainty:.1g}" if check.uncertainty else ""
    printed = "" if check.printed is None else f", in print {check.printed:.4g}"
    return f"{check.what}: measured {check.measured:.4g}{error}, {prediction}{printed}."


def _range(checks: Sequence[Comparison]) -> tuple[float, float, str]:
    """Return the ends of the axis and its scale."""
    values = []
    for check in checks:
        compared = check.criterion.allowed or (check.predicted,)
        ends = (check.measured - 2 * check.uncertainty, check.measured + 2 * check.uncertainty)
        values += [check.measured, *compared, *ends, *([] if check.printed is None else [check.printed])]
    finite = np.array([value for value in values if np.isfinite(value)] or [0.0])
    at = np.array([check.measured for check in checks])
    positive = finite[finite > 0]
    wide = positive.size > 1 and np.log10(positive.max() / positive.min()) > DECADES
    signless = np.all(at[np.isfinite(at)] >= 0) and all(check.predicted >= 0 for check in checks)
    if wide and signless:
        floor = max(positive.min(), positive.max() * 1e-18)
        pad = (positive.max() / floor) ** 0.06 * 1.1
        return floor / pad, positive.max() * pad, "log"
    size = float(np.abs(finite).max())
    narrow = np.ptp(finite) <= NARROW * size  # ticks would need more digits than anybody reads
    pad = (0.05 * size or 1.0) if narrow else 0.06 * np.ptp(finite)
    return float(finite.min() - pad), float(finite.max() + pad), "linear"
