"""The graph of what claims rest on, as SVG with verdicts as colours and shapes, and as a list.

Columns are layers: a claim stands to the right of all claims that it rests on, and a long arrow has a free place in
every column that it crosses. Within a column, places are sorted by the mean of their neighbours', which keeps most
arrows from crossing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from statistics import fmean

from markupsafe import Markup

from undertow.verification.result import ClaimResult

__all__ = ["Graph", "Node", "draw_graph"]

Edges = Mapping[str, tuple[str, ...]]
"""For each claim, the claims that it rests on."""
Point = tuple[str, ...]
"""A claim, or the free place of a long arrow in a column: the two claims and the column."""
Places = dict[Point, tuple[int, float]]

NOT_RUN = "not run"
CHARACTER, ROW, GAP, PADDING = 7.3, 32.0, 56.0, 12.0
"""The width of a character, the height of a row, the gap between columns and the margin, in pixels."""
SHAPES = {
    "holds": '<circle cx="{x}" cy="{y}" r="5"/>',
    "corrected": '<path d="M{x} {y}m0 -6l6 6l-6 6l-6 -6z"/>',
    "fails": '<path d="M{x} {y}m-5 -5h10v10h-10z"/>',
    "error": '<path d="M{x} {y}m-5 -5l10 10m0 -10l-10 10" class="line"/>',
    "inconclusive": '<circle cx="{x}" cy="{y}" r="4.5" class="line"/>',
    NOT_RUN: '<path d="M{x} {y}m-5 0h10" class="line"/>',
}
"""The mark of each verdict, so that colour is not the only difference."""


@dataclass(frozen=True)
class Node:
    """A claim of the graph: its verdict, and the claims that it rests on with theirs."""

    claim: str
    verdict: str
    rests_on: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Graph:
    """The picture, and the same as a list."""

    svg: Markup
    nodes: tuple[Node, ...]


def draw_graph(results: Iterable[ClaimResult]) -> Graph | None:
    """Return the graph of the claims that rest on others; None where none does, or where they rest on each other."""
    verdicts = {result.claim: str(result.verdict) for result in results}
    edges = {result.claim: result.rests_on for result in results if result.rests_on}
    if not edges:
        return None
    try:
        level = layers(edges)
    except CycleError:  # a file that undertow did not write
        return None
    routes = _routes(edges, level)
    nodes = tuple(
        Node(claim, verdicts[claim], tuple((other, verdicts.get(other, NOT_RUN)) for other in below))
        for claim, below in edges.items()
    )
    return Graph(_svg(_places(edges, routes, level), routes.values(), verdicts), nodes)


def layers(edges: Edges) -> dict[str, int]:
    """Return the layer of every claim: 0 where it rests on nothing, else one more than the highest below it."""
    level: dict[str, int] = {}
    for claim in TopologicalSorter(edges).static_order():
        level[claim] = 1 + max((level[other] for other in edges.get(claim, ())), default=-1)
    return level


def _components(edges: Edges) -> list[list[str]]:
    """Return the claims in groups without arrows between them, each in the order of its claims."""
    group: dict[str, list[str]] = {}
    for claim, below in edges.items():
        for other in (claim, *below):
            group.setdefault(other, [other])
        for other in below:
            if group[other] is not group[claim]:
                joined = group[claim] + group[other]
                group.update(dict.fromkeys(joined, joined))
    return list({id(members): members for members in group.values()}.values())


def _routes(edges: Edges, level: Mapping[str, int]) -> dict[tuple[str, str], list[Point]]:
    """Return the points of every arrow: a claim, a free place in each column between, and the claim on top of it."""
    return {
        (other, claim): [(other,), *((other, claim, str(k)) for k in range(level[other] + 1, level[claim])), (claim,)]
        for claim, below in edges.items()
        for other in below
    }


def _rows(columns: list[list[Point]], routes: Iterable[list[Point]]) -> dict[Point, float]:
    """Return the row of every point, after sorting each column by its neighbours on the left, and then on the right."""
    left: dict[Point, list[Point]] = {}
    right: dict[Point, list[Point]] = {}
    for route in routes:
        for one, next_one in pairwise(route):
            left.setdefault(next_one, []).append(one)
            right.setdefault(one, []).append(next_one)
    tallest = max(map(len, columns))
    rows: dict[Point, float] = {}
    centred = lambda column: {point: (tallest - len(column)) / 2 + row for row, point in enumerate(column)}
    for column in columns:
        rows |= centred(column)
    for neighbours, order in ((left, columns), (right, columns[::-1]), (left, columns)):
        for column in order:
            mean = {point: fmean(rows[n] for n in neighbours.get(point, [point])) for point in column}
            column.sort(key=mean.__getitem__)
            rows |= centred(column)
    return rows


def _places(edges: Edges, routes: dict[tuple[str, str], list[Point]], level: Mapping[str, int]) -> Places:
    """Return the column and the row of every point; groups are below each other."""
    places: Places = {}
    top = 0.0
    for members in _components(edges):
        own = [route for (_, claim), route in routes.items() if claim in members]
        columns: list[list[Point]] = [[] for _ in range(1 + max(level[member] for member in members))]
        for member in members:
            columns[level[member]].append((member,))
        for route in own:
            for point in route[1:-1]:
                columns[int(point[2])].append(point)
        rows = _rows(columns, own)
        places |= {point: (number, top + rows[point]) for number, column in enumerate(columns) for point in column}
        top += max(map(len, columns)) + 0.5
    return places


def _svg(places: Places, routes: Iterable[list[Point]], verdicts: Mapping[str, str]) -> Markup:
    names = {point[0]: column for point, (column, _) in places.items() if len(point) == 1}
    widths = [34 + CHARACTER * max(len(n) for n in names if names[n] == k) for k in range(1 + max(names.values()))]
    lefts = [PADDING + sum(widths[:k]) + GAP * k for k in range(len(widths))]
    middle = lambda point: PADDING + ROW / 2 + places[point][1] * ROW
    width = lefts[-1] + widths[-1] + PADDING
    height = 2 * PADDING + ROW + max(row for _, row in places.values()) * ROW
    routes = list(routes)
    size = f"{len(names)} claims and {len(routes)} arrows"
    label = f"Dependencies between claims: {size}. The list below has the same content."
    style = f"--least: {0.8 * width:.0f}px; max-width: {width:.0f}px"
    opening = Markup('<svg class="graph" role="img" viewBox="0 0 {:.0f} {:.0f}" style="{}" aria-label="{}">')
    parts = [opening.format(width, height, style, label)]
    parts += [_arrow(route, places, lefts, widths, middle) for route in routes]
    for claim, column in names.items():
        verdict = verdicts.get(claim, NOT_RUN)
        x, y = lefts[column], middle((claim,))
        mark = Markup(SHAPES[verdict].format(x=f"{x + 14:.0f}", y=f"{y:.1f}"))
        node = Markup(
            '<g class="node {kind}"><title>{claim}: {verdict}</title><rect x="{x:.0f}" y="{y:.1f}" width="{box:.0f}" '
            'height="24" rx="4"/>{mark}<text x="{tx:.0f}" y="{ty:.1f}">{claim}</text></g>'
        )
        kind = verdict.replace(" ", "-")
        parts.append(node.format(kind=kind, claim=claim, verdict=verdict, x=x, y=y - 12, box=widths[column], mark=mark,
                                 tx=x + 25, ty=y + 4))  # fmt: skip
    return Markup("").join([*parts, Markup("</svg>")])


def _arrow(
    route: list[Point], places: Places, lefts: list[float], widths: list[float], middle: Callable[[Point], float]
) -> Markup:
    """Return the arrow along a route: straight through the columns, and bent in the gaps between them."""
    first, last = places[route[0]][0], places[route[-1]][0]
    path = f"M{lefts[first] + widths[first]:.0f} {middle(route[0]):.1f}"
    for number, (one, next_one) in enumerate(pairwise(route), start=first + 1):
        x0, x1 = lefts[number] - GAP, lefts[number] - (7 if number == last else 0)
        y0, y1 = middle(one), middle(next_one)
        bend = GAP / 2
        path += f"L{x0:.0f} {y0:.1f}C{x0 + bend:.0f} {y0:.1f} {x1 - bend:.0f} {y1:.1f} {x1:.0f} {y1:.1f}"
    head = f"M{lefts[last]:.0f} {middle(route[-1]):.1f}l-8 -4v8z"
    return Markup('<path class="arrow" d="{}"/><path class="head" d="{}"/>').format(path, head)
