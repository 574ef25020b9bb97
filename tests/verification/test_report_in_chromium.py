"""report.html as a reader meets it, in a real browser: by mouse, by keyboard, on a phone, in the dark, on paper."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chromium import Tab

pytestmark = pytest.mark.browser

REAL = ("sensing-factor-two", "hessian-trace", "orbit-eigenvalues", "isotropic-covariance", "recovery")
MADE_UP = {"made-up-failure": "fails", "made-up-doubt": "inconclusive", "made-up-error": "error"}
COLUMNS = ("Claim", "Paper", "Verdict", "Measured", "Predicted", "Seconds")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A page with real claims of all papers, and with made-up results for the verdicts that those do not have."""
    from undertow.figures import export, heatmap, style
    from undertow.verification.report import build_report
    from undertow.verification.result import ClaimResult

    out = tmp_path_factory.mktemp("report")
    program = Path(sys.executable).parent / "undertow"
    command = [program, "verify", *REAL, "--scale", "smoke", "--jobs", "1", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((out / "results.json").read_text())
    for (name, verdict), model in zip(MADE_UP.items(), results, strict=False):
        checks = [check | {"verdict": verdict} for check in model["checks"]]
        more = {"claim": name, "verdict": verdict, "expected": "holds", "checks": [] if verdict == "error" else checks}
        trace = "Traceback:\n  a very long line " + "x" * 300
        results.append(
            model | more | {"seeds_needed": 64, "diverged": 3, "note": "<b>all & sundry</b>", "traceback": trace}
        )
    figure, (axes,) = style.new_figure()
    grid = [[i * j / 40 for i in range(8)] for j in range(6)]
    heatmap.heat_map(axes, [2.0**i for i in range(8)], [0.1 * j for j in range(1, 7)], grid, "share of runs")
    heatmap.boundary(axes, [1, 200], [0.6, 0.1], "predicted threshold")
    axes.legend()
    file = out / "claims" / "made-up-failure" / "figure.svg"
    file.parent.mkdir(parents=True)
    file.write_text(export.to_svg(figure))
    file.with_suffix(".pdf").write_bytes(export.to_pdf(figure))
    return build_report(out, [ClaimResult.from_json(result) for result in results])


@pytest.fixture(scope="module")
def browser():
    tab = Tab()
    yield tab
    tab.close()


@pytest.fixture
def tab(browser, report) -> Tab:
    """The page with all figures drawn, as for a reader who has scrolled through it."""
    browser.open(report)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    return browser


def rows(tab: Tab) -> list[str]:
    """The claims of the rows that are seen, in the order on the page."""
    return tab.run("[...document.querySelectorAll('#verdict-table tbody tr')].filter(r => r.offsetParent)"
                   ".map(r => r.dataset.claim)")  # fmt: skip


def sections(tab: Tab) -> list[str]:
    return tab.run("[...document.querySelectorAll('article')].filter(a => a.offsetParent).map(a => a.id)")


def focused(tab: Tab) -> str:
    return tab.run("document.activeElement.id || document.activeElement.textContent")


def tab_to(tab: Tab, name: str) -> None:
    for _ in range(40):
        tab.press("Tab")
        if focused(tab) == name:
            return
    raise AssertionError(f"{name} cannot be reached with the Tab key")


def test_nothing_goes_wrong_and_nothing_leaves_the_machine(tab):
    tab.press("Tab")
    asked = [e["params"]["request"]["url"] for e in tab.events if e["method"] == "Network.requestWillBeSent"]
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked)
    said = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in tab.events if event["method"] in said] == []
    links = tab.run("[...document.querySelectorAll('[href], [src]')].map(e => e.getAttribute('href') || e.src)")
    assert [link for link in links if not link.startswith(("#", "data:", "claims/"))] == []


def test_the_policy_of_the_page_refuses_requests(tab):
    """Even a script that wanted to could not ask the network for anything."""
    assert tab.run("fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')") == "refused"
    asked = [e["params"]["request"]["url"] for e in tab.events if e["method"] == "Network.requestWillBeSent"]
    failed = [e["params"] for e in tab.events if e["method"] == "Network.loadingFailed"]
    assert not any(url.startswith("http") for url in asked) or failed[0]["blockedReason"] == "csp"


