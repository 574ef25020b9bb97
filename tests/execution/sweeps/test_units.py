"""Durations and sizes as text."""

import pytest

from undertow.execution.sweeps.units import in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.0314, "0.031 s"), (59.4, "59 s"), (59.7, "1 min 0 s"), (119.9, "2 min 0 s"),
        (3599.7, "1 h 0 min"), (7199.9, "2 h 0 min"), (9000, "2 h 30 min"), (-300, "-5 min 0 s"),
    ],
)  # fmt: skip
def test_times_in_words(seconds, words):
    assert in_words(seconds) == words
