"""Figures of measurements: lines named by layer and symmetry, few per panel, and small panels by layer."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from undertow.figures import style
from undertow.torch.census.census import Census
from undertow.torch.monitor.noise_scale import NoiseScales
from undertow.torch.monitor.output import symmetry_labels
from undertow.torch.monitor.reading import Row

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

__all__ = ["plot_layers", "plot_scale", "plot_symmetries"]

LINE_COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#d98b00", "#00838f", "#8c510a", "#c2569b")
"""One colour for each line of a panel; further lines become a band."""
BAND = style.COLOURS["grey"]
MOST_PANELS = 24
"""Layers with a small panel of their own, in the order of the network."""


def plot_symmetries(
    census: Census, measurements: Sequence[Sequence[Row]], scales: NoiseScales
) -> "matplotlib.figure.Figure":
    """Return a figure over the steps: charge, noise power, distance to equilibrium, and the noise scale.

    The eight symmetries with the most noise have a line each; the others are a band from the least to the greatest.
    """
    with style.applied():
        if not len(census):
            figure, (axes,) = style.new_figure(1, width=5.2)
            plot_scale(axes, scales)
            return figure
        from matplotlib.lines import Line2D

        figure, (charges, noises, distances, scale) = _grid(2, 2, 5.0, 3.3)
        steps = np.array([rows[0]["step"] for rows in measurements], int)
        column = lambda name: np.array([[row.get(name) for row in rows] for rows in measurements], float)
        named = symmetry_labels(census)
        plus, minus = column("noise_plus"), column("noise_minus")
        order = np.argsort(-np.nan_to_num(plus + minus).mean(0), kind="stable")
        lines, rest = order[: len(LINE_COLOURS)].tolist(), order[len(LINE_COLOURS) :].tolist()
        of_plus, of_minus = ([f"{name}, {side}" for name in named] for side in ("plus", "minus"))
        for axes, values, title, labels in (
            (charges, column("charge"), "charge", named),
            (noises, plus, "noise power", of_plus),
            (distances, column("distance"), "distance to equilibrium", named),
        ):
            _lines(axes, steps, values, lines, rest, labels)
            axes.set_title(title)
            axes.set_xlabel("step")
        _lines(noises, steps, minus, lines, [], of_minus, "--")
        _log_scale(noises)
        # colours are in one legend below all panels
        sides = {"plus": "-", "minus": "--"}
        noises.legend(handles=[Line2D([], [], color=BAND, ls=ls, label=side) for side, ls in sides.items()])
        if np.isnan(column("distance")).all():
            note = next((str(row["note"]) for rows in measurements for row in rows if row.get("note")), "not known")
            distances.text(
                0.5, 0.5, _wrapped(note), transform=distances.transAxes, ha="center", va="center", fontsize=9
            )
        plot_scale(scale, scales)
        handles, names = charges.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def _lines(
    axes: "Axes", steps: np.ndarray, values: np.ndarray, lines: Sequence[int], rest: Sequence[int],
    named: Sequence[str], line: str = "-",
) -> None:  # fmt: skip
    """Draw some columns as lines with their names in the colours of their places, and the rest as a band."""
    if len(rest):
        others = values[:, rest]
        shown = ~np.isnan(others).all(1)
        if shown.any():
            low, high = np.nanmin(others[shown], 1), np.nanmax(others[shown], 1)
            axes.fill_between(steps[shown], low, high, color=BAND, alpha=0.2, lw=0, label=f"{len(rest)} others")
    marker = "o" if len(steps) == 1 else None  # a line of one point cannot be seen
    for colour, place in zip(LINE_COLOURS, lines, strict=False):
        axes.plot(
            steps,
            values[:, place],
            color=colour,
            ls=line,
            marker=marker,
            ms=3,
            lw=1.4,
            label=named[place],
        )


def plot_scale(axes: "Axes", scales: NoiseScales) -> None:
    """Draw the total noise scale with its 95 % interval, and the batch size."""
    history = list(scales.history)
    steps = np.array([record.step for record in history])
    batch = np.array([record.samples for record in history], float)
    _scale_line(axes, steps, *(np.array([getattr(r, f)["total"] for r in history]) for f in ("value", "low", "high")))
    axes.plot(steps, batch, color=style.INK, ls=":", lw=1.2, label="samples per step")
    _log_scale(axes)
    axes.set_title("gradient noise scale (samples)")
    axes.set_xlabel("step")
    axes.legend()


def _scale_line(axes: "Axes", steps: np.ndarray, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    finite = np.isfinite(value) & (value > 0)
    top = 10 * value[finite].max() if finite.any() else 1.0
    known = np.isfinite(low) & (low > 0)
    if known.any():
        upper = np.where(np.isfinite(high[known]), high[known], top)
        axes.fill_between(
            steps[known], low[known], upper, color=LINE_COLOURS[0], alpha=0.2, lw=0, label="95 % interval"
        )
    shown = np.where(finite, value, np.nan)  # a gap where the estimate is infinite
    axes.plot(
        steps, shown, color=LINE_COLOURS[0], marker="o" if finite.sum() == 1 else None, ms=3,
        label="noise scale",
    )  # fmt: skip


def plot_layers(scales: NoiseScales) -> "matplotlib.figure.Figure":
    """Return a figure with a small panel for each layer: its noise scale, with the total in grey."""
    history = list(scales.history)
    layers = [layer for layer in history[-1].value if layer != "total"]
    shown, left_out = layers[:MOST_PANELS], len(layers) - MOST_PANELS
    across = min(4, len(shown))
    steps = np.array([record.step for record in history])
    over = lambda field, name: np.array([getattr(record, field).get(name, np.nan) for record in history])
    with style.applied():
        figure, panels = _grid(-(-len(shown) // across), across, 2.6, 1.9, shared=True)
        for axes, layer in zip(panels, shown, strict=False):
            total = over("value", "total")
            finite = np.isfinite(total)
            axes.plot(steps[finite], total[finite], color=BAND, lw=1, label="all layers")
            _scale_line(axes, steps, *(over(field, layer) for field in ("value", "low", "high")))
            axes.set_title(layer if len(layer) < 34 else f"...{layer[-31:]}", fontsize=8)
            _log_scale(axes)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        figure.supxlabel("step", fontsize=9)
        figure.supylabel("samples", fontsize=9)
        words = "gradient noise scale by layer; grey: all layers"
        figure.suptitle(f"{words}; {left_out} more layers are not shown" if left_out > 0 else words, fontsize=10)
    return figure


def _log_scale(axes: "Axes") -> None:
    """Use a logarithmic axis if there is a positive number to draw."""
    if any((np.asarray(line.get_ydata(), float) > 0).any() for line in axes.lines):
        axes.set_yscale("log")


def _grid(
    rows: int, columns: int, width: float, height: float, *, shared: bool = False
) -> "tuple[matplotlib.figure.Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False).flat)


def _wrapped(text: str, width: int = 40) -> str:
    return "\n".join(textwrap.wrap(text, width))
