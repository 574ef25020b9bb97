"""The time that XLA takes to compile."""

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["compilations"]

EVENT = "/jax/core/compile/backend_compile_duration"


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
