"""The figure of docs/howto/scaling-maps.md: `python -m docs.scaling` draws studies/results/scaling-maps.json."""

import json
from pathlib import Path

import numpy as np

from undertow.figures import style
from undertow.figures.export import to_svg

HERE = Path(__file__).parent
RESULTS = HERE.parent / "studies" / "results" / "scaling-maps.json"
IMAGE = HERE / "images" / "scaling-maps.svg"
LISTS = {"SmoothQuant": "red", "AWQ": "purple", "undertow": "blue"}


def main() -> None:
    """Draw the change of the outputs by every entry of every list, one row per list."""
    architectures = json.loads(RESULTS.read_text())["architectures"].values()
    figure, (axes,) = style.new_figure(width=6.4, height=2.4)
    for row, (name, colour) in enumerate(LISTS.items()):
        entries = [entry["change"] for model in architectures for entry in model.get(name) or ()]
        changes = np.array([change for change in entries if change is not None])
        heights = row + np.linspace(-0.3, 0.3, changes.size)
        axes.plot(
            changes, heights, ".", color=style.COLOURS[colour], markersize=4, label=f"{name}, {changes.size} entries"
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(LISTS)), LISTS)
    axes.set_xlabel("relative change of the outputs at random weights")
    IMAGE.write_text(to_svg(figure))


if __name__ == "__main__":
    main()
