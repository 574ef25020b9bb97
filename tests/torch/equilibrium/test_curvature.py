"""Curvature against the Hessian, and its standard errors."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.flows import linear_pair
from tests.torch.oracle import square
from tests.torch.tasks import relu_task
from undertow.estimate import Estimate
from undertow.torch import census, equilibrate
from undertow.torch.equilibrium.curvature import (
    batches_needed,
    dense_hessian,
    is_resolved,
    largest_curvature,
    trace_of_hessian,
)

pytestmark = pytest.mark.torch


def test_curvature_against_the_hessian():
    """The mean over all batches of v'Hv, with v the top eigenvectors of both halves; for equal batches lambda_max."""
    model, batches, loss = relu_task(count=4)
    model.double()
    batches = [(x.double(), y.double()) for x, y in batches]
    done = equilibrate(model, batches, loss, census(model, batches[0], loss), step_size=0.1)
    names = [name for name, _ in model.named_parameters()]

    def hessian(batch):
        def value(*tensors):
            params = dict(zip(names, tensors, strict=True))
            return (torch.func.functional_call(model, params, (batch[0],)) - batch[1]).square().mean()

        blocks = torch.autograd.functional.hessian(value, tuple(p.detach() for p in model.parameters()))
        sizes = [p.numel() for p in model.parameters()]
        return torch.cat([torch.cat([b.reshape(n, -1) for b in row], 1) for n, row in zip(sizes, blocks, strict=True)])

    matrices = torch.stack([hessian(batch) for batch in batches])
    mean = matrices.mean(0)
    np.testing.assert_allclose(dense_hessian(model, batches, loss, 0), mean.numpy(), atol=1e-10)
    tops = [torch.linalg.eigh(matrices[half].mean(0))[1][:, -1] for half in ([0, 2], [1, 3])]
    expected = sum(float(v @ mean @ v) for v in tops) / 2
    assert done.curvature[1].value == pytest.approx(expected, rel=5e-3)
    assert done.largest_step[1].value == pytest.approx(2 / expected, rel=5e-3)
    equal = largest_curvature(model, batches[:1] * 6, loss, 0)
    assert equal.value == pytest.approx(float(torch.linalg.eigvalsh(matrices[0])[-1]), rel=5e-3)
    assert equal.standard_error < 1e-6 * equal.value


class Form(nn.Module):
    """theta'H theta/2 for a batch H."""

    def __init__(self, size):
        super().__init__()
        self.theta = nn.Parameter(torch.ones(size, dtype=torch.float64))

    def forward(self, matrix):
        return self.theta @ matrix @ self.theta / 2


def noisy_hessians(count, noise, size=30, seed=0):
    """Return symmetric matrices with the mean diag(1, .5, ..., .5) and normal noise."""
    generator = torch.Generator().manual_seed(seed)
    drawn = noise * torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    mean = torch.full((size,), 0.5, dtype=torch.float64)
    mean[0] = 1.0
    return list(torch.diag(mean) + (drawn + drawn.mT) / 2)


def test_the_excess_of_an_eigenvector_that_fits_the_noise_cancels():
    """On eight batches with lambda_max = 1; the largest eigenvalue of their mean is too large by a twentieth."""
    value = lambda net, matrix: net(matrix)
    sets = [noisy_hessians(8, 0.12, seed=seed) for seed in range(30)]
    estimates = [largest_curvature(Form(30), batches, value, 0) for batches in sets]
    plain = np.mean([float(torch.linalg.eigvalsh(torch.stack(batches).mean(0))[-1]) for batches in sets])
    found = np.array([estimate.value for estimate in estimates])
    errors = np.array([estimate.standard_error for estimate in estimates])
    print(f"lambda_max of the mean {plain:.3f}, estimate {found.mean():.3f}, errors {errors.mean():.3f}")
    assert plain > 1.04
    assert found.mean() == pytest.approx(1.0, abs=0.02)
    assert all(map(is_resolved, estimates))
    assert np.mean(np.abs(found - 1) < 2 * errors) > 0.9


def test_a_curvature_below_its_noise_is_not_resolved_and_more_batches_resolve_it():
    value = lambda net, matrix: net(matrix)
    few = largest_curvature(Form(30), noisy_hessians(8, 0.4), value, 0)
    assert (few.samples, is_resolved(few)) == (8, False)
    needed = batches_needed(few)
    assert 8 < needed < 200
    more = largest_curvature(Form(30), noisy_hessians(4 * needed, 0.4), value, 0)
    assert more.samples > 8
    assert is_resolved(more)
    assert more.value == pytest.approx(1.0, abs=2 * more.standard_error)
    assert largest_curvature(Form(30), noisy_hessians(needed - 1, 0.4), value, 0).samples == 8


def test_the_number_of_batches_that_is_needed():
    assert batches_needed(Estimate(1.0, 0.6, 8)) == 32  # half the error takes four times as many
    assert batches_needed(Estimate(1.0, 0.0, 8)) == 2
    assert batches_needed(Estimate(-1.0, 0.6, 8)) is None
    assert batches_needed(Estimate(0.1, 0.6, 8)) is None
    assert batches_needed(Estimate(float("nan"), float("nan"), 8)) is None


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
