"""Moving a network to its noise equilibrium: the same function, balanced noise, and back to the bit."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import undertow as ut
from tests.torch.zoo import adapter, build, language, llama_like, tokens
from undertow.torch import census, equilibrate, gamma_of, lambda_of
from undertow.torch._copies import trainable
from undertow.torch.census.axes import move
from undertow.torch.census.proof import random_transform

pytestmark = pytest.mark.torch


def regression(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def relu_task(seed=0, count=24, size=16):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))
    inputs = [torch.randn(size, 6) for _ in range(count)]
    return net, [(x, torch.sin(x[:, :3]) + 0.1 * torch.randn(size, 3)) for x in inputs], regression


def llama_task(name="Llama"):
    torch.manual_seed(0)
    return llama_like(name), [tokens(2, 9) for _ in range(12)], language


def lora_task():
    torch.manual_seed(0)
    model = adapter()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return model, [tokens(2, 9) for _ in range(12)], language


TASKS = {"relu": relu_task, "Llama": llama_task, "Gemma": lambda: llama_task("Gemma"), "LoRA": lora_task}


def imbalanced(model, found):
    """A copy moved along its orbits by random amounts."""
    other = copy.deepcopy(model)
    params = trainable(other)
    with torch.no_grad():
        for seed, symmetry in enumerate(found):
            transform = random_transform(symmetry, seed, torch.float64)
            transform = transform**3 if transform.ndim == 1 else transform @ transform
            kept = {name: params[name].detach().double() for name in symmetry.parameters}
            for name, value in move(kept, symmetry, transform).items():
                params[name].copy_(value)
    return other


def outputs(model, loss, batch):
    seen = []
    handle = model.register_forward_hook(lambda module, args, out: seen.append(getattr(out, "logits", out)))
    with torch.no_grad():
        loss(model, batch)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("name", ["relu", "Llama", "LoRA", pytest.param("Gemma", marks=pytest.mark.slow)])
def test_an_imbalanced_copy_reaches_the_same_noise(name):
    model, batches, loss = TASKS[name]()
    found = census(model, batches[0], loss)
    assert len(found)
    bad = imbalanced(model, found)
    before = outputs(bad, loss, batches[0])
    one = equilibrate(model, found, batches, loss, step_size=0.1)
    two = equilibrate(bad, found, batches, loss, step_size=0.1)
    assert max(m.imbalance[0] for m in two.moved) > 1
    assert two.noise[0].value > 1.05 * two.noise[1].value
    for done in (one, two):
        assert done.noise[1].value <= done.noise[0].value * (1 + 1e-6)
        assert done.imbalance < 1e-3
        assert done.change <= 1e-5
        assert done.noise[1].standard_error > 0
    assert two.noise[1].value == pytest.approx(one.noise[1].value, rel=0.01)
    after = outputs(bad, loss, batches[0])
    assert (after - before).norm() <= 1e-5 * before.norm()
    # the point itself is the same as well, but for the directions in which a rotation is free
    if name == "relu":
        for a, b in zip(model.parameters(), bad.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_the_move_can_be_taken_back_to_the_bit():
    model, batches, loss = relu_task()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss(model, batches[0]).backward()
    optimizer.step()
    states = lambda: (
        [p.detach().clone() for p in model.parameters()]
        + [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    )
    before = states()
    found = census(model, batches[0], loss)
    done = equilibrate(model, found, batches, loss, step_size=0.1, optimizer=optimizer)
    moved = states()
    assert not all(torch.equal(a, b) for a, b in zip(before, moved, strict=True))
    done.undo()
    assert all(torch.equal(a, b) for a, b in zip(before, states(), strict=True))


def test_momentum_moves_as_the_gradient_does():
    """With the gradient of a batch as momentum, that is the gradient of the same batch at the moved point."""
    model, batches, loss = relu_task()
    model.double()
    batches = [(x.double(), y.double()) for x, y in batches]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-300, momentum=0.9)
    loss(model, batches[3]).backward()
    optimizer.step()
    equilibrate(model, census(model, batches[0], loss), batches, loss, step_size=0.1, optimizer=optimizer)
    gradients = torch.autograd.grad(loss(model, batches[3]), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], gradient, rtol=1e-8, atol=1e-12)


def test_adam_is_refused():
    model, batches, loss = relu_task(count=2)
    found = census(model, batches[0], loss)
    with pytest.raises(TypeError, match="this is for SGD"):
        equilibrate(model, found, batches, loss, step_size=0.1, optimizer=torch.optim.Adam(model.parameters()))


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_the_same_point_as_in_jax(decay):
    """One sample a batch is Minibatch(1); JAX knows its N samples exactly: its covariance is (N - 1)/N of torch's."""
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
        there = ut.equilibrium(noise, symmetry, params, step_size=0.1 * 30 / 29, weight_decay=gamma_of(decay)).params
    equilibrate(net, census(net, batches[0], loss), batches, loss, step_size=0.1, weight_decay=decay)
    for name, parameter in net.named_parameters():
        wanted = np.asarray(there[name.replace(".", "_")])
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-4, atol=1e-8)


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
        there = ut.equilibrium(ut.Minibatch(task, 1), symmetry, params, step_size=0.1).params
        there = {name: np.asarray(value) for name, value in there.items()}
    found = census(net, batches[0], loss)
    assert [r.block for r in found] == [3]
    equilibrate(net, found, batches, loss, step_size=0.1)
    u, w = (layer.weight.detach().numpy() for layer in (net[1], net[0]))
    np.testing.assert_allclose(u @ u.T, there["U"] @ there["U"].T, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(w.T @ w, there["W"].T @ there["W"], rtol=1e-4, atol=1e-7)


def test_a_fresh_adapter_has_no_finite_equilibrium():
    torch.manual_seed(0)
    model, batches = adapter(), [tokens(2, 9) for _ in range(4)]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    done = equilibrate(model, census(model, batches[0], language), batches, language, step_size=0.1)
    assert [m.infinite for m in done.moved] == [3, 3, 3, 3]
    assert done.infinite == 12
    assert "12 directions have no finite equilibrium" in str(done)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_a_scale_needs_weight_decay():
    """|v|^2 of weight norm only grows under noise; with decay exp(4 amount) = s/(k |v|^2), k = 4 gamma/eta."""
    torch.manual_seed(0)
    net = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 2))
    batches = [(x := torch.randn(8, 5), x[:, :2].sin()) for _ in range(16)]
    found = census(net, batches[0], regression)
    assert [r.kind for r in found] == ["weight norm"]
    assert equilibrate(net, found, batches, regression, step_size=0.1).infinite == 6
    done = equilibrate(net, found, batches, regression, step_size=0.1, weight_decay=0.01)
    assert done.infinite == 0
    v = net[0].parametrizations.weight.original1
    rows = torch.stack([torch.autograd.grad(regression(net, b), v)[0] for b in batches]).double()
    power = rows.var(dim=0).sum(1)
    torch.testing.assert_close(power, 4 * gamma_of(0.01) / 0.1 * v.double().square().sum(1), rtol=1e-3, atol=0)


