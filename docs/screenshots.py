"""Write a screenshot of each instrument of the explorer: `python -m docs.screenshots`. It needs Chromium."""

import sys
import threading
import time
from pathlib import Path

from PIL import Image

from tests.chromium import Tab
from undertow.execution.settings import configure
from undertow.explore.instruments import instruments
from undertow.explore.server import Explorer, make_server

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent / "images"
SIZE = 1100, 720
COLOURS = 64
"""Colours of a screenshot, which keep its file below 100 kB."""


def main(names: list[str]) -> None:
    """Write the screenshots of all instruments, or of those that are named."""
    configure()
    several = instruments()
    if unknown := set(names) - set(several):
        raise SystemExit(f"{', '.join(sorted(unknown))}: the instruments are {', '.join(several)}.")
    tab = Tab()
    with make_server(Explorer(several), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in names or several:
            tab.open(f"http://127.0.0.1:{server.server_address[1]}/?instrument={name}")
            tab.screen(*SIZE)
            while not tab.run("document.querySelector('.explorer').dataset.drawn || ''"):
                time.sleep(0.1)
            time.sleep(0.5)  # the size of the panels follows that of the screen
            file = FOLDER / f"explorer-{name}.png"
            tab.picture(file)
            Image.open(file).quantize(COLOURS).save(file, optimize=True)
            print(f"docs/images/explorer-{name}.png", flush=True)
        server.shutdown()
    tab.close()


if __name__ == "__main__":
    main(sys.argv[1:])
