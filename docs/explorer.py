"""Write the pictures of the explorer's pages: `python -m docs.explorer`.

The pages need no server: `docs/explorer/NAME.js` has the picture of every setting of a grid of the sliders, computed by
the instruments of undertow, and the script of the explorer draws them. `docs/pages.py` makes the pages themselves.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from undertow.execution.settings import configure
from undertow.explore.instrument import Instrument, Settings
from undertow.explore.instruments import instruments
from undertow.explore.picture import Json

__all__ = ["FOLDER", "explorer_pages", "indices", "page_script", "trimmed"]

FOLDER = Path(__file__).parent / "explorer"
PAGE = Path(__file__).parent.parent / "src" / "undertow" / "explore" / "page"
DIGITS = 3
"""Significant digits on a page of the documentation: a pixel is a few thousandths of a panel."""
MOST_RUNS = 8
"""Runs in the clouds of these pages."""


def trimmed(value: Json) -> Json:
    """Return a picture with fewer digits and fewer runs in its clouds."""
    if isinstance(value, dict):
        few = {"y": value["y"][:MOST_RUNS]} if value.get("kind") in ("cloud", "curves") else {}
        return {name: trimmed(one) for name, one in {**value, **few}.items()}
    if isinstance(value, list):
        return [trimmed(one) for one in value]
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 10**DIGITS else short
    return value


def indices(instrument: Instrument, settings: Settings) -> str:
    """Return the key of a setting: the index of the value of each slider on the page."""
    stops = [slider.static or (slider.default,) for slider in instrument.sliders]
    return ",".join(
        str(values.index(settings[slider.name])) for slider, values in zip(instrument.sliders, stops, strict=True)
    )


def page_script(instrument: Instrument) -> str:
    """Return the script with the description and all pictures of an instrument."""
    pictures = {
        indices(instrument, settings): trimmed(instrument.picture(settings).to_json())
        for settings in instrument.static_settings()
    }
    data = json.dumps({"description": instrument.describe(static=True), "pictures": pictures}, separators=(",", ":"))
    return f"(window.undertowPictures ??= {{}})[{json.dumps(instrument.name)}] = {data};\n"


def explorer_pages() -> dict[str, str]:
    """Return the Markdown pages of the explorer, its script and its style, by their path in the site."""
    several = list(instruments().values())
    pages = {f"explorer/{name}": (PAGE / name).read_text() for name in ("explorer.js", "explorer.css")}
    for one in several:
        pages[f"explorer/{one.name}.md"] = _page(one)
    return pages | {"explorer/index.md": "\n\n".join(_index(several))}


def _page(instrument: Instrument) -> str:
    return "\n\n".join((
        f"# {instrument.title}",
        instrument.summary,
        f"Theory is a line, simulation is points and clouds. The pictures were computed by `python -m docs.explorer`; "
        f"`undertow explore --instrument {instrument.name}` computes them live, with more values of every slider. "
        f"{_more(instrument)} [Teaching](../teaching.md) shows how to use this page in a lecture.",
        '<link rel="stylesheet" href="explorer.css">\n'
        f'<div class="explorer" data-instrument="{instrument.name}" data-search-exclude></div>\n'
        f'<script src="{instrument.name}.js"></script>\n<script src="explorer.js"></script>',
    ))  # fmt: skip


def _more(instrument: Instrument) -> str:
    """Return a sentence with the link to the derivation, or to a page on how to define a problem."""
    if instrument.theory.startswith("theory/"):
        return f"The [theory](../{instrument.theory}.md) page derives the prediction."
    return f"[Your own loss](../{instrument.theory}.md) shows how to define a problem."


def _index(several: list[Instrument]) -> Iterator[str]:
    yield "# Explorer"
    yield (
        "Six instruments with sliders show theory beside simulation. The pages here need no server and have a few "
        "values of every slider. The command"
    )
    yield "    undertow explore"
    yield (
        "opens the same instruments in the browser and computes them live; `undertow explore --file my.py:problem` "
        "shows a problem of your own. The page has the Python code of every setting, and its address keeps the "
        "setting. The first start compiles the programs, which takes a minute or two; later starts read them from a "
        "cache."
    )
    for one in several:
        image = f"![{one.title}: the page of the instrument](../images/explorer-{one.name}.png)"
        yield f"## [{one.title}]({one.name}.md)\n\n{one.summary}\n\n{image}"


def main(names: list[str]) -> None:
    """Write the pictures of all instruments, or of those that are named."""
    configure()
    FOLDER.mkdir(exist_ok=True)
    for name, instrument in instruments().items():
        if not names or name in names:
            file = FOLDER / f"{name}.js"
            file.write_text(page_script(instrument))
            print(f"{file.relative_to(FOLDER.parent.parent)}: {file.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
