"""The noise monitor against per-sample gradients by torch.func, and against the theory."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import undertow as ut
from tests.torch.oracle import (
    Attention,
    Block,
    agree,
    by_hand,
    contributions,
    found_in,
    of_relu,
    one_by_one,
    one_step,
    relu,
    square,
)
from tests.torch.zoo import KNOWN
from undertow.symmetry.forecast import relaxation_times
from undertow.torch import NoiseMonitor, census, gamma_of
from undertow.torch.equilibrium.gather import grams
from undertow.torch.equilibrium.solve import Sides, amounts
from undertow.torch.monitor import signals as signals_module

pytestmark = pytest.mark.torch


@pytest.fixture(params=["gram", "direct"])
def way(request, monkeypatch):
    monkeypatch.setattr(signals_module, "WAYS", {request.param: signals_module.WAYS[request.param]})
    return request.param


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_network_against_per_sample_gradients(dtype, tolerance):
    model, x = relu(dtype), torch.randn(32, 5, dtype=dtype)
    monitor, before = one_step(model, of_relu(), square, x)
    agree(monitor, contributions(before, square, x), tolerance)


def test_sequences_either_way(way):
    torch.manual_seed(0)
    model, x = Block().double(), torch.randn(6, 7, 8, dtype=torch.float64)
    found = found_in(model, x[:2])
    assert {r.block for r in found} == {1, 4}
    monitor, before = one_step(model, found, square, x)
    agree(monitor, contributions(before, square, x), 1e-11)
    assert set(monitor.ways.values()) == {way}
    for reading in monitor.last:  # the short way to the equilibrium of a GL against the general one
        block = reading.symmetry.block
        if block > 1 and way == "gram":
            matrices = lambda side, b=block: sum(grams(before.get_parameter(a.parameter).detach(), a, b) for a in side)
            weights = map(matrices, (reading.symmetry.plus, reading.symmetry.minus))
            far = amounts(reading.symmetry, Sides(reading.noise_plus, reading.noise_minus, *weights), 0.1, 0.0)
            np.testing.assert_allclose(reading.amount, far.amount, atol=1e-6)


def test_sequences_in_single_precision():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(6, 7, 8)
    monitor, before = one_step(model, found_in(model, x[:2]), square, x)
    agree(monitor, contributions(before.double(), square, x.double()), 1e-5)
    assert monitor.ways  # measured


def test_a_loss_averaged_over_tokens_has_sequences_as_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 11)).double()
    ids = torch.randint(0, 11, (5, 8))
    loss = lambda net, s: F.cross_entropy(net(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())
    monitor, before = one_step(model, found_in(model, ids[:2], loss), loss, ids)
    agree(monitor, contributions(before, loss, ids), 1e-11)
    assert monitor.last[0].row["samples"] == 5


def twice():
    """One layer used twice, and its bias too."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))

    return Twice(), torch.randn(7, 5), ("layer.weight", "layer.bias")


def tied():
    """A head that is the embedding."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.inside.weight

        def forward(self, x):
            return self.head(torch.tanh(self.inside(x)))

    return Tied(), torch.randint(0, 9, (5, 3)), ("inside.weight",)


class ChannelNorm(nn.LayerNorm):
    """A norm over the channels of images, as torchvision has it: the class of one over the last axis."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class OfSines(nn.Linear):
    def forward(self, x):
        return super().forward(torch.sin(x))


class OfSquares(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x.square(), weight, bias)


def image(*shape):
    return torch.randn(4, *shape)