def test_gains_with_an_offset_are_left_out_under_weight_decay():
    model, batches, loss = llama_task("Gemma")
    done = equilibrate(model, census(model, batches[0], loss), batches[:4], loss, step_size=0.1, weight_decay=0.01)
    assert {symmetry.kind for symmetry, _ in done.skipped} == {"gain against readers"}
    assert all(not m.symmetry.shifted for m in done.moved)


def test_running_means_and_modes_stay():
    model, _, _ = build("conv")
    batches = [(torch.randn(6, 3, 9, 9), torch.randn(6, 3)) for _ in range(4)]
    model(batches[0][0])
    before = {name: b.clone() for name, b in model.named_buffers()}
    done = equilibrate(model, census(model, batches[0], regression), batches, regression, step_size=0.1)
    assert all(torch.equal(before[name], b) for name, b in model.named_buffers())
    assert model.training
    assert done.noise[1].value < done.noise[0].value


def test_curvature_against_the_hessian():
    model, batches, loss = relu_task(count=4)
    model.double()
    batches = [(x.double(), y.double()) for x, y in batches]
    done = equilibrate(model, census(model, batches[0], loss), batches, loss, step_size=0.1)
    names = [name for name, _ in model.named_parameters()]

    def mean(*tensors):
        params = dict(zip(names, tensors, strict=True))
        return sum((torch.func.functional_call(model, params, (x,)) - y).square().mean() for x, y in batches) / 4

    blocks = torch.autograd.functional.hessian(mean, tuple(p.detach() for p in model.parameters()))
    sizes = [p.numel() for p in model.parameters()]
    rows = [torch.cat([b.reshape(n, -1) for b in row], 1) for n, row in zip(sizes, blocks, strict=True)]
    largest = torch.linalg.eigvalsh(torch.cat(rows))[-1].item()
    assert done.curvature[1].value == pytest.approx(largest, rel=5e-3)
    assert done.largest_step[1].value == pytest.approx(2 / largest, rel=5e-3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["DataParallel", "compile"])
