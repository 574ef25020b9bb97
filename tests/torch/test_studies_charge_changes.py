"""The study of changes of charges: its numbers are those of the monitor, and its statistics follow known laws."""

import numpy as np
import pytest
import torch

from studies import charge_changes as study
from studies import charge_changes_page
from studies.adamw import Inputs
from studies.adamw_networks import Sizes, census_rows
from studies.adamw_program import Sides
from studies.charge_changes_program import PARTS, RECORDED, ChargeProgram, Setting
from studies.results import ROOT, load
from studies.training import cross_entropy, manual
from undertow.torch import NoiseMonitor, census

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
TINY = Sizes(width=8, heads=2, layers=1, tokens=6, text_batch=4)
STEPS = 6


@pytest.mark.parametrize(
    "run", [Setting(1, True, 0.01, 0.3, 0.95, warm_up=4), Setting(1, False, 0.1, 0.02)], ids=["AdamW", "SGD"]
)
def test_numbers_are_those_of_the_monitor(run):
    mine, batches = study.text_task(TINY, 2, CPU), []
    recorded = mine._replace(batch=lambda index: batches.append(mine.batch(index)) or batches[-1])
    generators = census_rows(mine)
    torch.manual_seed(0)
    program = ChargeProgram(recorded, [Setting(0, run.adaptive, 0.02, 0.1, 0.9), run], Sides(generators, CPU), CPU)
    records = [program.record()]
    for _ in range(STEPS):
        program.run(1)
        records.append(program.record())
    sums = study.by_symmetry(torch.stack(records)[:, :, 1].numpy(), generators)

    net = study.text_task(TINY, 2, CPU).nets[1]
    options = {"betas": (0.9, run.b2)} if run.adaptive else {"momentum": 0.9}
    kind = torch.optim.AdamW if run.adaptive else torch.optim.SGD
    optimizer = kind(net.parameters(), lr=1.0, weight_decay=run.weight_decay, **options)
    own = [(x[1], y[1]) for x, y in batches]
    symmetries = census(net, own[0], cross_entropy)
    with NoiseMonitor(net, symmetries, every=1) as monitor:
        for step, batch in enumerate(own):
            warm = min(1.0, (step + 1) / run.warm_up) if run.warm_up else 1.0
            optimizer.param_groups[0]["lr"] = run.step_size * warm
            optimizer.zero_grad()
            cross_entropy(net, batch).backward()
            optimizer.step()
    compared = 0
    for place, symmetry in enumerate(symmetries):
        if run.adaptive and symmetry.block > 1:
            continue  # the row has the plain charge there, and the study that of the metric
        rows = [row for row in monitor.rows if row["symmetry"] == symmetry.name]
        for name in ("flow", "charge", *PARTS[2:]):
            theirs = np.array([row[name] for row in rows])
            column = sums[:, RECORDED.index(name), place]
            ours = column[:-1] if name == "charge" else np.diff(column)
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5 * sums[1:, 1, place].max(), err_msg=name)
            compared += 1
    assert compared >= 6 * 4


def test_the_four_parts_add_up_to_the_change():
    mine = study.text_task(TINY, 2, CPU)
    generators = census_rows(mine)
    for adaptive in (True, False):
        runs = study.settings(study.SMALL, adaptive=adaptive)
        runs = [run for run in runs if run.seed < 2]
        program = ChargeProgram(mine, runs, Sides(generators, CPU), CPU)
        before = program.record()
        program.run(STEPS)
        change = program.record() - before
        parts = change[[RECORDED.index(name) for name in PARTS[2:]]].sum(0)
        torch.testing.assert_close(parts, change[0], rtol=0, atol=3e-6 * float(program.record()[1].max()))
        assert float(change[0].abs().max()) > 1e-4 * float(program.record()[1].max())


def simulated(bias: float) -> np.ndarray:
    """Return records of charges that move by a known flow and by noise, with the size 2."""
    rng = np.random.default_rng(0)
    shape = (401, 8, 300)
    rates = 0.02 * rng.normal(size=shape[2])
    flow = np.cumsum(np.broadcast_to(rates, shape), 0)
    noise = np.cumsum(0.1 * rng.normal(size=shape), 0)
    zero = np.zeros(shape)
    of = {"charge": (1 + bias) * flow + noise, "size": zero + 2, "flow": flow, "metric": bias * flow}
    of["present_flow"] = flow / 2
    return np.stack([of.get(name, zero) for name in RECORDED], 1)


def test_the_statistics_recover_a_known_flow():
    scale = study.Scale(every=1, steps=400)
    for length in (50, 200):
        facts = study.compare(study.changes(simulated(0.0), length, scale), 200)
        # the flow of a window has the variance (0.02 length/2)^2, the noise (0.1/2)^2 length
        expected = 1 - 0.1**2 * length / (0.1**2 * length + 0.02**2 * length**2)
        assert facts["charge_all"]["r2"] == pytest.approx(expected, abs=0.03)
        assert facts["charge_all"]["slope"] == pytest.approx(1, abs=0.05)
        # |t| < 2 has the probability 0.914 for Student's t with 7 degrees of freedom
        assert facts["charge_all"]["within_two"] == pytest.approx(0.914, abs=0.03)
        assert facts["present_charge_all"]["slope"] == pytest.approx(2, abs=0.1)
        assert facts["windows"] == 400 // length - 1
    biased = study.compare(study.changes(simulated(1.0), 200, scale), 200)
    assert biased["charge_all"]["slope"] == pytest.approx(2, abs=0.05)
    assert biased["rest_all"]["slope"] == pytest.approx(1, abs=0.05)
    assert biased["charge_all"]["within_two"] < 0.5


def test_the_manual_is_a_text():
    text = manual()
    assert 50 < text.words < 300
    assert len(text.ids) > 100_000
    assert int(text.ids.max()) == text.words - 1


def test_the_study_makes_a_page(tmp_path):
    study.study(study.SMALL, Inputs.make(study.SMALL.sizes, ("Llama",)), CPU, tmp_path)
    facts = load(study.NAME, tmp_path)
    assert [(row["adaptive"], row["b2"], row["warm_up"]) for row in facts["settings"]] == [
        (True, 0.95, 0), (True, 0.95, 10), (True, 0.999, 0), (True, 0.999, 10), (False, 0.0, 0), (False, 0.0, 10)
    ]  # fmt: skip
    assert max(row["exact"] for row in facts["settings"]) < 1e-5
    text = charge_changes_page.page(facts)
    assert text.count("AdamW, $b_2 = 0.999$, warm-up") >= 5
    assert "nan" not in text
    assert set(charge_changes_page.figures(facts)) == {"charge-changes-scatter", "charge-changes-windows"}


def test_the_stored_page_equals_that_of_the_stored_results():
    assert (ROOT / "docs" / "studies" / f"{study.NAME}.md").read_text() == charge_changes_page.page(load(study.NAME))
