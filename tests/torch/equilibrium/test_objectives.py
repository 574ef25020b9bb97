"""The costs of SGD and AdamW: closed forms, standard errors, and the point to which AdamW trains a network."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.oracle import relu, relu_census, square
from tests.torch.tasks import TASKS, imbalanced, outputs, relu_task
from undertow.estimate import Estimate
from undertow.torch import census, equilibrate
from undertow.torch.equilibrium.objectives import AdamWObjective, SGDObjective

pytestmark = pytest.mark.torch


def mean_squares(model, batches, loss):
    """Return the mean squared gradient of every entry."""
    params = dict(model.named_parameters())
    rows = [torch.autograd.grad(loss(model, batch), list(params.values())) for batch in batches]
    return {name: torch.stack(g).square().mean(0) for name, g in zip(params, zip(*rows, strict=True), strict=True)}


def cost(model, batches, loss, step, decay):
    roots = {name: squares.sqrt() for name, squares in mean_squares(model, batches, loss).items()}
    return sum(float((roots[n] * (step / 2 + decay * p.detach() ** 2)).sum()) for n, p in model.named_parameters())


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_neurons_move_by_the_closed_form(decay):
    """exp(2 s) = (lambda a_minus + eta/2 b_plus)/(lambda a_plus + eta/2 b_minus), with sums over the two sides."""
    model, step = relu(), 0.02
    batches = list(torch.randn(12, 6, 5, dtype=torch.float64))
    roots = {name: v.sqrt() for name, v in mean_squares(model, batches, square).items()}
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    b = roots["2.weight"].sum(0), roots["0.weight"].sum(1) + roots["0.bias"]
    weighted = {name: root * params[name] ** 2 for name, root in roots.items()}
    a = weighted["2.weight"].sum(0), weighted["0.weight"].sum(1) + weighted["0.bias"]
    factor = ((decay * a[1] + step / 2 * b[0]) / (decay * a[0] + step / 2 * b[1])).sqrt()
    first = cost(model, batches, square, step, decay)
    done = equilibrate(model, batches, square, relu_census(), step_size=step, weight_decay=decay, optimiser="adamw")
    torch.testing.assert_close(model[2].weight.detach(), params["2.weight"] * factor)
    torch.testing.assert_close(model[0].weight.detach(), params["0.weight"] / factor[:, None])
    np.testing.assert_allclose(done.moved[0].amount, factor.log().numpy(), rtol=1e-9)
    assert done.optimiser == "adamw"
    assert done.cost[0].value == pytest.approx(first, rel=1e-9)
    assert done.cost[1].value == pytest.approx(cost(model, batches, square, step, decay), rel=1e-9)
    assert done.cost[1].value < done.cost[0].value
    assert done.moved[0].imbalance[1] < 1e-9
    if not decay:
        assert done.moved[0].imbalance[0] == pytest.approx(float((b[0] / b[1]).log().abs().max()), rel=1e-9)


@pytest.mark.parametrize("name", ["relu", "Llama", "LoRA"])
def test_the_cost_falls_and_outputs_stay_for_linked_symmetries(name):
    model, batches, loss = TASKS[name]()
    symmetries = census(model, batches[0], loss)
    before = outputs(model, loss, batches[0])
    bad = imbalanced(model, symmetries)
    options = {"step_size": 1e-3, "weight_decay": 0.1, "optimiser": "adamw"}
    one = equilibrate(model, batches, loss, symmetries, **options)
    two = equilibrate(bad, batches, loss, symmetries, **options)
    for done in (one, two):
        assert done.cost[1].value < done.cost[0].value
        assert done.imbalance < 1e-3
        assert done.change <= 1e-5
        assert done.cost[1].standard_error > 0
    assert (outputs(model, loss, batches[0]) - before).norm() <= 1e-5 * before.norm()
    scales_only = all(symmetry.block == 1 for symmetry in symmetries)
    assert all(m.symmetry.block == 1 for m in one.moved)
    assert scales_only == (not one.skipped)
    assert scales_only or "only its" in str(one)
    if scales_only:  # `imbalanced` mixes the indices of a GL, after which its scales are others
        assert two.cost[1].value == pytest.approx(one.cost[1].value, rel=1e-3)
    if name == "relu":
        again = equilibrate(model, batches, loss, symmetries, **options)
        assert max(m.factor for m in again.moved) < 1 + 1e-4


def test_the_standard_error_of_the_cost_is_that_of_many_measurements():
    """Over 200 sets of batches the cost deviates by its standard error."""
    generator = torch.Generator().manual_seed(0)
    roots = torch.rand(7, generator=generator, dtype=torch.float64) + 0.5
    values = {"w": torch.randn(7, generator=generator, dtype=torch.float64)}
    objective = AdamWObjective(0.1, 0.2)
    costs, errors = [], []
    for _ in range(200):
        stacks = {"w": roots * torch.randn(100, 7, generator=generator, dtype=torch.float64)}
        terms = objective.terms(stacks, values)
        estimate = objective.cost(Estimate(0.0, 0.0, 100), 0.0, terms)
        costs.append(estimate.value)
        errors.append(estimate.standard_error)
    exact = float((roots * (0.05 + 0.2 * values["w"] ** 2)).sum())
    assert np.std(costs) == pytest.approx(np.mean(errors), rel=0.2)
    assert np.mean(costs) == pytest.approx(exact, abs=4 * np.mean(errors) / 200**0.5 + exact / 400)  # root of a mean


def test_a_network_trained_by_adamw_is_at_its_equilibrium_and_one_by_sgd_is_not():
    """A ReLU network on data that it cannot fit, trained for several times 1/(eta lambda) steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    x = torch.randn(64, 4, dtype=torch.float64)
    x[:, 0] *= 3
    y = torch.sin(x[:, :2]) + torch.randn(64, 2, dtype=torch.float64)
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
    draw = lambda: (lambda index: (x[index], y[index]))(torch.randint(0, 64, (8,)))
    symmetries = census(net, draw(), loss)
    start = copy.deepcopy(net)
    step, decay = 4e-3, 0.1
    optimizer = torch.optim.AdamW(net.parameters(), lr=step, weight_decay=decay, betas=(0.9, 0.999))
    for _ in range(8000):
        optimizer.zero_grad()
        loss(net, draw()).backward()
        optimizer.step()
    batches = [draw() for _ in range(64)]
    options = {"step_size": step, "weight_decay": decay, "optimiser": "adamw"}
    rms = lambda done: float(np.sqrt(np.mean(np.concatenate([m.amount for m in done.moved]) ** 2)))
    at_start = rms(equilibrate(start, batches, loss, symmetries, **options))
    by_sgd = rms(equilibrate(copy.deepcopy(net), batches, loss, symmetries, step_size=step, weight_decay=decay))
    by_batches = rms(equilibrate(copy.deepcopy(net), batches, loss, symmetries, **options))
    trained = rms(equilibrate(net, batches, loss, symmetries, optimizer=optimizer, **options))
    print(f"rms s: start {at_start:.3f}, trained {trained:.3f} (v of batches {by_batches:.3f}), SGD {by_sgd:.3f}")
    assert trained < 0.05
    assert trained < 0.5 * min(at_start, by_sgd)


def test_both_costs_without_noise():
    """Entries without a gradient cost nothing under AdamW, and only the penalty under SGD."""
    stacks = {"w": torch.zeros(3, 2, dtype=torch.float64)}
    values = {"w": torch.ones(2, dtype=torch.float64)}
    assert AdamWObjective(0.1, 0.2).terms(stacks, values).tolist() == [0.0] * 3

    assert SGDObjective(0.1, 0.2).cost(Estimate(0.0, 0.0, 3), 2.0, np.zeros(3)).value == pytest.approx(0.2)


def test_an_unknown_optimiser_raises_one_sentence():
    model, batches, loss = relu_task(count=2)
    symmetries = census(model, batches[0], loss)
    with pytest.raises(ValueError, match=r'`equilibrate\(optimiser=\'adam2\'\)`: `optimiser` is "sgd" or "adamw"\.'):
        equilibrate(model, batches, loss, symmetries, step_size=0.1, optimiser="adam2")