LAYERS = {
    "twice": twice,
    "tied": tied,
    "attention": lambda: (Attention(), torch.randn(3, 6, 12), ("attention.in_proj_weight", "attention.in_proj_bias",
                                                               "attention.out_proj.weight", "head.weight")),
    "convolutions": lambda: (nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2)),
                             image(2, 7, 6), ("0.weight", "0.bias", "2.weight")),
    "convolution in 1d": lambda: (nn.Conv1d(2, 3, 3, dilation=2, padding=1), image(2, 9), ("weight", "bias")),
    "grouped convolution": lambda: (nn.Conv2d(4, 4, 3, groups=2), image(4, 5, 5), ("weight", "bias")),
    "weight norm": lambda: (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh()),
                            torch.randn(6, 5), ("0.parametrizations.weight.original1",)),
    "group norm": lambda: (nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 3, 1)), image(4, 3, 3), ("0.weight",)),
    "embedding": lambda: (nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)), torch.randint(0, 7, (5, 6)),
                          ("0.weight",)),
    "subclasses": lambda: (nn.Sequential(OfSquares(2, 3, 2), ChannelNorm(3), nn.Flatten(), OfSines(3 * 4 * 4, 5)),
                           image(2, 5, 5), ("0.weight", "1.weight", "1.bias", "3.weight")),
    "flattened tokens": lambda: (nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 4), nn.Tanh(), nn.Unflatten(0, (-1, 5))),
                                 torch.randn(6, 5, 3), ("1.weight", "1.bias")),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_all_kinds(name):
    torch.manual_seed(0)
    model, x, parameters = LAYERS[name]()
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    monitor, before = one_step(model, by_hand(model, *parameters), square, x)
    agree(monitor, one_by_one(before, square, x), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Qwen3", "Gemma", "LoRA", "BERT"])
def test_models_of_transformers(name):
    """The contributions of sequences by one backward pass each: vmap does not go through these models."""
    torch.manual_seed(0)
    known = KNOWN[name]
    model = known.build().double().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if name == "LoRA":
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_()
    drawn = torch.randint(0, 40, (4, 7))
    loss = lambda net, ids: net(input_ids=ids, labels=ids, use_cache=False).loss
    if name == "BERT":
        loss = lambda net, ids: net(input_ids=ids, labels=ids).loss
    found = census(model, drawn[:2], loss)
    monitor, before = one_step(model, found, loss, drawn)
    # Gemma's norms compute in single precision
    agree(monitor, one_by_one(before, loss, drawn), 1e-5 if name == "Gemma" else 1e-9)


def test_sequence_first():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(6, 5, 3).double()
    loss = lambda net, s: net(s).square().sum((0, 2)).mean()
    monitor, before = one_step(model, by_hand(model, "0.weight", "2.bias"), loss, x, batch_axis=1)
    agree(monitor, contributions(before, loss, x, axis=1), 1e-11)


def test_sequence_first_from_an_embedding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)).double()
    ids = torch.randint(0, 7, (6, 5))
    loss = lambda net, s: net(s).square().sum((0, 2)).mean()
    monitor, before = one_step(model, by_hand(model, "0.weight", "1.weight"), loss, ids, batch_axis=1)
    agree(monitor, one_by_one(before, lambda net, s: loss(net, s.mT), ids.mT), 1e-11)


class TimeFirst(nn.Module):
    """Sequences first, positions and samples in one axis inside, and a mean over positions."""

    def __init__(self):
        super().__init__()
        self.inside, self.norm, self.head = nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2)

    def forward(self, x):
        positions, samples, _ = x.shape
        h = self.norm(torch.tanh(self.inside(x.flatten(0, 1))))
        return self.head(h.unflatten(0, (positions, samples)).mean(0))


def test_sequence_first_with_positions_and_samples_in_one_axis():
    """Five features for five samples: the last axis is never taken for that of the samples."""
    torch.manual_seed(0)
    model, x = TimeFirst().double(), torch.randn(6, 5, 3).double()
    loss = lambda net, s: net(s).square().sum(1).mean()
    found = by_hand(model, "inside.weight", "inside.bias", "norm.weight", "head.weight")
    monitor, before = one_step(model, found, loss, x, batch_axis=1)
    agree(monitor, contributions(before, loss, x, axis=1), 1e-11)


class Table(nn.Module):
    """A table of positions goes through layers, once for the whole batch or once for each sample."""

    def __init__(self, copies):
        super().__init__()
        self.copies = copies
        self.table = nn.Parameter(torch.randn(4, 5))
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x):
        table = self.table.expand(len(x), 4, 5) if self.copies else self.table
        return x * self.down(torch.relu(self.up(table)))


@pytest.mark.parametrize("samples", [4, 2, 3])
@pytest.mark.parametrize("names", [("up.weight",), ("down.weight",)])
def test_what_is_not_of_the_batch_is_not_taken_for_samples(samples, names):
    """Four positions are not four samples, nor two for each of two."""
    torch.manual_seed(0)
    x = torch.randn(samples, 4, 3, dtype=torch.float64)
    model = Table(copies=False).double()
    with pytest.raises(RuntimeError, match="made of parameters alone"):
        one_step(model, by_hand(model, *names), square, x)
    model = Table(copies=True).double()
    monitor, before = one_step(model, by_hand(model, *names), square, x)
    agree(monitor, one_by_one(before, square, x), 1e-11)


