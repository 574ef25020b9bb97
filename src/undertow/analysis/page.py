"""An analysis as a table on the terminal, as a page, and as the params at equilibrium."""

import io
from pathlib import Path

import jax
import numpy as np
from markupsafe import Markup

from undertow import _trees as trees
from undertow.analysis.result import Analysis, Row
from undertow.execution import store
from undertow.figures.page import page, templates

__all__ = ["print_table", "write_page", "write_params"]

HEADINGS = ("symmetry", "generators", "charge", "at equilibrium", "imbalance", "steps to balance")


def _cells(row: Row) -> tuple[str, ...]:
    error = f" ± {row.error:.0%} of the flow" if row.error else ""
    return (
        row.name,
        f"{row.generators}" + (f" ({row.dead} dead)" if row.dead else ""),
        f"{row.charge:.3g}",
        "infinity" if row.charge_at_equilibrium == float("inf") else f"{row.charge_at_equilibrium:.3g}",
        f"{row.imbalance:.0%}{error}",
        "never" if row.relaxation == float("inf") else f"{row.relaxation:,.0f}",
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
    """Write analysis.html: the table, how the noise was computed, and the advice."""
    template = templates("undertow.analysis").get_template("analysis.html")
    rows = [(*_cells(row), row.route) for row in analysis.rows]
    body = template.render(analysis=analysis, target=target, headings=(*HEADINGS, "noise by"), rows=rows)
    return store.write_bytes(Path(out) / "analysis.html", page(f"undertow: {target}", Markup(body)).encode())


def write_params(analysis: Analysis, out: Path) -> Path | None:
    """Write equilibrium.npz: the params at equilibrium, one array per leaf, named by its path in params."""
    if analysis.forecast is None:
        return None
    params = analysis.forecast.equilibrium.params
    buffer = io.BytesIO()
    arrays = dict(zip(trees.names(params), map(np.asarray, jax.tree.leaves(params)), strict=True))
    np.savez(buffer, **arrays)
    return store.write_bytes(Path(out) / "equilibrium.npz", buffer.getvalue())
