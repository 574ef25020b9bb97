"""Settings of optimisers: which ones the theory covers, and the notes on others."""

import numpy as np
import pytest
import torch

from tests.torch.flows import STEP, linear_pair
from tests.torch.oracle import census_of, relu, relu_census, square
from undertow.torch import NoiseMonitor
from undertow.torch.monitor.settings import StepRule, common_rule, optimizer_rules

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


class Slower(torch.optim.AdamW):
    """A subclass of AdamW with other steps."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad


REFUSED = {
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
    "Signs": lambda p: Signs(p, lr=1e-3),
    "Slower": lambda p: Slower(p, lr=1e-3),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "adds the decay to the gradient": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1),
}
THEORY = (
    "optimiser", "step_size", "flow", "change", "first_order", "second_order", "decay", "metric", "distance",
    "farthest", "relaxation", "slowest", "infinite", "dead", "memory", "eps_share",
)  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.parametrize("build", [relu, linear_pair])
def test_other_optimisers_have_noise_and_a_note(words, build):
    model = build()
    x = torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census() if build is relu else census_of(model, x[:4])
    optimizer = REFUSED[words](model.parameters())
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    (row,), (reading,) = monitor.rows, monitor.last
    assert all(row[name] is None for name in THEORY)
    assert words in row["note"]
    assert row["note"].startswith("the flow and the equilibrium are not known")
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


def test_rules_of_two_optimisers():
    """The first optimiser that has a parameter counts; a parameter of none has no step size."""
    model = relu()
    parameters = dict(model.named_parameters())
    sgd = torch.optim.SGD(
        [{"params": [parameters["0.weight"]], "lr": 0.2}, {"params": [parameters["0.bias"]], "weight_decay": 0.1}],
        lr=STEP, momentum=0.9, dampening=0.5,
    )  # fmt: skip
    adam = torch.optim.AdamW([parameters["2.weight"], parameters["0.bias"]], lr=1e-3, betas=(0.8, 0.95), eps=1e-6)
    rules = optimizer_rules([sgd, adam], parameters)
    assert (rules["0.weight"].step_size, rules["0.weight"].weight_decay) == (0.2, 0.0)
    assert (rules["0.bias"].kind, rules["0.bias"].weight_decay) == ("SGD", 0.1)
    assert rules["0.bias"].effective_step == pytest.approx(STEP * 0.5 / 0.1)
    assert (rules["2.weight"].kind, rules["2.weight"].betas, rules["2.weight"].eps) == ("Adam", (0.8, 0.95), 1e-6)
    assert rules["2.weight"].effective_step == 1e-3
    assert rules["2.bias"].note == "the step size of 2.bias is not known"


def test_common_rules_or_the_reason():
    sgd, adam = StepRule("SGD", 0.1), StepRule("Adam", 1e-3)
    assert common_rule([sgd, StepRule("SGD", 0.2, 0.1)]) == ("SGD", "")
    assert common_rule([adam, adam]) == ("Adam", "")
    assert "SGD and Adam train together" in common_rule([sgd, adam])[1]
    assert "is 0: they do not take part" in common_rule([sgd, StepRule("SGD", 0.0)])[1]
    assert common_rule([StepRule("SGD", 0.0), StepRule("SGD", 0.0)]) == ("SGD", "")
    assert common_rule([sgd, StepRule("unknown", note="why")]) == ("unknown", "why")


def test_a_parameter_without_an_optimiser_is_noted():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        torch.optim.SGD(model[0].parameters(), lr=STEP).step()
    (row,) = monitor.rows
    assert row["note"] == "the step size of 2.weight is not known"
