"""The noise monitor in training loops of many kinds, and what it says where it cannot hear."""

import copy
import csv
import gc
import io
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from tests.torch.oracle import Attention, agree, by_hand, contributions, of_relu, one_by_one, one_step, relu, square
from undertow.torch import Census, NoiseMonitor
from undertow.torch.monitor import hooks as listen_module
from undertow.torch.monitor.monitor import COLUMNS

pytestmark = pytest.mark.torch


def test_accumulated_gradients_are_one_batch():
    model, x = relu(), torch.randn(12, 5, dtype=torch.float64)
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        for part in x.split(4):
            (square(model, part) / 3).backward()
        optimizer.step()
    assert monitor.last[0].row["samples"] == 12
    agree(monitor, contributions(before, square, x), 1e-11)


def test_two_losses_of_one_batch_belong_together():
    """A model called twice before one backward pass: samples pair up by their place in the batch."""
    model, x = relu(), torch.randn(6, 5, dtype=torch.float64)
    loss = lambda net, s: ((net(s) - net(2 * s)) ** 2).sum(1).mean()
    monitor, before = one_step(model, of_relu(), loss, x)
    agree(monitor, contributions(before, loss, x), 1e-11)


def test_other_passes_do_not_count():
    """Evaluation, with and without gradients, a pass that raised, and one whose gradient was thrown away."""
    model, x = relu(), torch.randn(10, 5, dtype=torch.float64)
    found = of_relu()
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, found, every=1) as monitor:
        with torch.no_grad():
            model(x[:3])
        model.eval()
        model(x[:5])
        model.train()
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 4, dtype=torch.float64))
        stopped = model(x[:7])
        handle = stopped.register_hook(_raises)
        with pytest.raises(ZeroDivisionError):
            stopped.square().sum().backward()
        handle.remove()
        square(model, x[:6]).backward()
        optimizer.zero_grad()
        square(model, x).backward()
        optimizer.step()
    agree(monitor, contributions(before, square, x), 1e-11)
    assert monitor.last[0].row["samples"] == 10


def _raises(gradient):
    raise ZeroDivisionError


def test_a_backward_pass_that_raised_half_way_does_not_count():
    model, x = relu(), torch.randn(10, 5, dtype=torch.float64)
    found, before = of_relu(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, found, every=1) as monitor:
        hidden = model[1].register_forward_hook(lambda m, a, out: out.register_hook(_raises) and None)
        with pytest.raises(ZeroDivisionError):
            square(model, x[:6]).backward()
        hidden.remove()
        optimizer.zero_grad()
        square(model, x).backward()
        optimizer.step()
    agree(monitor, contributions(before, square, x), 1e-11)


def test_half_precision_under_autocast_with_a_scaler():
    torch.manual_seed(0)
    model, x = relu(torch.float32), torch.randn(64, 5)
    found, before = of_relu(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    with NoiseMonitor(model, found, every=1) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            value = model(x).float().square().sum(1).mean()
        scaler.scale(value).backward()
        scaler.step(optimizer)
    agree(monitor, contributions(before.double(), square, x.double()), 5e-2)


def test_a_backward_pass_under_autocast_is_summed_up_without():
    """The same signals, whether the block is left before `backward()` or after it."""
    noises = []
    for inside in (False, True):
        model, x = relu(torch.float32), torch.linspace(-1, 1, 40).reshape(8, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NoiseMonitor(model, by_hand(model, "0.weight", "2.weight"), every=1) as monitor:
            with torch.autocast("cpu", torch.bfloat16):
                value = square(model, x)
                if inside:
                    value.backward()
            if not inside:
                value.backward()
            optimizer.step()
        noises.append(np.concatenate([reading.noise_plus for reading in monitor.last]))
    np.testing.assert_allclose(*noises, rtol=1e-5)


def test_a_layer_is_run_again_in_the_precision_it_ran_in():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 12), Attention()), torch.randn(24, 6, 12)  # it receives half precision
    before = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = by_hand(model, "1.attention.in_proj_weight", "1.attention.out_proj.weight")
    with NoiseMonitor(model, found, every=1) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        output.float().square().flatten(1).sum(1).mean().backward()
        optimizer.step()
    agree(monitor, one_by_one(before, square, x.double()), 5e-2)


def test_a_step_that_overflows_and_is_left_out():
    model, x = relu(torch.float32), torch.randn(8, 5)
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        scaler.scale(1e6 * square(model, x[:4])).backward()
        scaler.step(optimizer)
        scaler.update(1.0)
        assert monitor.steps == 0
        optimizer.zero_grad(set_to_none=False)
        square(model, x).backward()
        optimizer.step()
    agree(monitor, contributions(before.double(), square, x.double()), 1e-5)


