"""The interface of a symmetry, tested for every kind: orbits, charges, and the check of a loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry.generators import Violation
from undertow.symmetry.generators.base import _subset

KINDS = {
    "neurons": (nets.relu_net, nets.relu_params(), nets.RELU_LAYERS[0]),
    "one neuron": (
        nets.relu_net, nets.relu_params(),
        ut.Rescaling(lambda p: p["w3"][:, 1], lambda p: (p["w2"][1], p["b2"][1])),
    ),
    "scaling": (nets.normalised, nets.weights(u=(2, 3), w=(3, 2)), nets.SCALE),
    "rotation": (nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)), nets.FACTORS),
    "rotation, transposed": (
        lambda p, s: nets.square(p["U"].T @ (p["W"].T @ s[0]), s[1]), nets.weights(U=(3, 2), W=(2, 3)),
        ut.DoubleRotation(lambda p: p["U"].T, lambda p: p["W"].T),
    ),
    "diagonal generator": (
        nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)),
        ut.Exponential({"U": jnp.ones((2, 3)), "W": -jnp.ones((3, 2))}),
    ),
    "generator as a function": (
        nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)),
        ut.Exponential(lambda v: {"U": v["U"] @ nets_b(), "W": -nets_b() @ v["W"]}),
    ),
}  # fmt: skip


def nets_b():
    return jnp.array([[1.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 2.0]])


@pytest.fixture(params=KINDS, ids=list(KINDS))
def kind(request, x64):
    loss, params, symmetry = KINDS[request.param]
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
    problem = ut.Problem(loss, jax.tree.map(lambda x: x.astype(jnp.float64), nets.data()))
    return problem, params, symmetry


def test_the_check_of_a_true_symmetry_passes(kind):
    problem, params, symmetry = kind
    check = symmetry.check(problem, params, jax.random.key(0))
    assert check.holds
    assert max(check.loss, check.gradient) < 1e-12
    assert "holds" in str(check)


def test_moves_along_the_orbit_compose_and_increase_the_charge(kind):
    _, params, symmetry = kind
    moved = symmetry.orbit(params, 0.4)
    back = symmetry.orbit(moved, -0.4)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    total = lambda p: np.trace(symmetry.charge(p)) if symmetry.charge(p).ndim == 2 else np.sum(symmetry.charge(p))
    assert total(symmetry.orbit(params, -0.1)) < total(params) < total(symmetry.orbit(params, 0.1))


def test_the_charge_is_half_the_derivative_of_the_norm_along_the_orbit(kind):
    """d/d amount |exp(amount A) params|^2 = 2 params'A params = 4 C, summed over a family."""
    _, params, symmetry = kind
    norm = lambda a: sum(jnp.sum(x**2) for x in jax.tree.leaves(symmetry.orbit(params, a)))
    slope = (norm(1e-5) - norm(-1e-5)) / 2e-5
    charge = symmetry.charge(params)
    total = jnp.trace(charge) if charge.ndim == 2 else jnp.sum(charge)
    np.testing.assert_allclose(slope, 4 * total, rtol=1e-7)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_change_of_the_charge_in_one_step_equals_the_identity(kind, decay):
    problem, params, symmetry = kind
    eta = 0.05
    gradient = ut.Minibatch(problem, 3).draw(jax.random.key(1), params)
    after = jax.tree.map(lambda p, g: (1 - eta * decay) * p - eta * g, params, gradient)
    predicted = symmetry.change(params, gradient, step_size=eta, weight_decay=decay)
    np.testing.assert_allclose(symmetry.charge(after) - symmetry.charge(params), predicted, atol=1e-12)


def test_a_broken_symmetry_is_measured():
    params = nets.weights(o=(2, 3), i=(3, 2))
    problem = ut.Problem(lambda p, s: nets.square(p["o"] @ jnp.tanh(p["i"] @ s[0]), s[1]), nets.data())
    check = ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True).check(problem, params, jax.random.key(0))
    assert not check.holds
    assert min(check.loss, check.gradient) > 1e-2
    assert "broken" in str(check)


def test_half_precision_is_checked_in_single():
    """A broken symmetry does not hide in the rounding of bfloat16, and a true one is not lost in it."""
    cast = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
    params, neurons = (
        cast(nets.weights(o=(2, 3), i=(3, 2))),
        ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True),
    )
    nearly = lambda h: jax.nn.relu(h) + 0.02 * jnp.tanh(h)
    for act, holds in ((jax.nn.relu, True), (nearly, False)):
        loss = lambda p, s, act=act: nets.square(p["o"] @ act(p["i"] @ s[0]), s[1])
        check = neurons.check(ut.Problem(loss, cast(nets.data())), params, jax.random.key(0))
        assert check.holds == holds, check


