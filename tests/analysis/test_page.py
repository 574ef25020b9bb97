"""An analysis as a table on the terminal, as a page and as a file of params."""

import html
import json
import math
import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import undertow
from tests.analysis.analyses import analysis_of, forecast_of, row_of
from undertow.analysis.page import HEADINGS, print_table, write_json, write_page, write_params
from undertow.analysis.result import Path


@pytest.fixture
def wide(monkeypatch):
    """A terminal on which no cell wraps."""
    monkeypatch.setenv("COLUMNS", "200")


def cells(line: str) -> list[str]:
    """Return the cells of a line of a printed table."""
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]


def test_the_table_has_a_line_per_symmetry(wide, capsys):
    unbounded = row_of(dead=1, charge_at_equilibrium=math.inf, relaxation=math.inf, imbalance=1.0, error=0.05)
    print_table(analysis_of(row_of(), unbounded))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "12,345 parameters, loss 0.25, step size 0.01"
    assert [cells(line) for line in lines if re.search("[│┃]", line)] == [
        list(HEADINGS),
        ["rescaling of u against w", "4", "1.23", "0.5", "25%", "1,234"],
        ["rescaling of u against w", "4 (1 dead)", "1.23", "infinity", "100% ± 5% of the flow", "never"],
    ]


def test_names_and_sentences_with_brackets_are_printed_as_they_are(wide, capsys):
    """Brackets of an index are not markup of the terminal."""
    name = "0.weight[i, :], 0.bias against 2.weight[:, i] [/b]"
    print_table(replace(analysis_of(row_of(name=name)), sentences=(f"{name}: rest.",)))
    out = capsys.readouterr().out
    assert f"│ {name} │" in out
    assert out.endswith(f"- {name}: rest.\n")


def test_without_symmetries_there_is_no_table(wide, capsys):
    print_table(replace(analysis_of(), sentences=("Rest.",)))
    assert capsys.readouterr().out.splitlines() == ["12,345 parameters, loss 0.25, step size 0.01", "- Rest."]


def test_numbers_that_are_not_finite_are_printed(wide, capsys):
    nan = float("nan")
    print_table(analysis_of(row_of(charge=nan, charge_at_equilibrium=nan, imbalance=nan, relaxation=nan), loss=nan))
    out = capsys.readouterr().out
    assert "loss nan" in out
    assert out.count("nan") == 5


def test_the_page_has_the_cells_of_the_table_and_how_the_noise_was_computed(tmp_path):
    path = write_page(replace(analysis_of(row_of()), sentences=("Start <here>.",)), "mine.py:problem", tmp_path)
    assert path == tmp_path / "analysis.html"
    page = path.read_text(encoding="utf-8")
    found = [html.unescape(cell) for cell in re.findall("<td>(.*?)</td>", page)]
    assert found == ["1", "rescaling of u against w", "4", "1.23", "0.5", "25%", "1,234", "u by taps"]
    assert re.findall('<th scope="col">(.*?)</th>', page) == ["row", *HEADINGS, "noise by"]
    assert "<li>Start &lt;here&gt;.</li>" in page
    assert "<title>undertow: mine.py:problem</title>" in page


def test_text_of_the_user_is_escaped_on_the_page(tmp_path):
    analysis = analysis_of(row_of(name="<b>größe</b>"))
    page = write_page(analysis, "<i>.py:problem", tmp_path).read_text(encoding="utf-8")
    assert "&lt;b&gt;größe&lt;/b&gt;" in page
    assert "<header><h1>Analysis of gradient noise: &lt;i&gt;.py:problem</h1>\n" in page
    assert "<b>größe" not in page


def test_code_in_a_sentence_is_set_as_code(tmp_path):
    analysis = replace(analysis_of(row_of()), sentences=("Call `f(<a>)` first.",))
    text = write_page(analysis, "model.py:task", tmp_path).read_text()
    assert "<li>Call <code>f(&lt;a&gt;)</code> first.</li>" in text


def test_a_page_without_symmetries_has_no_table(tmp_path):
    assert "<table" not in write_page(analysis_of(), "mine.py:problem", tmp_path).read_text()


def test_the_page_has_the_figures_inline_with_their_captions(tmp_path):
    analysis = analysis_of(row_of(), path=Path("label noise <1>", (0.0, 1.0), (2.0, 1.0)))
    page = write_page(analysis, "mine.py:problem", tmp_path).read_text(encoding="utf-8")
    assert re.findall('<h2 id="(.*?)">', page) == ["charges", "noise", "path"]
    assert page.count('<svg role="img" aria-label="Figure. ') == 3
    assert "label noise &lt;1&gt; keeps moving the model" in page
    assert not re.findall(r"(?:src|href)=.http", page)


def test_the_numbers_are_valid_json(tmp_path):
    """Numbers that are not finite, which JSON does not have, are null."""
    path = write_json(analysis_of(row_of(relaxation=math.inf), limit="größe"), "mine.py:problem", tmp_path)
    assert path == tmp_path / "analysis.json"
    refuse = lambda constant: pytest.fail(f"{constant} is not JSON")
    read = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert read["undertow"] == undertow.__version__
    assert read["target"] == "mine.py:problem"
    assert read["limit"] == "größe"
    assert read["rows"][0]["relaxation"] is None
    assert read["rows"][0]["slowest"] == 56789.0


def test_params_are_saved_under_their_paths(tmp_path):
    params = {"in": jnp.arange(6.0).reshape(2, 3), "deep": {"größe": jnp.array(2.0)}}
    path = write_params(analysis_of(row_of(), forecast=forecast_of(params)), tmp_path)
    assert path == tmp_path / "equilibrium.npz"
    with np.load(path) as arrays:
        saved = dict(arrays)
    assert set(saved) == {"in", "deep.größe"}
    np.testing.assert_array_equal(saved["in"], params["in"])
    assert saved["deep.größe"] == 2.0


def test_without_an_equilibrium_no_params_are_saved(tmp_path):
    assert write_params(analysis_of(), tmp_path) is None
    assert not list(tmp_path.iterdir())
