"""`python -m docs.badges`: write the badges of the README from the facts in the repository.

The version, the Pythons and the licence are those of the package; the claims are those of the stored gallery.
"""

import tomllib
from pathlib import Path

import jinja2

import undertow
from docs import gallery
from undertow.verification.errata import expected

__all__ = ["badges"]

ROOT = Path(__file__).parent.parent
CHARACTER = 6.6
"""Mean width of a character at 11 pixels."""

BADGE = jinja2.Template(
    """\
<svg xmlns="http://www.w3.org/2000/svg" width="{{ left + right }}" height="20" role="img" \
aria-label="{{ name }}: {{ value }}"><title>{{ name }}: {{ value }}</title>\
<rect rx="3" width="{{ left + right }}" height="20" fill="#444"/>\
<rect rx="3" x="{{ left }}" width="{{ right }}" height="20" fill="#2166ac"/>\
<g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" text-anchor="middle">\
<text x="{{ left / 2 }}" y="14">{{ name }}</text><text x="{{ left + right / 2 }}" y="14">{{ value }}</text></g></svg>
""",
    autoescape=True,
)


def badges() -> dict[str, str]:
    """Return the SVG of each badge by the name of its file in docs/images."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [text.rpartition(" ")[2] for text in project["classifiers"] if " :: 3." in text]
    results = gallery.results()
    right = sum(result.verdict == expected(name) for name, result in results.items())
    facts = {
        "version": ("version", undertow.__version__),
        "python": ("python", f"{pythons[0]} to {pythons[-1]}"),
        "licence": ("licence", project["license"]),
        "claims": ("claims as expected", f"{right} of {len(results)}"),
    }
    return {f"badge-{key}.svg": _badge(*texts) for key, texts in facts.items()}


def _badge(name: str, value: str) -> str:
    left, right = (round(CHARACTER * len(text)) + 12 for text in (name, value))
    return BADGE.render(name=name, value=value, left=left, right=right)


if __name__ == "__main__":
    for file, svg in badges().items():
        (ROOT / "docs" / "images" / file).write_text(svg)
