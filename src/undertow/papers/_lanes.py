"""The number of runs of a claim that advance together."""

from undertow._device import device

__all__ = ["lanes"]


def lanes(on_cpu: int) -> int | None:
    """Return the `lane_width` for `descend`: `on_cpu` on a CPU, None (no limit) on an accelerator.

    >>> import jax
    >>> from undertow.papers._lanes import lanes
    >>> with jax.default_device(jax.devices("cpu")[0]):
    ...     lanes(256)
    256
    """
    return on_cpu if device().platform == "cpu" else None
