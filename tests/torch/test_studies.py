"""The studies run, train like torch.optim, and write the pages from their results."""

import dataclasses

import numpy as np
import pytest
import torch

from studies import equilibrate, equilibrate_page, flow, flow_page
from studies.results import ROOT, load, save
from studies.training import Recipe, cross_entropy, digits, gradients, mlp, stacked, train

pytestmark = pytest.mark.torch

ROWS = [
    {"step_size": 0.05, "momentum": 0.9},
    {"step_size": 0.01, "weight_decay": 0.1, "warm_up": 4},
    {"step_size": 0.02, "weight_decay": 0.1, "adaptive": 1.0},
]


def by_hand(net, row, batches):
    """Train by an optimiser of PyTorch."""
    options = {"lr": row["step_size"], "weight_decay": row.get("weight_decay", 0.0)}
    if row.get("adaptive"):
        optimizer = torch.optim.Adam(net.parameters(), **options)
    else:
        optimizer = torch.optim.SGD(net.parameters(), momentum=row.get("momentum", 0.0), **options)
    for t, batch in enumerate(batches):
        rise = min(1.0, (t + 1) / max(1, row.get("warm_up", 0)))
        optimizer.param_groups[0]["lr"] = row["step_size"] * rise
        optimizer.zero_grad()
        cross_entropy(net, batch).backward()
        optimizer.step()


def test_batched_training_equals_torch_optim():
    x, y = digits()
    x = x.double()
    torch.manual_seed(0)
    nets = [mlp(64, 6, 10).double() for _ in ROWS]
    order = torch.randint(0, len(x), (12, len(ROWS), 5))
    params = stacked(nets)

    def gradient(values, t):
        index = order[t.item()]
        return gradients(nets[0], cross_entropy, values, (x[index], y[index]))[1]

    train(params, Recipe.of(ROWS, dtype=torch.float64), gradient, 12)
    for run, (net, row) in enumerate(zip(nets, ROWS, strict=True)):
        by_hand(net, row, [(x[index], y[index]) for index in order[:, run]])
        for name, p in net.named_parameters():
            torch.testing.assert_close(params[name][run], p.detach(), rtol=1e-9, atol=1e-12)


def test_the_study_of_the_flow_runs_and_writes_its_page(tmp_path):
    facts = flow.study(flow.SMALL, torch.device("cpu"))
    for network in facts["networks"].values():
        for name, mine in network["recipes"].items():
            # the parts of the ledger belong to one run: the sum over seeds is the last of the cumulative means
            last = np.array(mine["cumulative"]["measured"])[:, -1]
            np.testing.assert_allclose(np.mean(mine["seeds"]["measured"], axis=1), last, rtol=1e-9)
            if name in flow.EXACT[:2]:  # SGD changes no charge at first order; Adam does
                assert mine["first_order"] < 1e-9
        assert network["recipes"]["Adam"]["first_order"] > 0.1
    save("flow", facts, tmp_path)
    assert "# Do charges" in flow_page.page(load("flow", tmp_path))


def test_the_ledger_predicts_the_mean_change_of_a_step():
    """Over all minibatches of one sample the mean change equals the prediction."""
    from undertow.torch import census

    x, y = digits()
    batch = (x[:6].double(), y[:6])
    torch.manual_seed(0)
    net = mlp(64, 5, 10).double()
    params = {name: p.repeat(6, *(1,) * (p.ndim - 1)) for name, p in stacked([net]).items()}
    singles = tuple(part[:, None] for part in batch)
    _, each = gradients(net, cross_entropy, params, singles)
    row = {"step_size": 0.1, "weight_decay": 0.2}
    recipe = Recipe.of([row] * 6, dtype=torch.float64)
    charges = flow.Charges(census(net, batch, cross_entropy), params)
    ledger = flow.Ledger(charges, recipe, 6, steps=1, windows=1)
    ledger.predict(params, {name: g[None].expand(6, *g.shape) for name, g in each.items()})
    after = {name: p.clone() for name, p in params.items()}
    train(after, recipe, lambda values, t: each, 1)
    ledger.record(torch.zeros(1, dtype=torch.long), params, after)
    torch.testing.assert_close(ledger.sums["measured"][0].mean(0), ledger.sums["change"][0, 0], rtol=1e-9, atol=1e-12)