def test_a_gradient_that_is_not_finite_is_said():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    bad = x.clone()
    bad[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="the gradient is not finite"):
        one_step(model, of_relu(), square, bad)
    model = relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        square(model, bad).backward()
        with said("the gradient is not finite", measured=1):
            optimizer.step()
    assert len(monitor.rows) == 1


def test_clipped_gradients_have_clipped_noise():
    x = torch.randn(16, 5, dtype=torch.float64)
    found = of_relu()
    plain, _ = one_step(relu(), found, square, x)
    model = relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, found, every=1) as monitor:
        square(model, x).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    factor = float(0.1 / norm) ** 2
    assert factor < 0.5
    np.testing.assert_allclose(monitor.last[0].noise_plus, factor * plain.last[0].noise_plus, rtol=1e-4)


def test_frozen_parameters():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    found = of_relu()
    model[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="take a census of this model"):
        NoiseMonitor(model, found)
    model[0].bias.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, found, every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        model[0].bias.requires_grad_(False)
        square(model, x).backward()
        with pytest.warns(UserWarning, match="does not train any more"):
            optimizer.step()
    assert [step for step, _ in monitor.skipped] == [1]
    assert len(monitor.rows) == 1


def said(words, measured):
    """An error where nothing was measured yet, a warning later."""
    return pytest.warns(UserWarning, match=words) if measured else pytest.raises(RuntimeError, match=words)


def test_a_norm_that_begins_to_train():
    """It is said when the step ends, and the step has no row."""
    x = torch.randn(8, 5)
    for steps in (0, 2):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(4, affine=False)
        model = nn.Sequential(nn.Linear(5, 4), norm, nn.Linear(4, 2)).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NoiseMonitor(model, by_hand(model, "0.weight", "2.weight"), every=2) as monitor:
            for _ in range(steps):
                optimizer.zero_grad()
                square(model, x).backward()
                optimizer.step()
            model.train()
            optimizer.zero_grad()
            square(model, x).backward()
            with said("1 is a BatchNorm1d that trains; put it in eval mode", measured=steps):
                optimizer.step()
            model.eval()
            for _ in range(2):
                optimizer.zero_grad()
                square(model, x).backward()
                optimizer.step()
        assert {row["step"] for row in monitor.rows} == ({0, 4} if steps else {2})


def test_a_backward_pass_of_what_was_before_the_step():
    """Its signals are of another step; what comes after is heard."""
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)  # what autograd allows: it needs the second layer
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        square(model, x).backward()
        late = square(model, x)
        optimizer.step()
        model.zero_grad()
        late.backward()
        with said("forward pass from before the last step", measured=1):
            optimizer.step()
        model.zero_grad()
        before = copy.deepcopy(model)
        square(model, x).backward()
        optimizer.step()
    assert [row["step"] for row in monitor.rows] == [0, 2]
    agree(monitor, contributions(before, square, x), 1e-11)


@pytest.mark.parametrize("where", ["moments", "per_sample", "_tensors"])
@pytest.mark.parametrize("error", [KeyError, MemoryError])
def test_no_error_comes_out_of_the_backward_pass(monkeypatch, where, error):
    def fails(*_):
        raise error("no such thing")

    x = torch.randn(8, 5, dtype=torch.float64)
    for steps in (0, 1):
        model = relu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NoiseMonitor(model, of_relu(), every=1) as monitor:
            for _ in range(steps):
                square(model, x).backward()
                optimizer.step()
            optimizer.zero_grad()
            with monkeypatch.context() as patch:
                patch.setattr(listen_module, where, fails)
                square(model, x).backward()
            with said("no such thing", measured=steps):
                optimizer.step()
        assert len(monitor.rows) == steps


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_between_measurements_there_are_no_hooks():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = NoiseMonitor(model, of_relu(), every=3)
    counts = []
    for _ in range(7):
        counts.append(hooks_on(model) > 0)
        optimizer.zero_grad()
        square(model, x).backward()
        optimizer.step()
    assert counts == [True, False, False, True, False, False, True]
    assert [row["step"] for row in monitor.rows] == [0, 3, 6]
    monitor.close()
    assert hooks_on(model) == 0
    optimizer.step()
    assert monitor.steps == 7


def test_watching_changes_nothing():
    x = torch.randn(8, 5, dtype=torch.float64)
    ends = []
    for watched in (False, True):
        model = relu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        monitor = NoiseMonitor(model, of_relu(), every=1) if watched else None
        for _ in range(3):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
        ends.append(model)
        if monitor:
            monitor.close()
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in ends), strict=True))


