"""The state of an optimiser moves with the parameters: m like a gradient, v like its square."""

import pytest
import torch

from tests.torch.tasks import relu_task
from undertow.torch import census, equilibrate
from undertow.torch.equilibrium.optimizer_state import adamw_state, sgd_state

pytestmark = pytest.mark.torch

OPTIONS = {"step_size": 1e-3, "weight_decay": 0.1, "optimiser": "adamw"}


def double_task():
    model, batches, loss = relu_task()
    return model.double(), [(x.double(), y.double()) for x, y in batches], loss


@pytest.mark.parametrize("amsgrad", [False, True])
def test_m_and_v_of_one_batch_become_those_of_the_batch_at_the_new_point(amsgrad):
    model, batches, loss = double_task()
    symmetries = census(model, batches[0], loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-300, amsgrad=amsgrad)
    loss(model, batches[3]).backward()
    optimizer.step()
    done = equilibrate(model, batches, loss, symmetries, optimizer=optimizer, **OPTIONS)
    assert max(m.factor for m in done.moved) > 1.1
    assert done.cost[1].value < done.cost[0].value
    gradients = torch.autograd.grad(loss(model, batches[3]), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        state = optimizer.state[parameter]
        torch.testing.assert_close(state["exp_avg"], 0.1 * gradient, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(state["exp_avg_sq"], 1e-3 * gradient**2, rtol=1e-8, atol=1e-14)
        if amsgrad:
            torch.testing.assert_close(state["max_exp_avg_sq"], 1e-3 * gradient**2, rtol=1e-8, atol=1e-14)
    # v of the optimiser is that of one batch, so that the equilibrium is that of this batch
    twice = equilibrate(model, batches[3:4] * 2, loss, symmetries, **OPTIONS)
    assert max(m.factor for m in twice.moved) < 1 + 1e-6


def test_undo_restores_parameters_and_state():
    model, batches, loss = double_task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in batches[:5]:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    tensors = lambda: (
        [p.detach().clone() for p in model.parameters()]
        + [optimizer.state[p][key].clone() for p in model.parameters() for key in ("exp_avg", "exp_avg_sq")]
    )
    before = tensors()
    done = equilibrate(model, batches, loss, census(model, batches[0], loss), optimizer=optimizer, **OPTIONS)
    assert not all(torch.equal(a, b) for a, b in zip(before, tensors(), strict=True))
    done.undo()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(), strict=True))


def test_an_optimiser_without_a_step_has_no_state():
    model, _, _ = relu_task(count=2)
    params = dict(model.named_parameters())
    assert adamw_state(torch.optim.AdamW(model.parameters()), params).second_moment is None
    assert adamw_state(None, params).tensors(list(params)) == []
    assert sgd_state(torch.optim.SGD(model.parameters(), lr=0.1), params).tensors(list(params)) == []


def test_optimisers_of_another_kind_raise():
    model, batches, loss = relu_task(count=2)
    symmetries = census(model, batches[0], loss)
    with pytest.raises(TypeError, match=r"the optimiser is SGD; give a `torch\.optim\.AdamW`"):
        equilibrate(model, batches, loss, symmetries, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **OPTIONS)
    with pytest.raises(TypeError, match=r"`equilibrate\(optimizer=...\)`: AdamW rescales every entry separately"):
        equilibrate(model, batches, loss, symmetries, step_size=0.1, optimizer=torch.optim.AdamW(model.parameters()))
    coupled = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    with pytest.raises(ValueError, match=r"adds the decay to the gradient"):
        equilibrate(model, batches, loss, symmetries, optimizer=coupled, **OPTIONS)
    some = torch.optim.AdamW(model[0].parameters())
    loss(model, batches[0]).backward()
    some.step()
    with pytest.raises(ValueError, match=r"has no v for 2\.weight"):
        equilibrate(model, batches, loss, symmetries, optimizer=some, **OPTIONS)
