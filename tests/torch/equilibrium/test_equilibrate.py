"""Moving a network to its noise equilibrium: the same function with balanced noise."""

import copy

import pytest
import torch
from torch import nn

from tests.torch.layers import SquaredReLU
from tests.torch.tasks import TASKS, imbalanced, llama_task, outputs, regression, relu_task
from tests.torch.zoo import build
from undertow.torch import census, equilibrate

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["relu", "Llama", "LoRA", pytest.param("Gemma", marks=pytest.mark.slow)])
def test_an_imbalanced_copy_reaches_the_same_noise(name):
    model, batches, loss = TASKS[name]()
    symmetries = census(model, batches[0], loss)
    assert len(symmetries)
    bad = imbalanced(model, symmetries)
    before = outputs(bad, loss, batches[0])
    one = equilibrate(model, batches, loss, symmetries, step_size=0.1)
    two = equilibrate(bad, batches, loss, symmetries, step_size=0.1)
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


def test_momentum_buffers_transform_like_gradients():
    """If the momentum is the gradient of a batch, it is moved to the gradient of that batch at the new point."""
    model, batches, loss = relu_task()
    model.double()
    batches = [(x.double(), y.double()) for x, y in batches]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-300, momentum=0.9)
    loss(model, batches[3]).backward()
    optimizer.step()
    equilibrate(model, batches, loss, census(model, batches[0], loss), step_size=0.1, optimizer=optimizer)
    gradients = torch.autograd.grad(loss(model, batches[3]), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], gradient, rtol=1e-8, atol=1e-12)


def test_adam_raises():
    model, batches, loss = relu_task(count=2)
    symmetries = census(model, batches[0], loss)
    with pytest.raises(TypeError, match="differs from that of SGD"):
        equilibrate(model, batches, loss, symmetries, step_size=0.1, optimizer=torch.optim.Adam(model.parameters()))


def test_gains_with_an_offset_are_left_out_under_weight_decay():
    model, batches, loss = llama_task("Gemma")
    done = equilibrate(model, batches[:4], loss, census(model, batches[0], loss), step_size=0.1, weight_decay=0.01)
    assert {symmetry.kind for symmetry, _ in done.skipped} == {"gain against readers"}
    assert all(not m.symmetry.shifted for m in done.moved)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["DataParallel", "compile"])
def test_the_model_inside_a_wrapper_is_moved(wrap):
    model, batches, loss = relu_task(count=4)
    symmetries = census(model, batches[0], loss)
    before = model[0].weight.detach().clone()
    equilibrate(wrap(model), batches, loss, symmetries, step_size=0.1)
    assert not torch.equal(before, model[0].weight)


def test_the_cost_never_rises_with_weight_decay():
    """F = eta/4 Tr Sigma + lambda/2 |params|^2 falls; from the point of least noise, the noise rises."""
    model, batches, loss = relu_task()
    symmetries = census(model, batches[0], loss)
    quiet = equilibrate(model, batches, loss, symmetries, step_size=0.1)
    done = equilibrate(model, batches, loss, symmetries, step_size=0.1, weight_decay=0.01)
    assert quiet.cost[0].value == pytest.approx(0.1 / 4 * quiet.noise[0].value)
    squares = sum(p.detach().double().square().sum().item() for p in model.parameters())
    assert done.cost[1].value == pytest.approx(0.1 / 4 * done.noise[1].value + 0.01 / 2 * squares)
    assert done.cost[1].value < done.cost[0].value
    assert done.noise[1].value > done.noise[0].value
    second = equilibrate(model, batches, loss, symmetries, step_size=0.1, weight_decay=0.01)
    assert second.cost[1].value == pytest.approx(second.cost[0].value, rel=1e-5)


