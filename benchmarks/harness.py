"""Timing in interleaved rounds, and the peak memory of a process."""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def interleaved(
    programs: dict[str, tuple[Callable[[], Any], float]],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds per unit of work of each program, given as (function, units of work per call).

    Every round calls each program once, so that other load on the machine affects all of them equally. One call
    before the first round compiles and is not counted. `time.process_time` as the clock gives the time of all cores
    together, which other load on the machine changes little.
    """
    times: dict[str, list[float]] = {name: [] for name in programs}
    for name, (function, _) in programs.items():
        print(f"  warming up {name}", flush=True)
        function()
    for _ in range(rounds):
        for name, (function, units) in programs.items():
            began = clock()
            function()
            times[name].append((clock() - began) / units)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_mebibytes() -> float:
    """Return the peak memory of this process in MiB.

    VmHWM of Linux starts at zero with a new program. `getrusage` starts with the memory of the parent process.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        facts = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(facts["VmHWM"].split()[0]) / 2**10
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def in_words(seconds: float) -> str:
    """Return a time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def save(name: str, facts: dict[str, Any]) -> None:
    """Write the numbers of a benchmark with the versions of Python and JAX and the device."""
    import jax

    facts = facts | {"python": platform.python_version(), "jax": jax.__version__, "device": str(jax.devices()[0])}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
