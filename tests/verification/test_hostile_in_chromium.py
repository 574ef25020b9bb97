"""Hostile folders in a real browser: nothing in results.json or in a figure is executed, loaded or taken for markup."""

import json
from pathlib import Path

import pytest
from markupsafe import Markup

from tests.chromium import Tab
from tests.verification.work import CHECK, result_of
from undertow.execution.provenance import Provenance
from undertow.figures.page import page
from undertow.verification import report as reports
from undertow.verification.errata import Erratum
from undertow.verification.report import build_report
from undertow.verification.result import Task, read_results, write_results

pytestmark = pytest.mark.browser

EVIL = (
    "<script>window.executed = 1</script>",
    "<img src=x onerror=window.executed=1>",
    "\"'><svg onload=window.executed=1>",
    "</style></noscript></textarea></title><script>window.executed=1</script>",
    "<iframe srcdoc='<script>parent.executed=1</script>'></iframe>",
    "<a href='javascript:window.executed=1'>click</a>",
    "{{ 7 * 7 }}{% set x = 1 %}",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<base href='http://127.0.0.1:9/'>",
    "`<b onclick=window.executed=1>` x^(<i>) _<u>",
)

FIGURE = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="300pt" height="200pt"
 viewBox="0 0 300 200" onload="window.executed=1" class="hostile">
