"""Tutorials: execute the notebooks of docs/tutorials and convert them to pages with their outputs and figures.

`make docs` executes every notebook in a test, which stores it with its outputs in .notebooks. The site is built from
these files. A notebook that is missing there, or whose cells have changed, is executed while the site is built.
"""

import itertools
import os
import re
import tempfile
from pathlib import Path

import jinja2
import nbclient
import nbformat
from markupsafe import Markup

from undertow.figures.inline import inline

__all__ = ["EXECUTED", "FOLDER", "cells_agree", "execute", "notebook_pages", "to_markdown"]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "tutorials"
EXECUTED = ROOT / ".notebooks"

SETUP = """
import warnings
%matplotlib inline
%config InlineBackend.figure_formats = ["svg"]
import matplotlib.pyplot
from undertow.figures.style import STYLE
matplotlib.rcParams.update(STYLE)
warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="ipykernel")
"""
"""Run before the first cell, and not shown: figures are SVG in undertow's style, and warnings are errors."""

FIGURE = jinja2.Template(
    '<figure data-search-exclude><div class="plot"{% if scrolls %} tabindex="0" role="group" '
    'aria-label="{{ label }}"{% endif %}>{{ drawn }}</div></figure>',
    autoescape=True,
)
DOWNLOAD = "[Download this notebook]({name}.ipynb){{ download }} · [how to open it](index.md#open-a-notebook)"


def notebook_pages() -> dict[str, str]:
    """Return the page of each notebook by its path in the site."""
    return {f"tutorials/{path.stem}.md": to_markdown(_executed(path), path.stem) for path in FOLDER.glob("*.ipynb")}


def execute(path: Path, folder: Path = EXECUTED) -> nbformat.NotebookNode:
    """Execute a notebook in a temporary directory and store it with its outputs in `folder`.

    A cell that raises an exception, or gives a warning, raises `nbclient.exceptions.CellExecutionError`.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    with tempfile.TemporaryDirectory() as work:
        client = nbclient.NotebookClient(
            notebook,
            timeout=600,
            coalesce_streams=True,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": work}},
        )
        client.execute(env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *_python_path()])})
    del notebook.cells[0]
    folder.mkdir(exist_ok=True)
    part = folder / f"{path.stem}.{os.getpid()}.part"
    nbformat.write(notebook, part)
    part.replace(folder / path.name)  # a reader never sees half a file
    return notebook


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _executed(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with its outputs: the stored one if its cells are the same."""
    stored = EXECUTED / path.name
    if stored.exists():
        notebook = nbformat.read(stored, as_version=4)
        if cells_agree(notebook, nbformat.read(path, as_version=4)):
            return notebook
    return execute(path)


def cells_agree(first: nbformat.NotebookNode, second: nbformat.NotebookNode) -> bool:
    """Return whether two notebooks have the same cells, whatever their outputs are."""
    content = lambda notebook: [(cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in notebook.cells]
    return content(first) == content(second)


def to_markdown(notebook: nbformat.NotebookNode, name: str) -> str:
    """Return an executed notebook as a page: prose, code, outputs, and solutions that are folded."""
    title, *cells = notebook.cells
    heading, _, text = title.source.partition("\n")
    parts = [heading, DOWNLOAD.format(name=name), text]
    numbers = itertools.count(1)
    solution = lambda cell: "solution" in cell.metadata.get("tags", [])
    for folded, group in itertools.groupby(cells, solution):
        shown = [part for cell in group for part in _cell(cell, f"{name}-{next(numbers)}")]
        if folded:
            shown[0] = shown[0].replace("### Solution", "", 1)
            shown = ['<details class="solution" markdown="1"><summary>Solution</summary>', *shown, "</details>"]
        parts += shown
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def _cell(cell: nbformat.NotebookNode, name: str) -> list[str]:
    """Return a cell and its outputs as blocks of Markdown."""
    if cell.cell_type == "markdown":
        return [cell.source]
    printed = [_output(output, f"{name}-{k}", cell.metadata.get("alt", "")) for k, output in enumerate(cell.outputs)]
    return [f"```python\n{cell.source}\n```", *printed]


def _output(output: nbformat.NotebookNode, name: str, label: str) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/svg+xml" in data:
        drawn = inline(data["image/svg+xml"], name, label)
        return FIGURE.render(label=label, drawn=Markup(drawn), scrolls="--least" in drawn)
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>| border=\"1\" class=\"dataframe\"", "", data["text/html"], flags=re.DOTALL)
        table = re.sub(r"\n\s*", "\n", table)  # Markdown would take indented lines for code
        return f'<div class="output">\n{table}\n</div>'
    return f"```{{ .text .output }}\n{data['text/plain'].rstrip()}\n```"
