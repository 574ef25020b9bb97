"""Every tutorial runs without errors and warnings, has a figure and an exercise, and is stored without outputs.

The executed notebooks are stored in .notebooks, from which the site is built.
"""

import json
import re

import nbclient
import nbformat
import pytest

from docs import notebooks

pytestmark = pytest.mark.docs

TUTORIALS = sorted(notebooks.FOLDER.glob("*.ipynb"))
NEEDS_TORCH = ("symmetries-of-a-transformer", "watching-a-fine-tuning-run")

each = pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)


def outputs(notebook: nbformat.NotebookNode) -> list[tuple[nbformat.NotebookNode, nbformat.NotebookNode]]:
    return [(cell, output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def is_solution(cell: nbformat.NotebookNode) -> bool:
    return "solution" in cell.metadata.get("tags", [])


@each
def test_the_notebook_runs(path):
    if path.stem in NEEDS_TORCH:
        pytest.importorskip("transformers")
    executed = notebooks.execute(path)
    assert notebooks.cells_agree(executed, nbformat.read(notebooks.EXECUTED / path.name, as_version=4))
    assert not [output.text for _, output in outputs(executed) if output.get("name") == "stderr"]
    figures = [cell for cell, output in outputs(executed) if "image/svg+xml" in output.get("data", {})]
    assert figures
    assert all(cell.metadata.get("alt") for cell in figures), "a figure needs a description for screen readers"
    shown = [output.data for _, output in outputs(executed) if output.output_type == "execute_result"]
    assert all({"image/svg+xml", "text/html"} & data.keys() for data in shown), "end the line with a semicolon"
    page = notebooks.to_markdown(executed, path.stem)
    assert page.count("<svg ") == len(figures)
    assert page.count("```python\n") == sum(cell.cell_type == "code" for cell in executed.cells)
    assert page.count("<details") == page.count("</details>") == 1


@each
def test_the_notebook_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.nbformat_minor >= 5
    assert not outputs(notebook)
    assert all(cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")
    assert path.stat().st_size < 40_000


@each
def test_the_notebook_has_an_exercise_with_a_solution_that_runs(path):
    cells = nbformat.read(path, as_version=4).cells
    headings = [line for cell in cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    assert "**You will learn**" in headings
    assert headings.index("## Exercise") < headings.index("### Solution")
    solution = [cell for cell in cells if is_solution(cell)]
    assert solution[0].source.startswith("### Solution")
    assert solution[0].metadata["jp-MarkdownHeadingCollapsed"]
    assert any(cell.cell_type == "code" for cell in solution)
    assert all(cell.metadata["jupyter"]["source_hidden"] for cell in solution if cell.cell_type == "code")
    first, last = cells.index(solution[0]), cells.index(solution[-1])
    assert last - first + 1 == len(solution), "the cells of a solution follow each other"


def test_every_notebook_is_in_the_list_of_tutorials():
    text = (notebooks.FOLDER / "index.md").read_text()
    assert {name.removesuffix(".md") for name in re.findall(r"\]\(([\w-]+\.md)\)", text)} == {p.stem for p in TUTORIALS}
    assert len(TUTORIALS) == 7


def test_every_tutorial_was_measured_below_ten_minutes():
    """Run `python -m benchmarks tutorials` after a change."""
    measured = json.loads((notebooks.ROOT / "benchmarks" / "results" / "tutorials.json").read_text())
    assert set(measured["seconds"]) == set(measured["processor_seconds"]) == {path.stem for path in TUTORIALS}
    assert measured["cores"] <= 2
    assert max(measured["seconds"].values()) < 600


def made(tmp_path, source: str):
    path = tmp_path / "made.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    return path


@pytest.mark.parametrize("source", ["1 / 0", "import warnings\nwarnings.warn('careful')"])
def test_an_error_and_a_warning_fail(tmp_path, source):
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        notebooks.execute(made(tmp_path, source), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["made.ipynb"]


def test_a_changed_cell_is_noticed():
    cell = nbformat.v4.new_code_cell
    first, same, other = (nbformat.v4.new_notebook(cells=[cell(text)]) for text in ("a = 1", "a = 1", "a = 2"))
    same.cells[0].outputs = [nbformat.v4.new_output("stream", text="1")]
    assert notebooks.cells_agree(first, same)
    assert not notebooks.cells_agree(first, other)


def test_tables_and_text_become_blocks():
    code = nbformat.v4.new_code_cell("x")
    table = (
        '<div>\n<style scoped>\n  a {}\n</style>\n<table border="1" class="dataframe">\n    <tr></tr>\n</table></div>'
    )
    code.outputs = [
        nbformat.v4.new_output("stream", text="1 < 2\n"),
        nbformat.v4.new_output("execute_result", {"text/html": table, "text/plain": "x"}),
    ]
    title = nbformat.v4.new_markdown_cell("# Title\n\nText.")
    page = notebooks.to_markdown(nbformat.v4.new_notebook(cells=[title, code]), "made")
    assert page.startswith("# Title\n\n[Download this notebook](made.ipynb)")
    assert "```{ .text .output }\n1 < 2\n```" in page
    assert '<div class="output">\n<div>\n<table>\n<tr></tr>\n</table></div>\n</div>' in page
