"""Small examples in the plane and the motor, whose limiting diffusions have closed forms."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from undertow.noise.additive import Additive
from undertow.noise.isotropic import Isotropic
from undertow.problem import Problem

__all__ = ["circle", "ellipse", "isotropic_ellipse", "metric", "mixed_circle", "motor", "motor_angle"]


def _alone(loss: Callable[[Array, object], Array]) -> Problem:
    """Return the problem of a loss without data."""
    return Problem(loss, jnp.zeros(1))


def circle() -> Problem:
    """Return L = (|x|^2 - 1)^2/8, with the unit circle as minimisers and curvature 1 across it."""
    return _alone(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8)


def ellipse() -> Problem:
    """Return L = g^2/2 with g = x^2/4 + y^2 - 1. Under isotropic noise E[x^2] = 2 in equilibrium."""
    return _alone(lambda x, _: (x[0] ** 2 / 4 + x[1] ** 2 - 1) ** 2 / 2)


def isotropic_ellipse() -> Isotropic:
    """Return isotropic noise of scale 1 on the ellipse."""
    return Isotropic(ellipse(), 1.0)


def mixed_circle(rho: float) -> Additive:
    """Return noise sigma = t + rho n on the unit circle, whose correlation rotates the point at the speed -rho."""

    def factor(x: Array) -> Float[Array, "2 1"]:
        radius = jnp.sqrt(jnp.sum(x**2))
        normal = x / radius
        tangent = jnp.stack([-normal[1], normal[0]])
        return (tangent + rho * normal)[:, None]

    return Additive(circle(), factor)


class _Motor(eqx.Module):
    """The loss of the motor, with the k directions Q^j v of its auxiliary dimensions."""

    directions: Float[Array, "k 2"]

    def curvatures(self, x: Array) -> Float[Array, " k"]:
        return 2 + self.directions @ x[:2]

    def __call__(self, x: Array, _: object) -> Float[Array, ""]:
        return (jnp.sum(x[:2] ** 2) - 1) ** 2 / 8 + jnp.sum(self.curvatures(x) * x[2:] ** 2) / 2


class _MotorFactor(eqx.Module):
    """A square root of the motor's covariance: noise in the auxiliary dimensions, aligned with the rotation."""

    motor: _Motor

    def __call__(self, x: Array) -> Float[Array, "D k"]:
        turned = jnp.stack([x[1], -x[0]])  # Q_{-pi/2} x
        power = (1 + self.motor.directions @ turned) * self.motor.curvatures(x)
        inner = jnp.diag(jnp.sqrt(jnp.maximum(power, 0)))
        return jnp.concatenate([jnp.zeros((2, inner.shape[0]), x.dtype), inner])


def motor(phases: int = 3) -> Additive:
    """Return the k-phase motor (zero_loss, section C.4): noise in k auxiliary dimensions rotates a point on the circle.

    The limiting flow rotates anticlockwise at the speed k/8 (Lemma C.8 prints k/2). The angle between the phases is
    alpha = 2 pi/k, and the factor of the first term of the loss is 1/8.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.papers.zero_loss.models.curves import motor
    >>> print(ut.Limit(motor(4)).drift(jnp.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])).round(4) + 0.0)
    [0.  0.5 0.  0.  0.  0. ]
    """
    angles = 2 * np.pi * np.arange(phases) / phases
    turning = _Motor(jax.device_put(np.stack([np.cos(angles), np.sin(angles)], axis=1)))
    return Additive(_alone(turning), _MotorFactor(turning))


def motor_angle(x: Float[Array, "... D"]) -> Float[Array, "..."]:
    """Return the angle of the first two coordinates."""
    return jnp.arctan2(x[..., 1], x[..., 0])


def metric() -> Problem:
    """Return L = g'M(x)g/2 with two constraints g in five dimensions and a metric M that varies along the manifold."""

    def loss(x: Array, _: object) -> Float[Array, ""]:
        g = jnp.stack([x[0] ** 2 + x[1] ** 2 + 0.5 * x[2] - 1, x[3] - jnp.sin(x[0]) * x[4]])
        m = jnp.array([[2.0, 0.3], [0.3, 1.0]]) + 0.3 * jnp.cos(x[2]) * jnp.array([[1.0, 0.0], [0.0, -0.5]])
        return g @ m @ g / 2

    return _alone(loss)
