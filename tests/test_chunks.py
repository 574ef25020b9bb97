"""Loops over samples in chunks: the same sums and stacks as without chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow import _chunks as chunks

SAMPLES = {"x": np.arange(14.0).reshape(7, 2), "y": np.arange(7.0) ** 2}


def squares(sample):
    return {"sum": jnp.sum(sample["x"] ** 2) + sample["y"], "row": 3 * sample["x"]}


@pytest.mark.parametrize(
    ("bytes_each", "expected"),
    [(1, 1000), (10, 100), (334, 2), (1000, 1), (1001, 1), (0, 1000)],
)
def test_a_chunk_fits_into_the_budget_and_has_one_sample_at_least(bytes_each, expected, monkeypatch):
    monkeypatch.setattr(chunks, "BUDGET_BYTES", 1000)
    assert chunks.chunk_length(bytes_each) == expected


@pytest.mark.parametrize("chunk", [1, 3, 6, 7, 100])
def test_a_map_over_samples_is_the_same_in_chunks(chunk):
    mapped = jax.jit(lambda samples: chunks.map_samples(squares, samples, chunk))(SAMPLES)
    np.testing.assert_array_equal(mapped["sum"], (SAMPLES["x"] ** 2).sum(1) + SAMPLES["y"])
    np.testing.assert_array_equal(mapped["row"], 3 * SAMPLES["x"])


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_a_sum_over_samples_is_the_same_in_chunks(chunk):
    """Seven samples: with and without a shorter chunk at the end. Whole numbers add without rounding."""
    longest = []

    def block(samples):
        longest.append(samples["y"].shape[0])
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(squares)(samples))

    total = jax.jit(lambda samples: chunks.sum_samples(block, samples, chunk))(SAMPLES)
    assert float(total["sum"]) == (SAMPLES["x"] ** 2).sum() + SAMPLES["y"].sum()
    np.testing.assert_array_equal(total["row"], 3 * SAMPLES["x"].sum(0))
    assert max(longest) == min(chunk, 7)
    assert min(longest) == (7 % chunk or min(chunk, 7))
