"""Durations and sizes as text."""

__all__ = ["in_bytes", "in_words"]


def in_words(seconds: float | int) -> str:
    """Return a duration in seconds, minutes or hours.

    >>> from undertow.execution.sweeps.units import in_words
    >>> in_words(0.25), in_words(75), in_words(119.9), in_words(9000)
    ('0.25 s', '1 min 15 s', '2 min 0 s', '2 h 30 min')
    """
    if seconds < 0:
        return f"-{in_words(-seconds)}"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def in_bytes(count: float | int) -> str:
    """Return a size with a unit.

    >>> from undertow.execution.sweeps.units import in_bytes
    >>> in_bytes(3 * 2**20)
    '3 MiB'
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
