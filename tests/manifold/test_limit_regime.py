"""The regime of the limit: the gap of the Hessian, and its estimated error against SGD."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.dynamics.test_settle import canonical_toy
from undertow.papers.zero_loss.models import curves
from undertow.papers.zero_loss.models.linear import LinearModel


def network(key, inputs, width, samples):
    keys = jax.random.split(jax.random.key(key), 3)
    x = jax.random.normal(keys[0], (samples, inputs))
    task = ut.Regression(lambda p, z: p["o"] @ jnp.tanh(p["w"] @ z), x, jnp.sin(x[:, 0]))
    start = {"w": jax.random.normal(keys[1], (width, inputs)), "o": jax.random.normal(keys[2], (width,))}
    return ut.LabelNoise(task, 0.5), ut.settle(task, start, tolerance=1e-11).params


def linear(key, d, n):
    model = LinearModel.draw(jax.random.key(key), d=d, n=n, sparsity=2, dtype=jnp.float64)
    return ut.LabelNoise(model.problem, 1.0), model.settle(model.start(0.7))


def hyperbola():
    task = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0, 0.5]), jnp.array([1.0, 0.5]))
    return ut.LabelNoise(task, 0.7), jnp.array([2.0, 0.5])


def motor():
    return curves.motor(3), jnp.array([1.0, 0.0, 0.0, 0.0, 0.0])


MODELS = {  # the model, the slow time, and the step size: a tenth of 2/lambda_max
    "linear, 20 unknowns": (lambda: linear(0, 20, 10), 0.5),
    "linear, 40 unknowns": (lambda: linear(1, 40, 20), 0.3),
    "network of three inputs": (lambda: network(0, 3, 8, 5), 2.0),
    "network of six inputs": (lambda: network(1, 6, 10, 8), 2.0),
    "hyperbola": (hyperbola, 2.0),
    "motor": (motor, 4.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_estimated_error_against_sgd(name, x64):
    """Within a factor of 3 of the distance of SGD's mean to the limit, at a tenth of the largest stable step."""
    make, slow_time = MODELS[name]
    noise, start = make()
    point, unravel = jax.flatten_util.ravel_pytree(start)
    hessian = jax.hessian(lambda x: noise.problem.loss(unravel(x)))(point)
    step_size = 0.2 / float(jnp.linalg.eigvalsh(hessian)[-1])
    path = ut.Limit(noise).solve(start, slow_time=slow_time, step_size=step_size)
    seeds = 2000
    run = ut.descend(noise, start, step_size=step_size, steps=round(slow_time / step_size**2), seeds=seeds, key=1)
    ends = np.asarray(jax.vmap(lambda p: jax.flatten_util.ravel_pytree(p)[0])(run.params))
    end = np.asarray(jax.flatten_util.ravel_pytree(path.params)[0])
    way = np.linalg.norm(end - np.asarray(point))
    measured = np.linalg.norm(ends.mean(0) - end) / way
    error = np.sqrt((ends.var(0, ddof=1) / seeds).sum()) / way
    estimated = path.regime.estimated_error
    print(f"{name}: step {step_size:.3g}, measured {measured:.4f} +- {error:.4f}, estimated {estimated:.4f}")
    assert measured > 5 * error
    assert measured / 3 < estimated < measured * 3


def test_the_error_is_of_first_order_and_the_step_size_is_named(x64):
    noise, start = hyperbola()
    steps = (0.04, 0.02, 0.01, 0.005, 0.0025)  # at the smallest the error is 1e-3, near that of the solver
    errors = [ut.Limit(noise).solve(start, slow_time=2.0, step_size=eta).regime.estimated_error for eta in steps]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(orders, 1, atol=0.15)
    path = ut.Limit(noise).solve(start, slow_time=2.0, step_size=0.1)
    assert path.regime.estimated_error > 0.05
    assert f"{0.1 * 0.05 / path.regime.estimated_error:.2g}" in path.regime.notes[0]
    np.testing.assert_allclose(path.time, path.slow_time / 0.1)
    np.testing.assert_allclose(path.step, path.slow_time / 0.01)


def test_without_a_step_size_the_regime_has_the_gap(x64):
    noise, start = hyperbola()
    path = ut.Limit(noise).solve(start, slow_time=0.1)
    assert path.regime.estimated_error is None
    (gap,) = path.regime.parameters
    assert gap.name == "flat / across"
    assert gap.value < 1e-12
    assert "Give `step_size=`" in str(path)
    assert np.isnan(path.time).all()


def two_scales(small):
    """Curvatures 1 and `small` across the manifold, in the first two of three parameters."""
    predict = lambda p, k: jnp.stack([p[0], jnp.sqrt(small) * p[1] * (1 + p[2] ** 2)])[k]
    return ut.Regression(predict, jnp.arange(2), jnp.array([1.0, 0.0]))


@pytest.mark.parametrize(("resolution", "rank"), [(None, 2), (1e-9, 2), (1e-4, 1)])
def test_the_resolution_chooses_the_rank(resolution, rank, x64):
    noise = ut.LabelNoise(two_scales(1e-6), 1.0)
    path = ut.Limit(noise, resolution=resolution).solve(jnp.array([1.0, 0.0, 0.5]), slow_time=0.1)
    (gap,) = path.regime.parameters
    assert f"rank {rank}" in gap.meaning
    # with rank 1 the second curvature, (1e-6/2) (1 + 0.25)^2, counts as flat: half of it over the first, 1/2
    np.testing.assert_allclose(gap.value, 0 if rank == 2 else 1e-6 * 1.25**2, rtol=1e-6, atol=1e-20)


def test_a_direction_that_does_not_relax_in_the_time_is_flat(x64):
    """The curvature 1e-6 over a time of 10 moves nothing: it counts as flat, and the gap is printed."""
    noise = ut.LabelNoise(two_scales(1e-6), 1.0)
    path = ut.Limit(noise).solve(jnp.array([1.0, 0.0, 0.5]), slow_time=0.1, step_size=0.01)
    assert "rank 1" in path.regime.parameters[0].meaning


def test_no_gap_is_refused_and_the_averaged_flow_is_named(x64):
    noise = ut.LabelNoise(two_scales(0.3), 1.0)
    with pytest.raises(ValueError, match=r"not sharp.*across the manifold would be 0.5 \(rank 1\).*ut\.average"):
        ut.Limit(noise, resolution=0.4).drift(jnp.array([1.0, 0.0, 0.5]))


@pytest.mark.filterwarnings("ignore:`settle`. the problem is ill-conditioned")
@pytest.mark.parametrize(
    ("tolerance", "reason"), [(1e-7, "away from the manifold.*ill-conditioned"), (1e-9, "is not sharp")]
)
def test_the_canonical_toy_is_refused_for_its_conditioning(tolerance, reason, x64):
    """A tangent part of the noise is not the reason."""
    task, start = canonical_toy()
    point = ut.settle(task, start, tolerance=tolerance).params
    with pytest.raises(ValueError, match=rf"`Limit\.solve`.*{reason}.*ut\.average"):
        ut.Limit(ut.LabelNoise(task)).solve(point, slow_time=1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_a_step_size_that_is_not_positive_is_an_error(value, x64):
    noise, start = hyperbola()
    with pytest.raises(ValueError, match="step_size"):
        ut.Limit(noise).solve(start, slow_time=0.1, step_size=value)