def test_links_lead_somewhere_and_ids_are_unique(tab):
    ids = tab.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    targets = tab.run("[...document.querySelectorAll('[href^=\"#\"]')].map(e => e.getAttribute('href').slice(1))")
    assert set(targets) <= set(ids)
    files = tab.run("[...document.querySelectorAll('a[href^=claims]')].map(e => e.href)")
    (pdf,) = files  # the quick checks have none
    assert Path(pdf.removeprefix("file://")).read_bytes().startswith(b"%PDF")


def test_every_figure_is_drawn_whole(tab):
    figures = tab.run("""[...document.querySelectorAll('article')].map(a => {
      const svg = a.querySelector('figure svg');
      if (!svg) return [a.id, 0, 0, []];
      const box = svg.getBoundingClientRect();
      const out = [...svg.querySelectorAll('text')].filter(t => {
        const b = t.getBoundingClientRect();
        return b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1;
      });
      return [a.id, box.width, box.height, out.map(t => t.textContent)];
    })""")
    assert [f[0] for f in figures if f[1] == 0] == ["made-up-doubt", "made-up-error"]  # they have none
    for _, width, height, clipped in figures:
        assert width == 0 or (width > 200 and height > 50)
        assert clipped == []
    pictures = """Promise.all([...document.querySelectorAll('svg image')].map(async (i) => {
      const p = new Image(); p.src = i.getAttribute('href'); await p.decode(); return p.naturalWidth; }))"""
    sizes = tab.run(pictures)
    assert len(sizes) >= 1
    assert min(sizes) > 8


def test_filters_by_mouse(tab):
    everything = rows(tab)
    assert sorted(everything) == sorted([*REAL, *MADE_UP])
    assert tab.run("count.textContent") == f"All {len(everything)} claims are shown."
    tab.click("#filter-text")
    for letter in "hessian":
        tab.press(letter)
    assert "hessian-trace" in rows(tab)
    assert "recovery" not in rows(tab)
    assert rows(tab) == sections(tab)
    assert tab.run("count.textContent") == f"{len(rows(tab))} of {len(everything)} claims are shown."
    tab.click("#filters button[type=reset]")
    tab.run("new Promise(setTimeout)")
    assert rows(tab) == everything == sections(tab)


def test_filters_by_keyboard(tab):
    tab_to(tab, "filter-paper")
    tab.press("ArrowDown")
    paper = tab.run("document.getElementById('filter-paper').value")
    chosen = rows(tab)
    wanted = tab.run(f"[...document.querySelectorAll('tr[data-paper={paper}]')].map(r => r.dataset.claim)")
    assert chosen == wanted != []
    tab.press("ArrowUp")
    tab_to(tab, "filter-verdict")
    tab.press("ArrowDown")
    verdict = tab.run("document.getElementById('filter-verdict').value")
    assert verdict == "error"  # the worst is the first
    assert rows(tab) == ["made-up-error"]
    tab_to(tab, "Clear")
    tab.press("Enter")
    tab.run("new Promise(setTimeout)")
    assert len(rows(tab)) == len(REAL) + len(MADE_UP)


def test_what_is_not_found_is_said(tab):
    tab.click("#filter-text")
    for letter in "zzzz":
        tab.press(letter)
    assert rows(tab) == sections(tab) == []
    assert tab.run("count.textContent").startswith("0 of ")
    assert tab.run("count.getAttribute('role')") == "status"
    assert tab.run("[...document.querySelectorAll('section.paper')].every(s => !s.offsetParent)")


@pytest.mark.parametrize("column", range(len(COLUMNS)), ids=COLUMNS)
def test_sorting_by_mouse(tab, column):
    button = f"#verdict-table th:nth-child({column + 1}) button"
    keys = f"""[...document.querySelectorAll('#verdict-table tbody tr')].map(r => r.cells[{column}].dataset.key)"""
    text = column == 0

    def in_order(found: list[str], sign: int) -> bool:
        known = [key if text else float(key) for key in found if key != ""]
        return known == sorted(known, reverse=sign < 0)

    tab.click(button)
    assert in_order(tab.run(keys), 1)
    assert tab.run(f"document.querySelector('{button}').parentNode.getAttribute('aria-sort')") == "ascending"
    tab.click(button)
    assert in_order(tab.run(keys), -1)
    assert tab.run("[...document.querySelectorAll('[aria-sort]')].map(h => h.textContent + h.ariaSort)") == [
        f"{COLUMNS[column]}descending"
    ]
    assert tab.run("said.textContent") == f"Sorted by {COLUMNS[column].lower()}, descending."


