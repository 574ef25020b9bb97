"""The quadratic net: moments of its measurements, its updates against plain NumPy, and its exact covariance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.sensing.laws import Table, Uniform, two_point
from undertow.sensing.quadratic_net import Printed, QuadraticNet, Shrunk, Unbiased

TABLE = Table([[-1.0, 0.5], [2.0, 1.0], [0.5, -2.0]], [0.2, 0.5, 0.3])


def small(pooled=False, rule=None, law=TABLE, **settings):
    return QuadraticNet(4, 6, law, pooled=pooled, rule=rule, key=jax.random.key(2), dtype=jnp.float64, **settings)


def point():
    return jax.random.normal(jax.random.key(13), (4, 3), jnp.float64) / 2


def test_the_fourth_moment_behind_the_update_rules(x64):
    """E[<xx', D> xx'] = 2 D + tr(D) I, each entry within five standard errors."""
    half = np.random.default_rng(0).normal(size=(3, 3))
    d = half + half.T
    x = np.random.default_rng(1).normal(size=(400_000, 3))
    products = np.einsum("n,ni,nj->nij", np.einsum("ni,ij,nj->n", x, d, x), x, x)
    error = products.std(0) / np.sqrt(len(x))
    z = (products.mean(0) - 2 * d - np.trace(d) * np.eye(3)) / error
    assert np.abs(z).max() < 5
    assert np.abs((products.mean(0) - 2 * d) / error).max() > 5  # the test detects a formula without the trace


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("radius", [None, 2.0])
def test_updates_equal_those_in_numpy(pooled, radius, x64):
    eta, u = 0.1, np.asarray(point())
    base = small(pooled, radius=radius)
    x, sizes = jax.tree.map(lambda leaf: np.asarray(leaf[0]), base.randomness(jax.random.key(5), 1))
    truth, v, signal = (np.asarray(a) for a in (base.sensing.truth, base.problem.directions, base.problem.signal))
    each = np.broadcast_to(sizes, (6, 2))
    g, ys = np.zeros((4, 4)), []
    for i in range(6):
        target = signal + v @ np.diag(each[i]) @ v.T
        y, fitted = x[i] @ target @ x[i], ((u.T @ x[i]) ** 2).sum()
        keep = radius is None or fitted <= radius
        g += keep * (fitted - y) * np.outer(x[i], x[i]) / 6
        ys.append(y)
    np.testing.assert_allclose(truth.T @ truth, np.eye(1), atol=1e-12)
    excess = (u**2).sum() - np.mean(ys)
    norm = np.linalg.norm(signal + v @ np.diag(each.mean(0)) @ v.T, ord=2)
    after = {
        Unbiased(): u - eta / 2 * (g - excess * np.eye(4)) @ u,
        Shrunk(eta): (u - eta / 2 * g @ u) / (1 - eta / 2 * excess),
        Printed(eta): (u - 4 * eta * g @ u) / (1 - eta * ((u**2).sum() - norm)),
    }
    for rule, want in after.items():
        direction = small(pooled, rule, radius=radius).gradient(jnp.asarray(u), (jnp.asarray(x), jnp.asarray(sizes)))
        np.testing.assert_allclose(u - eta * np.asarray(direction), want, rtol=1e-9, atol=1e-12)


def test_the_printed_gradient_is_the_gradient_of_the_modified_loss(x64):
    net, u = small(rule=Printed(0.1)), point()
    x, sizes = jax.tree.map(lambda leaf: leaf[0], net.randomness(jax.random.key(5), 1))
    targets = jnp.einsum("mi,ij,mj->m", x, net.problem.signal + net.problem.spurious(sizes[0]), x)
    loss = lambda u: jnp.mean((jnp.sum((x @ u) ** 2, axis=1) - targets) ** 2)
    np.testing.assert_allclose(4 * net.batch(u, x, sizes).g @ u, jax.grad(loss)(u), rtol=1e-9)


@pytest.mark.parametrize(
    ("pooled", "law"),
    [
        pytest.param(False, TABLE, id="one environment, table"),
        pytest.param(True, Uniform([-1.0, 0.0], [2.0, 1.5]), id="pooled, density"),
        pytest.param(False, Uniform([-1.0, 0.0], [2.0, 1.5]), id="one environment, density", marks=pytest.mark.slow),
        pytest.param(True, TABLE, id="pooled, table", marks=pytest.mark.slow),
    ],
)
def test_the_unbiased_rule_has_the_stated_mean_and_covariance(pooled, law, x64):
    net, u = small(pooled, law=law), point()
    keys = jax.random.split(jax.random.key(0), 30_000)
    draws = np.asarray(jax.jit(jax.vmap(lambda k: net.draw(k, u).ravel()))(keys))
    mean = np.asarray(net.mean(u)).ravel()
    assert np.abs((draws.mean(0) - mean) / (draws.std(0) / np.sqrt(len(draws)))).max() < 5
    sigma = net.covariance(u)
    factor = np.asarray(sigma.factor()).reshape(12, -1)
    for v in np.random.default_rng(3).normal(size=(6, 12)):
        variance = v @ np.asarray(sigma.mv(jnp.asarray(v.reshape(4, 3)))).ravel()
        np.testing.assert_allclose(((v @ factor) ** 2).sum(), variance, rtol=1e-9)
        squares = ((draws - mean) @ v) ** 2
        assert abs(squares.mean() - variance) < 5 * squares.std() / np.sqrt(len(draws))


@pytest.mark.parametrize("pooled", [False, True])
def test_the_covariance_equals_an_exact_quadrature(pooled, x64):
    """A step is a polynomial of degree 4 in x: five Gauss-Hermite points in each direction integrate its square."""
    d, m, law = 3, 6, Table([[-0.5], [1.0], [0.25]], [0.2, 0.5, 0.3])
    net = QuadraticNet(d, m, law, pooled=pooled, key=jax.random.key(2), dtype=jnp.float64)
    u = jax.random.normal(jax.random.key(13), (d, 2), jnp.float64)
    points, weights = np.polynomial.hermite_e.hermegauss(5)
    x = np.stack(np.meshgrid(*[points] * d), axis=-1).reshape(-1, d)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * d), axis=-1).reshape(-1, d), axis=1)
    weight = weight / weight.sum()
    gradients = jax.jit(jax.vmap(lambda x, s: net.gradient(u, (x[None], s[None])).ravel(), in_axes=(0, None)))
    draws = [np.asarray(gradients(jnp.asarray(x), s)) for s in law.values]
    shares = np.asarray(law.probabilities)
    means = [weight @ g for g in draws]
    mean = sum(p * g for p, g in zip(shares, means, strict=True))
    np.testing.assert_allclose(mean, np.asarray(net.mean(u)).ravel(), atol=1e-10)
    spread = lambda about: sum(
        p * (g - c).T @ (weight[:, None] * (g - c)) for p, g, c in zip(shares, draws, about, strict=True)
    )
    between = sum(p * np.outer(c - mean, c - mean) for p, c in zip(shares, means, strict=True))
    exact = spread([mean] * 3) / m if pooled else spread(means) / m + between
    sigma = net.covariance(u)
    covariance = jax.jit(jax.vmap(lambda e: sigma.mv(e.reshape(u.shape)).ravel()))(jnp.eye(u.size))
    np.testing.assert_allclose(covariance, exact, atol=1e-9)


@pytest.mark.slow
def test_sgd_filters_with_one_environment_per_step_and_not_with_pooled_batches():
    runs = {}
    for name, pooled, rule in (
        ("one", False, Shrunk(0.1)),
        ("pooled", True, Shrunk(0.1)),
        ("printed", False, Printed(0.1)),
    ):
        net = QuadraticNet(8, 4000, two_point(1.0, 5.0), pooled=pooled, rule=rule)
        run = ut.descend(
            net,
            net.start(1e-3),
            step_size=0.1,
            steps=100,
            key=1,
            seeds=16,
            observe={"measured": net.measure},
            progress=False,
        )
        runs[name] = run
    errors = {name: np.median(run.observed["measured"]["to_invariant"][:, -1]) for name, run in runs.items()}
    assert errors["one"] < 0.15
    assert errors["pooled"] > 0.7
    assert runs["printed"].diverged.mean() > 0.9


def test_invalid_input_raises():
    with pytest.raises(TypeError, match="Shrunk"):
        QuadraticNet(4, 6, two_point(1.0, 5.0), rule=0.1)
    with pytest.raises(ValueError, match="radius"):
        QuadraticNet(4, 6, two_point(1.0, 5.0), radius=-1.0)
    with pytest.raises(ValueError, match="step_size"):
        Shrunk(0.0)
    with pytest.raises(ValueError, match="step_size"):
        Printed(float("nan"))
    net = QuadraticNet(4, 6, two_point(1.0, 5.0), rule=Shrunk(0.1))
    with pytest.raises(ValueError, match="Unbiased"):
        net.covariance(net.start(0.1))
    with pytest.raises(ValueError, match="4 rows"):
        net.check(jnp.zeros((3, 3)))
