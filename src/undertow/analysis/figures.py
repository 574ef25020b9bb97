"""The figures of an analysis: charges, noise on both sides, spectrum of the Hessian, predicted path."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from undertow.analysis.result import Analysis, Path, Row
from undertow.figures import style
from undertow.symmetry.curvature import Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Plot", "plots"]

MOST = 100
"""Generators of a symmetry that are drawn; of more, every k-th in the order of their charges."""
ROUNDING = 1e-8
"""Eigenvalues and noise below this share of the largest are rounding."""


@dataclass(frozen=True)
class Plot:
    """A figure with its heading and a text that says how to read it."""

    name: str
    title: str
    caption: str
    figure: "Figure"


def plots(analysis: Analysis) -> Iterator[Plot]:
    """Yield the figures of an analysis; those whose data it does not have are left out."""
    if analysis.rows:
        yield _charges(analysis.rows)
        yield _noise(analysis)
    if analysis.spectrum is not None:
        yield _spectrum(analysis, analysis.spectrum)
    if analysis.path is not None:
        yield _path(analysis, analysis.path)


def _order(row: Row) -> np.ndarray:
    """Return the generators of a row in the order of their charges, at most `MOST` of them."""
    return style.some(np.argsort(row.now.charges), MOST)


def _charges(rows: tuple[Row, ...]) -> Plot:
    figure, (axes,) = style.new_figure(width=7.2, height=3.6)
    groups = [_order(row) for row in rows]
    starts = np.cumsum([0] + [len(group) + 2 for group in groups])
    places = [start + np.arange(len(group)) for start, group in zip(starts, groups, strict=False)]
    gather = lambda name: np.concatenate(
        [getattr(row, name).charges[group] for row, group in zip(rows, groups, strict=True)]
    )
    x, now, then = np.concatenate(places), gather("now"), gather("then")
    axes.vlines(x, now, then, color=style.COLOURS["grey"], lw=1.0, alpha=0.6)
    style.points(axes, x, now, None, "now")
    style.points(axes, x, then, None, "at equilibrium", "red", "D")
    axes.set_xticks([float(place.mean()) for place in places], [str(k) for k in range(1, len(rows) + 1)])
    axes.grid(visible=False, axis="x")
    for start in starts[1:-1]:
        axes.axvline(start - 1.5, color=style.GRID, lw=1.0, zorder=0)
    axes.set_xlabel("generators of the symmetry in this row of the table")
    axes.set_ylabel("charge")
    axes.legend()
    return Plot(
        "charges",
        "Charges",
        "One point per generator: for a neuron, half the squared norm of its outgoing weights minus half that of its "
        "incoming weights. Vertical lines lead to the charge at the noise equilibrium, towards which SGD moves it. "
        "Charges without a finite equilibrium are drawn where they are now.",
        figure,
    )


def _noise(analysis: Analysis) -> Plot:
    figure, (axes,) = style.new_figure(width=5.2, height=4.4)
    series = []
    for name in ("now", "then"):
        pairs = [getattr(row, name).pushes(analysis.step_size, analysis.weight_decay) for row in analysis.rows]
        chosen = [(up[_order(row)], down[_order(row)]) for (up, down), row in zip(pairs, analysis.rows, strict=True)]
        series.append(tuple(np.concatenate(side) for side in zip(*chosen, strict=True)))
    every = np.concatenate([side for pair in series for side in pair])
    positive = every[every > 0]
    low, high = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    low = max(low, ROUNDING * high)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.theory(axes, [low, high], [low, high], "balanced")
    marks = (("now", "blue", "o"), ("at equilibrium", "red", "D"))
    for (up, down), (label, colour, marker) in zip(series, marks, strict=True):
        # one-sided noise is drawn at the edge
        style.points(axes, np.maximum(down, low), np.maximum(up, low), None, label, colour, marker)
    decay, push = (" and weight decay", "push") if analysis.weight_decay else ("", "pushes")
    axes.set_xlabel(f"noise{decay} that {push} the charge down")
    axes.set_ylabel(f"noise{decay} that {push} the charge up")
    axes.legend()
    return Plot(
        "noise",
        "Noise on both sides",
        f"One point per generator: the noise{decay} on the two sides of the symmetry. Above the line the charge rises, "
        "below it falls; on the line the two sides balance, which is the noise equilibrium. A side without noise is "
        "drawn at the edge of the figure.",
        figure,
    )


def _spectrum(analysis: Analysis, spectrum: Spectrum) -> Plot:
    figure, (axes,) = style.new_figure(width=7.2, height=3.8)
    axes.set_yscale("log")
    bound = 2 / analysis.step_size
    ends = [_draw_spectrum(axes, spectrum, "now", "blue", "o")]
    if analysis.spectrum_then is not None:
        ends.append(_draw_spectrum(axes, analysis.spectrum_then, "at equilibrium", "red", "D"))
    style.theory(axes, [1, max(ends)], [bound, bound], f"2/step size = {bound:.3g}")
    axes.set_xlabel("rank of the eigenvalue by absolute value")
    axes.set_ylabel("eigenvalue of the Hessian")
    axes.legend()
    how = "" if spectrum.exact else " The eigenvalues and their number are estimates of a Lanczos iteration."
    return Plot(
        "spectrum",
        "Spectrum of the Hessian",
        "The curvatures of the loss in all directions, the largest first; crosses are negative curvatures, by their "
        "absolute value. Gradient descent diverges along a direction whose curvature is above the line, 2 over the "
        f"step size. Eigenvalues below {ROUNDING:g} of the largest are not drawn: along those directions the loss is "
        f"flat.{how}",
        figure,
    )


def _draw_spectrum(axes: "Axes", spectrum: Spectrum, label: str, colour: str, marker: str) -> float:
    """Draw the eigenvalues by their rank; return the last rank."""
    values, counts = np.asarray(spectrum.eigenvalues), np.asarray(spectrum.counts)
    order = np.argsort(-np.abs(values))
    values, ranks = values[order], np.cumsum(counts[order])
    drawn = np.abs(values) > ROUNDING * np.abs(values).max(initial=0)
    values, ranks = values[drawn], ranks[drawn]
    for sign, name, mark in ((1, label, marker), (-1, f"{label}, negative", "x")):
        part = style.some(np.flatnonzero(sign * values > 0))
        if part.size:
            style.points(axes, ranks[part], np.abs(values[part]), None, name, colour, mark)
    return float(ranks[-1]) if ranks.size else 1.0


def _path(analysis: Analysis, path: Path) -> Plot:
    figure, (axes,) = style.new_figure(width=7.2, height=3.4)
    style.theory(axes, path.steps(analysis.step_size), path.trace, "limiting flow", "blue")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"steps of SGD at step size {analysis.step_size:g}")
    axes.set_ylabel("trace of the Hessian, Tr H")
    axes.legend()
    return Plot(
        "path",
        "Predicted path after zero loss",
        f"Once the loss is zero, {path.noise} keeps moving the model along the manifold of minimisers, towards flatter "
        "ones: the sum of the curvatures, Tr H, as the limiting flow predicts it. The flow starts where gradient flow "
        "from the given params ends.",
        figure,
    )
