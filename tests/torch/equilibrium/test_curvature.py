"""Curvature against the Hessian, and its standard errors."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.flows import linear_pair
from tests.torch.oracle import square
from tests.torch.tasks import relu_task
from undertow.torch import census, equilibrate
from undertow.torch.equilibrium.curvature import dense_hessian, largest_curvature, trace_of_hessian

pytestmark = pytest.mark.torch


def test_curvature_against_the_hessian():
    model, batches, loss = relu_task(count=4)
    model.double()
    batches = [(x.double(), y.double()) for x, y in batches]
    done = equilibrate(model, batches, loss, census(model, batches[0], loss), step_size=0.1)
    names = [name for name, _ in model.named_parameters()]

    def mean(*tensors):
        params = dict(zip(names, tensors, strict=True))
        return sum((torch.func.functional_call(model, params, (x,)) - y).square().mean() for x, y in batches) / 4

    blocks = torch.autograd.functional.hessian(mean, tuple(p.detach() for p in model.parameters()))
    sizes = [p.numel() for p in model.parameters()]
    rows = [torch.cat([b.reshape(n, -1) for b in row], 1) for n, row in zip(sizes, blocks, strict=True)]
    hessian = torch.cat(rows)
    np.testing.assert_allclose(dense_hessian(model, batches, loss, 0), hessian.numpy(), atol=1e-10)
    largest = torch.linalg.eigvalsh(hessian)[-1].item()
    assert done.curvature[1].value == pytest.approx(largest, rel=5e-3)
    assert done.largest_step[1].value == pytest.approx(2 / largest, rel=5e-3)


def test_a_loss_without_a_second_derivative_has_no_curvature():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    batches = [torch.randn(5, 2, 4) for _ in range(6)]
    targets, lengths, wanted = torch.ones(2, 2, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([2, 2])
    log = lambda model, x: model(x).log_softmax(-1)
    loss = lambda model, x: nn.functional.ctc_loss(log(model, x), targets, lengths, wanted)
    done = equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1)
    assert done.imbalance < 1e-3
    assert np.isnan([done.curvature[0].value, done.largest_step[1].value]).all()
    assert "cannot be differentiated twice" in str(done)
    assert dense_hessian(net, batches, loss, 0) is None


@pytest.mark.parametrize("measure", [largest_curvature, trace_of_hessian])
def test_one_batch_has_no_standard_error(measure):
    model = linear_pair()
    batches = [torch.randn(6, 5, dtype=torch.float64) for _ in range(3)]
    one = measure(model, batches[:1], square, 0)
    assert np.isfinite(one.value)
    assert np.isnan(one.standard_error)
    assert measure(model, batches, square, 0).standard_error > 0


class Quadratic(nn.Module):
    """x |theta|^2/2 plus a coupling: the Hessian is x on the diagonal, with the coupling beside it."""

    def __init__(self, coupling=0.0):
        super().__init__()
        self.theta, self.coupling = nn.Parameter(torch.ones(4, dtype=torch.float64)), coupling

    def forward(self, x):
        return x * self.theta.square().sum() / 2 + self.coupling * self.theta[0] * self.theta[1]


def test_the_standard_error_of_a_trace():
    """With curvatures 1, 2 and 6 in all four directions each batch gives an exact trace, and the batches differ."""
    batches = [torch.tensor(value, dtype=torch.float64) for value in (1.0, 2.0, 6.0)]
    value = lambda net, x: net(x)
    trace = trace_of_hessian(Quadratic(), batches, value, 0)
    expected = np.array([4.0, 8.0, 24.0])
    assert trace.value == pytest.approx(expected.mean())
    assert trace.standard_error == pytest.approx(expected.std(ddof=1) / 3**0.5)
    sharp = largest_curvature(Quadratic(), batches, value, 0)
    assert sharp.value == pytest.approx(3.0, rel=1e-3)
    assert sharp.standard_error == pytest.approx(expected.std(ddof=1) / 4 / 3**0.5, rel=1e-3)


def test_every_batch_draws_new_signs():
    """For equal batches the estimates differ only by the signs, through the coupling."""
    batches = [torch.ones((), dtype=torch.float64)] * 16
    trace = trace_of_hessian(Quadratic(coupling=1.0), batches, lambda net, x: net(x), 0)
    assert trace.standard_error == pytest.approx(2 / 4, rel=0.3)  # +-2 with probability one half each, over 16
    assert trace.value == pytest.approx(4.0, abs=4 * trace.standard_error)
