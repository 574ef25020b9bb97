"""The equilibrium of linked symmetries: the same point as in JAX, the least cost, and directions without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import undertow as ut
from tests.torch.families import FAMILIES, cost, displaced, known_census, slopes, task
from tests.torch.tasks import regression
from tests.torch.zoo import adapter, language, tokens
from undertow.torch import census, equilibrate
from undertow.torch._copies import trainable

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_rescalings_give_the_same_point_as_in_jax(decay):
    """One sample per batch is Minibatch(1). JAX uses the exact covariance of N samples, (N - 1)/N of this one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x = torch.randn(30, 4, dtype=torch.float64)
    y = torch.sin(x[:, :2])
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().sum()
    batches = [(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
    with jax.enable_x64(True):
        params = {name.replace(".", "_"): jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}

        def one(p, sample):
            hidden = jax.nn.relu(p["0_weight"] @ sample[0] + p["0_bias"])
            return jnp.sum((p["2_weight"] @ hidden + p["2_bias"] - sample[1]) ** 2)

        noise = ut.Minibatch(ut.Problem(one, (jnp.asarray(x.numpy()), jnp.asarray(y.numpy()))), 1)
        symmetry = ut.Rescaling(lambda p: p["2_weight"], lambda p: (p["0_weight"], p["0_bias"]), neurons=True)
        at_equilibrium = ut.equilibrium(noise, params, symmetry, step_size=0.1 * 30 / 29, weight_decay=decay).params
    equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1, weight_decay=decay)
    for name, parameter in net.named_parameters():
        expected = np.asarray(at_equilibrium[name.replace(".", "_")])
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-4, atol=1e-8)


