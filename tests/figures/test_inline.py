"""Figures as elements of a page: unique ids, the colours of the page, accessible names."""

import re
import xml.etree.ElementTree as ET

from tests.figures.curves import curve
from undertow.figures import export
from undertow.figures.inline import inline


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