<desc>&lt;script&gt;window.executed=1&lt;/script&gt;</desc>
<script>window.executed = 1</script>
<script xlink:href="http://127.0.0.1:9/a.js"/>
<style>@import url(http://127.0.0.1:9/a.css); * { background: url(http://127.0.0.1:9/b.png) }</style>
<foreignObject width="300" height="200"><body xmlns="http://www.w3.org/1999/xhtml" onload="window.executed=1">
 <img src="x" onerror="window.executed=1"/><iframe src="javascript:parent.executed=1"/></body></foreignObject>
<a xlink:href="javascript:window.executed=1"><text x="10" y="10">link</text></a>
<g onclick="window.executed=1" onmouseover="window.executed=1"><rect id="r" width="300" height="200" fill="#eee"/></g>
<animate href="#r" attributeName="href" values="javascript:window.executed=1" onbegin="window.executed=1"/>
<set attributeName="onmouseover" to="window.executed=1"/>
<use xlink:href="http://127.0.0.1:9/c.svg#x"/><use href="data:image/svg+xml,&lt;svg onload='window.executed=1'/&gt;"/>
<image xlink:href="http://127.0.0.1:9/d.png" width="10" height="10"/>
<image href="data:image/svg+xml;base64,AAAA" width="10" height="10"/>
<rect style="fill: url(http://127.0.0.1:9/e.svg#x); -webkit-mask: u\\72l(http://127.0.0.1:9/f)" width="9" height="9"/>
<text x="20" y="40">&lt;/noscript&gt;&lt;script&gt;window.executed=1&lt;/script&gt; kept</text>
<x:script xmlns:x="http://www.w3.org/2000/svg">window.executed = 1</x:script>
<path d="M 10 150 L 290 150" style="stroke: #2166ac; stroke-width: 2"/>
</svg>
"""
ENTITIES = (
    '<!DOCTYPE svg [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    '<svg viewBox="0 0 1 1"><text>&b;&f;</text></svg>'
)


def hostile_folder(out: Path) -> Path:
    """Write results whose every text is hostile, with hostile figures."""
    made = []
    for number, evil in enumerate(EVIL):
        name = evil.replace("/", "∕").replace("\\", "")[:150]  # a name of a folder may hold all but these
        task = Task(name, "smoke", {evil: evil, "n": 3}, 0)
        check = json.loads(json.dumps(CHECK.to_json())) | {"what": evil, "criterion": evil}
        made.append(
            result_of(
                task, paper=evil, title=evil, rests_on=EVIL[:number],
                errata=(Erratum(evil, evil, evil, evil, evil),),
                place=evil, statement=evil, equation=evil, alternative=evil, note=evil, command=evil,
                traceback=evil, meanings={evil: evil}, seeds_needed=5,
                provenance=Provenance(evil, evil, {}, 1, 1.0, True, {evil: evil}),
            ).to_json() | {"checks": [check]}
        )  # fmt: skip
        figure = out / "claims" / name / "figure.svg"
        figure.parent.mkdir(parents=True)
        figure.write_text((FIGURE, ENTITIES, "not an SVG", evil)[min(number, 3)] if number != 4 else FIGURE)
    (out / "results.json").write_text(json.dumps(made))
    return out


@pytest.fixture(scope="module")
def browser():
    tab = Tab()
    yield tab
    tab.close()


def use_everything(tab: Tab) -> None:
    """Draw every figure, open every detail, click every link and element, move over everything."""
    tab.run("dispatchEvent(new Event('beforeprint'))")
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    tab.run("""[...document.querySelectorAll('main *, header *')].forEach(e => {
      for (const kind of ['mouseover', 'mouseenter', 'focus', 'click', 'load', 'error', 'begin']) {
        e.dispatchEvent(new MouseEvent(kind, {bubbles: false, cancelable: true}));
      }
    })""")
    tab.run("new Promise(done => setTimeout(done, 300))")


def refused(tab: Tab) -> list[str]:
    """Return the complaints of the browser about its content policy: nothing should come that far."""
    texts = [e["params"]["entry"]["text"] for e in tab.events if e["method"] == "Log.entryAdded"]
    return [text for text in texts if "Content Security Policy" in text]


def requests(tab: Tab) -> list[str]:
    return [e["params"]["request"]["url"] for e in tab.events if e["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("beside", [False, True], ids=["figures inside", "figures beside"])
def test_nothing_of_a_hostile_folder_is_executed(browser, tmp_path, monkeypatch, beside):
    if beside:
        monkeypatch.setattr(reports, "MOST_INSIDE", 1)
    out = hostile_folder(tmp_path)
    browser.open(build_report(out, read_results(out)))
    use_everything(browser)
    assert browser.run("window.executed") is None
    assert refused(browser) == []
    assert [url for url in requests(browser) if not url.startswith(("file:", "data:"))] == []
    own = browser.run("[...document.querySelectorAll('script')].length")
    assert own == 1
    assert browser.run("document.querySelectorAll('iframe, object, embed, base, foreignObject').length") == 0
    assert browser.run("document.querySelectorAll('meta[http-equiv=refresh]').length") == 0
    handlers = browser.run("[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
                           ".filter(name => name.startsWith('on')).length")  # fmt: skip
    assert handlers == 0
    text = browser.run("document.body.textContent")
    for evil in EVIL[:3]:
        assert evil in text  # shown as text
    assert "{{ 7 * 7 }}" in text
    if not beside:
        drawn = browser.run(
            "[...document.querySelectorAll('article .plot svg')].map(s => s.querySelectorAll('path').length)"
        )
        assert drawn == [1, 1]  # what draws is kept
        assert "cannot be shown (not an SVG file of undertow: it defines entities)" in text
    else:
        load = "(async i => { i.scrollIntoView(); await i.decode(); return i.naturalWidth; })"
        assert browser.run(f"{load}(document.querySelector('img.plot'))") > 0


def test_the_policy_stops_what_escaping_would_miss(browser, tmp_path):
    """A page into which markup did get: neither scripts nor handlers of it run, and nothing is loaded."""
    file = tmp_path / "page.html"
    needed = '<form id="filters"></form><p id="count"></p><table id="verdict-table"><thead><tr><th></th></tr></thead>'
    for scripted in (False, True):
        file.write_text(page("a page", Markup("".join(EVIL[:6]) + needed), scripted=scripted))
        browser.open(file)
        browser.run("document.querySelectorAll('a').forEach(a => a.click && a.click())")
        browser.run("new Promise(done => setTimeout(done, 300))")
        assert browser.run("window.executed") is None
        assert refused(browser)


def test_figures_are_drawn_when_they_are_scrolled_to(browser, tmp_path):
    names = [f"claim-{k}" for k in range(30)]
    for name in names:
        file = tmp_path / "claims" / name / "figure.svg"
        file.parent.mkdir(parents=True)
        file.write_text('<svg width="400pt" height="300pt" viewBox="0 0 400 300"><path d="M 0 0 L 9 9"/></svg>')
    results = [result_of(Task(name, "smoke", {}, 0), checks=(CHECK,)) for name in names]
    write_results(tmp_path, results)
    browser.open(build_report(tmp_path, results))
    drawn = "[...document.querySelectorAll('article')].filter(a => a.querySelector('svg')).map(a => a.id)"
    browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")
    assert "claim-29" not in browser.run(drawn)
    height = "document.documentElement.scrollHeight"
    before = browser.run(height)
    browser.run("document.getElementById('claim-29').scrollIntoView({behavior: 'instant'})")
    browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))")
    shown = browser.run(drawn)
    assert "claim-29" in shown
    assert "claim-15" not in shown
    assert abs(browser.run(height) - before) < 30  # nothing moves when a figure is drawn
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(drawn) == names
