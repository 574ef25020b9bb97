"""Draw the graph of imports between the folders of undertow: `python -m docs.architecture`.

The imports are read from the source. The command writes `docs/images/architecture.svg`, the edges beside it
(`architecture.json`) and the table of `docs/architecture.md`. Run it after a change of the imports.
"""

import ast
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from undertow.figures.export import to_svg
from undertow.figures.style import COLOURS, INK, new_figure

__all__ = ["GROUND", "Edges", "edges", "layers", "read", "reduced", "table", "write"]

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "undertow"
PAGE = ROOT / "docs" / "architecture.md"
IMAGE = ROOT / "docs" / "images" / "architecture.svg"
STORED = IMAGE.with_suffix(".json")

GROUND = "private modules"
"""The files at the top whose names start with an underscore, drawn as one box."""
BEGIN, END = "<!-- imports: written by python -m docs.architecture -->", "<!-- end of imports -->"

SLOTS = 6
"""Columns of the picture."""
STARTS = 6
"""Random starts of the search for columns."""

Place = tuple[float, float]
Edges = dict[str, dict[str, str]]
"""For each part the parts it imports, and how: "module" (at the top of a file) or "function" (inside one)."""


def edges() -> Edges:
    """Return the imports between the parts of undertow. A part is a folder, or a file at the top.

    An `__init__.py` re-exports names and has no edges of its own; imports for type checkers do not count.
    """
    graph: Edges = {}
    for file in sorted(SOURCE.rglob("*.py")):
        if file.name == "__init__.py" or file == SOURCE / "__main__.py":
            continue
        home = _part(file.relative_to(SOURCE).parts[0].removesuffix(".py"))
        graph.setdefault(home, {})
        for target, kind in _imports(ast.parse(file.read_text())):
            if target != home and graph[home].get(target) != "module":
                graph[home][target] = kind
    return {home: dict(sorted(targets.items())) for home, targets in sorted(graph.items())}


def _part(name: str) -> str:
    return GROUND if name.startswith("_") else name


