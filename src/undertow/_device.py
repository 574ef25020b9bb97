"""The device on which computations run."""

import jax

__all__ = ["device"]


def device() -> jax.Device:
    """Return the default device: that of `jax.default_device`, or the first device of JAX.

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
