"""Mathematics and figures of the pages: no source is left in the text, every figure has words and names its command."""

import html.parser
import re
from pathlib import Path

import pytest

from undertow.verification import claims

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("made")]

ROOT = Path(__file__).parent.parent.parent
THEORY = sorted(f"theory/{page.stem}" for page in (ROOT / "docs" / "theory").glob("*.md"))
HOWTO = sorted(f"howto/{page.stem}" for page in (ROOT / "docs" / "howto").glob("*.md"))
WITH_FIGURES = ["index", *THEORY, *HOWTO, "torch", "monitor", "sweeps"]


class Text(html.parser.HTMLParser):
    """The text of a page outside of code, scripts and mathematics, and the sources of its mathematics."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.words: list[str] = []
        self.mathematics: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        mathematics = "arithmatex" in (dict(attrs).get("class") or "")
        if tag in ("script", "style", "code", "pre") or mathematics:
            self.inside.append(tag)
            if mathematics:
                self.mathematics.append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.words.append(data)
        elif self.inside[-1] in ("span", "div"):
            self.mathematics[-1] += data


def test_no_source_of_mathematics_is_left_in_the_text(site):
    for file in site.rglob("*.html"):
        if file.parent.name == "full":
            continue  # the report, and a page with the names of its claims
        left = re.findall(r".{0,30}(?:\$|\\[a-z(\[]).{0,30}", "".join(Text(file.read_text()).words))
        assert not left, f"{file.relative_to(site)}: {left[:3]}"


@pytest.mark.parametrize("place", [*THEORY, "notation"])
def test_theory_pages_are_typeset(site, place):
    page = (site / f"{place}.html").read_text()
    mathematics = Text(page).mathematics
    assert len(mathematics) > 50
    assert all(re.fullmatch(r"\\\(.+\\\)|\\\[.+\\\]", text.strip(), flags=re.DOTALL) for text in mathematics)
    assert page.index("katex.min.js") < page.index("math.js")
    assert place == "notation" or "notation.html" in page.split("<article", 1)[1]


def test_katex_is_complete(site):
    """The style sheet asks for these fonts first; the license comes with them."""
    folder = site / "assets" / "katex"
    fonts = set(re.findall(r"url\((fonts/[\w-]+\.woff2)\)", (folder / "katex.min.css").read_text()))
    assert len(fonts) == 20
    assert all((folder / font).is_file() for font in fonts)
    assert "MIT" in (folder / "LICENSE").read_text()


@pytest.mark.parametrize("place", WITH_FIGURES)
def test_figures_have_words_and_name_their_command(site, place):
    figures = re.findall(r"<figure.*?</figure>", (site / f"{place}.html").read_text(), flags=re.DOTALL)
    assert figures
    for figure in figures:
        drawn = re.search(r'<img[^>]* alt="([^"]+)"|<svg[^>]* aria-label="([^"]+)"', figure)
        assert drawn, place
        assert len(drawn[1] or drawn[2]) > 30, place
        caption = figure.split("<figcaption", 1)[1]
        command = re.search(r"Made by\s+<code>([^<]+)</code>", caption)
        assert command, place
        assert exists(command[1]), command[1]


def exists(command: str) -> bool:
    """Return whether a command makes the figures of a claim, or is a module of the repository."""
    if claim := re.fullmatch(r"undertow verify ([\w-]+) --scale smoke", command):
        return claim[1] in claims
    module = re.fullmatch(r"python -m ((?:docs|studies)\.\w+)", command)
    return module is not None and (ROOT / f"{module[1].replace('.', '/')}.py").is_file()
