"""One parameter with Gaussian gradient noise, in many independent copies that advance together as one vector.

A run draws its randomness in blocks. With thousands of copies in one run a block has few steps, so that short runs of
many samples draw little that they do not use.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow._validate import Number
from undertow.covariance import Factored, ScaledIdentity
from undertow.dynamics.diffuse import AbstractEulerStep
from undertow.noise.base import AbstractNoise, second_moment
from undertow.optimisers.base import Rates
from undertow.problem import Problem

__all__ = ["Coordinate", "Copies", "CoupledDiffusion", "wave"]


def _loss(w: Float[Array, ""], sample: Float[Array, ""]) -> Float[Array, ""]:
    return w**2 / 2 + jnp.cos(w) + 0 * sample


def wave() -> Problem:
    """Return the loss w^2/2 + cos w of one parameter, whose derivatives are bounded from the second on."""
    return Problem(_loss, jnp.zeros(1))


class Coordinate(AbstractNoise):
    """grad L(w) + level (1 + sin(w)/2) N(0, 1) for one parameter w.

    >>> import jax.numpy as jnp
    >>> from undertow.papers.optimisers.models.copies import Coordinate, wave
    >>> print(Coordinate(wave(), 2.0).covariance(jnp.array(0.0)).trace())
    4.0
    """

    problem: Problem
    level: Float[Array, ""]

    def __init__(self, problem: Problem, level: Number):
        self.problem = problem
        self.level = jnp.asarray(level, jnp.result_type(float))

    def deviation(self, params: Float[Array, ""]) -> Float[Array, ""]:
        """Return the standard deviation of one draw."""
        return self.level * (1 + jnp.sin(params) / 2)

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> Float[Array, " count"]:
        return jax.random.normal(key, (count,), jnp.result_type(float))

    def gradient(self, params: Float[Array, ""], slice: Float[Array, ""]) -> Float[Array, ""]:
        return self.problem.gradient(params) + self.deviation(params) * slice

    def covariance(self, params: Float[Array, ""]) -> ScaledIdentity:
        return ScaledIdentity(self.deviation(params) ** 2, params)


class Copies(AbstractNoise):
    """Independent copies of a noise of one parameter. The normal of a step is a sum of `parts` normals over its root.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.papers.optimisers.models.copies import Copies, Coordinate, wave
    >>> noise = Copies(Coordinate(wave(), 1.0), parts=4)
    >>> print(noise.randomness(jax.random.key(0), 10, jnp.zeros(3)).shape)
    (10, 4, 3)
    """

    problem: Problem
    noise: Coordinate
    parts: int = eqx.field(static=True)

    def __init__(self, noise: Coordinate, parts: int = 1):
        self.problem = noise.problem
        self.noise = noise
        self.parts = parts

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> Float[Array, "count parts copies"]:
        return jax.random.normal(key, (count, self.parts, *like.shape), like.dtype)

    def gradient(self, params: Float[Array, " copies"], slice: Float[Array, "parts copies"]) -> Float[Array, " copies"]:
        return jax.vmap(self.noise.gradient)(params, slice.sum(axis=0) / self.parts**0.5)

    def covariance(self, params: Float[Array, " copies"]) -> Factored:
        return Factored(jnp.diag(jax.vmap(self.noise.deviation)(params)))

    def mean(self, params: Float[Array, " copies"]) -> Float[Array, " copies"]:
        return jax.vmap(self.noise.mean)(params)

    def check(self, params: Float[Array, " copies"]) -> None:
        self.problem.check(params[0])

    def second_moment(self, params: Float[Array, " copies"]) -> Float[Array, " copies"]:
        """Return E g^2 of every copy."""
        return jax.vmap(lambda w: second_moment(self.noise, w))(params)


class CoupledDiffusion(AbstractEulerStep):
    """The diffusion in (w, v) of Adam, driven by the normals of its steps: one Euler-Maruyama step for each part.

    Run with the same `Copies` and the same key, the optimiser and its diffusion stay near each other, so that the
    difference of their expectations has a small standard error. `noise` is that of one copy, a `Coordinate`.
    """

    def init(self, params: PyTree) -> PyTree:
        return {"v": self.optimiser.init(params)["v"]}

    def step(
        self, params: Array, state: PyTree, noise: AbstractNoise, slice: Float[Array, "parts copies"], rates: Rates
    ) -> tuple[Array, PyTree]:
        """Return params and the state after the time of one step of the optimiser."""
        one = self.noise
        assert isinstance(one, Coordinate), "the noise of one copy is a `Coordinate`"
        dt, inflation = rates / self.substeps, self.substeps**0.5

        def substep(moving: tuple[Array, PyTree], normal: Array) -> tuple[tuple[Array, PyTree], None]:
            w, state = moving
            gradient = one.mean(w) + inflation * one.deviation(w) * normal
            return self.update(w, state, gradient, (dt, jnp.ones(()))), None

        def path(w: Array, state: PyTree, normals: Array) -> tuple[Array, PyTree]:
            return jax.lax.scan(substep, (w, state), normals)[0]

        return jax.vmap(path, in_axes=(0, 0, 1))(params, state, slice)
