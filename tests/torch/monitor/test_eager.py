"""Eager execution of compiled models while they are monitored."""

import copy

import pytest
import torch

from tests.torch.oracle import (
    assert_noise,
    relu,
    relu_census,
    sample_gradients_by_vmap,
    square,
)
from undertow.torch import NoiseMonitor

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("order", [1, -1])
def test_eager_mode_lasts_as_long_as_any_monitor(order):
    from torch._dynamo import eval_frame

    symmetries = relu_census()
    assert eval_frame._stance.stance == "default"
    monitors = [NoiseMonitor(relu(), symmetries) for _ in range(2)][::order]
    monitors[0].close()
    assert eval_frame._stance.stance == "force_eager"
    monitors[0].close()
    assert eval_frame._stance.stance == "force_eager"
    monitors[1].close()
    assert eval_frame._stance.stance == "default"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_compiled_model_is_measured(how):
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    symmetries, before = relu_census(), copy.deepcopy(model)
    if how == "wrapped":
        trained = torch.compile(model, backend="aot_eager")
    else:
        model.compile(backend="aot_eager")
        trained = model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    with NoiseMonitor(trained, symmetries, every=2) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            square(trained, x).backward()
            optimizer.step()
            if step == 0:
                assert_noise(monitor, sample_gradients_by_vmap(before, square, x), 1e-11)
    assert [row["step"] for row in monitor.rows] == [0, 2]
