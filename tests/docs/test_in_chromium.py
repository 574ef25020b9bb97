"""The site opened from disk in a browser: no network access, no errors, wide and narrow screens, dark scheme, print."""

import time

import pytest

from tests.chromium import Tab

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("made")]

PLACES = (
    "index",
    "tutorials/check-a-theorem",
    "tutorials/watching-a-fine-tuning-run",
    "tutorials/symmetries-of-a-transformer",
    "theory/zero-loss",
    "explorer/label-noise",
    "howto/own-noise",
    "studies/flow",
    "gallery/zero_loss",
    "errata",
    "api/torch",
    "api/command-line",
    "capabilities",
    "comparison",
    "performance",
)
"""One page of every kind."""
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
WHOLE = "getComputedStyle(e).overflowX === 'visible' && e.scrollWidth <= e.clientWidth + 1"
"""On paper nobody can scroll an equation."""
PAPER = (718, 1047)
"""A page of A4 with margins of 1 cm, in pixels of 1/96 inch."""
LIGHT = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number).every((x) => x > 200)"


@pytest.fixture(scope="module")
def tab():
    tab = Tab()
    yield tab
    tab.close()


def events(tab: Tab, method: str) -> list[dict]:
    return [event["params"] for event in tab.events if event["method"] == method]


def problems(tab: Tab) -> list[dict]:
    """Return the exceptions of a page, its messages to the console, and those of the browser, except plain logs."""
    said = [call for call in events(tab, "Runtime.consoleAPICalled") if call["type"] in ("error", "warning", "assert")]
    return events(tab, "Runtime.exceptionThrown") + events(tab, "Log.entryAdded") + said


@pytest.mark.parametrize("place", PLACES)
def test_pages_need_no_network_and_fit_their_screen(tab, site, place):
    tab.open(site / f"{place}.html")
    requested = [event["request"]["url"] for event in events(tab, "Network.requestWillBeSent")]
    assert requested
    assert all(url.startswith(("file:", "data:", "about:", "blob:")) for url in requested)
    for width in (1300, 390):
        tab.screen(width, 900)
        assert tab.run(FITS)
    assert tab.run(LIGHT)
    tab.media(scheme="dark")
    assert soon(tab, f"!({LIGHT})")
    tab.media("print")
    tab.screen(*PAPER)
    assert tab.run("getComputedStyle(document.querySelector('.md-header')).display") == "none"
    assert tab.run(FITS)
    assert tab.run(f"[...document.querySelectorAll('.equation, div.arithmatex')].every((e) => {WHOLE})")
    assert not problems(tab)


def test_problems_of_a_page_are_detected(tab, tmp_path):
    """Otherwise the test above could not fail."""
    page = tmp_path / "page.html"
    page.write_text("<img src='missing.png'><p style='width: 2000px'>wide</p><script>console.error('no'); f()</script>")
    tab.open(page)
    assert len(problems(tab)) == 3
    assert not tab.run(FITS)


def test_figures_have_colours_of_the_dark_scheme(tab, site):
    tab.open(site / "gallery" / "zero_loss.html")
    tab.media(scheme="dark")
    assert soon(tab, "getComputedStyle(document.body).getPropertyValue('--figure-blue').trim()")


def test_links_to_names_arrive_below_the_header(tab, site):
    """`api/dynamics.md#descend` has no heading of that id: the anchor stands before the heading of mkdocstrings."""
    tab.open((site / "api" / "dynamics.html").resolve().as_uri() + "#descend")
    top = "document.getElementById('undertow.descend').getBoundingClientRect().top"
    header = "document.querySelector('.md-header').getBoundingClientRect().bottom"
    assert soon(tab, f"{top} >= {header} && {top} < innerHeight / 2")


def test_the_source_of_an_entry_unfolds(tab, site):
    tab.open(site / "api" / "dynamics.html")
    height = "document.querySelector('details.mkdocstrings-source').getBoundingClientRect().height"
    folded = tab.run(height)
    tab.click("details.mkdocstrings-source summary")
    assert soon(tab, f"{height} > 2 * {folded}")


def test_a_printed_page_has_its_text(tab, site, tmp_path):
    tab.open(site / "theory" / "averaged-flow.html")
    tab.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") > 2


@pytest.mark.parametrize(("words", "place"), [("teleport", ".html"), ("NoiseMonitor", "api/torch.html")])
def test_search_works_from_disk(tab, site, words, place):
    tab.open(site / "index.html")
    tab.click(".md-search__input")
    assert soon(tab, "document.querySelector('.md-search-result__meta').innerText.startsWith('Type')")  # it is loaded
    tab.send("Input.insertText", text=words[:-1])
    tab.press(words[-1])  # the search starts when a key is released
    assert soon(tab, f"document.querySelector('.md-search-result__link[href*=\"{place}\"]')")
    links = tab.run("[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)")
    assert all(link.startswith(site.resolve().as_uri()) for link in links)
    assert not problems(tab)


def soon(tab: Tab, script: str) -> bool:
    """Return whether a script becomes true within half a minute."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if tab.run(f"Boolean({script})"):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("place", ["theory/heterogeneity", "theory/zero-loss", "theory/averaged-flow",
                                   "theory/noise-equilibrium", "theory/optimisers", "notation", "monitor"])  # fmt: skip
def test_mathematics_is_typeset(tab, site, place):
    """KaTeX sets every formula without a message, and the page still fits a phone."""
    tab.open(site / f"{place}.html")
    assert not events(tab, "Runtime.exceptionThrown") + events(tab, "Runtime.consoleAPICalled")
    formulas, done = (
        tab.run(f"document.querySelectorAll('.arithmatex{part}').length") for part in ("", " .katex-html")
    )
    assert formulas == done > 50
    assert tab.run("document.querySelectorAll('.katex-error').length") == 0
    assert tab.run("document.fonts.check('16px KaTeX_Main') && document.fonts.check('16px KaTeX_Math')")
    tab.screen(390, 900)
    assert tab.run(FITS)


def test_claims_have_equations_in_mathml(tab, site):
    tab.open(site / "gallery" / "optimisers.html")
    sizes = tab.run("[...document.querySelectorAll('.equation math')].map(m => m.getBoundingClientRect().width)")
    assert len(sizes) > 20
    assert min(sizes) > 5