def test_a_wrapped_model_is_moved_inside(wrap):
    model, batches, loss = relu_task(count=4)
    found = census(model, batches[0], loss)
    before = model[0].weight.detach().clone()
    equilibrate(wrap(model), found, batches, loss, step_size=0.1)
    assert not torch.equal(before, model[0].weight)


def test_weight_decay_converts_in_one_place():
    assert lambda_of(gamma_of(0.03)) == 0.03
    parameter = nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.1, weight_decay=lambda_of(0.05))
    parameter.grad = torch.zeros(1)
    optimizer.step()
    assert parameter.item() == pytest.approx((1 - 2 * 0.1 * 0.05) * 2)


def test_with_weight_decay_the_sum_never_rises():
    """F = eta/4 Tr Sigma + gamma |params|^2 falls; from the point of least noise, the noise itself then rises."""
    model, batches, loss = relu_task()
    found = census(model, batches[0], loss)
    quiet = equilibrate(model, found, batches, loss, step_size=0.1)
    done = equilibrate(model, found, batches, loss, step_size=0.1, weight_decay=0.01)
    assert quiet.cost[0].value == pytest.approx(0.1 / 4 * quiet.noise[0].value)
    squares = sum(p.detach().double().square().sum().item() for p in model.parameters())
    assert done.cost[1].value == pytest.approx(0.1 / 4 * done.noise[1].value + gamma_of(0.01) * squares)
    assert done.cost[1].value < done.cost[0].value
    assert done.noise[1].value > done.noise[0].value
    again = equilibrate(model, found, batches, loss, step_size=0.1, weight_decay=0.01)
    assert again.cost[1].value == pytest.approx(again.cost[0].value, rel=1e-5)


