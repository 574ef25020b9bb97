"""Timing side by side: interleaved rounds in one process, medians, ratios; and the memory of a process."""

import json
import platform
import statistics
import sys
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


def peak_mebibytes() -> float:
    """The most memory that this process has had.

    Linux's own count of it starts anew with a program; that of `getrusage` starts with the memory of the process which
    started this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        facts = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(facts["VmHWM"].split()[0]) / 2**10
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


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
