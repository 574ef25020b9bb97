"""Short tables of results: as text for `print`, as HTML for notebooks."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["ResultTable", "html_of", "indexed", "number", "shortened", "span", "text_of"]

MOST_ROWS = 12
"""Rows that a table shows of a long list; a note counts the others."""


@dataclass(frozen=True)
class ResultTable:
    """A title, rows of text below a header, and notes. Text has one line per row, columns two spaces apart.

    >>> from undertow._table import ResultTable
    >>> print(ResultTable("drift", ("part", "norm"), (("tangent", "0.5"), ("normal", "12")), align="lr").text())
    drift
    part     norm
    tangent   0.5
    normal     12
    """

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    align: str = ""
    """`l` or `r` for each column; all columns are flush left where it is empty."""
    notes: tuple[str, ...] = ()
    """Sentences below the rows."""

    def text(self) -> str:
        """Return the table in characters of fixed width."""
        lines = [self.header, *self.rows] if self.header and self.rows else list(self.rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join([self.title, *(self._line(line, widths) for line in lines), *self.notes])

    def html(self) -> str:
        """Return the table as an HTML element; all text is escaped."""
        parts = [f"<table><caption>{html.escape(self.title)}</caption>"]
        if self.header and self.rows:
            parts.append(f"<thead>{self._html_row(self.header, 'th')}</thead>")
        if self.rows:
            parts.append(f"<tbody>{''.join(self._html_row(row, 'td') for row in self.rows)}</tbody>")
        return "".join([*parts, "</table>", *(f"<p>{html.escape(note)}</p>" for note in self.notes)])

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html_of([self])

    def _line(self, line: tuple[str, ...], widths: list[int]) -> str:
        sides = self.align or "l" * len(line)
        cells = [cell.rjust(w) if side == "r" else cell.ljust(w)
                 for cell, w, side in zip(line, widths, sides, strict=True)]  # fmt: skip
        return "  ".join(cells).rstrip()

    def _html_row(self, row: tuple[str, ...], tag: str) -> str:
        sides = ["right" if side == "r" else "left" for side in self.align or "l" * len(row)]
        cells = (
            f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
            for cell, side in zip(row, sides, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"


def text_of(tables: Sequence[ResultTable]) -> str:
    """Return tables as text, one below the other."""
    return "\n".join(table.text() for table in tables)


def html_of(tables: Sequence[ResultTable]) -> str:
    """Return tables as one HTML element."""
    return f"<div>{''.join(table.html() for table in tables)}</div>"


def number(value: float | int | np.generic | np.ndarray | None) -> str:
    """Return a number with four significant digits; whole numbers in full, None as an empty cell.

    >>> from undertow._table import number
    >>> print(number(0.123456), number(123456), number(None) == "")
    0.1235 123456 True
    """
    if value is None:
        return ""
    return str(value) if isinstance(value, int | np.integer) else f"{float(value) + 0.0:.4g}"  # no -0


def span(values: np.ndarray) -> str:
    """Return one number, or the least and the greatest of several.

    >>> import numpy as np
    >>> from undertow._table import span
    >>> print(span(np.array(2.0)), "|", span(np.array([3.0, 1.0])))
    2 | 1 to 3
    """
    low, high = number(np.min(values)), number(np.max(values))
    return low if low == high else f"{low} to {high}"


def indexed(name: str, values: np.ndarray) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the index of each entry of an array: `name[0, 1]`, or `name` for a number."""
    return [(f"{name}[{', '.join(map(str, index))}]" if index else name, index) for index in np.ndindex(values.shape)]


def shortened(rows: Sequence[tuple[str, ...]], what: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return the first rows, and a note that counts the others."""
    rest = len(rows) - MOST_ROWS
    return tuple(rows[:MOST_ROWS]), (f"... and {rest} more {what}.",) if rest > 0 else ()
