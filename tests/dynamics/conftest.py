"""Fixtures of the tests of runs."""

import pytest

from tests.dynamics.runs import BLOCK, descend
from undertow.dynamics import engine


@pytest.fixture
def short_blocks(monkeypatch):
    """Use blocks of five steps, so that a few steps span several blocks."""
    monkeypatch.setattr(engine, "LONGEST_BLOCK", BLOCK)


@pytest.fixture(scope="session")
def reference():
    """2,500 steps of three seeds, observed at every step."""
    return descend(2500, every=1)
