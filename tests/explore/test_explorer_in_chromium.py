"""The explorer in a real browser: mouse and keyboard, links, two tabs, a phone, dark, a server that is gone."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from docs.explorer import FOLDER, PAGE
from tests.chromium import Tab
from undertow.explore.instruments import instruments
from undertow.explore.server import Explorer, make_server

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent.parent
WRONG = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
PRESS = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}


@pytest.fixture(scope="module")
def browser():
    tab = Tab()
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def address():
    with make_server(Explorer(instruments()), 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def drawn(tab: Tab) -> dict:
    """Return the setting of the picture that is shown."""
    return json.loads(tab.run("document.querySelector('.explorer').dataset.drawn || '{}'"))


def wait(tab: Tab, condition: str, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not tab.run(f"Boolean({condition})"):
        assert time.monotonic() < end, f"{condition} is not true after {seconds} s"
        time.sleep(0.02)


def show(tab: Tab, page: str | Path) -> None:
    tab.open(page)
    wait(tab, "document.querySelector('.explorer').dataset.drawn")


def press(tab: Tab, key: str) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        tab.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=PRESS[key])


def click_slider(tab: Tab, name: str, share: float) -> None:
    """Click a slider with the mouse at a share of its width."""
    x, y = tab.run(
        f"(() => {{ const e = document.querySelector('[name={name}]'); e.scrollIntoView({{block: 'center'}});"
        f"const b = e.getBoundingClientRect(); return [b.x + {share} * b.width, b.y + b.height / 2]; }})()"
    )
    click_at(tab, x, y)


def click_at(tab: Tab, x: float, y: float) -> None:
    for kind in ("mousePressed", "mouseReleased"):
        tab.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def message(tab: Tab) -> str:
    return tab.run("document.querySelector('.message').textContent")


def errors(tab: Tab) -> list[dict]:
    return [event for event in tab.events if event["method"] in WRONG]


def check_layout(tab: Tab) -> None:
    """Nothing is wider than the screen, no text of a figure leaves it, and no two labels of an axis overlap."""
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    outside, crossing = tab.run("""(() => {
      const outside = [], crossing = [];
      for (const svg of document.querySelectorAll('svg.plot')) {
        const box = svg.getBoundingClientRect();
        const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
        for (const [text, b] of texts)
          if (b.left < box.left - 8 || b.right > box.right + 16 || b.bottom > box.bottom + 2) outside.push(text);
        texts.forEach(([text, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
          if (a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2)
            crossing.push([text, other]);
        }));
      }
      return [outside, crossing];
    })()""")
    assert outside == []
    assert crossing == []


@pytest.mark.parametrize("name", list(instruments()))
def test_every_instrument_by_mouse_and_keyboard_wide_narrow_and_dark(browser, address, name):
    tab, instrument = browser, instruments()[name]
    show(tab, f"{address}?instrument={name}")
    assert drawn(tab) == instrument.defaults()
    assert tab.run("document.querySelectorAll('svg.plot').length") == 2
    lines, dots = (tab.run(f"document.querySelectorAll('svg.plot g {kind}').length") for kind in ("path", "circle"))
    assert lines >= 2
    assert dots >= 20
    slider = next(s for s in instrument.sliders if s.name == "step_size")
    click_slider(tab, "step_size", 0.02)
    wait(tab, f"JSON.parse(document.querySelector('.explorer').dataset.drawn).step_size === {slider.values[0]}")
    press(tab, "ArrowRight")
    wait(tab, f"JSON.parse(document.querySelector('.explorer').dataset.drawn).step_size === {slider.values[1]}")
    spoken = tab.run("document.querySelector('[name=step_size]').getAttribute('aria-valuetext')")
    assert spoken == f"{slider.values[1]:g}"
    assert f"step_size={slider.values[1]:g}" in tab.run("location.search")
    check_layout(tab)
    tab.media(scheme="dark")
    tab.screen(390, 800)
    wait(tab, "document.querySelector('svg.plot').viewBox.baseVal.width < 400")
    check_layout(tab)
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 26)"
    assert errors(tab) == []


def test_runs_that_all_diverge_are_a_sentence(browser, address):
    show(browser, f"{address}?instrument=own-problem&steps=300")
    click_slider(browser, "step_size", 0.99)
    wait(browser, "document.querySelector('.message').textContent.includes('All runs diverged')")
    assert browser.run("document.querySelector('.panels').classList.contains('stale')")
    assert errors(browser) == []


def test_a_click_in_the_diagram_chooses_a_point(browser, address):
    show(browser, f"{address}?instrument=phase-diagram")
    x, y = browser.run("""(() => { const b = document.querySelector('svg.pick .area').getBoundingClientRect();
        return [b.x + 0.05 * b.width, b.y + 0.9 * b.height]; })()""")
    click_at(browser, x, y)
    wait(browser, "JSON.parse(document.querySelector('.explorer').dataset.drawn).spread === 0.5")
    assert drawn(browser)["step_size"] == 0.01
    assert "spread=0.5" in browser.run("location.search")


def test_a_link_keeps_the_setting_and_its_code(browser, address):
    show(browser, f"{address}?instrument=motor&step_size=0.2&momentum=0.5")
    assert drawn(browser)["step_size"] == 0.2
    assert drawn(browser)["momentum"] == 0.5
    shown = browser.run("document.querySelector('pre code').textContent")
    assert "k, eta, beta = 3, 0.2, 0.5" in shown
    assert "$" not in shown
    names: dict = {}
    exec(shown, names)
    assert names["simulation"] > 0


def test_a_wrong_value_in_the_address_is_a_sentence(browser, address):
    show(browser, f"{address}?instrument=motor&step_size=7")
    assert "step_size=7: the slider has the values 0.05, " in message(browser)
    assert drawn(browser) == instruments()["motor"].defaults()


def test_other_instruments_by_link_and_back(browser, address):
    show(browser, f"{address}?instrument=motor")
    browser.click("nav a[data-name=label-noise]")
    wait(browser, "JSON.parse(document.querySelector('.explorer').dataset.drawn).noise !== undefined")
    assert browser.run("document.querySelector('h1').textContent") == instruments()["label-noise"].title
    browser.run("history.back()")
    wait(browser, "JSON.parse(document.querySelector('.explorer').dataset.drawn).phases === 3")
    assert browser.run("document.querySelector('nav a[aria-current]').dataset.name") == "motor"


def test_two_tabs_have_settings_of_their_own(browser, address):
    other = Tab()
    try:
        show(browser, f"{address}?instrument=motor")
        show(other, f"{address}?instrument=motor&step_size=0.3")
        click_slider(browser, "phases", 0.99)
        wait(browser, "JSON.parse(document.querySelector('.explorer').dataset.drawn).phases === 6")
        assert drawn(other) == instruments()["motor"].defaults() | {"step_size": 0.3}
    finally:
        other.close()


def test_the_command_serves_the_page_and_a_killed_server_is_a_sentence(browser, tmp_path):
    """The first picture is there within two seconds after the page was opened."""
    command = [sys.executable, "-m", "undertow", "explore", "--no-browser", "--port", "0", "--instrument", "motor"]
    with (tmp_path / "out").open("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ)
        try:
            end = time.monotonic() + 120
            while not (found := re.search(r"http://\S+", (tmp_path / "out").read_text())):
                assert time.monotonic() < end, (tmp_path / "out").read_text()
                time.sleep(0.1)
            began = time.monotonic()
            show(browser, found[0])
            assert time.monotonic() - began < 2
            process.send_signal(signal.SIGKILL)
            process.wait()
            click_slider(browser, "step_size", 0.98)
            wait(browser, "document.querySelector('.message').textContent.includes('The server does not answer')")
            assert browser.run("document.querySelector('.panels').classList.contains('stale')")
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("name", list(instruments()))
def test_pages_without_a_server(browser, tmp_path, name):
    """The script draws the stored pictures from a disk, and its sliders choose among them."""
    scripts = (FOLDER / f"{name}.js", PAGE / "explorer.js")
    view = "<meta name=viewport content='width=device-width'>"
    head = f"<!doctype html><meta charset=utf-8>{view}<link rel=stylesheet href='{(PAGE / 'explorer.css').as_uri()}'>"
    files = "".join(f"<script src='{file.as_uri()}'></script>" for file in scripts)
    page = tmp_path / "page.html"
    page.write_text(f"{head}<div class=explorer data-instrument={name}></div>{files}")
    show(browser, page)
    slider = next(s for s in instruments()[name].sliders if s.name == "step_size")
    click_slider(browser, "step_size", 0.98)
    wait(browser, f"JSON.parse(document.querySelector('.explorer').dataset.drawn).step_size === {slider.static[-1]}")
    press(browser, "Home")
    wait(browser, f"JSON.parse(document.querySelector('.explorer').dataset.drawn).step_size === {slider.static[0]}")
    assert browser.run("document.querySelectorAll('svg.plot').length") == 2
    browser.screen(390, 800)
    wait(browser, "document.querySelector('svg.plot').viewBox.baseVal.width < 400")
    check_layout(browser)
    assert errors(browser) == []
