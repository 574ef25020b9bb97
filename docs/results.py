"""The figure of the page on results: `python -m docs.results` runs the page and writes docs/images/results.svg."""

import contextlib
import shutil
import tempfile
from pathlib import Path

from tests.docs.blocks import outputs
from undertow.figures import style

HERE = Path(__file__).parent
PAGE, FIGURE = HERE / "howto" / "results.md", HERE / "images" / "results.svg"


def main() -> None:
    """Run the code blocks of the page and keep the figure that they save."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), style.applied():
        outputs(PAGE.read_text(), PAGE.name)
        shutil.copyfile("results.svg", FIGURE)


if __name__ == "__main__":
    main()
