"""Embed an SVG figure in a page: with the colours of the page, unique ids, and an accessible description."""

import html
import re

from undertow.figures.style import COLOURS, GRID, INK

__all__ = ["inline", "words_of"]

PAINT = {colour: f"var(--figure-{name}, {colour})" for name, colour in COLOURS.items()} | {
    GRID: f"var(--figure-grid, {GRID})",
    INK: "currentColor",
    "#000000": "currentColor",
}
"""The CSS variables by which a page may replace colours of the style: `--figure-blue` and so on."""


def words_of(svg: str) -> str:
    """Return the description inside an SVG, or an empty string."""
    description = re.search(r"<desc>(.*?)</desc>", svg, flags=re.DOTALL)
    return html.unescape(description.group(1)) if description else ""


def inline(svg: str, name: str, label: str) -> str:
    """Return the SVG as an element of an HTML page with the accessible name `label`.

    `name`, unique on the page, is the prefix of every id that the figure refers to; other ids are removed. The element
    has the width of the figure.

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
    body = body.replace("fill: #ffffff", "fill: none")  # the white background; a page has its own
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
    """Return the width, and for several panels the least width, `--least`, at which they are readable on a phone."""
    return f"width:{pixels:.0f}px" + (f";--least:{0.6 * pixels:.0f}px" if pixels > 660 else "")


def _rounded(numbers: str) -> str:
    """Round coordinates to hundredths of a point, finer than any screen or printer."""
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), " ".join(numbers.split()))