def test_a_monitor_that_is_forgotten_goes():
    model = relu()
    monitor = NoiseMonitor(model, of_relu(), every=1)
    assert hooks_on(model) > 0
    del monitor
    gc.collect()
    assert hooks_on(model) == 0


def test_copies_and_saved_models_have_no_monitor():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    found = of_relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, found, every=1) as monitor:
        other = copy.deepcopy(model)
        square(other, x[:3]).backward()
        buffer = io.BytesIO()
        torch.save(model, buffer)
        pickle.loads(pickle.dumps(model))(x)
        square(model, x).backward()
        optimizer.step()
    assert monitor.last[0].row["samples"] == 8
    assert len(model.state_dict()) == 4


@pytest.mark.parametrize("order", [1, -1])
def test_code_runs_as_written_while_anybody_listens(order):
    from torch._dynamo import eval_frame

    found = of_relu()
    assert eval_frame._stance.stance == "default"
    monitors = [NoiseMonitor(relu(), found) for _ in range(2)][::order]
    monitors[0].close()
    assert eval_frame._stance.stance == "force_eager"
    monitors[0].close()
    assert eval_frame._stance.stance == "force_eager"
    monitors[1].close()
    assert eval_frame._stance.stance == "default"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_compiled_model(how):
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    found, before = of_relu(), copy.deepcopy(model)
    if how == "wrapped":
        trained = torch.compile(model, backend="aot_eager")
    else:
        model.compile(backend="aot_eager")
        trained = model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    with NoiseMonitor(trained, found, every=2) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            square(trained, x).backward()
            optimizer.step()
            if step == 0:
                agree(monitor, contributions(before, square, x), 1e-11)
    assert [row["step"] for row in monitor.rows] == [0, 2]


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(reentrant):
    """The newer kind is heard; the older one hides the layers, and that is said."""

    class Saved(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = relu(), nn.Linear(3, 2).double()

        def forward(self, x):
            return self.head(checkpoint(self.inside, x, use_reentrant=reentrant))

    model, x = Saved(), torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    found = by_hand(model, "inside.0.weight", "inside.2.weight")
    if reentrant:
        with pytest.raises(RuntimeError, match="non-reentrant"):
            one_step(model, found, square, x)
        return
    monitor, before = one_step(model, found, square, x)
    plain = copy.deepcopy(before)
    plain.forward = lambda s: plain.head(plain.inside(s))
    agree(monitor, contributions(plain, square, x.detach()), 1e-11)


def test_a_step_with_a_closure():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    found, before = of_relu(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        value = square(model, x)
        value.backward()
        return value

    with NoiseMonitor(model, found, every=1) as monitor:
        first = optimizer.step(closure)
        agree(monitor, contributions(before, square, x), 1e-11)
        optimizer.step(closure=closure)
    assert first.item() == pytest.approx(square(before, x).item())
    assert len(monitor.rows) == 2


def test_a_loop_without_an_optimiser():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    found, before = of_relu(), copy.deepcopy(model)
    with NoiseMonitor(model, found, every=1) as monitor:
        square(model, x).backward()
        monitor.step(step_size=0.1)
    agree(monitor, contributions(before, square, x), 1e-11)
    assert monitor.rows[0]["step_size"] == 0.1


def test_adam_and_mixed_groups_have_no_flow():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    found = of_relu()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
    for optimizer, note in (
        (torch.optim.Adam(model.parameters()), "no flow or equilibrium is known for Adam: the theory is for SGD"),
        (torch.optim.SGD(groups), "its parameters have different step sizes, momenta or weight decays"),
    ):
        with NoiseMonitor(model, found, every=1) as monitor:
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
        (row,) = monitor.rows
        assert row["note"] == note
        assert row["flow"] is row["change"] is row["relaxation"] is None
        assert row["noise_plus"] > 0


def test_another_optimiser_takes_over():
    """The first one is dropped, though somebody still holds it."""
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 0.01)]
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        for optimizer in [optimizers[0], *[optimizers[1]] * 6]:
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    sizes = [row["step_size"] for row in monitor.rows]
    assert sizes[0] == 0.1
    assert sizes[-1] == 0.01
    assert len(sizes) >= 4


