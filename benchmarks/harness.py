"""Timing side by side: interleaved rounds in one process, medians, ratios."""

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def interleaved(contestants: dict[str, tuple[Callable[[], Any], float]], rounds: int = 7) -> dict[str, float]:
    """Median seconds a unit of work for each contestant: (function, units of work it does in one call).

    Every round runs each contestant once, so that what the machine does meanwhile hits all of them alike. One call
    before the first round is not counted: it compiles.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for name, (function, _) in contestants.items():
        print(f"  warming up {name}", flush=True)
        function()
    for _ in range(rounds):
        for name, (function, units) in contestants.items():
            began = time.perf_counter()
            function()
            times[name].append((time.perf_counter() - began) / units)
    return {name: statistics.median(values) for name, values in times.items()}


def in_words(seconds: float) -> str:
    """A time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def save(name: str, facts: dict[str, Any]) -> None:
    """Writes one benchmark's numbers, with the versions that made them."""
    import jax

    facts = facts | {"python": platform.python_version(), "jax": jax.__version__, "device": str(jax.devices()[0])}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
