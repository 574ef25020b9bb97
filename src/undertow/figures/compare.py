"""Measured numbers beside what was predicted of them, for claims without a curve of their own."""

from collections.abc import Sequence
from typing import Any

from undertow.figures import style

__all__ = ["compare"]


def compare(checks: Sequence[Any], *, log: bool = False) -> Any:
    """One line a check: the measurement with its interval, the prediction, and the printed value where it is wrong."""
    figure, (axes,) = style.new_figure(width=6.4, height=0.9 + 0.42 * len(checks))
    rows = list(range(len(checks)))[::-1]
    for row, check in zip(rows, checks, strict=True):
        first = row == rows[0]
        target = getattr(check.criterion, "bound", check.predicted)
        name = "bound" if hasattr(check.criterion, "bound") else "theory"
        axes.plot([target, target], [row - 0.3, row + 0.3], color=style.COLOURS["grey"], label=name if first else None)
        axes.errorbar(
            [check.measured], [row], xerr=[2 * check.uncertainty], fmt="o", color=style.COLOURS["blue"], capsize=2.5,
            markersize=5, label="measured" if first else None,
        )  # fmt: skip
        if check.printed is not None:
            axes.plot([check.printed], [row], "x", color=style.COLOURS["red"], label="printed" if first else None)
    axes.set_yticks(rows, [check.what for check in checks])
    axes.set_ylim(-0.6, len(checks) - 0.4)
    if log:
        axes.set_xscale("log")
    axes.legend(loc="best")
    return figure
