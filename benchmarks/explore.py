"""The explorer: seconds until the first picture in Chromium, and of every change of one slider.

    python -m benchmarks explore

The first picture is that of `undertow explore` in a process of its own, from the moment at which the browser opens the
page. The command compiles the first instrument before it prints the address. A change sets one slider to one of its
other values, from the defaults, and asks the server for the picture.
"""

import re
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.harness import in_words, save

FIRST, UPDATE = 2.0, 0.5
"""Bars in seconds."""


def first_picture() -> dict[str, float]:
    """Return the seconds until the command prints its address, and from opening the page until its picture is drawn."""
    from tests.chromium import Tab

    code = "from undertow.cli import main; main()"
    command = [sys.executable, "-u", "-c", code, "explore", "--port", "0", "--no-browser"]
    tab, began = Tab(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        opened = time.perf_counter()
        tab.open(address)
        while not tab.run("document.querySelector('.explorer')?.dataset.drawn || ''"):
            time.sleep(0.01)
        drawn = time.perf_counter()
        process.terminate()
    tab.close()
    return {"start": opened - began, "picture": drawn - opened}


def updates() -> dict[str, Any]:
    """Return the seconds of the changes of each instrument: median and largest, with the slider of the latter."""
    from undertow.execution.compiling import compilations
    from undertow.explore.instruments import instruments
    from undertow.explore.server import Explorer

    several = instruments()
    explorer = Explorer(several)
    found: dict[str, Any] = {}
    for name, instrument in several.items():
        explorer.compile([name])
        times: dict[str, float] = {}
        with compilations() as compiled:
            for slider in instrument.sliders:
                for value in slider.values:
                    if value != slider.default:
                        began = time.perf_counter()
                        explorer.answer(f"/picture.json?instrument={name}&{slider.name}={value}")
                        times[f"{slider.name}={value}"] = time.perf_counter() - began
        slowest = max(times, key=lambda key: times[key])
        found[name] = {
            "changes": len(times),
            "median_seconds": statistics.median(times.values()),
            "largest_seconds": times[slowest],
            "slowest": slowest,
            "compiled": len(compiled),
        }
        print(name, found[name], flush=True)
    return found


def main() -> list[tuple[str, str, str]]:
    from undertow.execution.settings import configure

    first = first_picture()
    configure()
    facts = {"first_picture_seconds": first, "updates": updates()}
    save("explore", facts)
    rows = [
        ("explorer: first picture after the page is open", in_words(first["picture"]), f"< {FIRST:g} s"),
        ("explorer: from the command to the address", in_words(first["start"]), ""),
    ]
    for name, one in facts["updates"].items():
        rows.append((f"{name}: change of a slider, median", in_words(one["median_seconds"]), f"< {UPDATE:g} s"))
        rows.append((f"{name}: slowest change ({one['slowest']})", in_words(one["largest_seconds"]), ""))
    return rows
