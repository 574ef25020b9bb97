"""Figures that pages make of their own runs: `python -m docs.results` runs the pages and writes to docs/images."""

import contextlib
import shutil
import tempfile
from pathlib import Path

from tests.docs.blocks import outputs
from undertow.figures import style

HERE = Path(__file__).parent
FIGURES = {
    HERE / "howto" / "results.md": "results.svg",
}


def main() -> None:
    """Run the code blocks of each page and keep the figure that they save."""
    for page, figure in FIGURES.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), style.applied():
            outputs(page.read_text(), page.name)
            shutil.copyfile(figure, HERE / "images" / figure)


if __name__ == "__main__":
    main()
