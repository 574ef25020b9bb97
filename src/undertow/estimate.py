"""A number that was estimated, with its uncertainty."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

__all__ = ["Estimate"]


class Estimate(eqx.Module):
    """A Monte Carlo estimate: `value`, the `standard_error` of it (a pytree alike), and the number of `samples`.

    >>> import jax.numpy as jnp
    >>> from undertow import Estimate
    >>> estimate = Estimate.of(jnp.array([1.0, 2.0, 3.0, 4.0]))
    >>> print(f"{estimate.value:.2f} +- {estimate.standard_error:.2f}")
    2.50 +- 0.65
    """

    value: PyTree
    standard_error: PyTree
    samples: int = eqx.field(static=True)

    @staticmethod
    def of(values: PyTree) -> "Estimate":
        """The mean over the leading axis of every leaf, with sd/sqrt(n) as its standard error."""
        samples = jax.tree.leaves(values)[0].shape[0]
        mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), values)
        error = jax.tree.map(lambda x: jnp.std(x, axis=0, ddof=1) / jnp.sqrt(samples).astype(x.dtype), values)
        return Estimate(mean, error, samples)
