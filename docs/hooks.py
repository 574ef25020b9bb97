"""Hooks of mkdocs: add the generated pages, typeset mathematics, insert figures, leave source out of the search."""

import html as entities
import re
from typing import Any

from mkdocs.structure.files import File, Files

from docs import notebooks, pages
from docs.setting import set_equations

MADE: dict[str, str] = {}
PLACEHOLDER = re.compile(r'<div class="figure-here" data-claim="([^"]+)"(?: data-caption="([^"]*)")?></div>')


def on_config(config: Any) -> Any:
    """Generate the pages, and remove navigation entries without a page."""
    MADE.update(pages.all_pages() | notebooks.notebook_pages())
    for section in config.nav:
        for entries in section.values():
            if isinstance(entries, list):
                entries[:] = [entry for entry in entries if not _missing(*entry.values())]
    return config


def _missing(place: str) -> bool:
    return (place == "coverage.md" or place.startswith("api/")) and place not in MADE


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for place, text in MADE.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Typeset displayed mathematics."""
    return set_equations(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Insert the figures of claims at their placeholders, and leave source code out of the search."""
    source = '<details class="mkdocstrings-source"'
    html = html.replace(source, f"{source} data-search-exclude")
    return PLACEHOLDER.sub(lambda m: pages.figure(m[1], entities.unescape(m[2] or "")), html)
