"""The device on which computations run."""

import jax
import jax.numpy as jnp
import pytest

from undertow import _device
from undertow._device import available_memory, device


def test_without_settings_it_is_the_first_device():
    assert device() == jax.devices()[0]
    assert device() in jnp.zeros(1).devices()


@pytest.mark.parametrize("setting", ["cpu", jax.devices("cpu")[-1]], ids=["name of a platform", "device"])
def test_it_follows_the_setting_of_jax(setting):
    with jax.default_device(setting):
        assert device().platform == "cpu"
        assert isinstance(setting, str) or device() is setting


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    meminfo, limit, used = (tmp_path / name for name in ("meminfo", "max", "current"))
    meminfo.write_text("MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
    monkeypatch.setattr(_device, "MEMORY", meminfo)
    monkeypatch.setattr(_device, "GROUPS", ((limit, used),))
    assert available_memory() == 3000 * 1024  # no such group
    used.write_text("500000\n")
    limit.write_text("max\n")
    assert available_memory() == 3000 * 1024
    limit.write_text("1500000\n")
    assert available_memory() == 1_000_000
    limit.write_text("400000\n")
    assert available_memory() == 0


def test_memory_is_known_without_the_files_of_linux(tmp_path, monkeypatch):
    monkeypatch.setattr(_device, "MEMORY", tmp_path / "nowhere")
    assert available_memory() > 2**28
