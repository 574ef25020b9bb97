"""Settings of optimisers: which ones the theory covers."""

import numpy as np
import pytest
import torch

from tests.torch.flows import STEP, linear_pair
from tests.torch.oracle import census_of, relu, relu_census, square
from undertow.torch import NoiseMonitor

pytestmark = pytest.mark.torch


class Signs(torch.optim.SGD):
    """A subclass of SGD with other steps."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


class Renamed(torch.optim.SGD):
    """A subclass of SGD with the same steps."""


OTHERS = [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, Signs]


KNOWN_TO_SGD_ONLY = ("step_size", "flow", "change", "distance", "farthest", "relaxation", "slowest", "infinite", "dead")


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("build", [relu, linear_pair])
def test_other_optimisers_have_no_equilibrium(kind, build):
    model = build()
    x = torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census() if build is relu else census_of(model, x[:4])
    optimizer = kind(model.parameters(), lr=1e-3, weight_decay=0.1)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    (row,), (reading,) = monitor.rows, monitor.last
    assert all(row[name] is None for name in KNOWN_TO_SGD_ONLY)
    assert row["note"] == f"no flow or equilibrium is known for {kind.__name__}: the theory is for SGD"
    assert np.isnan(reading.amount).all()
    assert reading.amount.shape == reading.charge.shape
    assert row["noise_plus"] > 0
    assert np.isfinite(row["charge"])
    monitor.plot()


def test_a_subclass_with_the_steps_of_sgd_is_treated_as_sgd():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = Renamed(model.parameters(), lr=STEP)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # the scheduler wraps the step of the instance
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    assert monitor.rows[0]["flow"] is not None


def test_different_settings_have_no_common_equilibrium():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters()}]
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        torch.optim.SGD(groups, lr=STEP).step()
    (row,) = monitor.rows
    assert all(row[name] is None for name in KNOWN_TO_SGD_ONLY)
    assert row["note"] == "its parameters have different step sizes, momenta or weight decays"


def test_adam_and_mixed_groups_have_no_flow():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
    for optimizer, note in (
        (torch.optim.Adam(model.parameters()), "no flow or equilibrium is known for Adam: the theory is for SGD"),
        (torch.optim.SGD(groups), "its parameters have different step sizes, momenta or weight decays"),
    ):
        with NoiseMonitor(model, symmetries, every=1) as monitor:
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
        (row,) = monitor.rows
        assert row["note"] == note
        assert row["flow"] is row["change"] is row["relaxation"] is None
        assert row["noise_plus"] > 0
