"""Every function with an argument `key` treats an integer like the key made from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import params, problem
from undertow.sensing.bursts import burst_probability
from undertow.sensing.growth import lyapunov, scalar_map
from undertow.sensing.isometry import rip
from undertow.sensing.laws import two_point
from undertow.symmetry.curvature import measure_curvature, trace_of_hessian

POPULATION = ut.Population(lambda w, x: jnp.sum((w - x) ** 2), draw=lambda key: jax.random.normal(key, (2,)))
POINT = jnp.ones(2)
CIRCLE = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
RUN = {"step_size": 0.05, "progress": False}

CALLS = {
    "descend": lambda key: ut.descend(ut.Minibatch(problem(), 2), params(), steps=5, key=key, **RUN).params,
    "diffuse": lambda key: ut.diffuse(ut.Minibatch(problem(), 2), params(), time=0.2, key=key, **RUN).params,
    "Limit.solve": lambda key: (
        ut.Limit(ut.Isotropic(CIRCLE)).solve(jnp.array([1.0, 0.0]), slow_time=0.1, num_saves=1, steps=4, key=key).params
    ),
    "draw of a noise": lambda key: ut.Minibatch(problem(), 2).draw(key, params()),
    "check_noise": lambda key: (
        ut.check_noise(ut.Minibatch(POPULATION.sample(0, 3), 2), POINT, key=key, draws=100).rows[-1].value
    ),
    "SampledNoise": lambda key: jax.random.key_data(
        ut.SampledNoise(problem(), lambda k, p: p, samples=3, key=key).keys
    ),
    "sample of a population": lambda key: POPULATION.sample(key, 3).data,
    "draw of a population": POPULATION.draw,
    "estimate_loss": lambda key: POPULATION.estimate_loss(POINT, key=key, samples=4).value,
    "covariance of a population": lambda key: ut.Minibatch(POPULATION, 1).covariance(POINT, key=key, samples=4).trace(),
    "gaussian": lambda key: ut.Minibatch(problem(), 2).covariance(params()).gaussian(key),
    "trace_estimate": lambda key: ut.Minibatch(problem(), 2).covariance(params()).trace_estimate(key, probes=2).value,
    "trace_of_hessian": lambda key: trace_of_hessian(problem(), params(), key, probes=2).value,
    "measure_curvature": lambda key: measure_curvature(problem(), params(), key).largest_step,
    "lyapunov": lambda key: lyapunov(lambda k, n: jax.random.normal(k, (n,)), 0.1, key=key, samples=4).value,
    "scalar_map": lambda key: scalar_map(two_point(1.0, 8.0), 0.05, steps=3, key=key, runs=4)[0],
    "draw of a law": lambda key: two_point(1.0, 8.0).draw(key, 3),
    "rip": lambda key: rip(jnp.ones((2, 3, 3)), rank=1, key=key, starts=2, sweeps=2),
    "MatrixSensing": lambda key: ut.MatrixSensing(4, m=20, law=two_point(1.0, 8.0), key=key).truth,
    "burst_probability": lambda key: (
        burst_probability(ut.MatrixSensing(4, m=40, law=two_point(1.0, 8.0)), 0.05, steps=3, runs=2, key=key).value
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_integer_gives_the_same_result_as_its_key(name):
    by_number, by_key = CALLS[name](3), CALLS[name](jax.random.key(3))
    for a, b in zip(jax.tree.leaves(by_number), jax.tree.leaves(by_key), strict=True):
        np.testing.assert_array_equal(a, b)