def test_what_is_not_of_the_batch_is_said_again():
    """Also where the error was caught, and beside a use of the same layer on samples."""

    class Both(Table):
        def forward(self, x):
            return self.up(x).sum(1) + self.up(self.table).sum()

    model = Both(copies=False).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda net, s: net(s).square().mean()
    with NoiseMonitor(model, by_hand(model, "up.weight"), every=1) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            loss(model, x).backward()
            with pytest.raises(RuntimeError, match="made of parameters alone"):
                optimizer.step()
    assert not monitor.rows


def test_a_layer_with_a_forward_pass_put_on_it():
    model, x = relu(), torch.randn(6, 5, dtype=torch.float64)
    model[0].forward = lambda s, layer=model[0]: F.linear(s.sin(), layer.weight, layer.bias)
    parts = one_by_one(model, square, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, by_hand(model, "0.weight", "0.bias"), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    agree(monitor, parts, 1e-11)


def tried(monkeypatch, outer, requests):
    """The ways that are run to choose one and to answer, and with how many samples each time."""
    runs = []

    def spy(name, way):
        def run(part, asked):
            runs.append((name, len(part.out)))
            return way(part, asked)

        return run

    ways = {name: spy(name, way) for name, way in signals_module.WAYS.items()}
    with monkeypatch.context() as patch:
        patch.setattr(signals_module, "WAYS", ways)
        (found,) = signals_module.Ways().choose(outer, requests)
    exact = outer.formed().flatten(2).square().sum((0, 2))
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=0)
    return runs


def test_only_ways_that_may_be_the_faster_are_tried(monkeypatch):
    outer = lambda n, t, out, into: signals_module.Outer(
        torch.randn(n, t, out).double(), torch.randn(n, t, into).double(), (out, into)
    )
    asked = [signals_module.Request("weight", 0)]
    assert tried(monkeypatch, outer(3, 500, 4, 6), asked) == [("direct", 3)]  # an image: 500^2 inner products
    assert tried(monkeypatch, outer(3, 2, 90, 80), asked) == [("gram", 3)]
    near = outer(9, 20, 30, 30)
    monkeypatch.setattr(signals_module, "CACHE", 8 * 3 * 1000)  # 3 gradients, or 3 Gram matrices
    runs = tried(monkeypatch, near, asked)
    chosen = runs[-1][0]
    small = {"gram": 24000 // (8 * 20 * 50), "direct": 24000 // (8 * 900)}
    assert runs == [(way, small[way]) for way in ("gram", "direct") for _ in range(3)] + [(chosen, 9)]
    monkeypatch.setattr(signals_module, "MEMORY", 8 * 950)  # too little for 20 * (20 + 30) numbers
    assert tried(monkeypatch, near, asked) == [("direct", 9)]
    monkeypatch.setattr(signals_module, "MEMORY", 8)  # for nothing: the smaller
    assert tried(monkeypatch, near, asked) == [("direct", 9)]


def test_the_sum_of_a_batch_is_as_noisy_as_it_is():
    """No word on the reduction is needed: the noise is that of the gradient which is stepped along."""
    x = torch.randn(16, 5, dtype=torch.float64)
    found = of_relu()
    total = lambda net, s: 16 * square(net, s)
    mean, _ = one_step(relu(), found, square, x)
    summed, _ = one_step(relu(), found, total, x)
    np.testing.assert_allclose(summed.last[0].noise_plus, 256 * mean.last[0].noise_plus, rtol=1e-12)


def test_the_covariance_is_centred():
    """Samples that are all alike make no noise, whatever their gradient."""
    x = torch.randn(1, 5, dtype=torch.float64).expand(8, 5).clone()
    monitor, _ = one_step(relu(), of_relu(), square, x)
    assert monitor.last[0].gradient.max() > 1e-3
    assert monitor.last[0].noise_plus.max() < 1e-12


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_change_is_what_the_step_does(decay):
    model, found = relu(), of_relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=decay)
    with NoiseMonitor(model, found, every=1) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            square(model, torch.randn(8, 5, dtype=torch.float64)).backward()
            optimizer.step()
    rows = monitor.rows
    for one, two in itertools.pairwise(rows):
        assert two["charge"] - one["charge"] == pytest.approx(one["change"], rel=1e-9)


