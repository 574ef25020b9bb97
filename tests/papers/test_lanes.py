"""The number of runs that advance together."""

import types

import pytest

from undertow.papers import _lanes


@pytest.mark.parametrize(("platform", "expected"), [("cpu", 256), ("gpu", None), ("tpu", None)])
def test_the_width_is_limited_on_a_cpu_alone(platform, expected, monkeypatch):
    monkeypatch.setattr(_lanes, "device", lambda: types.SimpleNamespace(platform=platform))
    assert _lanes.lanes(256) == expected
