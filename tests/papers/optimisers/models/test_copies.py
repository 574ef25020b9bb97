"""Copies of one parameter: independent of each other, and their coupled diffusion that of `diffuse`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.dynamics.descend import descend
from undertow.dynamics.diffuse import diffuse
from undertow.optimisers import Adam
from undertow.papers.optimisers.models.copies import Coordinate, Copies, CoupledDiffusion, wave


def _adam():
    return Adam(b1=0.0, b2=0.95, eps=0.0, bias_correction=False)


def test_the_moments_of_a_draw(x64):
    noise = Copies(Coordinate(wave(), 2.0), parts=3)
    params = jnp.array([0.0, 1.0])
    slices = noise.randomness(jax.random.key(0), 40_000, params)
    draws = np.asarray(jax.vmap(noise.gradient, (None, 0))(params, slices))
    covariance = noise.covariance(params).factor() @ noise.covariance(params).factor().T
    assert draws.mean(axis=0) == pytest.approx(np.asarray(noise.mean(params)), abs=4 * 3 / 200)
    assert np.cov(draws.T) == pytest.approx(np.asarray(covariance), abs=0.3)
    assert noise.second_moment(params) == pytest.approx(np.diag(covariance) + np.asarray(noise.mean(params)) ** 2)


def test_one_part_of_the_coupled_diffusion_is_one_euler_step_with_the_gradient_of_the_optimiser(x64):
    """With one part the step is w - η g/√v with the v after the step, which moves towards E g²."""
    noise = Copies(Coordinate(wave(), 2.0), parts=1)
    params, v = jnp.array([0.3, 1.0]), jnp.array([3.0, 5.0])
    normals = noise.randomness(jax.random.key(0), 1, params)[0]
    moved, state = CoupledDiffusion(noise.noise, _adam(), noise.parts).step(
        params, {"v": v}, noise, normals, jnp.asarray(0.1)
    )
    after = 0.95 * v + 0.05 * noise.second_moment(params)
    assert state["v"] == pytest.approx(np.asarray(after))
    assert moved == pytest.approx(np.asarray(params - 0.1 * noise.gradient(params, normals) / jnp.sqrt(after)))


def test_the_coupled_diffusion_has_the_distribution_of_diffuse(x64):
    one, adam, start = Coordinate(wave(), 2.0), _adam(), 1.0
    copies = jnp.full(1000, start)
    noise = Copies(one, parts=4)
    coupled = descend(
        noise, copies, step_size=0.2, steps=40, key=0, seeds=4, optimiser=CoupledDiffusion(one, adam, 4),
        optimiser_state={"v": noise.second_moment(copies)}, progress=False,
    ).params.ravel()  # fmt: skip
    plain = diffuse(
        one, jnp.asarray(start), step_size=0.2, time=8.0, key=1, seeds=2000, optimiser=adam, substeps=4, progress=False,
        optimiser_state={"v": noise.second_moment(copies)[0]},
    ).params  # fmt: skip
    for moment in (np.asarray, np.square):
        a, b = moment(coupled), moment(plain)
        assert a.mean() == pytest.approx(b.mean(), abs=4 * np.hypot(a.std() / 4000**0.5, b.std() / 2000**0.5))
    assert coupled.std() > 0.3