def neurons_in_both(decay, step):
    """A watched step on one batch of all N samples, and the same noise in JAX.

    With replacement JAX's covariance is (N - 1)/N of the unbiased one: N - 1 in the place of N makes up for it.
    """
    model, x = relu(), torch.randn(12, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=step, weight_decay=decay)
    params = {n.replace(".", "_"): jnp.asarray(p.detach().numpy().copy()) for n, p in model.named_parameters()}
    with NoiseMonitor(model, of_relu(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()

    def one(p, s):
        return jnp.sum((p["2_weight"] @ jax.nn.relu(p["0_weight"] @ s + p["0_bias"]) + p["2_bias"]) ** 2)

    noise = ut.Minibatch(ut.Problem(one, jnp.asarray(x.numpy())), 11)
    symmetry = ut.Rescaling(lambda p: p["2_weight"], lambda p: (p["0_weight"], p["0_bias"]), neurons=True)
    return monitor, noise, symmetry, params


def test_the_flow_is_that_of_the_theory(x64):
    decay, step = 0.02, 0.1
    monitor, noise, symmetry, params = neurons_in_both(decay, step)
    flow = ut.noether_flow(noise, symmetry, params, step_size=step, weight_decay=gamma_of(decay))
    (row,), (reading,) = monitor.rows, monitor.last
    np.testing.assert_allclose(reading.charge, flow.charge, rtol=1e-10)
    np.testing.assert_allclose(reading.noise_plus - reading.noise_minus, flow.noise, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(reading.gradient, flow.gradient, rtol=1e-9, atol=1e-12)
    assert row["flow"] == pytest.approx(step * float(flow.rate.sum()), rel=1e-9)


@pytest.mark.slow
def test_times_of_neurons_are_those_of_the_theory(x64):
    decay, step = 0.02, 0.1
    monitor, noise, symmetry, params = neurons_in_both(decay, step)
    (row,), (reading,) = monitor.rows, monitor.last
    there = ut.equilibrium(noise, symmetry, params, step_size=step, weight_decay=gamma_of(decay))
    np.testing.assert_allclose(reading.amount, there.amount[0], rtol=1e-8, atol=1e-10)
    times = relaxation_times(noise, symmetry, there.params, step_size=step, weight_decay=gamma_of(decay))
    assert row["slowest"] == pytest.approx(times.max(), rel=1e-7)
    assert row["relaxation"] == pytest.approx(np.median(times), rel=1e-7)


@pytest.mark.slow
def test_times_of_a_linear_pair_are_those_of_the_theory(x64):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 4, bias=False)).double()
    x = torch.randn(20, 5, dtype=torch.float64)
    found = found_in(model, x[:4])
    params = {"W": jnp.asarray(model[0].weight.detach().numpy()), "U": jnp.asarray(model[1].weight.detach().numpy())}
    params = jax.tree.map(jnp.array, params)
    monitor, _ = one_step(model, found, square, x)
    task = ut.Problem(lambda p, s: jnp.sum((p["U"] @ (p["W"] @ s)) ** 2), jnp.asarray(x.numpy()))
    noise, symmetry = ut.Minibatch(task, 19), ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"])
    there = ut.equilibrium(noise, symmetry, params, step_size=0.1)
    times = relaxation_times(noise, symmetry, there.params, step_size=0.1)
    (row,) = monitor.rows
    assert row["slowest"] == pytest.approx(times.max(), rel=1e-5)
    assert row["farthest"] == pytest.approx(np.abs(np.linalg.eigvalsh(there.amount[0])).max(), rel=1e-6)


def test_directions_without_noise_are_told_from_rounding():
    """Residuals of a cross-entropy sum to zero: one direction of the bottleneck has no noise on one side."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 3)).to(dtype)
        x, y = torch.randn(32, 10).to(dtype), torch.randint(0, 3, (32,))
        loss = lambda model, x, y=y: F.cross_entropy(model(x), y[: len(x)])
        monitor, _ = one_step(model, found_in(model, x[:4], loss), loss, x)
        (row,) = monitor.rows
        assert (row["infinite"], row["dead"]) == (3, 0)
        rows.append([row[name] for name in ("distance", "farthest", "relaxation")])
    np.testing.assert_allclose(*rows, rtol=1e-3)
