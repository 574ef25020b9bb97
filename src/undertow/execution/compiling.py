"""The time that XLA takes to compile, and the compiled programs that a process keeps."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["compilations", "free_programs"]

EVENT = "/jax/core/compile/backend_compile_duration"
MAPPINGS = Path("/proc/self/maps")
"""One line for every mapping of memory of this process."""
MOST_MAPPINGS = Path("/proc/sys/vm/max_map_count")
"""The number of mappings that Linux permits, 65,530 by default."""


@contextmanager
def compilations() -> Generator[list[float]]:
    """Yield a list that grows by the seconds of every program compiled, or read from the cache, inside the block."""
    import jax

    seconds: list[float] = []

    def record(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == EVENT:
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(record)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(record)


def free_programs() -> None:
    """Make JAX forget its compiled programs if this process has half of the memory mappings that Linux permits.

    A compiled program for a CPU takes about eight mappings. Without any left, the next compilation ends the process.
    Programs that are used again are compiled again, or read from the compilation cache.
    """
    if "jax" not in sys.modules:
        return
    try:
        full = 2 * MAPPINGS.read_bytes().count(b"\n") > int(MOST_MAPPINGS.read_bytes())
    except (OSError, ValueError):  # not Linux
        return
    if full:
        sys.modules["jax"].clear_caches()
