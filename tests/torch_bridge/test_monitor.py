"""The noise monitor against per-sample gradients by torch.func, in training loops of many kinds."""

import copy
import csv
import functools
import gc
import io
import itertools
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from zoo import KNOWN

import undertow as ut
from undertow.symmetry.forecast import relaxation_times
from undertow.torch import Axis, Census, NoiseMonitor, Relation, census, gamma_of
from undertow.torch import listen as listen_module
from undertow.torch import signals as signals_module
from undertow.torch.gather import grams
from undertow.torch.monitor import COLUMNS
from undertow.torch.solve import Sides, amounts

pytestmark = pytest.mark.torch


def square(model, x):
    return model(x).square().flatten(1).sum(1).mean()


def relu(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def found_in(model, x, loss=square):
    return census(model, x, loss)


@functools.cache
def of_relu():
    """Every ReLU network here has the same symmetries."""
    return census(relu(), torch.randn(4, 5), square)


def by_hand(model, *names, block=1):
    """A census that claims a symmetry of every axis of these parameters: the noise is asked for, whether it is one."""
    axes = []
    for name in names:
        p = model.get_parameter(name)
        axes += [Axis(name, k, np.arange(n)[:, None], n, p.ndim) for k, n in enumerate(p.shape[:2])]
    relations = tuple(Relation("claimed", (axis,), (), block, True, 0.0) for axis in axes)
    return Census(relations, (), (), (), (), ())


def contributions(model, loss, x, axis=0):
    """What each sample adds to the gradient of a mean over the batch."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    one = lambda p, sample: loss(lambda s: torch.func.functional_call(model, p, (s,)), sample.unsqueeze(axis))
    found = torch.vmap(torch.func.grad(one), in_dims=(None, axis), randomness="error")(params, x)
    return {name: g.double() / x.shape[axis] for name, g in found.items()}


def one_by_one(model, loss, x):
    """The same by a backward pass for each sample, where vmap cannot go."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = [torch.autograd.grad(loss(model, row[None]), [*params.values()], allow_unused=True) for row in x]
    zero = lambda g, p: torch.zeros_like(p) if g is None else g
    return {name: torch.stack([zero(row[k], p) for row in rows]) / len(x) for k, (name, p) in enumerate(params.items())}


def covariance(parts, axis, block):
    """Of the sum of independent parts, along an axis."""
    count = len(parts)
    away = parts - parts.mean(0)
    rows = away.movedim(axis.axis + 1, 1).reshape(count, axis.length, -1)[:, axis.index]  # samples, generators, ...
    rows = rows.permute(1, 2, 0, 3).reshape(axis.size // block, block, -1)
    total = (rows @ rows.mT * count / (count - 1)).numpy()
    return total[:, 0, 0] if block == 1 else total


def agree(monitor, parts, tolerance):
    """The last reading against the parts of every sample."""
    assert monitor.last
    for reading in monitor.last:
        relation = reading.relation
        for side, noise in ((relation.plus, reading.noise_plus), (relation.minus, reading.noise_minus)):
            exact = sum((covariance(parts[a.parameter], a, relation.block) for a in side), np.zeros_like(noise))
            np.testing.assert_allclose(noise, exact, rtol=0, atol=tolerance * max(np.abs(exact).max(), 1e-300))


def one_step(model, found, loss, x, step_size=0.1, **options):
    """A watched step; the model as it was, for the oracle."""
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=step_size)
    with NoiseMonitor(model, found, every=1, **options) as monitor:
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()
    return monitor, before


class Block(nn.Module):
    """Attention and a ReLU network with norms, on sequences."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.norm, self.between = nn.LayerNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x):
        n, t, width = x.shape
        h = self.norm(x)
        q, k, v = (f(h).view(n, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.mT, -1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.relu(self.up(self.between(x))))


class Attention(nn.Module):
    """`nn.MultiheadAttention`, which uses its matrices without calling the layers that hold them."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.attention(x, x, x, need_weights=False)[0]))


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
        block = reading.relation.block
        if block > 1 and way == "gram":
            matrices = lambda side, b=block: sum(grams(before.get_parameter(a.parameter).detach(), a, b) for a in side)
            weights = map(matrices, (reading.relation.plus, reading.relation.minus))
            far = amounts(reading.relation, Sides(reading.noise_plus, reading.noise_minus, *weights), 0.1, 0.0)
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
        (torch.optim.Adam(model.parameters()), "no flow under Adam"),
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
