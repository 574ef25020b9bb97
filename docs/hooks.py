"""What mkdocs calls while it builds the site: adds the pages that are made, sets mathematics, puts figures in."""

import re
from typing import Any

from mkdocs.structure.files import File, Files

from docs import pages
from docs.setting import set_equations

MADE: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Makes the pages, and leaves those out of the contents that the program has nothing for."""
    MADE.update(pages.all_pages())
    for section in config.nav:
        for entries in section.values():
            if isinstance(entries, list):
                entries[:] = [entry for entry in entries if not _missing(*entry.values())]
    return config


def _missing(place: str) -> bool:
    return (place == "coverage.md" or place.startswith("api/")) and place not in MADE


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made."""
    for place, text in MADE.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Sets displayed mathematics."""
    return set_equations(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Puts the figures of claims where their places are."""
    return re.sub(r'<div class="figure-here" data-claim="([^"]+)"></div>', lambda m: pages.figure(m[1]), html)
