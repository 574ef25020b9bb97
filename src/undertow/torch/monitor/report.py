"""An HTML page about the noise of a training run. All text is escaped, and nothing is loaded from the network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from undertow._table import ResultTable, number
from undertow.figures.export import to_svg
from undertow.figures.inline import inline, words_of
from undertow.figures.page import page, templates
from undertow.torch.census.census import Census
from undertow.torch.monitor.advice import sections
from undertow.torch.monitor.noise_scale import NoiseScale, NoiseScales
from undertow.torch.monitor.output import measured_columns, symmetry_labels
from undertow.torch.monitor.plots import plot_layers, plot_symmetries
from undertow.torch.monitor.reading import Row

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["write_report"]


@dataclass(frozen=True)
class _Plot:
    name: str
    title: str
    svg: Markup
    words: str


def write_report(
    path: str | Path,
    census: Census,
    measurements: Sequence[Sequence[Row]],
    scales: NoiseScales,
    skipped: Sequence[tuple[int, str]],
) -> Path:
    """Write the page and return its path; a folder that does not exist is created."""
    path = Path(path)
    rows = measurements[-1] if measurements else []
    history = list(scales.history)
    plots = [_plot("run", "The run", plot_symmetries(census, measurements, scales))]
    if len(scales.layers) > 1:
        plots.append(_plot("layers", "By layer", plot_layers(scales)))
    body = (
        templates("undertow.torch.monitor")
        .get_template("noise.html")
        .render(
            first=history[0].step,
            last=history[-1].step,
            measurements=scales.total.measurements,
            uncovered=scales.uncovered,
            sections=sections(scales, [row for rows in measurements for row in rows], skipped),
            plots=plots,
            tables=[
                _scale_table("Noise scale by layer", scales.total, scales.layers),
                *_symmetry_tables(census, rows, scales),
            ],
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(page("undertow: gradient noise", Markup(body)), encoding="utf-8")
    beside.replace(path)
    return path


def _plot(name: str, title: str, figure: "matplotlib.figure.Figure") -> _Plot:
    svg = to_svg(figure)
    words = words_of(svg)
    return _Plot(name, title, Markup(inline(svg, name, f"Figure. {words}")), words)


def _scale_table(title: str, total: NoiseScale, parts: dict[str, NoiseScale]) -> ResultTable:
    header = ("parameters", "noise scale", "standard error", "95 % interval", "share of noise", "signal to noise")
    cells = [
        (
            scale.name,
            number(scale.value),
            number(scale.error),
            f"{number(scale.low)} to {number(scale.high)}",
            f"{scale.noise_share:.0%}",
            number(scale.signal_to_noise),
        )
        for scale in (total, *parts.values())
    ]
    return ResultTable(title, header, tuple(cells))


def _symmetry_tables(census: Census, rows: Sequence[Row], scales: NoiseScales) -> list[ResultTable]:
    """Return the last row of each symmetry, with whatever numbers and notes it has."""
    if not rows:
        return []
    named = symmetry_labels(census)
    columns = list(dict.fromkeys(name for row in rows for name in measured_columns(row)))
    noise_scales = scales.symmetries
    cells = tuple(
        (
            label,
            number(noise_scales[str(row["symmetry"])].value) if str(row["symmetry"]) in noise_scales else "",
            *(number(measured_columns(row).get(name)) for name in columns),
            str(row.get("note") or ""),
        )
        for label, row in zip(named, rows, strict=True)
    )
    return [ResultTable("Symmetries, newest measurement", ("symmetry", "noise scale", *columns, "note"), cells)]
