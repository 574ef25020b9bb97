"""Output of the studies: a JSON of results with its provenance, figures, and a page written from the JSON."""

import json
import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

__all__ = ["RESULTS", "ROOT", "interval", "load", "made_by", "number", "publish", "save", "table"]

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t at 97.5 %, by the number of values."""


def made_by(device: "torch.device", seconds: float) -> dict[str, Any]:
    """Return the device, the versions and the run time of a result."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {
        "device": name, "python": platform.python_version(), "torch": torch.__version__, "seconds": round(seconds, 1),
    }  # fmt: skip


def save(name: str, facts: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write results with six digits per number."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(_rounded(facts)) + "\n")
    return path


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inside) for key, inside in value.items()}
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [_rounded(inside) for inside in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def load(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Return stored results; numbers that were not finite are None."""
    return json.loads((folder / f"{name}.json").read_text())


def publish(
    name: str, page: Callable[[dict], str], figures: Callable[[dict], "dict[str, Figure]"], root: Path = ROOT
) -> None:
    """Draw the figures and write the page from the stored results."""
    from undertow.figures.export import to_svg

    facts = load(name, root / "studies" / "results")
    place = root / "docs" / "studies"
    place.mkdir(parents=True, exist_ok=True)
    for title, figure in figures(facts).items():
        text = to_svg(figure)
        (root / "studies" / "results" / f"{title}.svg").write_text(text)
        (place / f"{title}.svg").write_text(text)
    (place / f"{name}.md").write_text(page(facts))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the 95 % interval, by Student's t."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2 or not np.isfinite(array).all():
        return float(array.mean()), math.nan
    return float(array.mean()), float(STUDENT[len(array)] * array.std(ddof=1) / len(array) ** 0.5)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as text for a table."""
    if value is None or not math.isfinite(value):
        return "none"
    text = f"{value:.{digits}g}"
    if "e" in text:
        return text
    return f"{value:,.0f}" if abs(value) >= 1000 else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)])
