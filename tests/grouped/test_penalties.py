"""IRM, V-REx and GroupDRO: formulas by hand, gradients by finite differences, and minimisers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import GROUPS, WEIGHTS, params, problem, regression
from undertow import _trees as trees
from undertow.grouped.penalties import IRM, GroupDRO, VREx, irm_penalty, smooth_max, vrex_penalty, worst_case_weights

SHARES = np.array([0.5, 0.2, 0.3])
RISKS = np.array([1.0, 4.0, 2.0])


def test_formulas_by_hand():
    mean = 0.5 * 1 + 0.2 * 4 + 0.3 * 2
    np.testing.assert_allclose(vrex_penalty(RISKS, SHARES), 0.5 * 1 + 0.2 * 16 + 0.3 * 4 - mean**2)
    np.testing.assert_allclose(irm_penalty(RISKS, SHARES), 0.5 * 1 + 0.2 * 16 + 0.3 * 4)
    exponentials = SHARES * np.exp(0.7 * RISKS)
    np.testing.assert_allclose(worst_case_weights(RISKS, SHARES, 0.7), exponentials / exponentials.sum())
    exact = np.log(exponentials.sum()) / 0.7
    np.testing.assert_allclose(smooth_max(jnp.asarray(RISKS), jnp.asarray(SHARES), 0.7), exact, rtol=1e-6)


def test_properties_of_the_smooth_maximum(x64):
    """Its gradient is the exponentiated weights; it lies between mean and maximum, within log(1/w)/sharpness of it."""
    risks, weights = jnp.asarray(RISKS), jnp.asarray(SHARES)
    for sharpness in (0.01, 1.0, 30.0, 1e4):
        value = smooth_max(risks, weights, sharpness)
        np.testing.assert_allclose(
            jax.grad(smooth_max)(risks, weights, sharpness), worst_case_weights(risks, weights, sharpness), atol=1e-12
        )
        assert RISKS @ SHARES <= value <= 4.0
        assert value >= 4.0 - np.log(1 / 0.2) / sharpness - 1e-9


def build(kind, weights=None):
    """Each loss on the two-layer net, in double precision."""
    net = regression(dtype=jnp.float64)
    of = lambda p: ut.Environments(p, GROUPS, weights)

    def scaled(p, sample, scale):
        x, y = sample
        return jnp.sqrt(1 + (scale * net.predict(p, x) - y) ** 2)

    return {
        "V-REx": lambda: VREx(of(problem(jnp.float64)), 2.0),
        "IRM": lambda: IRM(of(net), 2.0),
        "IRM, scaled": lambda: IRM(of(problem(jnp.float64)), 2.0, scaled),
        "GroupDRO": lambda: GroupDRO(of(problem(jnp.float64)), 5.0),
    }[kind]()


KINDS = ("V-REx", "IRM", "IRM, scaled", "GroupDRO")


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_finite_differences(kind, x64):
    loss = build(kind, WEIGHTS)
    point = params(dtype=jnp.float64)
    flat, back = jax.flatten_util.ravel_pytree(point)
    gradient = trees.ravel(loss.gradient(point))
    at = jax.jit(lambda v: loss.loss(back(v)))
    for direction in np.random.default_rng(0).normal(size=(3, flat.size)):
        h = 1e-5 * direction
        np.testing.assert_allclose((at(flat + h) - at(flat - h)) / 2e-5, gradient @ direction, rtol=1e-6, atol=1e-8)


def test_values_from_the_samples(x64):
    """Risks and slopes against loops over the samples of each environment."""
    net, point = regression(dtype=jnp.float64), params(dtype=jnp.float64)
    f, y = np.asarray(net.predictions(point)), np.asarray(net.targets)
    inside = [np.asarray(GROUPS) == e for e in range(3)]
    risks = np.array([np.mean((f - y)[i] ** 2) / 2 for i in inside])
    step = 1e-6
    risk_of = lambda s, i: np.mean((s * f - y)[i] ** 2) / 2
    slopes = np.array([(risk_of(1 + step, i) - risk_of(1 - step, i)) / (2 * step) for i in inside])
    weights = np.asarray(WEIGHTS, float)
    environments = ut.Environments(net, GROUPS, WEIGHTS)
    irm = IRM(environments, 2.0)
    np.testing.assert_allclose(irm.risks(point), risks)
    np.testing.assert_allclose(irm.slopes(point), slopes, rtol=1e-7)
    np.testing.assert_allclose(irm.loss(point), weights @ risks + 2 * weights @ slopes**2, rtol=1e-7)
    np.testing.assert_allclose(VREx(environments, 0.0).loss(point), environments.problem.loss(point), rtol=1e-7)


def test_a_scaled_loss_gives_the_slopes_of_a_regression(x64):
    net, point = regression(dtype=jnp.float64), params(dtype=jnp.float64)

    def scaled(p, sample, scale):
        x, y = sample
        return (scale * net.predict(p, x) - y) ** 2 / 2

    by_hand = IRM(ut.Environments(net, GROUPS), 1.0, scaled)
    np.testing.assert_allclose(by_hand.slopes(point), IRM(ut.Environments(net, GROUPS), 1.0).slopes(point))


def test_descend_and_settle_minimise_penalised_losses(x64):
    """Two groups with means 0 and 4 and 3 to 1 rows: the penalties move the minimiser from 1 towards 2."""
    data = jnp.array([0.0, 0.0, 0.0, 4.0])
    environments = ut.Environments(ut.Problem(lambda w, x: (w - x) ** 2 / 2, data), jnp.array([0, 0, 0, 1]))
    robust = GroupDRO(environments, 10.0)
    assert robust.gradient(jnp.array(1.8)) < 0 < robust.gradient(jnp.array(2.0))
    equal = VREx(environments, 5.0)
    settled = ut.settle(equal, jnp.array(0.5)).params
    # the risks are w^2/2 and (w - 4)^2/2, their difference 4(w - 2), so L = (w - 1)^2/2 + 3/2 + 15 (w - 2)^2
    np.testing.assert_allclose(settled, (1 + 60) / 31, atol=1e-6)
    run = ut.descend(ut.Isotropic(equal, 0.01), jnp.array(0.5), step_size=0.01, steps=500, key=0)
    np.testing.assert_allclose(run.params, settled, atol=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VREx(problem(), 1.0), r"give `Environments\(problem, groups\)`"),
        (lambda: IRM(ut.Environments(problem(), GROUPS), 1.0), r"give `scaled\(params, sample, scale\)`"),
        (lambda: VREx(ut.Environments(problem(), GROUPS), -1.0), "`penalty` must be"),
        (lambda: GroupDRO(ut.Environments(problem(), GROUPS), 0.0), "`sharpness` must be"),
    ],
)
def test_invalid_input_raises(call, message, as_a_user):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
