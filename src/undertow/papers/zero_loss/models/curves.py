"""Small examples in the plane and the motor, whose limiting diffusions are known in closed form."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from undertow.noise.additive import Additive
from undertow.noise.isotropic import Isotropic
from undertow.problem import Problem

__all__ = ["circle", "ellipse", "isotropic_ellipse", "metric", "mixed_circle", "motor", "motor_angle"]


def _alone(loss: Any) -> Problem:
    """A loss without data."""
    return Problem(loss, jnp.zeros(1))


def circle() -> Problem:
    """L = (|x|^2 - 1)^2/8: the unit circle, curvature 1 across it."""
    return _alone(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8)


def ellipse() -> Problem:
    """L = g^2/2, g = x^2/4 + y^2 - 1. Under isotropic noise E[x^2] = 2 in equilibrium."""
    return _alone(lambda x, _: (x[0] ** 2 / 4 + x[1] ** 2 - 1) ** 2 / 2)


def isotropic_ellipse() -> Isotropic:
    """Isotropic noise of scale 1 on the ellipse."""
    return Isotropic(ellipse(), 1.0)


def mixed_circle(rho: float) -> Additive:
    """One noise along and across the unit circle, sigma = t + rho n: the drift turns at -rho, by correlation alone."""

    def factor(x: Array) -> Float[Array, "2 1"]:
        radius = jnp.sqrt(jnp.sum(x**2))
        normal = x / radius
        tangent = jnp.stack([-normal[1], normal[0]])
        return (tangent + rho * normal)[:, None]

    return Additive(circle(), factor)


class _Motor(eqx.Module):
    """The k directions Q^j v of the motor's auxiliary dimensions."""

    directions: Float[Array, "k 2"]

    def curvatures(self, x: Array) -> Float[Array, " k"]:
        return 2 + self.directions @ x[:2]

    def __call__(self, x: Array, _: Any) -> Float[Array, ""]:
        return (jnp.sum(x[:2] ** 2) - 1) ** 2 / 8 + jnp.sum(self.curvatures(x) * x[2:] ** 2) / 2


class _MotorFactor(eqx.Module):
    """The square root of the motor's covariance: noise in the auxiliary dimensions, aligned with the rotation."""

    motor: _Motor

    def __call__(self, x: Array) -> Float[Array, "D k"]:
        turned = jnp.stack([x[1], -x[0]])  # Q_{-pi/2} x
        power = (1 + self.motor.directions @ turned) * self.motor.curvatures(x)
        inner = jnp.diag(jnp.sqrt(jnp.maximum(power, 0)))
        return jnp.concatenate([jnp.zeros((2, inner.shape[0]), x.dtype), inner])


def motor(phases: int = 3) -> Additive:
    """The k-phase motor (zero_loss, section C.4): noise in k auxiliary dimensions turns a point round the circle.

    The limiting flow turns anticlockwise at the speed k/8 (the paper's Lemma C.8 says k/2). With the angle alpha =
    2 pi/k between the phases, and 1/8 in the first term of the loss.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.papers.zero_loss.models.curves import motor
    >>> print(ut.Limit(motor(4)).drift(jnp.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])).round(4) + 0.0)
    [0.  0.5 0.  0.  0.  0. ]
    """
    angles = 2 * jnp.pi * jnp.arange(phases) / phases
    turning = _Motor(jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1))
    return Additive(_alone(turning), _MotorFactor(turning))


def motor_angle(x: Float[Array, "... D"]) -> Float[Array, "..."]:
    """The angle of the first two coordinates."""
    return jnp.arctan2(x[..., 1], x[..., 0])


def metric() -> Problem:
    """L = g'M(x)g/2 with two constraints g in five dimensions and a metric M that changes along the manifold."""

    def loss(x: Array, _: Any) -> Float[Array, ""]:
        g = jnp.stack([x[0] ** 2 + x[1] ** 2 + 0.5 * x[2] - 1, x[3] - jnp.sin(x[0]) * x[4]])
        m = jnp.array([[2.0, 0.3], [0.3, 1.0]]) + 0.3 * jnp.cos(x[2]) * jnp.array([[1.0, 0.0], [0.0, -0.5]])
        return g @ m @ g / 2

    return _alone(loss)
