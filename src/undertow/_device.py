"""The device on which computations run, and the memory of this machine."""

import os
from pathlib import Path

import jax

__all__ = ["available_memory", "device"]

MEMORY = Path("/proc/meminfo")
GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""The files with the limit and the use of memory of a container, in both versions of control groups."""


def device() -> jax.Device:
    """Return the default device: that of `jax.default_device`, or JAX's first device.

    >>> import jax
    >>> from undertow._device import device
    >>> with jax.default_device(jax.devices("cpu")[0]):
    ...     print(device().platform)
    cpu
    """
    chosen = jax.config.jax_default_device  # ty: ignore[missing-attribute]
    if isinstance(chosen, jax.Device):
        return chosen
    return jax.local_devices(backend=chosen)[0]


def available_memory() -> int:
    """Return the bytes of memory that this process may still use: of the machine, and within the limit of a container.

    >>> from undertow._device import available_memory
    >>> available_memory() > 2**20
    True
    """
    try:
        kilobytes = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())["MemAvailable"].split()[0]
        free = int(kilobytes) * 2**10
    except (OSError, KeyError, ValueError):  # not Linux
        try:
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):
            return 2**36
    for limit, used in GROUPS:
        try:
            free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return free
