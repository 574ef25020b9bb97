"""How many runs of a claim advance together."""

from undertow._device import device

__all__ = ["lanes"]


def lanes(on_cpu: int) -> int | None:
    """The `lane_width` for `descend`: a fixed number on a CPU, as many as it holds on an accelerator.

    >>> import jax
    >>> from undertow.papers._lanes import lanes
    >>> with jax.default_device(jax.devices("cpu")[0]):
    ...     lanes(256)
    256
    """
    return on_cpu if device().platform == "cpu" else None
