"""Tables as text and as HTML."""

from xml.etree import ElementTree

import numpy as np
import pytest

from undertow._table import ResultTable, html_of, number, text_of

TABLE = ResultTable("a title", ("name", "value"), (("short", "1"), ("a longer name", "22.5")), "lr", ("A note.",))


def test_columns_of_text_are_aligned():
    lines = TABLE.text().splitlines()
    assert lines == ["a title", "name           value", "short              1", "a longer name   22.5", "A note."]


def test_a_table_without_rows_has_no_header():
    assert ResultTable("nothing", ("name", "value"), notes=("Why.",)).text() == "nothing\nWhy."
    assert "<th" not in ResultTable("nothing", ("name", "value")).html()


def test_html_has_every_cell_and_is_well_formed():
    element = ElementTree.fromstring(html_of([TABLE, TABLE]))
    assert [cell.text for cell in element.findall("table/tbody/tr/td")] == 2 * ["short", "1", "a longer name", "22.5"]
    assert [cell.text for cell in element.findall("table/thead/tr/th")] == 2 * ["name", "value"]
    assert [e.text for e in element.findall("table/caption")] == 2 * ["a title"]
    assert [e.text for e in element.findall("p")] == 2 * ["A note."]


def test_html_is_escaped():
    evil = "<script>alert('1')</script> & \"x\""
    table = ResultTable(evil, (evil,), ((evil,),), notes=(evil,))
    element = ElementTree.fromstring(html_of([table]))
    assert not element.findall(".//script")
    assert {e.text for e in element.iter() if e.text} == {evil}


def test_a_row_of_another_length_raises():
    with pytest.raises(ValueError, match="zip"):
        ResultTable("", ("a", "b"), (("1",),)).text()


def test_tables_are_below_each_other():
    assert text_of([TABLE, TABLE]) == f"{TABLE.text()}\n{TABLE.text()}"


def test_numbers_have_four_digits():
    assert [number(x) for x in (np.float32(1 / 3), np.int64(123456), 2, np.array(1e-9), float("nan"), None)] == [
        "0.3333", "123456", "2", "1e-09", "nan", "",
    ]  # fmt: skip


def test_a_table_is_printed_as_text_and_shown_as_html():
    table = ResultTable("drift", ("part", "norm"), (("a < b", "0.5"),), align="lr")
    assert str(table) == table.text() == "drift\npart   norm\na < b   0.5"
    assert table._repr_html_() == f"<div>{table.html()}</div>"
