"""Write figures as SVG, with a description in words inside, or as PDF."""

import html
import io
import math
import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from undertow.figures.style import applied
from undertow.figures.words import describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

__all__ = ["tidy", "to_pdf", "to_svg"]

BESIDE = 0.8
"""Width in inches of the labels beside a panel."""

_PAGES: "WeakKeyDictionary[Figure, Bbox]" = WeakKeyDictionary()
"""The bounding box in inches of each figure that was laid out: its second file needs no second layout."""


def to_svg(figure: "Figure") -> str:
    """Return the figure as SVG text, the same bytes for the same figure; its description is in the element `desc`."""
    text = _written(figure, "svg", {"Date": None, "Creator": None}).decode()
    # a reader without DejaVu has Verdana, of the same widths, or something narrower
    text = re.sub(r"(['\"]?)DejaVu Sans\1(, sans-serif)?", "'DejaVu Sans', Verdana, sans-serif", text)
    text = re.sub(r"[ \t]+\n", "\n", text)
    opening = re.search(r"<svg[^>]*>", text)
    assert opening is not None
    return f"{text[: opening.end()]}\n <desc>{html.escape(describe(figure))}</desc>{text[opening.end() :]}"


def to_pdf(figure: "Figure") -> bytes:
    """Return the figure as PDF, the same bytes for the same figure."""
    return _written(figure, "pdf", {"CreationDate": None, "Creator": "undertow"})


def _written(figure: "Figure", kind: str, metadata: dict[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    with applied():
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=150, bbox_inches=_page(figure))
    return buffer.getvalue()


def _page(figure: "Figure") -> "Bbox":
    """Tidy the figure and lay it out once, in points as both kinds of file; return its bounding box."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if figure not in _PAGES:
        figure.set_dpi(72)
        canvas = figure.canvas
        if not hasattr(canvas, "get_renderer"):
            FigureCanvasAgg(figure)  # keeps its renderer, so each text is measured once and not on every use
        tidy(figure)
        _lay_out(figure)
        figure.set_layout_engine(None)  # "none" would leave a placeholder, for which every file is drawn twice
        _PAGES[figure] = figure.get_tightbbox().padded(matplotlib.rcParams["savefig.pad_inches"])
        figure.set_canvas(canvas)
    return _PAGES[figure]


def _lay_out(figure: "Figure") -> None:
    """Compute the positions of the panels without drawing."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def tidy(figure: "Figure") -> None:
    """Move legends above their panels, where they hide nothing, and choose tick labels that do not overlap."""
    with applied():
        for axes in figure.axes:
            _tidy_ticks(figure, axes)
        legends = [axes for axes in figure.axes if axes.get_legend() is not None]
        panels = sum(not hasattr(axes, "_colorbar") for axes in figure.axes)
        if len(legends) == 1 and panels > 1:
            _share_legend(figure, legends[0])
        else:
            for axes in legends:
                _lift_legend(figure, axes)


def _tidy_ticks(figure: "Figure", axes: "Axes") -> None:
    """Label powers of ten on logarithmic axes, and numbers between them only where there are few decades."""
    from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    size = axes.get_position().size * figure.get_size_inches()
    for axis, limits, room, least in (
        (axes.xaxis, axes.get_xlim(), size[0], 3.2),
        (axes.yaxis, axes.get_ylim(), size[1], 2.2),
    ):
        if axis.get_scale() == "linear" and type(axis.get_major_locator()) is AutoLocator:
            axis.set_major_locator(MaxNLocator(nbins=5 if room < least else 7, steps=[1, 2, 2.5, 5, 10]))
        if axis.get_scale() != "log":
            continue
        decades = math.log10(max(limits) / min(limits))
        axis.set_minor_formatter(NullFormatter())
        if decades >= 2.5:
            axis.set_major_locator(LogLocator(numticks=7))
            axis.set_major_formatter(FuncFormatter(_power))
            continue
        digits = (1, 2, 3, 4, 6, 8) if decades < 0.8 else (1, 2, 5) if decades < 1.6 else (1, 3)
        axis.set_major_locator(LogLocator(subs=digits, numticks=20))
        axis.set_major_formatter(FuncFormatter(_plain))


def _plain(value: float, _: object = None) -> str:
    """Return the label of a tick: 0.02, 5, 30000; a power of ten beyond that."""
    if 1e-3 <= value < 1e6:
        return f"{value:.6g}"
    mantissa, _ = f"{value:.0e}".split("e")
    return _power(value) if mantissa == "1" else f"{mantissa}×{_power(value)}"


def _power(value: float, _: object = None) -> str:
    """Return the power of ten at or below a tick, in plain characters: matplotlib renders formulas slowly."""
    exponent = f"{value:.0e}".split("e")[1]
    return "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _share_legend(figure: "Figure", axes: "Axes") -> None:
    """Move the one legend of several panels above them all."""
    handles, names = axes.get_legend_handles_labels()
    legend = axes.get_legend()
    assert legend is not None
    legend.remove()
    figure.legend(handles, names, loc="outside upper left", ncols=min(len(names), 6))


def _lift_legend(figure: "Figure", axes: "Axes") -> None:
    """Move the legend above the panel, in as many columns as fit, and the title above the legend."""
    legend = axes.get_legend()
    assert legend is not None
    handles, names = axes.get_legend_handles_labels()
    if not handles:
        return
    point = figure.dpi / 72
    widths = [text.get_window_extent().width / point + 34 for text in legend.get_texts()]
    grid = axes.get_subplotspec()
    panels = 1 if grid is None else grid.get_gridspec().ncols
    room = 72 * (figure.get_figwidth() / panels - BESIDE)  # before the layout, which costs as much as drawing
    columns = next(
        (c for c in range(len(widths), 1, -1) if sum(max(widths[k::c]) for k in range(c)) <= room), 1
    )  # matplotlib fills columns first; the widest entry of each row position is close enough
    legend.remove()
    axes.legend(
        handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.3, borderpad=0.0,
        columnspacing=1.4, handletextpad=0.6,
    )  # fmt: skip
    for place in ("left", "center", "right"):
        if axes.get_title(loc=place):
            rows = -(-len(names) // columns)
            axes.set_title(axes.get_title(loc=place), loc=place, pad=8 + 14.5 * rows)
