"""How far a symmetry is from its own equilibrium, and how long the way takes, from the moments of noise and weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from undertow.symmetry import closed_forms
from undertow.symmetry.forecast import times_of_sums
from undertow.torch.census.axes import Relation
from undertow.torch.equilibrium.solve import CLEAR, Amount, Sides, amounts

__all__ = ["how_far", "relaxation"]


@jax.jit
def _means(a: Any, b: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors of X with X b X = a, for every block."""
    return jax.vmap(lambda x, y: jnp.linalg.eigh(closed_forms.geometric_mean(x, y)))(a, b)


def how_far(
    relation: Relation, found: Sides, step_size: float, gamma: float, clear: float = CLEAR
) -> tuple[Amount, np.ndarray, np.ndarray | None]:
    """How far the equilibrium is, and for a GL the eigenvalues and eigenvectors of that.

    Where both sides have full rank P is the root of the geometric mean X, at half the cost of the general case. Of the
    largest, noise below `clear` is rounding.
    """
    if relation.block == 1:
        far = amounts(relation, found, step_size, gamma)
        return far, far.amount, None
    k = 4 * gamma / step_size
    a, b = found.noise_plus + k * found.weight_minus, found.noise_minus + k * found.weight_plus
    weights = found.weight_plus, found.weight_minus
    if all(_full_rank(x, CLEAR) for x in weights) and all(_full_rank(x, clear) for x in (a, b)):
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            values, frame = (np.asarray(x) for x in _means(a, b))
        if np.all(np.isfinite(values)) and np.all(values > 0):
            logs = np.log(values) / 2
            return Amount((frame * logs[:, None]) @ frame.swapaxes(1, 2), 0, 0), logs, frame
    far = amounts(relation, found, step_size, gamma, clear)
    return far, *np.linalg.eigh(far.amount)


def _full_rank(matrices: np.ndarray, clear: float) -> bool:
    """Whether matrices are positive definite, by far; what is doubtful goes the general way."""
    try:
        pivots = np.diagonal(np.linalg.cholesky(matrices), axis1=1, axis2=2) ** 2
    except np.linalg.LinAlgError:
        return False
    return bool(np.all(pivots.min(1) > clear * pivots.max(1)))


def relaxation(found: Sides, logs: np.ndarray, frame: np.ndarray | None, step_size: float, gamma: float) -> np.ndarray:
    """Relaxation times at the equilibrium: `undertow.symmetry.forecast`'s, from moments at another point of the orbit.

    One over eta (4 gamma + eta rate), rates the eigenvalues of the noise of both sides against their weights. The way
    there is exp(logs), for a GL in the frames of eigenvectors (blocks, block, block).
    """
    if frame is None:
        turned, factor = (lambda x: x), np.exp(2 * logs)
    else:
        turned, factor = (lambda x: frame.swapaxes(1, 2) @ x @ frame), np.exp(logs[:, :, None] + logs[:, None])
    noise = turned(found.noise_plus) / factor + turned(found.noise_minus) * factor
    weight = turned(found.weight_plus) * factor + turned(found.weight_minus) / factor
    return times_of_sums(noise, weight, step_size, 2 * gamma)
