"""Lanes and chunks put together on the host."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.dynamics import engine
from undertow.dynamics.gather import Observations, gather


def lane(params, diverged_block):
    """Return a lane as the engine leaves it: params, and the block in which each trajectory diverged."""
    shape = np.shape(diverged_block)
    keys = jax.random.split(jax.random.key(0), shape) if shape else jax.random.key(0)
    zero = jnp.asarray(0, jnp.int32)
    return engine.State(params, None, (params, None), keys, zero, jnp.asarray(diverged_block, jnp.int32), {}, zero, {})


NOTHING = (np.zeros(0, int), {})


def test_chunks_follow_each_other_in_time():
    observations = Observations(NOTHING, np.array([0, 5, 10]), None)
    for values in (np.zeros((2, 3)), np.ones((1, 3))):
        observations.put([({"w": values}, {})], len(values))
    steps, observed = observations.record()
    np.testing.assert_array_equal(steps, [0, 5, 10])
    np.testing.assert_array_equal(observed["w"], [[0.0] * 3, [0.0] * 3, [1.0] * 3])


def test_a_run_that_is_stopped_has_the_observations_so_far():
    observations = Observations(NOTHING, np.arange(1000), None)
    observations.put([({"w": np.array([3.0, 4.0])}, {})], 2)
    steps, observed = observations.record()
    np.testing.assert_array_equal(steps, [0, 1])
    np.testing.assert_array_equal(observed["w"], [3.0, 4.0])


def test_lanes_stand_side_by_side_without_their_padding():
    """Two lanes of two, of which three seeds are asked for: (times, lane) becomes (seeds, times)."""
    lanes = [({"w": np.array([[1, 2], [10, 20]])}, {"m": np.zeros((2, 2, 5))}),
             ({"w": np.array([[3, -1], [30, -1]])}, {"m": np.ones((2, 2, 5))})]  # fmt: skip
    observations = Observations(NOTHING, np.array([0, 7]), 3)
    observations.put(lanes, 2)
    steps, observed = observations.record()
    np.testing.assert_array_equal(steps, [0, 7])
    np.testing.assert_array_equal(observed["w"], [[1, 10], [2, 20], [3, 30]])
    assert observed["w"].dtype == lanes[0][0]["w"].dtype
    assert observed["m"].shape == (3, 2, 5)
    np.testing.assert_array_equal(observed["m"][:, 0, 0], [0, 0, 1])


@pytest.mark.parametrize("seeds", [None, 2])
def test_observations_follow_those_of_the_record_before(seeds):
    first = (np.array([0, 5]), {"w": np.array([1, 2]) if seeds is None else np.array([[1, 2], [3, 4]])})
    new = np.array([9]) if seeds is None else np.array([[9, 8]])
    observations = Observations(first, np.array([10]), seeds)
    observations.put([({"w": new}, {})], 1)
    steps, observed = observations.record()
    np.testing.assert_array_equal(steps, [0, 5, 10])
    np.testing.assert_array_equal(observed["w"], [1, 2, 9] if seeds is None else [[1, 2, 9], [3, 4, 8]])


def test_the_arrays_are_allocated_once():
    """Chunks that are kept and joined at the end would need the memory twice."""
    count, chunk = 100_000, np.ones((1000, 50))
    observations = Observations(NOTHING, np.arange(count), None)
    observations.put([({"w": chunk}, {})], 1000)
    tracemalloc.start()
    for _ in range(count // 1000 - 1):
        observations.put([({"w": chunk}, {})], 1000)
    _, observed = observations.record()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert observed["w"].shape == (count, 50)
    assert peak < 0.1 * observed["w"].nbytes


def test_observations_after_divergence_are_nan():
    """Seed 1 of three is not finite after step 6; the padding of the second lane counts for nothing."""
    lanes = (lane(jnp.array([1.0, 2.0]), [engine.NEVER, 5]), lane(jnp.array([3.0, 4.0]), [engine.NEVER, 0]))
    nonfinite = [np.array([engine.NEVER, 6]), np.array([engine.NEVER + 3, 1])]
    steps = np.array([0, 5, 6, 10])
    before = {"n": np.arange(12).reshape(3, 4), "w": np.ones((3, 4, 2), np.float32)}
    params, diverged, diverged_at, observed = gather(lanes, nonfinite, steps, before, 3)
    np.testing.assert_array_equal(params, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(diverged, [False, True, False])
    np.testing.assert_array_equal(diverged_at, [-1, 6, -1])
    np.testing.assert_array_equal(observed["n"], [[0, 1, 2, 3], [4, 5, np.nan, np.nan], [8, 9, 10, 11]])
    np.testing.assert_array_equal(np.isnan(observed["w"]).all(-1), np.isnan(observed["n"]))
    assert observed["w"].dtype == np.float32
    assert np.isfinite(before["w"]).all()  # the arrays that were given are not changed


def test_whole_numbers_stay_whole_while_nothing_diverges():
    before = {"n": np.arange(8).reshape(2, 4)}
    both = lane(jnp.ones((2, 3)), [engine.NEVER] * 2)
    *_, diverged_at, observed = gather((both,), [np.full(2, engine.NEVER)], np.arange(4), before, 2)
    np.testing.assert_array_equal(diverged_at, [-1, -1])
    assert observed["n"].dtype == before["n"].dtype


def test_a_single_run_has_no_axis_of_seeds():
    single = lane(jnp.ones(3), 5)
    params, diverged, diverged_at, observed = gather(
        (single,), [np.array(6)], np.array([0, 6]), {"flag": np.array([True, False])}, None
    )
    assert params.shape == (3,)
    assert diverged.shape == ()
    assert bool(diverged)
    assert int(diverged_at) == 6
    np.testing.assert_array_equal(observed["flag"], [1.0, np.nan])
