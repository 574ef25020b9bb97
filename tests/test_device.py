"""The device on which computations run."""

import jax
import jax.numpy as jnp
import pytest

from undertow._device import device


def test_without_settings_it_is_the_first_device():
    assert device() == jax.devices()[0]
    assert device() in jnp.zeros(1).devices()


@pytest.mark.parametrize("setting", ["cpu", jax.devices("cpu")[-1]], ids=["name of a platform", "device"])
def test_it_follows_the_setting_of_jax(setting):
    with jax.default_device(setting):
        assert device().platform == "cpu"
        assert isinstance(setting, str) or device() is setting