def test_a_gradient_that_cancels():
    """At a minimum the samples pull against each other: all noise, no gradient."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    x = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[1].weight.fill_(1.0)
    loss = lambda net, s: (net(s) - torch.tensor([[0.0], [2.0]], dtype=torch.float64)).square().sum()
    monitor, _ = one_step(model, by_hand(model, "0.weight", "1.weight"), loss, x)
    # contributions +2 and -2: covariance 2/1 (4 + 4)
    np.testing.assert_allclose([reading.noise_plus[0] for reading in monitor.last], 16.0)


def test_momentum_lengthens_the_step():
    x = torch.randn(8, 5, dtype=torch.float64)
    found = of_relu()
    rows = []
    for momentum in (0.0, 0.9):
        model = relu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        with NoiseMonitor(model, found, every=1) as monitor:
            square(model, x).backward()
            optimizer.step()
        rows += monitor.rows
    assert rows[1]["flow"] == pytest.approx(100 * rows[0]["flow"])
    assert rows[1]["change"] is None


def test_memory_is_bounded(tmp_path):
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, of_relu(), every=1, keep=3) as monitor:
        for _ in range(5):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    assert [row["step"] for row in monitor.rows] == [2, 3, 4]


class Log:
    def __init__(self):
        self.seen = []

    def add_scalar(self, tag, value, step):
        self.seen.append((tag, value, step))


def test_outputs(tmp_path, monkeypatch, as_a_user):
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    found = of_relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = Log()
    with NoiseMonitor(model, found, every=1, writer=log) as monitor:
        with pytest.raises(ValueError, match="nothing was measured yet"):
            monitor.plot()
        for _ in range(2):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    assert tuple(monitor.rows[0]) == COLUMNS
    monitor.to_csv(tmp_path / "noise.csv")
    with open(tmp_path / "noise.csv") as file:
        read = list(csv.DictReader(file))
    assert [float(row["charge"]) for row in read] == [row["charge"] for row in monitor.rows]
    name = monitor.rows[0]["symmetry"]
    assert (f"{name}/charge", monitor.rows[1]["charge"], 1) in log.seen
    figure = monitor.plot()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "charge",
        "noise power",
        "log distance to equilibrium",
    ]
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), [row["charge"] for row in monitor.rows])
    with pytest.raises(TypeError, match="has no `add_scalar`"):
        NoiseMonitor(model, found, writer=3)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        NoiseMonitor(model, found, writer=str(tmp_path))


def test_tensorboard_reads_what_was_written(tmp_path, as_a_user):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, of_relu(), every=1, writer=tmp_path) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    read = EventAccumulator(str(tmp_path)).Reload()
    events = read.Scalars(f"{monitor.rows[0]['symmetry']}/charge")
    assert [event.step for event in events] == [0, 1, 2]
    np.testing.assert_allclose([event.value for event in events], [row["charge"] for row in monitor.rows], rtol=1e-6)


class Functional(nn.Module):
    """Uses the weights of a layer without calling it."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x):
        return self.head(F.linear(x.sin(), self.layer.weight) + self.layer(x))


def test_what_cannot_be_heard_is_said(as_a_user):
    x = torch.randn(8, 5, dtype=torch.float64)
    found = of_relu()
    model = Functional()
    with pytest.raises(RuntimeError, match="used outside its module"):
        one_step(model, by_hand(model, "layer.weight"), square, x)
    with pytest.raises(RuntimeError, match="one sample says nothing"):
        one_step(relu(), found, square, x[:1])

    def again(net, s):
        value = square(net, s)
        value.backward(retain_graph=True)
        return value

    with pytest.raises(RuntimeError, match="twice through one graph"):
        one_step(relu(), found, again, x)
    with pytest.raises(RuntimeError, match="not called, only parts of it"):
        one_step(relu(), found, lambda net, s: net[2](F.relu(net[0](s))).square().mean(), x)
    with pytest.raises(RuntimeError, match="saw no backward pass"):
        one_step(relu(), found, lambda net, s: sum(p.square().sum() for p in net.parameters()), x)
    model = relu()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, found, every=1):
        square(model, x).backward()
        with pytest.raises(RuntimeError, match=r"call `zero_grad\(\)`"):
            optimizer.step()
    normed = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="put it in eval mode"):
        NoiseMonitor(normed, by_hand(normed, "0.weight"))
    with pytest.raises(ValueError, match="one process"):
        NoiseMonitor(nn.DataParallel(relu()), found)
    with pytest.raises(TypeError, match="give `census"):
        NoiseMonitor(relu(), [])
    with pytest.raises(ValueError, match="nothing to watch"):
        NoiseMonitor(relu(), Census((), (), (), (), (), ()))
    with pytest.raises(ValueError, match="every=0"):
        NoiseMonitor(relu(), found, every=0)
    with pytest.raises(ValueError, match="batch_axis=2"):
        NoiseMonitor(relu(), found, batch_axis=2)