def test_a_move_that_raises_the_cost_is_undone():
    """A loss that grows with every call has a cost that rises. Two passes before the move must agree."""
    model, batches, loss = relu_task(count=4)
    symmetries = census(model, batches[0], loss)
    before = [p.detach().clone() for p in model.parameters()]
    calls = iter(range(1, 10**6))
    with pytest.raises(RuntimeError, match="noise plus weight penalty rose"):
        equilibrate(model, batches, lambda m, b: loss(m, b) * max(2, next(calls)), symmetries, step_size=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_equal_batches_have_no_noise_and_move_nothing():
    model, batches, loss = relu_task(count=2)
    symmetries = census(model, batches[0], loss)
    before = [p.detach().clone() for p in model.parameters()]
    done = equilibrate(model, batches[:1] * 3, loss, symmetries, step_size=0.1)
    assert [m.dead for m in done.moved] == [16, 12]
    assert done.noise[0].value == done.noise[1].value == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    done = equilibrate(model, batches[:1] * 3, loss, symmetries, step_size=0.1, weight_decay=0.1)
    assert sum(m.dead for m in done.moved) == 0
    # without noise only the penalty counts: both sides of every neuron have the same length
    for into, out in ((model[0], model[2]), (model[2], model[4])):
        lengths = into.weight.square().sum(1) + into.bias.square()
        torch.testing.assert_close(lengths, out.weight.square().sum(0), rtol=1e-4, atol=1e-7)


def test_a_model_without_symmetries_does_not_change():
    model, _, _ = build("tanh")
    batches = [(torch.randn(8, 5), torch.randn(8, 3)) for _ in range(4)]
    before = [p.detach().clone() for p in model.parameters()]
    done = equilibrate(model, batches, regression, census(model, batches[0], regression), step_size=0.1)
    assert done.moved == ()
    assert done.change == done.imbalance == 0
    assert done.noise[0].value == done.noise[1].value > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_model_that_trains_with_dropout():
    """Dropout commutes with scales, and the same units are dropped before and after."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    _, batches, loss = relu_task(count=12)
    symmetries = census(net, batches[0], loss)
    done = equilibrate(net, batches, loss, symmetries, step_size=0.1)
    assert net.training
    assert done.change < 1e-5
    assert done.imbalance < 1e-3
    assert done.noise[1].value < done.noise[0].value


def test_the_model_inside_distributed_data_parallel_is_moved(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model, batches, loss = relu_task(count=4)
        wrapped = nn.parallel.DistributedDataParallel(model)
        before = model[0].weight.detach().clone()
        done = equilibrate(wrapped, batches, loss, census(wrapped, batches[0], loss), step_size=0.1)
        assert not torch.equal(before, model[0].weight)
        done.undo()
        assert torch.equal(before, model[0].weight)
    finally:
        torch.distributed.destroy_process_group()


def test_batches_and_models_that_cannot_be_measured_raise():
    model, batches, loss = relu_task(count=3)
    symmetries = census(model, batches[0], loss)
    with pytest.raises(ValueError, match="cannot be measured on 0 batches"):
        equilibrate(model, [], loss, symmetries, step_size=0.1)
    empty = (torch.zeros(0, 6), torch.zeros(0, 3))
    with pytest.raises(ValueError, match="it is empty"):
        equilibrate(model, [batches[0], empty], loss, symmetries, step_size=0.1)
    wrong = (batches[1][0], batches[1][1] / 0)
    with pytest.raises(ValueError, match="a gradient is not finite"):
        equilibrate(model, [batches[0], wrong], loss, symmetries, step_size=0.1)
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="run the model once"):
        equilibrate(lazy, batches, loss, symmetries, step_size=0.1)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"2\.weight has entries that are not finite"):
        equilibrate(model, batches, loss, symmetries, step_size=0.1)


def test_invalid_input_raises():
    model, batches, loss = relu_task(count=3)
    symmetries = census(model, batches[0], loss)
    with pytest.raises(ValueError, match="at least 2"):
        equilibrate(model, batches[:1], loss, symmetries, step_size=0.1)
    with pytest.raises(ValueError, match="step_size=0"):
        equilibrate(model, batches, loss, symmetries, step_size=0.0)
    half = [(x.half(), y.half()) for x, y in batches]
    with pytest.raises(ValueError, match=r"call `model.float\(\)` first"):
        equilibrate(copy.deepcopy(model).half(), half, loss, symmetries, step_size=0.1)
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(ValueError, match="take a census of this model"):
        equilibrate(other, batches, loss, symmetries, step_size=0.1)
    model[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="take a census of this model"):
        equilibrate(model, batches, loss, symmetries, step_size=0.1)


def test_an_interrupted_move_is_undone():
    net, batches, loss = relu_task()
    symmetries = census(net, batches[0], loss)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    calls = 0

    def interrupted(model, batch):
        nonlocal calls
        calls += 1
        if calls == last:
            raise KeyboardInterrupt
        return loss(model, batch)

    last = 0
    done = equilibrate(net, batches, interrupted, symmetries, step_size=0.1)
    assert not torch.equal(net[0].weight, before["0.weight"])
    done.undo()
    last, calls = calls - 3, 0
    with pytest.raises(KeyboardInterrupt):
        equilibrate(net, batches, interrupted, symmetries, step_size=0.1)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_momentum_moves_where_only_some_parameters_have_any():
    net, batches, loss = relu_task()
    symmetries = census(net, batches[0], loss)
    weights = [p for p in net.parameters() if p.ndim == 2]
    biases = [p for p in net.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD([{"params": weights, "momentum": 0.9}, {"params": biases}], lr=0.01)
    loss(net, batches[0]).backward()
    optimizer.step()
    buffer = optimizer.state[net[0].weight]["momentum_buffer"]
    before, weight = buffer.clone(), net[0].weight.detach().clone()
    equilibrate(net, batches, loss, symmetries, step_size=0.1, optimizer=optimizer)
    factor = net[0].weight.detach() / weight  # a gradient shrinks where its weight grows
    torch.testing.assert_close(buffer, before / factor, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(buffer, before, rtol=1e-2)
    assert optimizer.state[net[0].bias].get("momentum_buffer") is None


def test_a_move_that_changes_the_outputs_is_undone():
    """With the census of a ReLU network the outputs of a tanh network change, and the move is undone."""
    model, batches, loss = relu_task()
    symmetries = census(model, batches[0], loss)
    model[1], model[3] = nn.Tanh(), nn.Tanh()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="the model was restored"):
        equilibrate(model, batches, loss, symmetries, step_size=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def bits(model, optimizer):
    """Return all numbers of a model and its optimiser as bytes, and the state of the random numbers."""
    state = [v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    tensors = [*model.parameters(), *model.buffers(), *state, *gradients]
    return [t.detach().numpy().tobytes() for t in tensors] + [torch.get_rng_state().numpy().tobytes()]


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_dry_run_changes_no_bit_and_measures_the_same(optimiser):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.1), nn.Linear(9, 7), SquaredReLU(), nn.Linear(7, 3)
    )
    _, batches, loss = relu_task(count=6)
    kind, settings = {"sgd": (torch.optim.SGD, {"momentum": 0.9}), "adamw": (torch.optim.AdamW, {})}[optimiser]
    optimizer = kind(model.parameters(), lr=0.01, **settings)
    loss(model, batches[0]).backward()
    optimizer.step()
    symmetries = census(model, batches[0], loss)
    options = {"step_size": 0.1, "weight_decay": 0.01, "optimiser": optimiser, "optimizer": optimizer}
    before = bits(model, optimizer)
    planned = equilibrate(model, batches, loss, symmetries, dry_run=True, **options)
    assert bits(model, optimizer) == before
    planned.undo()
    assert bits(model, optimizer) == before
    done = equilibrate(model, batches, loss, symmetries, **options)
    assert bits(model, optimizer) != before
    assert (planned.dry_run, done.dry_run) == (True, False)
    for quantity in ("noise", "cost", "curvature"):
        one, two = ([e.value for e in getattr(result, quantity)] for result in (planned, done))
        assert one == pytest.approx(two, rel=1e-6)
    assert planned.change == done.change
    for one, two in zip(planned.moved, done.moved, strict=True):
        assert one.amount.tolist() == two.amount.tolist()
        assert one.imbalance == two.imbalance


def test_progress_counts_every_pass_of_every_stage():
    model, batches, loss = relu_task(count=3)
    calls, reports = [], []
    counted = lambda model, batch: (calls.append(1), loss(model, batch))[1]
    symmetries = census(model, batches[0], loss)
    equilibrate(model, batches, counted, symmetries, step_size=0.1, progress=lambda *report: reports.append(report))
    stages = list(dict.fromkeys(stage for stage, _, _ in reports if stage != "equilibrate"))
    assert stages == ["curvature before", "noise before", "moving", "noise after", "curvature after"]
    assert len(reports) == len(calls) - 2  # two passes before the first stage check that the loss is deterministic
    assert [report[1:] for report in reports if report[0] == "noise before"] == [(1, 3), (2, 3), (3, 3)]
    assert {total for stage, _, total in reports if stage == "curvature before"} == {None}


def test_an_interrupt_from_the_progress_report_restores_the_model():
    model, batches, loss = relu_task(count=3)
    symmetries = census(model, batches[0], loss)
    before = [p.detach().clone() for p in model.parameters()]

    def report(stage, done, total):
        if stage == "noise after":
            assert not torch.equal(before[0], model[0].weight)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        equilibrate(model, batches, loss, symmetries, step_size=0.1, progress=report)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_no_batches_for_the_curvature():
    model, batches, loss = relu_task(count=3)
    symmetries = census(model, batches[0], loss)
    done = equilibrate(model, batches, loss, symmetries, step_size=0.1, curvature_batches=0)
    assert done.curvature[0].samples == 0
    assert "curvature" not in str(done)
    with pytest.raises(ValueError, match=r"`curvature_batches` must be at least 0"):
        equilibrate(model, batches, loss, symmetries, step_size=0.1, curvature_batches=-1)