def test_the_ledger_agrees_with_the_monitor():
    """Minibatches of one sample have six times the noise of the batch of six samples that the monitor measures."""
    from undertow.torch import NoiseMonitor, census

    x, y = digits()
    batch = (x[:6].double(), y[:6])
    torch.manual_seed(0)
    net = mlp(64, 5, 4, 10).double()
    symmetries = census(net, batch, cross_entropy)
    params = stacked([net])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with NoiseMonitor(net, symmetries, every=1) as monitor:
        cross_entropy(net, batch).backward()
        optimizer.step()
    six = {name: p.repeat(6, *(1,) * (p.ndim - 1)) for name, p in params.items()}
    _, each = gradients(net, cross_entropy, six, tuple(part[:, None] for part in batch))
    charges = flow.Charges(symmetries, params)
    ledger = flow.Ledger(charges, Recipe.of([{"step_size": 0.1}], dtype=torch.float64), 1, steps=1, windows=1)
    ledger.predict(params, {name: g[None] for name, g in each.items()})
    ledger.record(torch.zeros(1, dtype=torch.long), params, stacked([net]))
    rows = slice(charges.generators, charges.generators + len(monitor.rows))
    expected = {key: [row[key] for row in monitor.rows] for key in ("charge", "flow", "change")}
    close = lambda ours, theirs: np.testing.assert_allclose(ours[rows].numpy(), theirs, rtol=1e-7)
    close(charges.form(params, params)[0], expected["charge"])
    close(ledger.flow[0] / 6, expected["flow"])
    close(ledger.sums["measured"][0, 0], expected["change"])


def test_the_study_of_equilibrate_runs():
    tiny = dataclasses.replace(equilibrate.SMALL, rounds=0)
    facts = {"made": {"device": "CPU", "torch": "", "seconds": 0.0}, "scale": dataclasses.asdict(tiny)}
    facts["networks"] = {"ReLU network": equilibrate.network("ReLU network", tiny, torch.device("cpu"))}
    mine = facts["networks"]["ReLU network"]
    assert all(move["noise"] < 1 and move["change"] < 1e-5 for moves in mine["moves"].values() for move in moves)
    for of in mine["optimisers"].values():
        # with the smallest steps both starts give nearly the same loss, because they are the same function
        for case in equilibrate.CASES[::2]:
            smallest = of["cases"][case.name]["losses"][0]
            np.testing.assert_allclose(smallest, mine["start"], rtol=0.05)


def test_best_and_largest_step_sizes_and_the_extension_of_a_grid():
    start = np.array([3.0, 3.0])
    line = equilibrate.Line([-2, -1, 0, 1], np.array([[2.0, 2.0], [1.0, 1.2], [1.5, 2.9], [np.inf, 9.0]]), start)
    assert line.best == 1
    assert line.largest.tolist() == [0, -1]  # the second seed loses more than half of the gain at 2^0
    assert line.beyond() == []
    assert equilibrate.Line(line.exponents[1:], line.losses[1:], start).beyond() == [-4, -3, -2]
    assert equilibrate.Line(line.exponents[:3], line.losses[:3], start).beyond() == [1, 2, 3]


@pytest.mark.parametrize(("name", "page"), [("flow", flow_page.page), ("equilibrate", equilibrate_page.page)])
def test_the_stored_pages_equal_those_of_the_stored_results(name, page):
    assert (ROOT / "docs" / "studies" / f"{name}.md").read_text() == page(load(name))
