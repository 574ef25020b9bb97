"""The flows that go to sparse ends, against `Limit.solve` and against linear programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from undertow import _trees as trees
from undertow.manifold.limit import Limit
from undertow.noise.label import LabelNoise
from undertow.optimisers.adaptive import Adam
from undertow.papers.optimisers.models.networks import HessianTrace
from undertow.papers.optimisers.models.sparse_flow import EPS, VARIANCE, draw_data, sparse_flow
from undertow.papers.zero_loss.models.linear import LinearModel, predict, weights
from undertow.problem import Regression


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_the_flow_is_that_of_limit_before_the_hessian_loses_rank(name, x64):
    data = draw_data(jax.random.key(1), 1, d=8, n=4, sparsity=8)
    model = LinearModel(Regression(predict, data.inputs[0], data.targets[0]), data.truths[0])
    limit, settings = Limit(LabelNoise(model.problem, VARIANCE**0.5)), {}
    if name == "Adam":
        optimiser = Adam(b1=0.0, b2=0.999, eps=EPS, bias_correction=False)
        limit = Limit(limit.noise, optimiser=optimiser)
        settings = {"step_size": 1e-3, "quasi_static": True, "corrections": False}
    start = model.settle(model.start(1.0))
    exact = trees.ravel(limit.solve(start, slow_time=0.4, num_saves=1, **settings).params)
    errors = []
    for steps in (100, 200):
        end = trees.ravel(jax.tree.map(lambda x: x[0], sparse_flow(name, data, 0.4, steps).params))
        errors.append(float(jnp.linalg.norm(end - exact) / jnp.linalg.norm(exact - trees.ravel(start))))
    assert errors[1] < 0.01
    if name == "Adam":  # first order in the length of the steps, during which the metric is frozen
        assert 1.7 < errors[0] / errors[1] < 2.3
    else:
        assert errors[0] < 1e-4


def test_the_traces_are_those_of_the_hessian(x64):
    data = draw_data(jax.random.key(2), 2, d=8, n=4, sparsity=3)
    path = sparse_flow("Adam", data, 0.2, 5)
    for index in range(2):
        problem = Regression(predict, data.inputs[index], data.targets[index])
        end = jax.tree.map(lambda x, i=index: x[i], path.params)
        rows = jax.vmap(jax.grad(predict), (None, 0))(end, problem.inputs)
        diagonal = trees.ravel(jax.tree.map(lambda x: jnp.mean(x**2, axis=0), rows))
        np.testing.assert_allclose(path.trace[index, -1], HessianTrace(problem)(end), rtol=1e-12)
        np.testing.assert_allclose(path.root_trace[index, -1], jnp.sum(jnp.sqrt(diagonal)), rtol=1e-12)


def test_sgd_ends_at_the_least_weighted_l1_norm(x64):
    data = draw_data(jax.random.key(3), 6, d=20, n=8, sparsity=3)
    path = sparse_flow("SGD", data, 12.0, 60)
    for z, y, end in zip(data.inputs, data.targets, jax.vmap(weights)(path.params), strict=True):
        costs = np.mean(np.asarray(z) ** 2, axis=0)
        best = linprog(np.concatenate([costs, costs]), A_eq=np.hstack([z, -z]), b_eq=np.asarray(y)).fun
        np.testing.assert_allclose(costs @ np.abs(end), best, rtol=1e-3)
