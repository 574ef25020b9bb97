"""The built site loads nothing from other servers, all its links exist, and search works from disk."""

import html.parser
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.conftest import ROOT

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("made")]


class Page(html.parser.HTMLParser):
    """The files that a page loads, its links, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag in ("script", "img", "iframe") and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and "stylesheet" in values.get("rel", "") + values.get("as", ""):
            self.loads.append(values["href"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])


def pages(site: Path) -> dict[Path, Page]:
    return {file.resolve(): Page(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}


def test_nothing_is_loaded_from_other_servers(site):
    for file, page in pages(site).items():
        for address in page.loads:
            assert not urlsplit(address).netloc, f"{file.name} loads {address}"
            assert (file.parent / unquote(urlsplit(address).path)).exists(), f"{file.name} loads {address}"
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text().replace("url(https://fonts", "url(http"), style.name


def test_every_link_has_a_target(site):
    by_file = pages(site)
    for file, page in by_file.items():
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or address == ".":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{file.name}: {address}"
            if parts.fragment and target in by_file:
                assert unquote(parts.fragment) in by_file[target].places, f"{file.name}: {address}"


def test_broken_links_fail_the_build(tmp_path):
    """A small site with the validation settings of this one: missing images, pages, anchors and pages of the menu."""
    settings = (ROOT / "mkdocs.yml").read_text()
    validation = settings[settings.index("\nvalidation:") : settings.index("\nnav:")]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: small\n{validation}\nnav: [index.md, absent.md]\n")
    broken = ("![a](missing.png)", "[b](gone.md)", "[c](#nowhere)", "[d](other.md#elsewhere)", "[e](/absolute.md)")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Index\n\n" + "\n\n".join(broken))
    (tmp_path / "docs" / "other.md").write_text("# Other\n")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert run.returncode != 0
    for place in ("missing.png", "gone.md", "#nowhere", "#elsewhere", "/absolute.md", "absent.md", "other.md"):
        assert place in run.stderr, place


def test_search_has_an_index_that_loads_from_disk(site):
    assert (site / "search" / "search_index.js").read_text().startswith("var __index")
    assert "teleport" in (site / "search" / "search_index.js").read_text()
    first = next(iter(pages(site).values()))
    assert any("iframe-worker" in script for script in first.loads)


def test_every_figure_of_the_gallery_is_shown(site):
    from docs import gallery
    from undertow.verification.claim import PAPERS

    shown = "".join((site / "gallery" / f"{paper}.html").read_text() for paper in PAPERS)
    assert shown.count("<figure data-search-exclude>") == len(gallery.results())
    assert "figure-here" not in shown
