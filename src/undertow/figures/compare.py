"""Measured numbers beside what was predicted of them, for claims without a curve of their own."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from undertow.figures import style

__all__ = ["compare"]

DECADES = 1.5
"""Positive numbers further apart than this many powers of ten go on a logarithmic axis."""


def compare(checks: Sequence[Any], *, log: bool = False) -> Any:
    """One line a check: the measurement with its interval, and what it is held against.

    That is the prediction (a line), the values that a bound allows (a band), or the value in print where it is wrong (a
    cross). The axis is logarithmic where the numbers ask for it, or where `log` does; numbers that are then too small
    to show, zero among them, stand at its left end.
    """
    figure, (axes,) = style.new_figure(width=6.4, height=0.85 + 0.5 * len(checks))
    low, high, scale = _range(checks, log)
    axes.set_xscale(scale)
    axes.set_xlim(low, high)
    shown = lambda value: float(np.clip(value, low, high))
    blue, grey, red = (style.COLOURS[name] for name in ("blue", "grey", "red"))
    named: set[str] = set()

    def once(name: str) -> str | None:
        return None if name in named else named.add(name) or name

    for row, check in zip(reversed(range(len(checks))), checks, strict=True):
        bound = getattr(check.criterion, "bound", getattr(check.criterion, "level", None))
        if bound is None:
            axes.plot([shown(check.predicted)] * 2, [row - 0.22, row + 0.22], color=grey, lw=2.2, label=once("theory"))
        else:
            far = low if type(check.criterion).__name__ == "Below" else high
            left, right = sorted([far, shown(bound)])
            rows, name = [row - 0.22, row + 0.22], once("allowed by the claim")
            axes.fill_betweenx(rows, left, right, color=grey, alpha=0.22, lw=0, label=name)
        reach = [[shown(check.measured) - shown(check.measured - 2 * check.uncertainty)],
                 [shown(check.measured + 2 * check.uncertainty) - shown(check.measured)]]  # fmt: skip
        axes.errorbar(
            [shown(check.measured)], [row], xerr=reach, fmt="o", color=blue, capsize=2.5, markersize=5.5, lw=1.4,
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
    axes.set_yticks([])
    axes.set_ylim(-0.4, len(checks) - 0.3)
    axes.spines["left"].set_visible(False)
    axes.legend()
    figure.set_label(" ".join(map(_words, checks)))
    return figure


def _words(check: Any) -> str:
    """A line of the figure as a sentence, for `words.describe`."""
    held = check.criterion if hasattr(check.criterion, "bound") else f"theory {check.predicted:.4g}"
    error = f" ± {check.uncertainty:.1g}" if check.uncertainty else ""
    printed = "" if check.printed is None else f", in print {check.printed:.4g}"
    return f"{check.what}: measured {check.measured:.4g}{error}, {held}{printed}."


def _range(checks: Sequence[Any], log: bool) -> tuple[float, float, str]:
    """The ends of the axis and its scale."""
    values = []
    for check in checks:
        held = getattr(check.criterion, "bound", getattr(check.criterion, "level", check.predicted))
        ends = (check.measured - 2 * check.uncertainty, check.measured + 2 * check.uncertainty)
        values += [check.measured, held, *ends, *([] if check.printed is None else [check.printed])]
    finite = np.array([value for value in values if np.isfinite(value)] or [0.0])
    at = np.array([check.measured for check in checks])
    positive = finite[finite > 0]
    wide = positive.size > 1 and np.log10(positive.max() / positive.min()) > DECADES
    signless = np.all(at[np.isfinite(at)] >= 0) and all(check.predicted >= 0 for check in checks)
    if positive.size and signless and (log or wide):
        floor = max(positive.min(), positive.max() * 1e-18)
        pad = (positive.max() / floor) ** 0.06 * 1.1
        return floor / pad, positive.max() * pad, "log"
    pad = 0.06 * np.ptp(finite) or 0.05 * abs(finite[0]) or 1.0
    return float(finite.min() - pad), float(finite.max() + pad), "linear"
