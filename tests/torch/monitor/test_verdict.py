"""Verdicts on symmetries from the rows of a monitor."""

import pytest
import torch
from torch import nn

from undertow.torch import NoiseMonitor, census
from undertow.torch.monitor.verdict import verdicts

pytestmark = pytest.mark.torch


def rows(*distances, every=100, relaxation=1000.0, **others):
    base = {"symmetry": "QK", "optimiser": "AdamW", "note": "", "relaxation": relaxation} | others
    return [base | {"step": every * k, "distance": distance} for k, distance in enumerate(distances)]


def test_a_symmetry_at_its_equilibrium():
    (one,) = verdicts(rows(0.9, 0.05, 0.06, 0.3, 0.02, 0.04))  # the median of the last five
    assert (one.state, one.distance, one.steps_left) == ("reached", 0.05, None)
    assert str(one) == "QK: at AdamW's equilibrium: the distance is 0.05"
    (other,) = verdicts(rows(0.05), tolerance=0.01)
    assert other.state == "moving"


def test_a_symmetry_that_moves_there():
    """At the rate 1/relaxation the distance is below the tolerance after log(distance/tolerance) of these times."""
    (one,) = verdicts(rows(0.8, 0.5))
    assert one.state == "moving"
    assert one.steps_left == pytest.approx(1000 * 1.871802, rel=1e-5)  # log(0.65/0.1)
    assert one.text == "not at AdamW's equilibrium: the distance is 0.65; theory expects about 1,900 steps"


def test_a_distance_that_grows_is_not_called_a_motion_to_the_equilibrium():
    """Before three relaxation times have passed nothing contradicts the theory."""
    (one,) = verdicts(rows(0.24, 0.28, 0.32))
    assert one.state == "moving"
    assert one.text == "not at AdamW's equilibrium: the distance is 0.28; theory expects about 1,000 steps"


def test_a_distance_that_does_not_fall():
    (one,) = verdicts(rows(0.5, *[0.45] * 8, every=1000))
    assert one.state == "stalled"
    assert "0.45 after 8 relaxation times, where it was 0.5" in one.text
    (one,) = verdicts(rows(0.9, *[0.3] * 8, every=1000))
    assert one.state == "moving"


def test_what_is_not_known():
    (one,) = verdicts(rows(None, note="the flow is not known for RMSprop"))
    assert (one.state, one.text) == ("unknown", "not known: the flow is not known for RMSprop")
    (one,) = verdicts(rows(0.0, relaxation=None, note="no generator has a finite equilibrium"))
    assert (one.state, one.text) == ("none", "not known: no generator has a finite equilibrium")
    assert verdicts([]) == []
    with pytest.raises(ValueError, match=r"verdicts\(tolerance=0\)"):
        verdicts([], tolerance=0.0)
    with pytest.raises(ValueError, match="tolerance"):
        verdicts([], tolerance=-1.0)


@pytest.mark.slow
def test_a_network_reaches_the_equilibrium_of_adamw():
    """From weights that are three times too large, in a few relaxation times."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.3), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight.mul_(3)
    truth = torch.randn(6, 2)
    loss = lambda net, batch: (net(batch[0]) - batch[1]).square().mean()

    def draw():
        x = torch.randn(16, 6)
        return x, (x @ truth).sin() + torch.randn(16, 2) / 2

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    states = []
    with NoiseMonitor(model, census(model, draw(), loss), every=500) as monitor:
        for step in range(10_001):
            optimizer.zero_grad()
            loss(model, draw()).backward()
            optimizer.step()
            if step in (500, 10_000):
                states.append(monitor.verdicts()[0].state)
    assert states == ["moving", "reached"]
    assert monitor.rows[0]["distance"] > 0.5
