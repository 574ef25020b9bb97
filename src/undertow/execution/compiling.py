"""What XLA compiles, and how long it takes."""

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["compilations"]

EVENT = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Generator[list[float]]:
    """A list that grows by the seconds of every program that is compiled, or read from the cache, inside the block."""
    import jax

    found: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == EVENT:
            found.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
