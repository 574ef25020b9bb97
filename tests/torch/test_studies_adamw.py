"""The studies of AdamW: training as in torch.optim, equilibria as in `equilibrate`, and pages from their results."""

import math

import numpy as np
import pytest
import torch

from studies import adamw, adamw_figures, adamw_page, adamw_starts, adamw_starts_page
from studies.adamw_networks import Convolution, Sizes, Task, census_rows, task
from studies.adamw_program import Program, Run, Sides, schedule, start
from studies.results import ROOT, load
from studies.training import cross_entropy
from undertow.torch import census, equilibrate

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
TINY = Sizes(hidden=4, width=8, heads=2, layers=1, tokens=6, batch=5, text_batch=3, rank=2, sentences=200)


def recorded(mine: Task) -> tuple[Task, list]:
    """Return the task with a list of all batches that it makes."""
    batches: list = []

    def batch(index):
        batches.append(mine.batch(index))
        return batches[-1]

    return mine._replace(batch=batch), batches


def test_runs_train_like_torch_optim():
    runs = [
        Run(0, 0.01, 0.3, 0.9), Run(1, 0.02, 0.1, 0.999, "cosine"), Run(1, 0.05, 0.2, 0.99, adaptive=False),
        Run(0, 0.01, 0.0, 0.99, "warm-up-stable-decay", warm_up=0.5),
    ]  # fmt: skip
    mine, batches = recorded(task("ReLU network", TINY, 2, CPU))
    params = start(mine.nets, runs)
    torch.manual_seed(3)
    program = Program(mine, params, runs, 12, CPU)
    program.run(12)
    for place, run in enumerate(runs):
        net = task("ReLU network", TINY, 2, CPU).nets[run.seed]
        kind = torch.optim.AdamW if run.adaptive else torch.optim.SGD
        options = {"betas": (0.9, run.b2)} if run.adaptive else {}
        optimizer = kind(net.parameters(), lr=run.step_size, weight_decay=run.weight_decay, **options)
        for factor, (x, y) in zip(schedule(run.schedule, 12, run.warm_up), batches, strict=True):
            optimizer.param_groups[0]["lr"] = run.step_size * float(factor)
            optimizer.zero_grad()
            cross_entropy(net, (x[run.seed], y[run.seed])).backward()
            optimizer.step()
        for name, p in net.named_parameters():
            torch.testing.assert_close(program.views(program.flat)[name][place], p.detach(), rtol=1e-4, atol=1e-5)
            if run.adaptive:
                v = optimizer.state[p]["exp_avg_sq"]
                torch.testing.assert_close(program.views(program.second)[name][place], v, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("name", ["ReLU network", "Llama", "ViT"])
def test_a_moved_start_is_that_of_equilibrate(name):
    runs = [Run(seed, step, 0.1, 0.99) for step in (1e-3, 3e-2) for seed in range(2)]
    mine, batches = recorded(task(name, TINY, 2, CPU))
    sides = Sides(census_rows(mine), CPU)
    program = Program(mine, start(mine.nets, runs), runs, 1, CPU)
    batches.clear()
    torch.manual_seed(1)
    moved = program.views(program.moved(sides, 6))
    for place, run in enumerate(runs):
        net = task(name, TINY, 2, CPU).nets[run.seed]
        mine_only = [(x[run.seed], y[run.seed]) for x, y in batches]
        symmetries = census(net, mine_only[0], cross_entropy)
        options = {"step_size": run.step_size, "weight_decay": run.weight_decay, "optimiser": "adamw"}
        done = equilibrate(net, mine_only, cross_entropy, symmetries, **options)
        assert max(m.factor for m in done.moved) > 1.2
        for key, p in net.named_parameters():
            torch.testing.assert_close(moved[key][place], p.detach(), rtol=2e-3, atol=1e-5)


def test_amounts_are_zero_at_the_equilibrium_and_measure_a_move_away_from_it():
    runs = [Run(0, 1e-2, 0.1, 0.99)]
    mine = task("ReLU network", TINY, 1, CPU)
    sides = Sides(census_rows(mine), CPU)
    program = Program(mine, start(mine.nets, runs), runs, 8, CPU)
    program.run(8)
    first = program.amounts(sides)
    assert first.alive.any()
    away = torch.where(first.alive, first.adamw, torch.zeros_like(first.adamw))
    squares = program.views(program.second)
    program.flat.copy_(torch.cat([p.flatten(1) for p in sides.move(program.views(program.flat), away).values()], 1))
    program.second.copy_(torch.cat([p.flatten(1) for p in sides.move(squares, away, -2.0).values()], 1))
    then = program.amounts(sides)
    torch.testing.assert_close(then.adamw, torch.zeros_like(then.adamw), atol=1e-4, rtol=0)
    torch.testing.assert_close(then.ratio - first.ratio, 2 * away, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(first.lagged, first.adamw)  # the step size is constant


def test_the_remembered_step_size_is_the_mean_with_decaying_weights():
    runs = [Run(0, 0.1, 1.0, 0.99, "cosine")]
    program = Program(
        task("ReLU network", TINY, 1, CPU), start(task("ReLU network", TINY, 1, CPU).nets, runs), runs, 50, CPU
    )
    program.run(50)
    eta = 0.1 * schedule("cosine", 50).numpy()
    # C+ = (1 - 2 eta lambda) C + eta^2 b/2 from C = eta b/(4 lambda): C is that of the remembered step size
    charge = eta[0] / 4
    for now in eta:
        charge = (1 - 2 * now) * charge + now**2 / 2
    assert program.lagged.item() == pytest.approx(4 * charge, rel=1e-4)


def test_schedules_have_their_stated_shape():
    assert schedule("constant", 4).tolist() == [1.0] * 4
    cosine = schedule("cosine", 1000)
    assert cosine[0] == pytest.approx(1, abs=1e-3)
    assert cosine[-1] == pytest.approx(0, abs=1e-3)
    assert float(cosine.mean()) == pytest.approx(0.5, abs=1e-6)
    decay = schedule("warm-up-stable-decay", 1000)
    assert float(decay.mean()) == pytest.approx(1 - 0.05 / 2 - 0.2 / 2, abs=1e-3)
    assert decay[500] == 1
    assert schedule("constant", 1000, 0.1)[49] == pytest.approx(0.5, abs=0.01)
    with pytest.raises(ValueError, match="'linear'"):
        schedule("linear", 3)


def test_the_convolution_is_that_of_torch():
    torch.manual_seed(0)
    layer, x = Convolution(3, 5), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(layer(x), torch.nn.functional.conv2d(x, layer.weight, layer.bias), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "page"), [("adamw", adamw_page.page), ("adamw-starts", adamw_starts_page.page)])
def test_the_stored_pages_equal_those_of_the_stored_results(name, page):
    assert (ROOT / "docs" / "studies" / f"{name}.md").read_text() == page(load(name))


def test_the_study_of_adamw_runs_from_a_file_and_writes_its_page(tmp_path):
    inputs = adamw.Inputs.make(adamw.SMALL.sizes)
    inputs.save(tmp_path / "inputs.pt")
    stored = adamw.Inputs.load(tmp_path / "inputs.pt")
    for name, generators in inputs.generators.items():
        assert stored.generators[name].families == generators.families
        np.testing.assert_array_equal(stored.generators[name].plus, generators.plus)
    assert set(inputs.generators["Llama"].families) == {"gains", "QK", "OV", "up/down"}
    assert set(inputs.generators["ViT"].families) == {"gains", "QK", "OV", "LayerScale"}
    adamw.study(adamw.SMALL, stored, CPU, folder=tmp_path, limit=1e3)
    facts = load("adamw", tmp_path)
    row = facts["networks"]["Llama"]["settings"][0]
    families = np.array(row["rms_by_family"]["adamw"]) ** 2
    weights = np.array(facts["networks"]["Llama"]["generators"]) / sum(facts["networks"]["Llama"]["generators"])
    np.testing.assert_allclose(weights @ families, np.array(row["rms"]["adamw"]) ** 2, rtol=1e-4)
    assert "# Where does AdamW" in adamw_page.page(facts)
    drawn = adamw_figures.figures(facts)
    assert len(drawn) == 6
    first, second = drawn["adamw-ratios"].axes
    assert first.get_ylim() == second.get_ylim()


def test_the_study_of_starts_runs_and_writes_its_page(tmp_path):
    adamw_starts.study(
        adamw_starts.SMALL, adamw.Inputs.make(adamw.SMALL.sizes, adamw_starts.NAMES), CPU, folder=tmp_path
    )
    facts = load("adamw-starts", tmp_path)
    for mine in facts["networks"].values():
        assert mine["change"] < 1e-5
        over_time = lambda case, mine=mine: np.array(mine["cases"][case]["over_time"])
        # the function of moved starts is the same, and training leads elsewhere
        np.testing.assert_allclose(over_time("default")[:, 0], over_time("default, moved")[:, 0], rtol=0.2)
        assert not np.array_equal(over_time("imbalanced"), over_time("imbalanced, moved"))
    page = adamw_starts_page.page(facts)
    assert "# Is it worth starting" in page
    assert len(adamw_starts_page.figures(facts)) == 3
    assert not math.isnan(facts["made"]["seconds"])
