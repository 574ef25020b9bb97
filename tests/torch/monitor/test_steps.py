"""Step sizes of entries and the unit of charges."""

import numpy as np
import pytest
import torch

from undertow.torch import Axis, Census, Symmetry
from undertow.torch.monitor.entries import EntryMap
from undertow.torch.monitor.requests import Requests
from undertow.torch.monitor.settings import StepRule
from undertow.torch.monitor.steps import ParameterSettings, Steps, plan_step

pytestmark = pytest.mark.torch

U, W = (Axis(name, 0, np.arange(2)[:, None], 2, 1) for name in "uw")
CENSUS = Census(
    (Symmetry("scales", (U,), (W,), 1, True, 0.0), Symmetry("GL", (U,), (W,), 2, True, 0.0)), (), (), (), (), ()
)


def test_a_gl_under_adam_has_the_plain_charge():
    adam, sgd = StepRule("Adam", 1e-3), StepRule("SGD", 0.1)
    plan = plan_step(CENSUS.symmetries, {"u": adam, "w": adam})
    assert (plan.kinds, plan.plain(CENSUS.symmetries)) == (("Adam", "Adam"), [False, True])
    plan = plan_step(CENSUS.symmetries, {"u": sgd, "w": sgd})
    assert plan.plain(CENSUS.symmetries) == [False, False]
    plan = plan_step(CENSUS.symmetries, {"u": adam, "w": sgd})
    assert plan.plain(CENSUS.symmetries) == [True, True]
    assert all("train together" in note for note in plan.notes)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_charges_are_in_units_of_the_largest_step(as_tensor):
    """The factor of theta^2 is h/h_i; a step size on a device stays there."""
    device = torch.device("cpu")
    rows, _ = EntryMap.of(CENSUS, Requests(CENSUS)).on(device)
    size = torch.tensor(0.05) if as_tensor else 0.05
    rules = {"u": StepRule("SGD", size, momentum=0.5), "w": StepRule("SGD", 0.2, 0.3, betas=(0.9, 0.99))}
    settings = ParameterSettings.of(["u", "w"], rules, device)
    np.testing.assert_allclose(settings.step, [0.1, 0.2])
    np.testing.assert_allclose(settings.eta, [0.05, 0.2])
    steps = Steps(rows, settings, 2, np.array([False, True]))
    np.testing.assert_allclose(steps.reference, [0.2, 0.2])
    first = rows.symmetry == 0
    np.testing.assert_allclose(steps.unit[first], [2.0, 2.0, 1.0, 1.0])
    np.testing.assert_allclose(steps.unit[~first], 1.0)
    np.testing.assert_allclose(steps.decay[first], [0.0, 0.0, 0.3, 0.3])


def test_a_step_size_of_zero_has_units():
    rows, _ = EntryMap.of(CENSUS, Requests(CENSUS)).on(torch.device("cpu"))
    settings = ParameterSettings.of(["u", "w"], {name: StepRule("SGD", 0.0) for name in "uw"}, torch.device("cpu"))
    steps = Steps(rows, settings, 2, np.array([False, False]))
    assert not steps.moves.any()
    assert steps.unit.tolist() == [1.0] * len(steps.unit)
