"""Where computations run."""

import jax

__all__ = ["device"]


def device() -> jax.Device:
    """The device of computations that are not told otherwise: that of `jax.default_device`, or JAX's first.

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