def test_gl_gives_the_same_point_as_in_jax():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 4, bias=False)).double()
    x = torch.randn(40, 5, dtype=torch.float64)
    y = torch.randn(40, 4, dtype=torch.float64)
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().sum()
    batches = [(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
    with jax.enable_x64(True):
        params = {"W": jnp.asarray(net[0].weight.detach().numpy()), "U": jnp.asarray(net[1].weight.detach().numpy())}
        task = ut.Problem(
            lambda p, s: jnp.sum((p["U"] @ (p["W"] @ s[0]) - s[1]) ** 2),
            (jnp.asarray(x.numpy()), jnp.asarray(y.numpy())),
        )
        symmetry = ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"])
        at_equilibrium = ut.equilibrium(ut.Minibatch(task, 1), params, symmetry, step_size=0.1).params
        at_equilibrium = {name: np.asarray(value) for name, value in at_equilibrium.items()}
    symmetries = census(net, batches[0], loss)
    assert [r.block for r in symmetries] == [3]
    equilibrate(net, batches, loss, symmetries, step_size=0.1)
    u, w = (layer.weight.detach().numpy() for layer in (net[1], net[0]))
    np.testing.assert_allclose(u @ u.T, at_equilibrium["U"] @ at_equilibrium["U"].T, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(w.T @ w, at_equilibrium["W"].T @ at_equilibrium["W"], rtol=1e-4, atol=1e-7)


def test_a_fresh_adapter_has_no_finite_equilibrium():
    torch.manual_seed(0)
    model, batches = adapter(), [tokens(2, 9) for _ in range(4)]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    done = equilibrate(model, batches, language, census(model, batches[0], language), step_size=0.1)
    assert [m.infinite for m in done.moved] == [3, 3, 3, 3]
    assert done.infinite == 12
    assert "12 directions have no finite equilibrium" in str(done)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_a_scale_has_an_equilibrium_with_weight_decay_only():
    """|v|^2 of weight norm only grows under noise; with decay exp(4 amount) = s/(k |v|^2), k = 2 lambda/eta."""
    torch.manual_seed(0)
    net = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 2))
    batches = [(x := torch.randn(8, 5), x[:, :2].sin()) for _ in range(16)]
    symmetries = census(net, batches[0], regression)
    assert [r.kind for r in symmetries] == ["weight norm"]
    assert equilibrate(net, batches, regression, symmetries, step_size=0.1).infinite == 6
    done = equilibrate(net, batches, regression, symmetries, step_size=0.1, weight_decay=0.01)
    assert done.infinite == 0
    v = net[0].parametrizations.weight.original1
    rows = torch.stack([torch.autograd.grad(regression(net, b), v)[0] for b in batches]).double()
    power = rows.var(dim=0).sum(1)
    torch.testing.assert_close(power, 2 * 0.01 / 0.1 * v.double().square().sum(1), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_with_one_sided_noise_are_not_moved(dtype):
    """Residuals of a cross-entropy sum to zero: two of the three directions that reach the classes have noise."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 3)).to(dtype)
    batches = [(torch.randn(16, 10, dtype=dtype), torch.randint(0, 3, (16,))) for _ in range(16)]
    loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
    done = equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1)
    (moved,) = done.moved
    assert (moved.infinite, moved.dead) == (3, 0)
    assert 1.2 < moved.factor < 10
    assert moved.imbalance[0] > 1
    assert moved.imbalance[1] < 1e-3
    assert done.change < 1e-5
    assert done.noise[1].value < 0.95 * done.noise[0].value
    assert "3 directions have no finite equilibrium" in str(done)


SMALL = ("relu^2", "LeNet", "U-Net block", "groups", "cross-attention", "RoPE", "RNN")
"""Families whose census takes less than a second."""
STEP = 0.1


def by_cost(names):
    """Return the families of fast tests, and the others as slow ones."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


def assert_minimum(network, symmetries, reached, **options):
    """The cost has no slope along any generator of the symmetries, and is that of the result."""
    value, gradient = slopes(network, symmetries, **options)
    assert reached.cost[1].value == pytest.approx(value, rel=1e-6)  # some models compute a part in single precision
    worst = max(float(slope.abs().max()) for slope in gradient)
    print(f"largest slope {worst / value:.1e} of the cost, imbalance {reached.imbalance:.1e}, {reached.sweeps} sweeps")
    assert worst <= 1e-6 * value


@pytest.mark.parametrize("name", by_cost(SMALL))
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_cost_is_least_on_the_orbit(name, optimiser, decay):
    """Its derivative along every generator is that of the definition, on gradients at moved weights."""
    options = {"step_size": STEP, "weight_decay": decay, "optimiser": optimiser}
    network = task(name)
    done = equilibrate(*network, known_census(name), **options)
    assert done.change < 1e-6
    assert done.cost[1].value < done.cost[0].value
    assert done.imbalance < 1e-6
    assert max(m.imbalance[0] for m in done.moved) > 0.1
    assert_minimum(network, [m.symmetry for m in done.moved], done, **options)


@pytest.mark.parametrize("name", ["relu^2", "groups"])
def test_slopes_are_differences_of_the_cost(name):
    """The derivatives of the test above, away from the minimum."""
    options = {"step_size": STEP, "weight_decay": 0.05, "optimiser": "sgd"}
    model, batches, loss = network = task(name)
    symmetries = known_census(name).symmetries
    _, gradient = slopes(network, symmetries, **options)
    values = {key: p.detach() for key, p in trainable(model).items()}
    zero = [torch.zeros_like(slope) for slope in gradient]

    def at(place, generator, amount):
        amounts = [part.clone() for part in zero]
        amounts[place][generator] = amount
        moved = {key: v.requires_grad_() for key, v in displaced(values, symmetries, amounts).items()}
        return float(cost(model, batches, loss, moved, **options).detach())

    for place, slope in enumerate(gradient):
        for generator in range(len(slope)):
            difference = (at(place, generator, 1e-5) - at(place, generator, -1e-5)) / 2e-5
            assert float(slope[generator]) == pytest.approx(difference, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_squared_relus_reach_the_point_of_a_general_minimiser(optimiser):
    options = {"step_size": STEP, "weight_decay": 0.05, "optimiser": optimiser}
    model, batches, loss = network = task("two relu^2")
    symmetries = known_census("two relu^2").symmetries
    assert {axis.power for s in symmetries for axis in s.axes} == {1, 2}
    values = {key: p.detach().clone() for key, p in trainable(model).items()}
    sizes = [s.size for s in symmetries]

    def value_and_slope(flat):
        amounts = torch.as_tensor(flat).requires_grad_()
        moved = displaced(values, symmetries, amounts.split(sizes))
        total = cost(model, batches, loss, {k: v.requires_grad_() for k, v in moved.items()}, **options)
        return float(total.detach()), torch.autograd.grad(total, amounts)[0].numpy()

    found = minimize(value_and_slope, np.zeros(sum(sizes)), jac=True, method="BFGS", options={"gtol": 1e-9})
    done = equilibrate(*network, known_census("two relu^2"), **options)
    assert done.cost[1].value == pytest.approx(found.fun, rel=1e-9)
    np.testing.assert_allclose(np.concatenate([m.amount for m in done.moved]), found.x, atol=1e-5)


@pytest.mark.parametrize("name", by_cost(("relu^2", "groups", "cross-attention")))
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_the_state_of_the_optimiser_moves_along(name, optimiser):
    """Momentum, m and the root of v that are the gradient of a batch become the gradient of that batch there."""
    model, batches, loss = network = task(name)
    params = trainable(model)
    kind, settings = {
        "sgd": (torch.optim.SGD, {"momentum": 0.9}),
        "adamw": (torch.optim.AdamW, {"betas": (0.8, 0.9)}),
    }[optimiser]
    optimizer = kind(params.values(), lr=0.0, weight_decay=0.0, **settings)
    loss(model, batches[1]).backward()
    for parameter in params.values():  # an unused parameter has no state otherwise
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    optimizer.step()
    options = {"step_size": STEP, "weight_decay": 0.05, "optimiser": optimiser}
    done = equilibrate(*network, known_census(name), optimizer=optimizer, **options)
    assert max(m.factor for m in done.moved) > 1.05
    model.zero_grad()
    loss(model, batches[1]).backward()
    for parameter in params.values():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        state = optimizer.state[parameter]
        close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-9)
        if optimiser == "sgd":
            close(state["momentum_buffer"], gradient)
        else:
            close(state["exp_avg"], 0.2 * gradient)
            close(state["exp_avg_sq"], 0.1 * gradient.square())
    if optimiser == "adamw":  # v is that of the optimiser: the gradient of one batch squared
        only = model, [batches[1]], loss
        assert_minimum(only, [m.symmetry for m in done.moved], done, **options)
