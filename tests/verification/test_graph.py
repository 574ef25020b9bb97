"""The graph has every claim that rests on another, in columns that follow the arrows, with its verdict in words."""

import re

from tests.verification.work import CHECK, result_of
from undertow.verification.graph import SHAPES, draw_graph, layers
from undertow.verification.report import VERDICTS, build_report
from undertow.verification.result import Task


def results(verdicts, **edges):
    return [
        result_of(Task(name, "smoke", {}, 0), verdict=verdict, rests_on=edges.get(name, ()), checks=(CHECK,))
        for name, verdict in verdicts.items()
    ]


VERDICT_OF = {"a": "holds", "b": "corrected", "c": "fails", "d": "inconclusive", "alone": "holds", "x": "error"}
EDGES = {"b": ("a",), "c": ("a", "b"), "d": ("c", "a"), "x": ("elsewhere",)}


def boxes(svg: str) -> dict[str, tuple[float, float]]:
    """Return the left edge and the top of the box of each claim."""
    found = re.findall(r'<g class="node [\w-]+"><title>([\w-]+): [\w ]+</title><rect x="([\d.]+)" y="([\d.]+)"', svg)
    return {name: (float(x), float(y)) for name, x, y in found}


def test_layers_follow_the_arrows():
    assert layers(EDGES) == {"a": 0, "b": 1, "c": 2, "d": 3, "elsewhere": 0, "x": 1}


def test_a_claim_is_to_the_right_of_what_it_rests_on():
    graph = draw_graph(results(VERDICT_OF, **EDGES))
    places = boxes(str(graph.svg))
    assert set(places) == {"a", "b", "c", "d", "x", "elsewhere"}
    for claim, below in EDGES.items():
        assert all(places[other][0] < places[claim][0] for other in below)
    assert len(set(places.values())) == len(places), "no two boxes are at one place"
    assert graph.svg.count('class="arrow"') == sum(map(len, EDGES.values()))


def test_a_long_arrow_passes_no_box():
    """The arrow from a to d is level where it crosses the columns of b and c, between their boxes."""
    svg = str(draw_graph(results(VERDICT_OF, **EDGES)).svg)
    places = boxes(svg)
    (path,) = [path for path in re.findall(r'class="arrow" d="([^"]+)"', svg) if path.count("L") == 3]
    for segment in re.findall(r"([\d.]+)L([\d.]+) ([\d.]+)", path)[1:]:
        level, end = float(segment[2]), float(segment[1])
        assert float(segment[0]) == level
        assert all(not y < level < y + 24 for x, y in places.values() if x < end < x + 400 and x > places["a"][0])


def test_verdicts_are_shapes_and_words():
    assert set(SHAPES) == {*VERDICTS, "not run"}
    assert len(set(SHAPES.values())) == len(SHAPES)
    graph = draw_graph(results(VERDICT_OF, **EDGES))
    for name, verdict in VERDICT_OF.items():
        assert (f"<title>{name}: {verdict}</title>" in graph.svg) == (name != "alone")
    assert "<title>elsewhere: not run</title>" in graph.svg
    assert [(node.claim, node.rests_on) for node in graph.nodes][-1] == ("x", (("elsewhere", "not run"),))


def test_no_arrows_no_graph():
    assert draw_graph(results({"a": "holds"})) is None


def test_the_report_has_the_graph_and_the_list(tmp_path):
    page = build_report(tmp_path, results(VERDICT_OF, **EDGES)).read_text()
    assert '<svg class="graph" role="img"' in page
    assert "6 claims and 6 arrows" in page
    assert re.search(
        r"The graph as a list</summary>.*x</a> \(<[^>]*>error</span>\) rests on\s+elsewhere \(not run\)", page, re.S
    )
    assert re.search(r'Rests on <a href="#a">a</a> \(<span class="v holds">holds</span>\),', page)
    assert 'id="graph"' not in build_report(tmp_path, results({"a": "holds"})).read_text()
