"""The probe of Adam: its point of zero loss, its curvatures, and the settled ends of its runs."""

import jax
import jax.numpy as jnp
import numpy as np

from undertow._trees import ravel
from undertow.dynamics.settle import settle
from undertow.manifold.metric import rescale_problem
from undertow.noise.base import second_moment
from undertow.papers.optimisers.models.adam_probe import draw_probe, run_adam


def test_the_noise_is_twice_the_hessian_at_zero_loss(x64):
    probe = draw_probe(jax.random.key(0))
    flat, unravel = jax.flatten_util.ravel_pytree(probe.start)
    hessian = jax.hessian(lambda x: probe.model.problem.loss(unravel(x)))(flat)
    covariance = probe.noise.covariance(probe.start)
    columns = jax.vmap(lambda e: ravel(covariance.mv(unravel(e))))(jnp.eye(flat.size))
    np.testing.assert_allclose(columns, 2 * hessian, atol=1e-10)
    np.testing.assert_allclose(probe.trace(probe.start), np.sum(np.sqrt(np.diag(hessian))), rtol=1e-10)
    root = ravel(second_moment(probe.noise, probe.start)) ** -0.25
    curvatures = np.linalg.eigvalsh(root[:, None] * hessian * root[None])
    np.testing.assert_allclose(probe.least_curvature(probe.start), curvatures[-10], rtol=1e-8)


def test_settling_in_a_metric_follows_the_flow_in_that_metric(x64):
    probe = draw_probe(jax.random.key(0))
    k = jax.random.split(jax.random.key(1), 4)
    moved = tuple(p + 0.1 * jax.random.normal(key, p.shape) for p, key in zip(probe.start, k[:2], strict=True))
    metric = tuple(jax.random.uniform(key, (20,), minval=0.3, maxval=1.0) for key in k[2:])
    end = ravel(probe.model.settle(moved, metric=metric))
    root = jax.tree.map(jnp.sqrt, metric)
    flow = settle(rescale_problem(probe.model.problem, root), jax.tree.map(jnp.divide, moved, root)).params
    np.testing.assert_allclose(end, ravel(root) * ravel(flow), atol=1e-5)


def test_runs_end_on_the_manifold_and_move_little_in_a_short_time(x64):
    probe = draw_probe(jax.random.key(0))
    ends = run_adam(probe, 0.9, 0.999, 1e-3, 1e-4, 4, jax.random.key(0))
    unravel = jax.flatten_util.ravel_pytree(probe.start)[1]
    assert max(float(probe.model.problem.loss(unravel(point))) for point in ends.points) < 1e-12
    assert np.linalg.norm(ends.mean - np.asarray(ravel(probe.start))) < 0.02
