"""Embed an SVG figure in a page: with the colours of the page, unique ids, and an accessible description.

The file is parsed, and only elements and attributes that draw are written to the page. Scripts, event handlers, links,
style sheets, HTML inside the figure and everything that would be loaded from elsewhere are left out.
"""

import html
import re
from xml.parsers import expat

from undertow.figures.style import COLOURS, GRID, INK

__all__ = ["inline", "proportions", "words_of"]

PAINT = {colour: f"var(--figure-{name}, {colour})" for name, colour in COLOURS.items()} | {
    GRID: f"var(--figure-grid, {GRID})",
    INK: "currentColor",
    "#000000": "currentColor",
}
"""The CSS variables by which a page may replace colours of the style: `--figure-blue` and so on."""

ELEMENTS = frozenset((
    "svg", "g", "defs", "use", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan",
    "image", "clipPath", "pattern",
))  # fmt: skip
"""The elements that draw. All others are left out with everything inside them."""
ATTRIBUTES = frozenset((
    "id", "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "ry", "dx", "dy", "width", "height", "points",
    "transform", "href", "style", "clip-path", "clip-rule", "fill", "fill-opacity", "fill-rule", "stroke",
    "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "stroke-dasharray", "opacity",
    "font-family", "font-size", "font-style", "font-weight", "text-anchor", "dominant-baseline", "preserveAspectRatio",
    "clipPathUnits", "patternUnits", "patternTransform",
))  # fmt: skip
ROUNDED = frozenset(("d", "x", "y", "points"))

COLOUR = re.compile(rf"(?<=: )({'|'.join(map(re.escape, PAINT))})(?=;|$)")
REFERENCE = re.compile(r"url\(#([\w.-]+)\)")
PICTURE = re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=\s]*")
UNSAFE = re.compile(r"url\((?!#[\w.-]+\))|\\|@|/\*|image-set|expression", re.IGNORECASE)
"""What a style or a paint may not contain: an address, an escape that would hide one, a rule."""
SPECIAL = re.compile("[&<>\"']")
LONG = re.compile(r"-?\d+\.\d{3,}")
BOX = re.compile(r"-?[\d.]+(?:[ ,]+-?[\d.]+){3}")


def words_of(svg: str) -> str:
    """Return the description inside an SVG, or an empty string."""
    description = re.search(r"<desc>(.*?)</desc>", svg, flags=re.DOTALL)
    return html.unescape(description.group(1)) if description else ""


def proportions(svg: str) -> tuple[float, float]:
    """Return width and height of the box of an SVG; 4 and 3 where the file does not say."""
    box = re.search(rf'viewBox="{BOX.pattern}"', svg[:2000])
    width, height = (float(x) for x in re.split("[ ,]+", box[0][9:-1])[2:]) if box else (4.0, 3.0)
    return (width, height) if width > 0 and height > 0 else (4.0, 3.0)


def inline(svg: str, name: str, label: str) -> str:
    """Return the SVG as an element of an HTML page with the accessible name `label`.

    `name`, unique on the page, is the prefix of every id that the figure refers to; other ids are removed. The element
    has the width of the figure. A file that is not an SVG raises a `ValueError`.

    >>> from undertow.figures.inline import inline
    >>> inline('<svg width="72pt" height="36pt" viewBox="0 0 72 36"><path id="a" d="M 0 0.12345"/></svg>', "f", "None")
    '<svg role="img" aria-label="None" viewBox="0 0 72 36" style="width:96px"><path d="M 0 0.12"/></svg>'
    """
    return _Writer(svg, name, label).text()


class _Writer:
    """Write an SVG again, element by element, while it is parsed."""

    def __init__(self, svg: str, name: str, label: str):
        self.prefix, self.label = f"{name}-", label
        self.used = set(REFERENCE.findall(svg)) | set(re.findall(r'href="#([^"]+)"', svg))
        self.parts: list[str] = []
        self.open: list[str] = []  # the elements around this one that are written
        self.skipped = 0  # the depth inside an element that is left out
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = _no_entities
        try:
            parser.Parse(svg.encode(), True)
        except expat.ExpatError as error:
            raise ValueError(f"not an SVG file: {error}") from None

    def text(self) -> str:
        return "".join(self.parts).replace("\0/>", "/>").replace("\0", ">")

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        if self.skipped or element not in ELEMENTS or bool(self.open) == (element == "svg"):
            if not self.open and not self.skipped:
                raise ValueError(f"not an SVG file: it starts with <{element}>")
            self.skipped += 1
            return
        self.open.append(element)
        if element == "svg":
            self.parts.append(_head(attributes, self.label))
            return
        written = [f"<{element}"]
        for name, value in attributes.items():
            name = name.removeprefix("xlink:")
            kept = self._attribute(element, name, value) if name in ATTRIBUTES else None
            if kept is not None:
                written.append(f' {name}="{html.escape(kept) if SPECIAL.search(kept) else kept}"')
        self.parts.append("".join(written) + "\0")  # closed by the first child, or by the end

    def _attribute(self, element: str, name: str, value: str) -> str | None:
        """Return the value of an attribute for the page; None to leave it out."""
        if name in ROUNDED:
            return _rounded(value)
        if name == "id":
            return self.prefix + value if value in self.used else None
        if name == "href":
            if value.startswith("#"):
                return f"#{self.prefix}{value[1:]}"
            return value if element == "image" and PICTURE.fullmatch(value) else None
        if UNSAFE.search(value):
            return None
        value = REFERENCE.sub(lambda match: f"url(#{self.prefix}{match[1]})", value)
        if name == "style":
            value = value.replace("fill: #ffffff", "fill: none")  # the white background; a page has its own
            value = COLOUR.sub(lambda match: PAINT[match[0]], value)
        return value

    def _end(self, element: str) -> None:
        if self.skipped:
            self.skipped -= 1
            return
        self.open.pop()
        if self.parts[-1].endswith("\0"):
            self.parts.append("/>")
        else:
            self.parts.append(f"</{element}>")

    def _text(self, text: str) -> None:
        if not self.skipped and self.open and self.open[-1] in ("text", "tspan"):
            self.parts.append(html.escape(text, quote=False))


def _no_entities(*_: object) -> None:
    raise ValueError("not an SVG file of undertow: it defines entities")


def _head(attributes: dict[str, str], label: str) -> str:
    """Return the opening of the element: its name for screen readers, its box and its width."""
    box = attributes.get("viewBox", "")
    if not BOX.fullmatch(box):
        raise ValueError("not an SVG file of undertow: it has no viewBox")
    width = re.fullmatch(r"([\d.]+)pt", attributes.get("width", ""))
    size = f' style="{_size(float(width[1]) * 96 / 72)}"' if width else ""
    return f'<svg role="img" aria-label="{html.escape(label)}" viewBox="{box}"{size}>'


def _size(pixels: float) -> str:
    """Return the width, and for several panels the least width, `--least`, at which they are readable on a phone."""
    return f"width:{pixels:.0f}px" + (f";--least:{0.6 * pixels:.0f}px" if pixels > 660 else "")


def _rounded(numbers: str) -> str:
    """Round coordinates to hundredths of a point, finer than any screen or printer."""
    return LONG.sub(lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), " ".join(numbers.split()))
