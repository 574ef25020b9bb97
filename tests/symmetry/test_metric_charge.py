"""The exact change of a charge in one step of Adam, AdamW and RMSProp, and the generators that a metric breaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry.metric_charge import charge_change, metric_charge, sides, square_sum

ETA = 0.05
UNITS = ut.Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True)
OPTIMISERS = [
    ut.RMSProp(b2=0.9, eps=1e-3),
    ut.Adam(b2=0.9),
    ut.Adam(b2=0.9, bias_correction=False),
    ut.AdamW(b2=0.9, weight_decay=0.3),
    ut.AdamW(b2=0.9, weight_decay=0.3, bias_correction=False),
]


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


def walk(optimiser, count=4):
    """Return the params, states and gradients of some steps on a linear network."""
    x, y = double(nets.data(samples=count, inputs=4, outputs=5))
    params = double(nets.weights(U=(5, 3), W=(3, 4)))
    points, gradients = [(params, optimiser.init(params))], []
    for index in range(count):
        gradients.append(jax.grad(nets.linear_net)(points[-1][0], (x[index], y[index])))
        rates = optimiser.rates(jnp.asarray(index), jnp.asarray(ETA))
        points.append(optimiser.update(*points[-1], gradients[-1], rates))
    return points, gradients


def flat(symmetry, params):
    """Return the diagonals of the generators, as columns."""
    basis = jnp.eye(params["U"].shape[1])
    return np.stack([np.asarray(ravel(symmetry.logs(params, e))) for e in basis], axis=1)


def ravel(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: f"{type(o).__name__}-{o.bias_correction}")
def test_the_parts_of_a_step_are_those_of_the_identity(x64, optimiser):
    """The formulas are written out with flat arrays, m and v of the state, and the bias corrections."""
    points, gradients = walk(optimiser)
    generators = flat(UNITS, points[0][0])
    b1 = 0.0 if optimiser.b1 is None else optimiser.b1
    inverse = []
    for index, (_, state) in enumerate(points):
        share = 1 - optimiser.b2**index if optimiser.bias_correction and index else 1.0
        inverse.append(np.sqrt(ravel(state["v"]) / share) + optimiser.eps)
    for index, gradient in enumerate(gradients):
        change = charge_change(UNITS, optimiser, points[index], points[index + 1], step=index, step_size=ETA)
        theta, after = ravel(points[index][0]), ravel(points[index + 1][0])
        m = ravel(points[index + 1][1].get("m", gradient))
        eta = ETA / (1 - b1 ** (index + 1)) if optimiser.bias_correction else ETA
        kept = 1 - ETA * optimiser.weight_decay
        total = lambda entries: generators.T @ entries
        now, was = inverse[index + 1], inverse[index]
        np.testing.assert_allclose(change.first_order, -eta * kept * total(theta * m), atol=1e-12)
        np.testing.assert_allclose(change.second_order, eta**2 / 2 * total(m**2 / now), atol=1e-12)
        np.testing.assert_allclose(change.decay, -(1 - kept**2) / 2 * total(theta**2 * now), atol=1e-12)
        np.testing.assert_allclose(change.metric, total(theta**2 * (now - was)) / 2, atol=1e-12)
        direct = (total(after**2 * now) - total(theta**2 * was)) / 2
        np.testing.assert_allclose(change.total, direct, atol=1e-12)
        if optimiser.b1 is None:  # the gradient at theta has no component along the orbit
            np.testing.assert_allclose(change.first_order, 0, atol=1e-12)
        assert np.abs(change.metric).max() > 1e-3


def test_the_plain_charge_of_a_rotation_changes_at_first_order(x64):
    points, _ = walk(OPTIMISERS[3])
    for index in range(3):
        change = charge_change(nets.FACTORS, OPTIMISERS[3], points[index], points[index + 1], step=index, step_size=ETA)
        direct = nets.FACTORS.charge(points[index + 1][0]) - nets.FACTORS.charge(points[index][0])
        np.testing.assert_allclose(change.total, direct, atol=1e-13)
        assert np.abs(change.first_order).max() > 1e-2
        np.testing.assert_allclose(change.decay, -0.02977500 * nets.FACTORS.charge(points[index][0]), rtol=1e-6)


def test_a_diagonal_given_as_numbers_is_the_family(x64):
    params = double(nets.weights(U=(5, 1), W=(1, 4)))
    diagonal = ut.Exponential({"U": jnp.ones((5, 1)), "W": -jnp.ones((1, 4))})
    family = ut.Rescaling(lambda p: p["U"], lambda p: p["W"])
    metric = double({"U": jnp.linspace(1, 2, 5).reshape(5, 1), "W": jnp.linspace(2, 3, 4).reshape(1, 4)})
    np.testing.assert_allclose(metric_charge(diagonal, params, metric), metric_charge(family, params, metric))
    np.testing.assert_allclose(sides(diagonal, metric), sides(family, metric))
    np.testing.assert_allclose(square_sum(diagonal, metric), square_sum(family, metric))
    scaled = ut.Exponential(jax.tree.map(lambda a: 2 * a, diagonal.generator))
    np.testing.assert_allclose(square_sum(scaled, metric), 4 * square_sum(family, metric))


def test_a_metric_that_does_not_depend_on_the_inner_index_keeps_all_charges(x64):
    """U'P^-1 U - W R^-1 W' is constant to first order along the flow in the metric; with another metric it is not."""
    x, y = double(nets.data(samples=1, inputs=4, outputs=5))
    params = double(nets.weights(U=(5, 3), W=(3, 4)))
    gradient = jax.grad(nets.linear_net)(params, (x[0], y[0]))
    rows, columns, inner = jnp.linspace(1, 2, 5)[:, None], jnp.linspace(1, 3, 4)[None], jnp.linspace(1, 2, 3)
    charge = lambda p: p["U"].T @ (p["U"] / rows) - (p["W"] / columns) @ p["W"].T
    step = {"U": -rows * gradient["U"], "W": -columns * gradient["W"]}
    np.testing.assert_allclose(jax.jvp(charge, (params,), (step,))[1], 0, atol=1e-12)
    other = {"U": step["U"] * inner[None], "W": step["W"]}
    assert np.abs(jax.jvp(charge, (params,), (other,))[1]).max() > 0.1


def test_mistakes_are_named(x64):
    points, _ = walk(ut.Adam())
    with pytest.raises(ValueError, match="conserves no quadratic charge"):
        metric_charge(nets.FACTORS, points[0][0], points[0][0])
    with pytest.raises(TypeError, match="use the method `change`"):
        charge_change(UNITS, ut.SGD(), points[0], points[1], step=0, step_size=ETA)
    for function in (sides, square_sum):
        with pytest.raises(TypeError, match="not diagonal"):
            function(nets.FACTORS, points[0][0])
