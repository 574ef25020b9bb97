"""What the studies write: a JSON of results with how it was made, figures, and a page that is made from the JSON."""

import json
import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RESULTS", "ROOT", "interval", "load", "made_by", "number", "publish", "save", "table"]

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t at 97.5 %, by the number of values."""


def made_by(device: Any, seconds: float) -> dict[str, Any]:
    """Where and with what a result was made."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {
        "device": name, "python": platform.python_version(), "torch": torch.__version__, "seconds": round(seconds, 1),
    }  # fmt: skip


def save(name: str, facts: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Writes results; numbers keep six digits."""
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
    """Results as they were written; what was not finite is None."""
    return json.loads((folder / f"{name}.json").read_text())


def publish(
    name: str, page: Callable[[dict], str], figures: Callable[[dict], "dict[str, Figure]"], root: Path = ROOT
) -> None:
    """Draws the figures and writes the page, both from the JSON."""
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
    """The mean and half of the 95 % interval, by Student's t."""
    found = np.asarray(values, dtype=float)
    if len(found) < 2 or not np.isfinite(found).all():
        return float(found.mean()), math.nan
    return float(found.mean()), float(STUDENT[len(found)] * found.std(ddof=1) / len(found) ** 0.5)


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table."""
    if value is None or not math.isfinite(value):
        return "none"
    text = f"{value:.{digits}g}"
    if "e" in text:
        return text
    return f"{value:,.0f}" if abs(value) >= 1000 else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)])
