"""The memory of a device, and the memory that a traced program needs."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import jax
    from jax.extend.core import Jaxpr

__all__ = ["device_memory", "peak_bytes"]


def device_memory(device: "jax.Device") -> int:
    """Return the bytes that may be used: of the accelerator, or the free memory of this machine."""
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("bytes_limit", 2**33))
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 2**32


def peak_bytes(jaxpr: "Jaxpr") -> int:
    """Return the most bytes alive at one time while a program runs as written, without the compiler's savings."""
    size = lambda v: getattr(v.aval, "size", 1) * getattr(getattr(v.aval, "dtype", None), "itemsize", 8)
    last_use: dict[object, int] = {}
    for index, equation in enumerate(jaxpr.eqns):
        for variable in equation.invars:
            if not hasattr(variable, "val"):
                last_use[variable] = index
    for variable in jaxpr.outvars:
        if not hasattr(variable, "val"):
            last_use[variable] = len(jaxpr.eqns)
    alive = {variable: size(variable) for variable in [*jaxpr.invars, *jaxpr.constvars]}
    now = most = sum(alive.values())
    for index, equation in enumerate(jaxpr.eqns):
        made = {variable: size(variable) for variable in equation.outvars}
        inside = max((peak_bytes(inner) for inner in _inner_programs(equation.params)), default=0)
        most = max(most, now + max(inside, sum(made.values())))
        alive |= made
        now += sum(made.values())
        for variable in [v for v in alive if last_use.get(v, -1) <= index]:
            now -= alive.pop(variable)
    return most


def _inner_programs(parameters: dict[str, object]) -> "Iterator[Jaxpr]":
    """Yield the programs among the parameters of an equation, such as the body of a scan."""
    for value in parameters.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield cast("Jaxpr", inner)