def test_the_measure_of_a_check_for_a_determinant(x64):
    """A move maps det U to det U exp(tr A), so that the check returns the largest of three |tr A| over twice the loss.

    The diagonal of A has the standard deviation 0.3. The mean over keys is compared with draws in NumPy.
    """
    problem = ut.Problem(lambda p, s: s + jnp.linalg.slogdet(p["U"])[1], jnp.full(2, 100.0))
    params = {"U": 50 * jnp.eye(2), "W": jnp.eye(2)}
    before = 100 + 2 * np.log(50)
    changes = [2 * before * nets.FACTORS.check(problem, params, jax.random.key(k)).loss for k in range(60)]
    traces = 0.3 * np.random.default_rng(0).normal(size=(100_000, 3, 2)).sum(2)
    drawn = np.abs(traces).max(1)
    assert abs(np.mean(changes) - drawn.mean()) < 5 * drawn.std() / np.sqrt(60)


def test_a_symmetry_holds_where_both_violations_are_within_rounding():
    assert Violation(1e-9, 1e-9, 1e-8).holds
    assert Violation(1e-8, 1e-8, 1e-8).holds
    assert not Violation(2e-8, 0.0, 1e-8).holds
    assert not Violation(0.0, 2e-8, 1e-8).holds
    assert not Violation(np.nan, 0.0, 1e-8).holds
    broken = str(Violation(0.25, 0.5, 1e-8))
    assert broken == "the symmetry is broken: loss changes by 2.5e-01, gradient along it 5.0e-01"


def test_a_check_looks_at_no_more_samples_than_it_is_given():
    """The loss of one sample of sixty has no scale invariance; all sixty show it, one at a time seldom does."""
    data = jnp.arange(60.0)
    problem = ut.Problem(lambda w, x: jnp.where(x == 17, jnp.sum(w**2), w[0] / jnp.linalg.norm(w)), data)
    point, scale = jnp.array([1.0, 2.0]), ut.Scaling(lambda p: p)
    assert not scale.check(problem, point, 0, samples=60).holds
    broken = [not scale.check(problem, point, key, samples=1).holds for key in range(5)]
    assert not all(broken)


def test_a_check_looks_at_different_samples():
    problem = ut.Problem(lambda w, x: w * x, jnp.arange(60.0))
    chosen = _subset(problem, jax.random.key(0), 50)
    assert len(np.unique(chosen.data)) == 50


def test_a_change_of_the_loss_is_relative_to_the_loss_here_and_at_a_tenth_from_here():
    """|w|^2 = 1 grows by exp(2a) - 1 along the orbit; a tenth off in every entry it is 1.01."""
    size = 100_000
    problem = ut.Problem(lambda w, x: jnp.sum(w**2), jnp.zeros(1))
    point, key = jnp.full(size, size**-0.5), jax.random.key(3)
    amounts = 0.3 * jax.random.normal(jax.random.fold_in(key, 2), (3,))
    violation = ut.Scaling(lambda p: p).check(problem, point, key)
    np.testing.assert_allclose(violation.loss, np.abs(np.expm1(2 * np.asarray(amounts))).max() / 2.01, rtol=1e-3)


def test_a_population_is_sampled_for_its_check():
    law = ut.Population(lambda w, x: jnp.sum((w / jnp.linalg.norm(w) - x) ** 2), lambda k: jax.random.normal(k, (2,)))
    assert ut.Scaling(lambda p: p).check(law, jnp.array([1.0, 2.0]), 0).holds


@pytest.mark.parametrize("momentum", [0.9, jnp.asarray(0.9), -0.1])
def test_the_identity_of_one_step_has_no_momentum(momentum):
    point = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"`change\(momentum=.*without momentum; `noether_flow`"):
        nets.SCALE.change(point, point, step_size=0.1, momentum=momentum)
    assert nets.SCALE.change(point, point, step_size=0.1, momentum=0) == pytest.approx(0.01 / 2 * 2)


def test_a_symmetry_prints_its_kind_and_plots_its_charges():
    symmetry = ut.Scaling(lambda p: p["v"], label="norm of <v>")
    first, second = str(symmetry).splitlines()
    assert first == "Scaling: norm of <v>"
    assert ut.Scaling.__doc__.startswith(second)
    assert "norm of &lt;v&gt;" in symmetry._repr_html_()
    assert str(ut.Scaling(lambda p: p["v"])).splitlines()[0] == "Scaling"
    axes = symmetry.plot({"v": jnp.array([3.0, 4.0])})
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[12.5]]
    assert axes.get_ylabel() == "charge"
