"""Figures as elements of a page: unique ids, the colours of the page, accessible names."""

import re
import xml.etree.ElementTree as ET

import pytest

from tests.figures.curves import curve
from undertow.figures import export
from undertow.figures.inline import inline, proportions, words_of


def test_inlined_figures_share_a_page():
    """Two figures with equal insides: every reference resolves within its own figure, no id comes twice."""
    svg = export.to_svg(curve())
    name = 'it is <second> & quoted: "'
    page = f"<div>{inline(svg, 'a', 'first')}{inline(svg, 'b', name)}</div>"
    root = ET.fromstring(page)
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert len(ids) == len(set(ids)) > 2
    used = re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'href="#([^"]+)"', page)
    assert used
    assert set(used) == set(ids)
    first, second = root
    assert second.get("aria-label") == name
    assert first.get("role") == "img"
    for leak in ("<style", "<metadata", "xlink", "<?xml", "http:"):
        assert leak not in page


def test_inlined_figures_take_the_colours_of_the_page():
    page = inline(export.to_svg(curve()), "a", "")
    assert "stroke: var(--figure-blue, #2166ac)" in page
    assert "fill: currentColor" in page
    assert not re.findall(r": (#2166ac|#1c1c1c|#000000|#ffffff)", page)
    assert "fill: #ffffff" in export.to_svg(curve())  # on its own it brings its paper along


def svg_of(inside="", size='width="72pt" height="36pt"'):
    """Return a small SVG file."""
    return f'<?xml version="1.0"?>\n<svg {size} viewBox="0 0 72 36">\n {inside}\n</svg>\n'


@pytest.mark.parametrize(
    ("svg", "description"),
    [
        ("<svg><desc>a &lt;line&gt;\nof größe &amp; more</desc></svg>", "a <line>\nof größe & more"),
        ("<svg><desc>first</desc><desc>second</desc></svg>", "first"),
        ("<svg><desc></desc></svg>", ""),
        ("<svg></svg>", ""),
        ("", ""),
    ],
)
def test_the_description_inside_a_file_is_found(svg, description):
    assert words_of(svg) == description


def test_a_description_survives_the_way_into_a_file():
    figure = curve()
    figure.set_label('größe < 1 & "more"')
    assert words_of(export.to_svg(figure)) == 'größe < 1 & "more"'


def test_ids_that_nothing_refers_to_are_removed():
    inside = (
        '<g id="unused"><path id="mark" d="M 0 0"/><use xlink:href="#mark"/><g clip-path="url(#cut)" id="cut"/></g>'
    )
    element = inline(svg_of(inside), "claim", "")
    assert re.findall('id="([^"]*)"', element) == ["claim-mark", "claim-cut"]
    assert 'href="#claim-mark"' in element
    assert "url(#claim-cut)" in element


def test_pictures_inside_a_figure_are_kept():
    assert 'href="data:image/png;base64,AAA="' in inline(
        svg_of('<image xlink:href="data:image/png;base64,AAA="/>'), "a", ""
    )


@pytest.mark.parametrize(
    ("points", "width", "least"),
    [(72, "width:96px", False), (495, "width:660px", False), (720, "width:960px;--least:576px", True)],
)
def test_wide_figures_have_a_least_width(points, width, least):
    element = inline(svg_of(size=f'width="{points}pt"'), "a", "")
    assert f'style="{width}"' in element
    assert ("--least" in element) == least


def test_a_figure_without_a_width_has_no_style():
    assert inline(svg_of(size=""), "a", "x") == '<svg role="img" aria-label="x" viewBox="0 0 72 36"></svg>'


@pytest.mark.parametrize(
    ("given", "rounded"),
    [
        ("M 0.12345 -7.999", "M 0.12 -8"),
        ("M 100.000\n  L 1.5 20", "M 100 L 1.5 20"),
        ("M -0.001 0.005", "M -0 0.01"),
        ("", ""),
    ],
)
def test_coordinates_are_rounded_to_hundredths(given, rounded):
    assert f'd="{rounded}"' in inline(svg_of(f'<path d="{given}"/>'), "a", "")


def test_colours_that_a_page_may_not_replace_stay():
    inside = '<g style="stroke: #2166ac; fill: #ffffff"/><g style="fill: #123456"/><g fill="#2166ac"/>'
    element = inline(svg_of(inside), "a", "")
    assert 'style="stroke: var(--figure-blue, #2166ac); fill: none"' in element
    assert 'style="fill: #123456"' in element


@pytest.mark.parametrize(
    "inside",
    ["<script>x()</script>", '<g onclick="x()"/>', '<a href="javascript:x()"><path/></a>', "<style>* {}</style>",
     "<foreignObject><p>x()</p></foreignObject>", '<use href="http://x/y#z"/>', '<image href="http://x/y.png"/>',
     '<image href="data:image/svg+xml,x"/>', '<g style="fill: url(http://x/y)"/>', '<g fill="u\\72l(http://x)"/>',
     '<g style="x: expression(1)"/>', "<svg onload='x()'/>", '<animate onbegin="x()"/>', "<desc><b/></desc>",
     '<z:script xmlns:z="http://www.w3.org/2000/svg">x()</z:script>'],
)  # fmt: skip
def test_only_what_draws_is_kept(inside):
    element = inline(svg_of(inside + '<path d="M 1 2"/>'), "a", "")
    assert re.findall('<path d="M 1 2"/>', element)
    rest = re.sub(r'^<svg [^>]*>|</svg>$|<path d="M 1 2"/>', "", element)
    assert re.fullmatch("(<(g|use|image)/>)?", rest), rest


@pytest.mark.parametrize(
    "text",
    ["", "text", "<html></html>", "<svg", "<svg><g></svg>", "<svg/>", '<svg viewBox="0 0 1 &quot;onload=x"/>',
     '<!DOCTYPE svg [<!ENTITY a "b">]><svg viewBox="0 0 1 1"><text>&a;</text></svg>'],
)  # fmt: skip
def test_a_file_that_is_not_a_figure_is_refused(text):
    with pytest.raises(ValueError, match="not an SVG file"):
        inline(text, "a", "")


def test_text_in_a_figure_stays_text():
    element = inline(svg_of("<text>&lt;b&gt; &amp;amp; </text>"), 'a"b', "")
    assert "<text>&lt;b&gt; &amp;amp; </text>" in element
    used = '<g id="c"/><use href="#c"/>'
    assert 'id="a&quot;b-c"' in inline(svg_of(used), 'a"b', "")


def test_the_proportions_of_a_figure():
    assert proportions(svg_of()) == (72.0, 36.0)
    assert proportions("<svg/>") == proportions('<svg viewBox="0 0 0 0"/>') == (4.0, 3.0)
