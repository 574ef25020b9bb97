"""The map from sums along axes to generators."""

import numpy as np
import pytest
import torch

from undertow.torch import Axis, Census, Symmetry
from undertow.torch.monitor.entries import EntryMap
from undertow.torch.monitor.requests import Requests

pytestmark = pytest.mark.torch

PAIRS = Axis("q", 0, np.array([[0, 2], [1, 3]]), 4)
TWICE = Axis("k", 1, np.arange(2)[:, None], 2, power=2)
BLOCKS = Axis("q", 0, np.arange(4)[:, None], 4)
ACROSS = Axis("v", 1, np.arange(4)[:, None], 4)
CENSUS = Census(
    (Symmetry("pairs", (PAIRS,), (TWICE,), 1, True, 0.0), Symmetry("GL", (BLOCKS,), (ACROSS,), 2, True, 0.0)),
    (), (), (), (), (),
)  # fmt: skip


def test_sums_by_generator():
    """Columns are q[0..3], k[0..1] and v[0..3]; generators are two pairs and four scales of the GL."""
    entries = EntryMap.of(CENSUS, Requests(CENSUS))
    assert [(slot.parameter, slot.length) for slot in entries.slots] == [("q", 4), ("k", 2), ("v", 4)]
    assert (entries.powers, entries.starts) == ((1, 2), (0, 2, 6))
    rows, (blocks,) = entries.on(torch.device("cpu"))
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 5.0, 6.0, 7.0, 8.0], dtype=torch.float64)
    sums = rows.by_generator(rows.factor * values.numpy()[rows.column])
    assert sums.tolist() == [1 + 3 - 2 * 10, 2 + 4 - 2 * 20, 1 - 5, 2 - 6, 3 - 7, 4 - 8]
    assert rows.owner.tolist() == [0, 0, 1, 1, 1, 1]
    assert (blocks.block.tolist(), blocks.plus.tolist()) == ([0, 1, 0, 1], [True, True, False, False])
    plus, minus = blocks.by_side(torch.ones(4, 2, 2), torch.arange(4.0))
    assert (plus[:, 0, 0].tolist(), minus[:, 1, 1].tolist()) == ([0, 1], [2, 3])
    assert entries.on(torch.device("cpu"))[0] is rows


def test_statistics_of_samples_are_added_once():
    """A statistic of a GL is already a sum over indices that move together; a missing one is 0."""
    together = Axis("q", 0, np.array([[0, 2], [1, 3]]), 4)
    census = Census((Symmetry("GL", (together,), (), 2, True, 0.0),), (), (), (), (), ())
    requests = Requests(census)
    entries = EntryMap.of(census, requests)
    rows, _ = entries.on(torch.device("cpu"))
    (request,) = requests.all()
    sums = {request: torch.tensor([[[3.0, 1.0], [1.0, 5.0]]])}
    samples = entries.sample_sums(sums, torch.device("cpu"))
    assert rows.by_generator(samples[rows.samples]).tolist() == [3.0, 5.0]
    assert not entries.sample_sums({}, torch.device("cpu")).any()
    diagonal = EntryMap.of(census, Requests(census, diagonal=True))
    assert diagonal.blocks == ()
    (request,) = diagonal.requests
    samples = diagonal.sample_sums({request: torch.tensor([1.0, 2.0, 3.0, 4.0])}, torch.device("cpu"))
    rows, _ = diagonal.on(torch.device("cpu"))
    assert rows.by_generator(samples[rows.samples]).tolist() == [4.0, 6.0]