def test_a_sum_that_rises_is_taken_back():
    """A loss that grows with every call, whatever the weights: no promise can be kept."""
    model, batches, loss = relu_task(count=4)
    found = census(model, batches[0], loss)
    before = [p.detach().clone() for p in model.parameters()]
    calls = iter(range(1, 10**6))
    with pytest.raises(RuntimeError, match="noise plus weight penalty rose"):
        equilibrate(model, found, batches, lambda m, b: loss(m, b) * next(calls), step_size=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_equal_batches_have_no_noise_and_move_nothing():
    model, batches, loss = relu_task(count=2)
    found = census(model, batches[0], loss)
    before = [p.detach().clone() for p in model.parameters()]
    done = equilibrate(model, found, batches[:1] * 3, loss, step_size=0.1)
    assert [m.dead for m in done.moved] == [16, 12]
    assert done.noise[0].value == done.noise[1].value == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    done = equilibrate(model, found, batches[:1] * 3, loss, step_size=0.1, weight_decay=0.1)
    assert sum(m.dead for m in done.moved) == 0
    # without noise only the penalty counts: both sides of every neuron have the same length
    for into, out in ((model[0], model[2]), (model[2], model[4])):
        lengths = into.weight.square().sum(1) + into.bias.square()
        torch.testing.assert_close(lengths, out.weight.square().sum(0), rtol=1e-4, atol=1e-7)


def test_a_model_without_symmetries_stays():
    model, _, _ = build("tanh")
    batches = [(torch.randn(8, 5), torch.randn(8, 3)) for _ in range(4)]
    before = [p.detach().clone() for p in model.parameters()]
    done = equilibrate(model, census(model, batches[0], regression), batches, regression, step_size=0.1)
    assert done.moved == ()
    assert done.change == done.imbalance == 0
    assert done.noise[0].value == done.noise[1].value > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_model_that_trains_with_dropout():
    """Dropout commutes with scales, and the same units fall out before and after."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    _, batches, loss = relu_task(count=12)
    found = census(net, batches[0], loss)
    done = equilibrate(net, found, batches, loss, step_size=0.1)
    assert net.training
    assert done.change < 1e-5
    assert done.imbalance < 1e-3
    assert done.noise[1].value < done.noise[0].value


def test_distributed_training_is_moved_inside(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model, batches, loss = relu_task(count=4)
        wrapped = nn.parallel.DistributedDataParallel(model)
        before = model[0].weight.detach().clone()
        done = equilibrate(wrapped, census(wrapped, batches[0], loss), batches, loss, step_size=0.1)
        assert not torch.equal(before, model[0].weight)
        done.undo()
        assert torch.equal(before, model[0].weight)
    finally:
        torch.distributed.destroy_process_group()


def test_what_is_broken_is_said():
    model, batches, loss = relu_task(count=3)
    found = census(model, batches[0], loss)
    with pytest.raises(ValueError, match="0 batches say nothing"):
        equilibrate(model, found, [], loss, step_size=0.1)
    empty = (torch.zeros(0, 6), torch.zeros(0, 3))
    with pytest.raises(ValueError, match="it is empty"):
        equilibrate(model, found, [batches[0], empty], loss, step_size=0.1)
    wrong = (batches[1][0], batches[1][1] / 0)
    with pytest.raises(ValueError, match="a gradient is not finite"):
        equilibrate(model, found, [batches[0], wrong], loss, step_size=0.1)
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="run the model once"):
        equilibrate(lazy, found, batches, loss, step_size=0.1)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"2\.weight has entries that are not finite"):
        equilibrate(model, found, batches, loss, step_size=0.1)


def test_what_cannot_be_done_is_said():
    model, batches, loss = relu_task(count=3)
    found = census(model, batches[0], loss)
    with pytest.raises(ValueError, match="at least 2"):
        equilibrate(model, found, batches[:1], loss, step_size=0.1)
    with pytest.raises(ValueError, match="step_size=0"):
        equilibrate(model, found, batches, loss, step_size=0.0)
    half = [(x.half(), y.half()) for x, y in batches]
    with pytest.raises(ValueError, match=r"call `model.float\(\)` first"):
        equilibrate(copy.deepcopy(model).half(), found, half, loss, step_size=0.1)
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(ValueError, match="take a census of this model"):
        equilibrate(other, found, batches, loss, step_size=0.1)
    model[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="take a census of this model"):
        equilibrate(model, found, batches, loss, step_size=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_in_which_one_side_has_no_noise_stay(dtype):
    """Residuals of a cross-entropy sum to zero: of the three directions that reach the classes two have noise."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 3)).to(dtype)
    batches = [(torch.randn(16, 10, dtype=dtype), torch.randint(0, 3, (16,))) for _ in range(16)]
    loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
    done = equilibrate(net, census(net, batches[0], loss), batches, loss, step_size=0.1)
    (moved,) = done.moved
    assert (moved.infinite, moved.dead) == (3, 0)
    assert 1.2 < moved.factor < 10
    assert moved.imbalance[0] > 1
    assert moved.imbalance[1] < 1e-3
    assert done.change < 1e-5
    assert done.noise[1].value < 0.95 * done.noise[0].value
    assert "3 directions have no finite equilibrium" in str(done)


def test_whatever_ends_the_move_leaves_the_model_as_it_was():
    net, batches, loss = relu_task()
    found = census(net, batches[0], loss)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    calls = 0

    def interrupted(model, batch):
        nonlocal calls
        calls += 1
        if calls == last:
            raise KeyboardInterrupt
        return loss(model, batch)

    last = 0
    done = equilibrate(net, found, batches, interrupted, step_size=0.1)
    assert not torch.equal(net[0].weight, before["0.weight"])
    done.undo()
    last, calls = calls - 3, 0
    with pytest.raises(KeyboardInterrupt):
        equilibrate(net, found, batches, interrupted, step_size=0.1)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_model_that_changed_its_type_goes_back_as_well():
    net, batches, loss = relu_task()
    before = net[0].weight.detach().clone()
    done = equilibrate(net, census(net, batches[0], loss), batches, loss, step_size=0.1)
    net.double()
    done.undo()
    assert net[0].weight.dtype == torch.float64
    assert torch.equal(net[0].weight, before.double())


def test_momentum_moves_where_only_some_parameters_have_any():
    net, batches, loss = relu_task()
    found = census(net, batches[0], loss)
    weights = [p for p in net.parameters() if p.ndim == 2]
    biases = [p for p in net.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD([{"params": weights, "momentum": 0.9}, {"params": biases}], lr=0.01)
    loss(net, batches[0]).backward()
    optimizer.step()
    buffer = optimizer.state[net[0].weight]["momentum_buffer"]
    before, weight = buffer.clone(), net[0].weight.detach().clone()
    equilibrate(net, found, batches, loss, step_size=0.1, optimizer=optimizer)
    factor = net[0].weight.detach() / weight  # a gradient shrinks where its weight grows
    torch.testing.assert_close(buffer, before / factor, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(buffer, before, rtol=1e-2)
    assert optimizer.state[net[0].bias].get("momentum_buffer") is None


def test_a_loss_without_a_second_derivative():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    batches = [torch.randn(5, 2, 4) for _ in range(6)]
    targets, lengths, wanted = torch.ones(2, 2, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([2, 2])
    log = lambda model, x: model(x).log_softmax(-1)
    loss = lambda model, x: nn.functional.ctc_loss(log(model, x), targets, lengths, wanted)
    done = equilibrate(net, census(net, batches[0], loss), batches, loss, step_size=0.1)
    assert done.imbalance < 1e-3
    assert np.isnan([done.curvature[0].value, done.largest_step[1].value]).all()
    assert "cannot be differentiated twice" in str(done)


class Cached(nn.Module):
    """Makes a buffer in its first pass, counts its passes in another, and has a table with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4, sparse=True)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, index):
        if not hasattr(self, "cache"):
            self.register_buffer("cache", torch.ones(()))
        self.passes += 1
        return self.net(self.table(index)) * self.cache


def test_buffers_that_a_pass_makes_and_sparse_gradients():
    torch.manual_seed(0)
    net, batches = Cached(), [torch.randint(0, 7, (9,)) for _ in range(8)]
    loss = lambda model, index: model(index).square().mean()
    done = equilibrate(net, census(net, batches[0], loss), batches, loss, step_size=0.1)
    assert done.imbalance < 1e-3
    assert dict(net.named_buffers()).keys() == {"passes"}
    assert net.passes == 0


def test_a_wrong_census_is_taken_back():
    """The census of a ReLU net, used on tanh: the outputs change, and the model is as it was."""
    model, batches, loss = relu_task()
    found = census(model, batches[0], loss)
    model[1], model[3] = nn.Tanh(), nn.Tanh()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="the model is as it was"):
        equilibrate(model, found, batches, loss, step_size=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
