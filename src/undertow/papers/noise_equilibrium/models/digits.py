"""Real data: the 1,797 handwritten digits of scikit-learn, 8 x 8 pixels each."""

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from undertow import _validate as validate

__all__ = ["digits"]

CLASSES = 10


def digits(
    components: int = 20, dtype: DTypeLike = jnp.float32
) -> tuple[Float[Array, "samples components"], Float[Array, "samples classes"]]:
    """Return the leading principal components, scaled to mean square 1, and the standardised one-hot labels.

    >>> from undertow.papers.noise_equilibrium.models.digits import digits
    >>> inputs, targets = digits(20)
    >>> print(inputs.shape, targets.shape, (inputs**2).mean().round(3), (targets**2).mean().round(3))
    (1797, 20) (1797, 10) 1.0 1.0
    """
    components = validate.positive_integer("digits", "components", components)
    if components > 61:
        raise ValueError(f"`digits(components={components})`: 61 of the 64 pixels vary; use components <= 61.")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    centred = pixels - pixels.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    inputs = left[:, :components] * values[:components]
    one_hot = np.eye(CLASSES)[labels]
    targets = (one_hot - one_hot.mean(axis=0)) / one_hot.std(axis=0)
    return jnp.asarray(inputs / np.sqrt(np.mean(inputs**2)), dtype), jnp.asarray(targets, dtype)
