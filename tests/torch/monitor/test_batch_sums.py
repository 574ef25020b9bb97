"""Sums over the samples of several backward passes."""

import pytest
import torch

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.statistics import StatisticRequest

pytestmark = pytest.mark.torch


def sums(samples, values, half=()):
    part = BatchSums()
    part.samples, part.sums = samples, {request: torch.tensor(value) for request, value in values.items()}
    part.probes, part.flipped, part.half = {"weight": torch.ones(2)}, {"weight": False}, set(half)
    return part


def test_sums_of_several_passes_are_added():
    one, two = StatisticRequest("weight", 0), StatisticRequest("weight", 1)
    total = BatchSums()
    total.add(sums(4, {one: [1.0, 2.0]}))
    total.add(sums(3, {one: [0.5, 0.5], two: [7.0]}, half=["weight"]))
    assert total.samples == 7
    assert total.sums[one].tolist() == [1.5, 2.5]
    assert total.sums[two].tolist() == [7.0]
    assert total.probes["weight"].tolist() == [2.0, 2.0]
    assert (total.flipped, total.half) == ({"weight": False}, {"weight"})


def test_sums_that_overflow_are_not_finite():
    request = StatisticRequest("weight", 0)
    assert sums(2, {request: [1.0, 2.0]}).finite
    assert not sums(2, {request: [1.0, float("inf")]}).finite
    assert not sums(2, {request: [float("nan"), 0.0]}).finite


def test_a_pass_that_overflows_adds_nothing():
    """Its samples are not counted, and the numbers stay on the device."""
    request = StatisticRequest("weight", 0)
    total = BatchSums()
    total.add(sums(2, {request: [1.0, float("inf")]}).if_finite())
    total.add(sums(3, {request: [1.0, 2.0]}).if_finite())
    assert (total.samples, int(total.counted)) == (5, 3)
    assert total.sums[request].tolist() == [1.0, 2.0]
    assert total.probes["weight"].tolist() == [1.0, 1.0]


def test_a_single_pass_that_overflows_counts_no_sample():
    """Its sums become zeros where they are added to others, as those of other processes are."""
    request = StatisticRequest("weight", 0)
    total = BatchSums()
    total.add(sums(2, {request: [1.0, float("nan")]}).if_finite())
    assert (total.samples, int(total.counted)) == (2, 0)
    total.settle()
    assert total.sums[request].tolist() == [0.0, 0.0]
    assert total.probes["weight"].tolist() == [0.0, 0.0]
