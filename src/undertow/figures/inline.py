"""An SVG figure as part of a page: its colours follow the page, its names stay its own, its words are told."""

import html
import re

from undertow.figures.style import COLOURS, GRID, INK

__all__ = ["inline", "words_of"]

PAINT = {colour: f"var(--figure-{name}, {colour})" for name, colour in COLOURS.items()} | {
    GRID: f"var(--figure-grid, {GRID})",
    INK: "currentColor",
    "#000000": "currentColor",
}
"""Colours of the style, as what a page may give instead: `--figure-blue` and so on, and its own ink."""


def words_of(svg: str) -> str:
    """The description that an SVG carries, or nothing."""
    found = re.search(r"<desc>(.*?)</desc>", svg, flags=re.DOTALL)
    return html.unescape(found.group(1)) if found else ""


def inline(svg: str, name: str, label: str) -> str:
    """The SVG text as an element of an HTML page, named `label` to those who do not see it.

    `name`, unique on the page, goes before every id that the figure refers to; other ids are dropped. The element is as
    wide as the figure was drawn, and no wider than its place.

    >>> from undertow.figures.inline import inline
    >>> inline('<svg width="72pt" height="36pt" viewBox="0 0 72 36"><path id="a" d="M 0 0.12345"/></svg>', "f", "None")
    '<svg role="img" aria-label="None" viewBox="0 0 72 36" style="width:96px"><path d="M 0 0.12"/></svg>'
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<desc>.*?</desc>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r"url\(#([^)]+)\)", body)) | set(re.findall(r'href="#([^"]+)"', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = body.replace("fill: #ffffff", "fill: none")  # paper; a page has its own
    for colour, paint in PAINT.items():
        body = re.sub(rf"(?<=: ){colour}(?=[;\"])", paint, body)
    body = re.sub(r' (d|x|y|points)="([^"]*)"', lambda m: f' {m[1]}="{_rounded(m[2])}"', body)
    body = re.sub(r">\s+<", "><", body.strip())
    opening = re.match(r"<svg([^>]*)>", body)
    assert opening is not None
    box = re.search(r'viewBox="([^"]*)"', opening[1])
    width = re.search(r'width="([\d.]+)pt"', opening[1])
    assert box is not None
    size = f' style="{_size(float(width[1]) * 96 / 72)}"' if width else ""
    head = f'<svg role="img" aria-label="{html.escape(label)}" viewBox="{box[1]}"{size}>'
    return head + body[opening.end() :]


def _size(pixels: float) -> str:
    """Its width, and for several panels the least one, `--least`, at which they can be read on a phone."""
    return f"width:{pixels:.0f}px" + (f";--least:{0.6 * pixels:.0f}px" if pixels > 660 else "")


def _rounded(numbers: str) -> str:
    """Hundredths of a point are finer than any screen or printer."""
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), " ".join(numbers.split()))
