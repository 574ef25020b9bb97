"""Counting what XLA compiles."""

from contextlib import contextmanager

import jax

COMPILE = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations():
    """A list that grows by one for every program compiled inside the block."""
    found: list[float] = []

    def listen(event: str, duration: float, **_) -> None:
        if event == COMPILE:
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