def test_sorting_by_keyboard(tab):
    tab_to(tab, "Claim")
    tab.press("Enter")
    assert rows(tab) == sorted(rows(tab))
    tab.press(" ")
    assert rows(tab) == sorted(rows(tab), reverse=True)
    assert focused(tab) == "Claim"


def test_a_link_to_a_hidden_claim_shows_it(tab):
    tab.click("#filter-text")
    tab.press("z")
    tab.press("z")
    assert sections(tab) == []
    tab.run("location.hash = '#recovery'")
    tab.run("new Promise(done => setTimeout(done, 50))")
    assert "recovery" in sections(tab)
    assert abs(tab.run("document.getElementById('recovery').getBoundingClientRect().top")) < 100


def test_the_keyboard_reaches_everything_and_shows_where_it_is(tab):
    tab.press("Tab")
    assert focused(tab) == "Skip to the verdicts"
    assert tab.run("document.activeElement.getBoundingClientRect().left") >= 0
    tab.press("Enter")
    assert focused(tab) == "verdicts"
    controls = tab.run("[...document.querySelectorAll('a, button, input, select, summary')].length")
    seen = set()
    for _ in range(2 * controls):
        tab.press("Tab")
        here = tab.run("""(() => { const e = document.activeElement, s = getComputedStyle(e);
          if (e === document.body) return null;
          return [[...document.querySelectorAll('*')].indexOf(e), s.outlineStyle, parseFloat(s.outlineWidth)]; })()""")
        if here is None or here[0] in seen:
            break
        seen.add(here[0])
        assert here[1] == "solid"
        assert here[2] >= 2
    assert len(seen) >= controls - 5  # the skip link and the contents come before the verdicts


def test_controls_and_figures_have_names(tab):
    tree = tab.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "searchbox", "textbox", "combobox", "link", "image", "table", "search", "article", "navigation"}
    found: dict[str, list[str]] = {}
    for node in tree:
        role = node.get("role", {}).get("value")
        if not node.get("ignored") and role in named:
            found.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert {"button", "searchbox", "combobox", "link", "image", "table", "article", "navigation"} <= set(found)
    assert [(role, names) for role, names in found.items() if not all(names)] == []
    assert all(len(name) > 60 for name in found["image"])  # a description, not a label
    assert len(set(found["image"])) == len(found["image"])


