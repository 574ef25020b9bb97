"""`undertow analyze FILE.py:OBJECT`: a person's own problem, as a table on the terminal and a page to keep."""

import html
import sys
from pathlib import Path
from typing import Any

from undertow import _trees as trees
from undertow.analysis.jax import Analysis, Network
from undertow.execution import store
from undertow.execution.registry import UserFileError, load_file
from undertow.figures.page import page

__all__ = ["load", "print_table", "write_page", "write_params"]


def load(target: str, params_name: str) -> tuple[Any, Any]:
    """The problem (or noise) and the params that FILE.py:OBJECT names.

    OBJECT is a problem or a noise, with params in the variable `params_name` of the file; or a pair of both; or a
    torch model with its loss and data, (model, loss, data); or a function without arguments that returns either.
    """
    path, _, name = target.partition(":")
    file = Path(path)
    if not name:
        raise UserFileError(f"{target}: name an object of the file as well, such as {path or 'FILE.py'}:problem.")
    if not file.is_file():
        raise UserFileError(f"{path}: there is no such file.")
    module = load_file(file)
    if not hasattr(module, name):
        public = ", ".join(sorted(key for key in vars(module) if not key.startswith("_"))[:12])
        raise UserFileError(f"{path} has no object {name!r}; it has {public}.")
    found = getattr(module, name)
    from undertow.noise.base import AbstractNoise
    from undertow.problem import AbstractProblem

    if _is_torch_model(found):
        raise UserFileError(
            f"{target} is a torch model; let the object be (model, loss, data) with loss(model, batch) and data a "
            "Dataset or batches."
        )
    if callable(found) and not isinstance(found, AbstractNoise | AbstractProblem):
        found = found()
    if isinstance(found, tuple) and len(found) == 3 and _is_torch_model(found[0]):
        return Network(*found), None
    if isinstance(found, tuple) and len(found) == 2:
        return found
    if not isinstance(found, AbstractNoise | AbstractProblem):
        raise UserFileError(
            f"{target} is a {type(found).__name__}; give a problem, a noise, or a pair (problem or noise, params); or "
            "(model, loss, data) of torch."
        )
    if not hasattr(module, params_name):
        raise UserFileError(
            f"{path} has no variable {params_name!r} with the params; name it with --params, or let {name} be a pair "
            "(problem, params)."
        )
    return found, getattr(module, params_name)


def _is_torch_model(found: Any) -> bool:
    """Without importing torch: whoever has a model has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and isinstance(found, torch.nn.Module)


HEADINGS = ("symmetry", "generators", "charge", "at equilibrium", "imbalance", "steps to balance")


def _cells(analysis: Analysis) -> list[tuple[str, ...]]:
    def row(r: Any) -> tuple[str, ...]:
        error = f" ± {r.error:.0%} of the flow" if r.error else ""
        return (
            r.name,
            f"{r.generators}" + (f" ({r.dead} dead)" if r.dead else ""),
            f"{r.charge:.3g}",
            "infinity" if r.charge_at_equilibrium == float("inf") else f"{r.charge_at_equilibrium:.3g}",
            f"{r.imbalance:.0%}{error}",
            "never" if r.relaxation == float("inf") else f"{r.relaxation:,.0f}",
        )

    return [row(r) for r in analysis.rows]


def print_table(analysis: Analysis) -> None:
    """The table and the sentences, on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"{analysis.parameters:,} parameters, loss {analysis.loss:.4g}, step size {analysis.step_size:g}")
    if analysis.rows:
        table = Table(*HEADINGS)
        for cells in _cells(analysis):
            table.add_row(*cells)
        console.print(table)
    for sentence in analysis.sentences:
        console.print(f"- {sentence}", markup=False)


def write_page(analysis: Analysis, target: str, out: Path) -> Path:
    """analysis.html: the same, with how the noise was computed."""
    head = "".join(f"<th scope='col'>{heading}</th>" for heading in (*HEADINGS, "noise by"))
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in (*cells, row.route)) + "</tr>"
        for cells, row in zip(_cells(analysis), analysis.rows, strict=True)
    )
    table = (
        f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>" if body else ""
    )
    said = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in analysis.sentences)
    content = f"""<header><h1>What gradient noise does to {html.escape(target)}</h1>
<p class="soft">{analysis.parameters:,} parameters, loss {analysis.loss:.4g}, step size {analysis.step_size:g}, weight
decay {analysis.weight_decay:g}.</p></header>
<main><ul>{said}</ul>{table}
<p class="soft">A charge is 1/2 params'A params for a generator A; the column shows the root of the sum of squares over
the generators. Imbalance is the noise that pushes a charge up less that which pushes it down, over their sum.</p>
</main>"""
    text = page(f"undertow: {html.escape(target)}", content)
    return store.write_bytes(Path(out) / "analysis.html", text.encode())


def write_params(analysis: Analysis, out: Path) -> Path | None:
    """equilibrium.npz: the params at equilibrium, one array a leaf, named by its path in params."""
    if analysis.forecast is None:
        return None
    import io

    import jax
    import numpy as np

    params = analysis.forecast.equilibrium.params
    buffer = io.BytesIO()
    arrays: Any = dict(zip(trees.names(params), map(np.asarray, jax.tree.leaves(params)), strict=True))
    np.savez(buffer, **arrays)
    return store.write_bytes(Path(out) / "equilibrium.npz", buffer.getvalue())
