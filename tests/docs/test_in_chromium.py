"""The site opened from disk in a browser: no network access, no errors, wide and narrow screens, dark scheme."""

import json
import time

import pytest

from tests.chromium import Tab

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("made")]

PLACES = (
    "index",
    "tutorials/watching-a-fine-tuning-run",
    "tutorials/symmetries-of-a-transformer",
    "theory/zero-loss",
    "gallery/zero_loss",
    "errata",
    "api/noises",
    "performance",
)


@pytest.fixture(scope="module")
def tab():
    tab = Tab()
    yield tab
    tab.close()


def events(tab: Tab, method: str) -> list[str]:
    return [json.dumps(event["params"]) for event in tab.events if event["method"] == method]


@pytest.mark.parametrize("place", PLACES)
def test_pages_need_no_network_and_fit_their_screen(tab, site, place):
    tab.open(site / f"{place}.html")
    requested = [json.loads(event)["request"]["url"] for event in events(tab, "Network.requestWillBeSent")]
    assert requested
    assert all(url.startswith(("file:", "data:", "about:")) for url in requested)
    assert not events(tab, "Runtime.exceptionThrown") + events(tab, "Log.entryAdded")
    for width in (1300, 390):
        tab.screen(width, 900)
        assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_dark_scheme_is_dark(tab, site):
    light = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number).every((x) => x > 200)"
    )
    tab.open(site / "gallery" / "zero_loss.html")
    assert tab.run(light)
    tab.media(scheme="dark")
    assert soon(tab, f"!({light})")
    assert tab.run("getComputedStyle(document.body).getPropertyValue('--figure-blue')").strip()


def test_search_works_from_disk(tab, site):
    tab.open(site / "index.html")
    tab.click(".md-search__input")
    tab.send("Input.insertText", text="teleport")
    assert soon(tab, "document.querySelectorAll('.md-search-result__item').length > 0")


def soon(tab: Tab, script: str) -> bool:
    """Return whether a script becomes true within half a minute."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if tab.run(f"Boolean({script})"):
            return True
        time.sleep(0.1)
    return False
