"""The factor of two between the gradient of the loss (2) and the step (3)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.estimate import standard_error
from undertow.figures import style
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sensing:
    """Random symmetric measurements, a random target and random points."""

    points: int
    """Number of random points at which the two are compared."""
    d: int = 8
    """Dimension of the matrices."""
    m: int = 30
    """Measurements in a batch."""


def _loss(residuals: Array) -> Array:
    """Return the loss (2), half the mean square."""
    return jnp.sum(residuals**2) / (2 * residuals.shape[0])


def _measure(parameters: Sensing, key: Key[Array, ""]) -> Measurement:
    d, m = parameters.d, parameters.m

    def ratio(k: Key[Array, ""]) -> Array:
        k1, k2, k3 = jax.random.split(k, 3)
        x = jax.random.normal(k1, (m, d, d))
        x = (x + jnp.swapaxes(x, 1, 2)) / 2
        y = jax.random.normal(k2, (m,))
        u = jax.random.normal(k3, (d, d)) / jnp.sqrt(d)
        residuals = lambda u: jnp.einsum("mij,ij->m", x, u @ u.T) - y
        step = jnp.einsum("m,mij->ij", residuals(u), x) / m @ u  # G U of the update (3)
        gradient = jax.grad(lambda u: _loss(residuals(u)))(u)
        return jnp.vdot(gradient, step) / jnp.vdot(step, step)

    ratios = np.asarray(jax.jit(jax.vmap(ratio))(jax.random.split(key, parameters.points)))
    error = float(standard_error(ratios))
    what = "gradient of the loss (2) / step (3)"
    check = Check(what, float(ratios.mean()), 2.0, error, Within(1e-6, 1e-3), printed=1.0, alternative=1.0)
    return Measurement((check,), xarray.Dataset({"ratio": (("point",), ratios)}), seeds=parameters.points)


def _draw(measurement: Measurement, parameters: Sensing) -> "Figure":
    figure, (axes,) = style.new_figure()
    ratios = measurement.data.ratio
    style.points(axes, np.arange(len(ratios)), ratios, None, "autodiff of (2) / step (3)")
    style.theory(axes, [0, len(ratios) - 1], [2, 2], "right: 2")
    style.theory(axes, [0, len(ratios) - 1], [1, 1], "printed: 1", "red")
    axes.set(xlabel="random point", ylabel="<∇L, G U> / <G U, G U>", ylim=(0.8, 2.2))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="sensing-factor-two",
        paper="heterogeneity",
        place="Eq. (2) against Eq. (3)",
        statement="The gradient of the loss (2) is 2 G U, so the update (3), U - η G U, is half a gradient step. The "
        "paper calls (3) a gradient step of (2).",
        equation="∇ (1/2m) ∑_i (<X_i, UU'> - y_i)² = 2 G U,  G = (1/m) ∑_i (<X_i, UU'> - y_i) X_i",
        alternative="The update (3) is the gradient of (2), as printed: their ratio is 1.",
        scales={"smoke": Sensing(20), "default": Sensing(100), "full": Sensing(1000)},
        measure=_measure,
        draw=_draw,
    ),
)
