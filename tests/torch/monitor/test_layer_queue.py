"""Statistics of layers of one shape, computed together, against those of each layer alone."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.oracle import assert_noise, census_of, monitored_step, sample_gradients_by_vmap, square
from undertow.torch.monitor import layer_queue, layers, sample_gradients, statistics
from undertow.torch.monitor.layer_queue import LayerQueue, Waiting
from undertow.torch.monitor.sample_gradients import Dense, Outer, Scattered
from undertow.torch.monitor.statistics import Autotuner, StatisticRequest

pytestmark = pytest.mark.torch
SAMPLES, ROWS, COLUMNS = 5, 6, 4


def requests(name, *, block=False):
    index = np.arange(ROWS).reshape(2, 3, 1)
    return [StatisticRequest(name, 0), StatisticRequest(name, 1)] + [StatisticRequest(name, 0, index)] * block


def outer(positions, seed, flipped=False):
    torch.manual_seed(seed)
    out, into = (torch.randn(SAMPLES, positions, size, dtype=torch.float64) for size in (ROWS, COLUMNS))
    return Outer(out, into, (COLUMNS, ROWS) if flipped else (ROWS, COLUMNS), flipped)


def computed(waiting):
    queue = LayerQueue(Autotuner())
    for one in waiting:
        queue.add(one)
        assert one.name in queue
    groups = list(queue.take())
    return groups, [queue.compute(group) for group in groups]


def assert_exact(part, one):
    gradients = one.uses[0].formed()
    for request in one.requests:
        if request.index is None:
            others = [k for k in range(gradients.ndim) if k != request.axis + 1]
            exact = gradients.square().sum(others)
        else:
            rows = gradients.flatten(2).reshape(SAMPLES, 2, 3, -1)
            exact = (rows @ rows.mT).sum(0)
        torch.testing.assert_close(part.sums[request], exact, rtol=1e-11, atol=1e-11)
    total = gradients.sum(0)
    flipped = part.flipped[one.name]
    torch.testing.assert_close(
        part.probes[one.name], sample_gradients.gradient_probe(total, flipped), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("algorithm", ["gram", "direct"])
@pytest.mark.parametrize("positions", [1, 7])
@pytest.mark.parametrize("samples_at_once", [1, 3, 12, 1000])
def test_layers_of_one_shape_are_computed_together(monkeypatch, algorithm, positions, samples_at_once):
    """For chunks of a part of a layer, of two layers, and of all layers."""
    monkeypatch.setattr(statistics, "ALGORITHMS", {algorithm: statistics.ALGORITHMS[algorithm]})
    numbers = {"gram": 7 * (7 + ROWS), "direct": ROWS * COLUMNS}[algorithm]
    monkeypatch.setattr(sample_gradients, "CPU_CHUNK_BYTES", 8 * numbers * samples_at_once)
    waiting = [Waiting(f"l{k}", [outer(positions, k)], requests(f"l{k}", block=True)) for k in range(5)]
    groups, (part,) = computed(waiting)
    assert [[one.name for one in group] for group in groups] == [["l0", "l1", "l2", "l3", "l4"]]
    for one in waiting:
        assert_exact(part, one)


def test_what_is_not_alike_is_computed_apart():
    """Other shapes, orders of the axes, indices, kinds, matrices and numbers of uses."""
    torch.manual_seed(0)
    dense = lambda: Dense(torch.randn(SAMPLES, ROWS, dtype=torch.float64))
    tokens = torch.randint(0, ROWS, (SAMPLES, 3))
    scattered = Scattered(tokens, torch.randn(SAMPLES, 3, COLUMNS, dtype=torch.float64), (ROWS, COLUMNS))
    waiting = [
        Waiting("a", [outer(2, 0)], requests("a")),
        Waiting("b", [outer(3, 1)], requests("b")),
        Waiting("flipped", [outer(2, 2, flipped=True)], requests("flipped")),
        Waiting("block", [outer(2, 3)], requests("block", block=True)),
        Waiting("gain", [dense()], [StatisticRequest("gain", 0)]),
        Waiting("bias", [dense()], [StatisticRequest("bias", 0)]),
        Waiting("tokens", [scattered], requests("tokens")),
        Waiting("again", [outer(2, 4)], requests("again")),
        Waiting("apart", [outer(2, 5)], [StatisticRequest("apart", 0, matrices=2)]),
        Waiting("twice", [outer(2, 6), outer(2, 7)], requests("twice")),
    ]
    groups, parts = computed(waiting)
    names = [[one.name for one in group] for group in groups]
    assert names == [
        ["a", "again"], ["b"], ["flipped"], ["block"], ["gain", "bias"], ["tokens"], ["apart"], ["twice"],
    ]  # fmt: skip
    for group, part in zip(groups, parts, strict=True):
        for one in group:
            if one.name not in ("apart", "twice"):
                assert_exact(part, one)


def test_the_queue_is_full_after_so_many_bytes(monkeypatch):
    monkeypatch.setattr(layer_queue, "CPU_BYTES", 8 * SAMPLES * (ROWS + COLUMNS) * 3)
    queue = LayerQueue(Autotuner())
    full = []
    for k in range(3):
        queue.add(Waiting(f"l{k}", [outer(1, k)], requests(f"l{k}")))
        full.append(queue.full)
    assert full == [False, False, True]
    assert len(list(queue.take())) == 1
    assert not queue.full
    assert "l0" not in queue


def deep(dtype):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(5))).to(dtype)


@pytest.mark.parametrize("limit", [1, 2**30])
def test_the_noise_does_not_depend_on_the_size_of_the_queue(monkeypatch, limit):
    monkeypatch.setattr(layer_queue, "CPU_BYTES", limit)
    model, x = deep(torch.float64), torch.randn(9, 3, 8, dtype=torch.float64)
    monitor, before = monitored_step(model, census_of(model, x[:2]), square, x)
    assert len(monitor.last) >= 4
    assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)


def test_products_in_bfloat16_have_the_rounding_of_bfloat16(monkeypatch):
    """As on a GPU: factors and gradients in bfloat16, sums in single precision."""
    dtypes, noises = [], []

    def spy(function):
        def call(outer, *rest):
            dtypes.append(outer.out.dtype)
            return function(outer, *rest)

        return call

    monkeypatch.setattr(layer_queue, "layer_statistics", spy(layer_queue.layer_statistics))
    model, x = deep(torch.float32), torch.randn(64, 3, 8)
    symmetries = census_of(model, x[:2])
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(layers, "HALF_PRODUCTS", devices)
        monitor, _ = monitored_step(copy.deepcopy(model), symmetries, _under_autocast, x)
        noises.append([np.stack([one.noise_plus, one.noise_minus, abs(one.gradient) / 64]) for one in monitor.last])
    assert set(dtypes[: len(dtypes) // 2]) == {torch.float32}
    assert set(dtypes[len(dtypes) // 2 :]) == {torch.bfloat16}
    for single, half in zip(*noises, strict=True):
        seconds = single.max(0)  # the noise is the difference of second moments and squared means
        assert np.all(np.abs(half - single)[:2] <= 4e-3 * seconds)
        assert not np.array_equal(half[:2], single[:2])


def _under_autocast(net, batch):
    with torch.autocast("cpu", torch.bfloat16):
        return square(net, batch)