def _imports(node: ast.AST, kind: str = "module") -> Iterator[tuple[str, str]]:
    """Yield the parts that the code below a node imports, each with "module" or "function"."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from ((_part(a.name.split(".")[1]), kind) for a in node.names if a.name.startswith("undertow."))
    elif isinstance(node, ast.ImportFrom) and node.module == "undertow":
        yield from ((_part(a.name), kind) for a in node.names if a.name != "__version__")
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("undertow."):
        yield _part(str(node.module).split(".")[1]), kind
    inside = "function" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else kind
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, inside)


def _reaches(graph: Edges, start: str, end: str) -> bool:
    """Return whether a chain of imports leads from `start` to `end`."""
    known, queue = {start}, [start]
    while queue:
        new = [target for target in graph.get(queue.pop(), {}) if target not in known]
        known.update(new)
        queue += new
    return end in known


def layers(graph: Edges) -> dict[str, int]:
    """Return the layer of every part: one more than the highest layer among the parts that it imports.

    An import inside a function that leads back to its own part does not count.
    """
    level: dict[str, int] = {}

    def layer(part: str) -> int:
        if part not in level:
            below = [target for target, kind in graph.get(part, {}).items()
                     if kind == "module" or not _reaches(graph, target, part)]  # fmt: skip
            level[part] = 1 + max(map(layer, below), default=-1)
        return level[part]

    for part in graph:
        layer(part)
    return level


def reduced(graph: Edges) -> list[tuple[str, str, str]]:
    """Return the edges that do not follow from a longer chain, as (part, imported part, kind)."""
    level = layers(graph)
    down = {home: {t: kind for t, kind in targets.items() if level[t] < level[home]} for home, targets in graph.items()}
    edges = [(home, target, kind) for home, targets in graph.items() for target, kind in targets.items()]
    implied = {
        (home, target)
        for home, targets in down.items()
        for target in targets
        if any(_reaches(down, other, target) for other in targets if other != target)
    }
    return [edge for edge in edges if edge[:2] not in implied]


def table(graph: Edges) -> str:
    """Return all direct imports as a Markdown table, the highest layer first."""
    level = layers(graph)
    rows = ["| part | layer | imports | imports inside functions |", "|---|---|---|---|"]
    for home in sorted(graph, key=lambda part: (-level[part], part)):
        cells = [", ".join(t for t, kind in graph[home].items() if kind == wanted) for wanted in ("module", "function")]
        rows.append(f"| {home} | {level[home]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(graph: Edges) -> str:
    """Return the picture as SVG: one row per layer, an arrow from each part to what it imports."""
    place = _places(graph)
    height = max(y for _, y in place.values())
    figure, (axes,) = new_figure(width=8.6, height=0.6 + 0.8 * height)
    axes.set_axis_off()
    axes.set_xlim(-0.6, SLOTS - 0.4)
    axes.set_ylim(-0.4, height + 0.4)
    boxes = {
        part: axes.text(x, y, part, ha="center", va="center", color=INK, zorder=3,
                        bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": COLOURS["blue"]})
        for part, (x, y) in place.items()
    }  # fmt: skip
    for home, target, kind in reduced(graph):
        # if two parts import each other, the import inside a function bends, so that both arrows are visible
        bend = 0.25 if kind == "function" and place[home][1] < place[target][1] else 0.0
        style = {"arrowstyle": "-|>", "color": COLOURS["grey"], "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0,
                 "linestyle": "--" if kind == "function" else "-", "connectionstyle": f"arc3,rad={bend}",
                 "patchA": boxes[home].get_bbox_patch(), "patchB": boxes[target].get_bbox_patch()}  # fmt: skip
        # drawn after the boxes: only then is their size known, at which the arrows end
        axes.annotate("", xy=place[target], xytext=place[home], zorder=4, arrowprops=style)
    return to_svg(figure)


def _places(graph: Edges) -> dict[str, Place]:
    """Return the place of every part: rows are layers, columns come from a search for short and clear arrows."""
    level = layers(graph)
    edges = [(home, target) for home, target, _ in reduced(graph)]
    rows = [sorted(part for part in level if level[part] == row) for row in range(max(level.values()) + 1)]
    generator = random.Random(0)  # the same picture for the same edges
    best: dict[str, Place] = {}
    for _ in range(STARTS):
        place = {part: (float(x), float(y)) for y, row in enumerate(rows)
                 for part, x in zip(row, generator.sample(range(SLOTS), len(row)), strict=True)}  # fmt: skip
        place = _improved(place, edges, rows)
        if not best or _cost(place, edges) < _cost(best, edges):
            best = place
    return best


def _improved(place: dict[str, Place], edges: list[tuple[str, str]], rows: list[list[str]]) -> dict[str, Place]:
    """Return the places after single moves within rows, for as long as one of them lowers the cost."""
    cost, improving = _cost(place, edges), True
    while improving:
        improving = False
        for row in rows:
            for part, x in itertools.product(row, range(SLOTS)):
                other = next((p for p in row if place[p][0] == x), part)  # the two are swapped
                trial = place | {part: (float(x), place[part][1])} | ({other: place[part]} if other != part else {})
                if (lower := _cost(trial, edges)) < cost - 1e-9:
                    place, cost, improving = trial, lower, True
    return place


def _cost(place: dict[str, Place], edges: list[tuple[str, str]]) -> float:
    """Return the sum of squared horizontal lengths, plus penalties for arrows over boxes and for crossings."""
    total = sum((place[a][0] - place[b][0]) ** 2 for a, b in edges)
    for a, b in edges:
        (xa, ya), (xb, yb) = place[a], place[b]
        for part, (x, y) in place.items():
            if part not in (a, b) and min(ya, yb) < y < max(ya, yb):
                total += 30 * max(0.0, 0.6 - abs(xa + (xb - xa) * (y - ya) / (yb - ya) - x))
    return total + 4 * sum(_cross(place, one, two) for one, two in itertools.combinations(edges, 2))


def _cross(place: dict[str, Place], one: tuple[str, str], two: tuple[str, str]) -> bool:
    """Return whether two arrows without a common end cross."""
    if set(one) & set(two):
        return False
    (a, b), (c, d) = ([place[part] for part in edge] for edge in (one, two))
    side = lambda p, q, r: (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])
    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def read() -> Edges:
    """Return the edges that the stored picture shows."""
    return json.loads(STORED.read_text())


def write() -> None:
    """Write the picture, its edges and the table of the page."""
    graph = edges()
    IMAGE.write_text(draw(graph))
    STORED.write_text(json.dumps(graph, indent=1) + "\n")
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(graph)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    write()
    print(f"{IMAGE.relative_to(ROOT)}, {STORED.relative_to(ROOT)}, {PAGE.relative_to(ROOT)}")
