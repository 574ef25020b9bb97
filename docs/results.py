"""Figures that pages make of their own runs: `python -m docs.results` runs the pages and writes to docs/images."""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from tests.docs.blocks import outputs
from undertow.figures import style

HERE = Path(__file__).parent
FIGURES = {
    HERE / "howto" / "results.md": "results.svg",
    HERE / "howto" / "own-loss.md": "own-loss.svg",
    HERE / "howto" / "own-claim.md": "own-claim.svg",
    HERE / "howto" / "flax-and-equinox.md": "flax-and-equinox.svg",
    HERE / "sweeps.md": "sweep.svg",
}


def main(names: list[str]) -> None:
    """Run the code blocks of each page, or of those that are named, and keep the figure that they save."""
    for page, figure in FIGURES.items():
        if names and page.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), style.applied():
            outputs(page.read_text(), page.name)
            shutil.copyfile(figure, HERE / "images" / figure)


if __name__ == "__main__":
    main(sys.argv[1:])
