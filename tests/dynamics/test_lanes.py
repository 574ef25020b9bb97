"""The width of lanes and the length of chunks."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.dynamics import lanes


def test_lanes_fit_an_accelerator(monkeypatch):
    """Params of 4 MiB, of which a step holds several copies at once."""
    monkeypatch.setattr(lanes, "device", lambda: types.SimpleNamespace(platform="gpu"))
    noise = ut.Isotropic(ut.Problem(lambda w, x: jnp.sum(w) * x, jnp.ones(3)))
    width = lanes.lane_width("descend", None, 10**6, noise, jnp.zeros(2**20), 1)
    assert 64 <= width <= lanes.ACCELERATOR_LANE_BYTES // (8 * 4 * 2**20)
    # a block of 100 steps draws 400 MiB per seed: 16 GiB hold 37 times 432 MiB
    assert lanes.lane_width("descend", None, 10**6, noise, jnp.zeros(2**20), 100) == 32


@pytest.mark.parametrize("seconds", [1e-3, 0.02, 0.1])
def test_chunks_take_about_the_time_they_should(seconds, monkeypatch):
    """On a clock that moves `seconds` per block."""
    clock = [0.0]
    monkeypatch.setattr(lanes.time, "perf_counter", lambda: clock[0])
    plan, now = lanes.ChunkPlan(10), 0
    for _ in range(20):
        stop, _ = plan.next(now, 10**9, np.array([10**9]), 100)
        took, now = (stop - now) // 10 * seconds, stop
        clock[0] += took
    assert 0.5 * lanes.CHUNK_SECONDS < took < 2 * lanes.CHUNK_SECONDS


def test_a_full_buffer_of_observations_ends_chunks_early_for_as_long_as_a_run_takes():
    """Every chunk is too short, so that each plans for more blocks than the one before."""
    plan, now, capacity = lanes.ChunkPlan(1000), 0, 1024
    due = np.arange(1_000_001)
    for _ in range(900):
        stop, count = plan.next(now, 1_000_000, due[now:], capacity)
        assert 0 < count <= capacity
        now = stop


@pytest.mark.parametrize(("number", "power"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (1023, 512)])
def test_powers_of_two_are_at_most_the_number_and_at_least_one(number, power):
    assert lanes.power_of_two(number) == power
