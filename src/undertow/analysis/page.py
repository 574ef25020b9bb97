"""An analysis as a table on the terminal, as a page with figures, as JSON, and as the params at equilibrium."""

import io
import json
import re
from pathlib import Path

import jax
import numpy as np
from markupsafe import Markup, escape

from undertow import __version__
from undertow import _trees as trees
from undertow.analysis.figures import plots
from undertow.analysis.result import Analysis, Row
from undertow.execution import store
from undertow.figures.export import to_svg
from undertow.figures.inline import inline, words_of
from undertow.figures.mathml import math
from undertow.figures.page import page, templates

__all__ = ["print_table", "write_json", "write_page", "write_params"]

HEADINGS = ("symmetry", "generators", "charge", "at equilibrium", "imbalance", "steps to balance")


def _cells(row: Row) -> tuple[str, ...]:
    error = f" ± {row.error:.0%} of the flow" if row.error else ""
    return (
        row.name,
        f"{row.generators}" + (f" ({row.dead} dead)" if row.dead else ""),
        f"{row.charge:.3g}",
        "infinity" if row.charge_at_equilibrium == float("inf") else f"{row.charge_at_equilibrium:.3g}",
        f"{row.imbalance:.0%}{error}",
        "never" if row.relaxation == float("inf") else f"{max(row.relaxation, 1):,.0f}",
    )


def print_table(analysis: Analysis) -> None:
    """Print the table and the advice."""
    from rich.console import Console
    from rich.table import Table

    # names have indices in brackets, which are not markup
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"{analysis.parameters:,} parameters, loss {analysis.loss:.4g}, step size {analysis.step_size:g}")
    if analysis.rows:
        table = Table(*HEADINGS)
        for row in analysis.rows:
            table.add_row(*_cells(row))
        console.print(table)
    for sentence in analysis.sentences:
        console.print(f"- {sentence}")


def write_page(analysis: Analysis, target: str, out: Path) -> Path:
    """Write analysis.html: the advice, the table, how the noise was computed, and the figures."""
    environment = templates("undertow.analysis")
    environment.filters["math"] = lambda text: Markup(math(text))
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    template = environment.get_template("analysis.html")
    rows = [(number, *_cells(row), row.route) for number, row in enumerate(analysis.rows, 1)]
    headings = ("row", *HEADINGS, "noise by")
    drawn = []
    for plot in plots(analysis):
        svg = to_svg(plot.figure)
        words = words_of(svg)
        drawn.append((plot, Markup(inline(svg, plot.name, f"Figure. {words}")), words))
    body = template.render(analysis=analysis, target=target, headings=headings, rows=rows, plots=drawn)
    return store.write_bytes(Path(out) / "analysis.html", page(f"undertow: {target}", Markup(body)).encode())


def write_json(analysis: Analysis, target: str, out: Path) -> Path:
    """Write analysis.json: the version, the target and all numbers of the analysis."""
    content = {"undertow": __version__, "target": target} | analysis.to_json()
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    return store.write_bytes(Path(out) / "analysis.json", f"{text}\n".encode())


def write_params(analysis: Analysis, out: Path) -> Path | None:
    """Write equilibrium.npz: the params at equilibrium, one array per leaf, named by its path in params."""
    if analysis.forecast is None:
        return None
    params = analysis.forecast.equilibrium.params
    buffer = io.BytesIO()
    arrays = dict(zip(trees.names(params), map(np.asarray, jax.tree.leaves(params)), strict=True))
    np.savez(buffer, **arrays)
    return store.write_bytes(Path(out) / "equilibrium.npz", buffer.getvalue())
