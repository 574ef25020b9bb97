"""How many runs of a claim advance together."""

import jax

__all__ = ["lanes"]


def lanes(on_cpu: int) -> int | None:
    """The `lane_width` for `descend`: a fixed number on a CPU, as many as it holds on an accelerator.

    >>> import jax
    >>> from undertow.claims.lanes import lanes
    >>> lanes(256) == (256 if jax.default_backend() == "cpu" else None)
    True
    """
    return on_cpu if jax.default_backend() == "cpu" else None