def test_landmarks_and_headings_in_order(tab):
    assert tab.run("['header', 'nav', 'main', 'h1'].map(t => document.querySelectorAll(t).length)") == [1, 1, 1, 1]
    levels = tab.run("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert levels.count(3) == len(REAL) + len(MADE_UP)
    assert tab.run("document.documentElement.lang") == "en"
    assert tab.run("[...document.querySelectorAll('th')].every(h => h.scope)")


@pytest.mark.parametrize("width", [320, 390, 768])
def test_small_screens_do_not_scroll_sideways(tab, width):
    tab.screen(width, 700)
    assert tab.run("document.documentElement.scrollWidth") <= width
    outside = tab.run(f"""[...document.querySelectorAll('body *')].filter(e => {{
      if (e.closest('.plot') || e.closest('math') || e.closest('.unseen') || e.closest('.skip')) return false;
      const b = e.getBoundingClientRect();
      return b.width > 0 && (b.right > {width} + 0.5 || b.left < -0.5);
    }}).map(e => e.outerHTML.slice(0, 80))""")
    assert outside == []
    scrolling = "[...document.querySelectorAll('.plot, .formula')]"
    assert tab.run(f"{scrolling}.every(p => p.getBoundingClientRect().right <= innerWidth)")


def test_a_phone_sorts_and_filters_too(tab):
    tab.screen(320, 700)
    tab.click("#verdict-table th:nth-child(1) button")
    assert rows(tab) == sorted(rows(tab))
    sizes = tab.run("[...document.querySelectorAll('#filters input, #filters select, #filters button')]"
                    ".map(e => e.getBoundingClientRect().height)")  # fmt: skip
    assert min(sizes) >= 24  # WCAG 2.2, target size


CONTRAST = """(() => {
  const channel = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = (c) => 0.2126 * channel(c[0] / 255) + 0.7152 * channel(c[1] / 255) + 0.0722 * channel(c[2] / 255);
  const under = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
  const bad = []; let count = 0;
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || ['SCRIPT', 'STYLE', 'DESC'].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(parse(e.closest('svg') ? style.fill : style.color)), light(under(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    count += 1;
    if (ratio < 4.5) bad.push([e.textContent.slice(0, 40), ratio]);
  }
  for (const e of document.querySelectorAll('.plot svg path, .plot svg use')) {
    if (e.closest('defs') || e.closest('[clip-path]') && !e.getAttribute('style')) continue;
    const c = getComputedStyle(e).stroke;
    if (c === 'none' || (e.getAttribute('style') || '').includes('--figure-grid')) continue;
    if (/rgb\\((255, 255, 255|15, 15, 15)\\)/.test(c)) continue;  // the boundary lies on the colours of a map
    const [a, b] = [light(parse(c)), light(under(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    count += 1;
    if (ratio < 3) bad.push([c, ratio]);
  }
  return [count, bad];
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(tab, scheme):
    """4.5 to 1 for text and 3 to 1 for what figures draw, as WCAG 2.1 asks at level AA."""
    tab.media(scheme=scheme)
    count, bad = tab.run(CONTRAST)
    assert count > 300
    assert bad == []


def test_the_dark_page_is_dark_and_so_are_its_figures(tab):
    paints = """[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
      getComputedStyle(document.querySelector('.plot text')).fill,
      ...['blue', 'red', 'grey'].map(c => [...document.querySelectorAll('.plot [style*="--figure-' + c + '"]')]
        .map(e => getComputedStyle(e)).map(s => s.stroke === 'none' ? s.fill : s.stroke)[0])]"""
    light = tab.run(paints)
    tab.media(scheme="dark")
    dark = tab.run(paints)
    assert all(a != b for a, b in zip(light, dark, strict=True)), (light, dark)
    assert sum(int(v) for v in dark[0][4:-1].split(",")[:3]) < 120 < sum(int(v) for v in dark[1][4:-1].split(",")[:3])


def test_paper_has_no_controls_and_everything_else(tab, tmp_path):
    tab.media("print", "dark")
    for selector in ("#filters", ".copy", "nav", ".skip"):
        assert tab.run(f"[...document.querySelectorAll('{selector}')].every(e => !e.getClientRects().length)"), selector
    assert tab.run("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert len(sections(tab)) == len(REAL) + len(MADE_UP)
    assert tab.run("[...document.querySelectorAll('figure')].every(f => getComputedStyle(f).breakInside === 'avoid')")
    assert tab.run("[...document.querySelectorAll('h3')].every(h => getComputedStyle(h).breakAfter === 'avoid')")
    tab.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") > 4


@pytest.mark.parametrize("allowed", [True, False])
def test_copying_a_command(tab, allowed):
    tab.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    tab.run("navigator.clipboard.writeText('')")
    if not allowed:  # as a browser without the newer way of copying
        tab.run("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    tab.click("#recovery .copy")
    tab.run("new Promise(done => setTimeout(done, 50))")
    command = tab.run("navigator.clipboard.readText()")
    assert command == "undertow verify recovery --scale smoke --seed 0"
    assert tab.run("document.querySelector('#recovery .copy').textContent") == "Copied"
    assert tab.run("said.textContent") == f"Copied: {command}"


def test_without_scripts_everything_is_there(browser, report):
    browser.open(report, script=False)
    try:
        nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
        text = " ".join(node.get("name", {}).get("value", "") for node in nodes if not node.get("ignored"))
        for name in (*REAL, *MADE_UP):
            assert text.count(name) >= 2
        for words in ("undertow verify recovery --scale smoke --seed 0", "Settings", "seeds; none diverged", "jax"):
            assert words in text
        roles = {node.get("role", {}).get("value") for node in nodes if not node.get("ignored")}
        assert roles.isdisjoint({"searchbox", "combobox", "button"})
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


def test_results_cannot_write_into_the_page(tab):
    """What a note or a traceback says is text."""
    assert tab.run("document.querySelectorAll('#made-up-failure b').length") == 0
    assert "<b>all & sundry</b>" in tab.run("document.getElementById('made-up-failure').textContent")
    assert "Traceback:" in tab.run("document.querySelector('#made-up-error pre').textContent")
    assert "3 diverged, left out" in tab.run("document.getElementById('made-up-failure').textContent")
    assert "64 seeds are needed to decide" in tab.run("document.getElementById('made-up-doubt').textContent")
