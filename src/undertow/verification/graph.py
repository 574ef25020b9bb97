"""The graph of what claims rest on, as SVG with verdicts as colours and shapes, and as a list.

Columns are layers: a claim stands to the right of all claims that it rests on. Within a column, claims are sorted by
the mean place of the claims that they rest on, which keeps most arrows from crossing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from undertow.verification.result import ClaimResult

__all__ = ["Graph", "Node", "draw_graph"]

NOT_RUN = "not run"
CHARACTER, ROW, GAP, PADDING = 7.3, 34.0, 64.0, 12.0
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
    """Return the graph of the claims that rest on others; None where none does."""
    verdicts = {result.claim: str(result.verdict) for result in results}
    edges = {result.claim: result.rests_on for result in results if result.rests_on}
    if not edges:
        return None
    places = _places(edges)
    nodes = tuple(
        Node(claim, verdicts[claim], tuple((other, verdicts.get(other, NOT_RUN)) for other in below))
        for claim, below in edges.items()
    )
    return Graph(_svg(places, edges, verdicts), nodes)


def layers(edges: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Return the layer of every claim: 0 where it rests on nothing, else one more than the highest below it."""
    level: dict[str, int] = {}

    def layer(claim: str) -> int:
        if claim not in level:
            level[claim] = 1 + max(map(layer, edges.get(claim, ())), default=-1)
        return level[claim]

    for claim in edges:
        layer(claim)
    return level


def _components(edges: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
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


def _places(edges: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[int, float]]:
    """Return the column and the row of every claim; groups are below each other."""
    level = layers(edges)
    places: dict[str, tuple[int, float]] = {}
    top = 0.0
    for members in _components(edges):
        columns = [[m for m in members if level[m] == k] for k in range(1 + max(level[m] for m in members))]
        tallest = max(map(len, columns))
        for number, column in enumerate(columns):
            means = {claim: fmean(places[o][1] for o in edges[claim]) if number else 0.0 for claim in column}
            start = top + (tallest - len(column)) / 2
            ordered = sorted(column, key=means.__getitem__)
            places |= {claim: (number, start + row) for row, claim in enumerate(ordered)}
        top += tallest + 0.5
    return places


def _svg(
    places: dict[str, tuple[int, float]], edges: Mapping[str, tuple[str, ...]], verdicts: Mapping[str, str]
) -> Markup:
    box = 34 + CHARACTER * max(map(len, places))
    left = lambda claim: PADDING + places[claim][0] * (box + GAP)
    middle = lambda claim: PADDING + ROW / 2 + places[claim][1] * ROW
    width = 2 * PADDING + max(map(left, places)) + box
    height = 2 * PADDING + ROW + max(row for _, row in places.values()) * ROW
    parts = [
        Markup(
            '<svg class="graph" role="img" viewBox="0 0 {w:.0f} {h:.0f}" style="--least: {least:.0f}px" '
            'aria-label="{name}">'
        ).format(
            w=width, h=height, least=0.75 * width,
            name=f"What rests on what: {len(places)} claims and {sum(map(len, edges.values()))} arrows. The list below "
            "has the same content.",
        )
    ]  # fmt: skip
    for claim, below in edges.items():
        for other in below:
            (x0, y0), (x1, y1) = (left(other) + box, middle(other)), (left(claim), middle(claim))
            bend = (x1 - x0) / 2
            path = f"M{x0:.0f} {y0:.1f}C{x0 + bend:.0f} {y0:.1f} {x1 - bend:.0f} {y1:.1f} {x1 - 7:.0f} {y1:.1f}"
            head = f"M{x1:.0f} {y1:.1f}l-8 -4v8z"
            parts.append(Markup('<path class="arrow" d="{}"/><path class="head" d="{}"/>').format(path, head))
    for claim in places:
        verdict = verdicts.get(claim, NOT_RUN)
        x, y = left(claim), middle(claim)
        mark = Markup(SHAPES[verdict].format(x=f"{x + 14:.0f}", y=f"{y:.1f}"))
        parts.append(
            Markup(
                '<g class="node {kind}"><title>{claim}: {verdict}</title><rect x="{x:.0f}" y="{y:.1f}" '
                'width="{box:.0f}" height="24" rx="4"/>{mark}<text x="{tx:.0f}" y="{ty:.1f}">{claim}</text></g>'
            ).format(kind=verdict.replace(" ", "-"), claim=claim, verdict=verdict, x=x, y=y - 12, box=box, mark=mark,
                     tx=x + 25, ty=y + 4)
        )  # fmt: skip
    return Markup("").join([*parts, Markup("</svg>")])
