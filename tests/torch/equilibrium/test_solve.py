"""The equilibrium of linked symmetries: the same point as in JAX, and directions without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import undertow as ut
from tests.torch.tasks import regression
from tests.torch.zoo import adapter, language, tokens
from undertow.torch import census, equilibrate

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
