"""Long runs beside predictions: the fast versions of the tables of `studies.adam_equilibrium`."""

import jax
import numpy as np
import pytest

import undertow as ut
from studies.adam_equilibrium import NAME, TABLES, Row, measure, text
from studies.results import load
from undertow.papers.optimisers._equilibria import long_run, predicted
from undertow.papers.optimisers.models.rank_one import rank_one

SECOND_ORDER = 0.004
"""What the theory leaves out inside its regime is of second order; the first order is 0.01 to 0.03 here."""


@pytest.mark.parametrize(
    ("optimiser", "freedom"),
    [(ut.Adam(b2=0.999), 0.0), (ut.RMSProp(b2=0.998), 0.0), (ut.AdamW(b2=0.999, weight_decay=0.016), 5.0)],
    ids=lambda x: type(x).__name__ if not isinstance(x, float) else f"{x:g}",
)
def test_a_run_ends_at_the_predicted_equilibrium(x64, optimiser, freedom):
    """At a large step, so that 64,000 steps are enough; SGD's equilibrium is 0.4 away."""
    system, eta = rank_one(jax.random.key(0), freedom=freedom), 0.016
    run = long_run(*system, optimiser, step_size=eta, steps=64_000, seeds=64, key=jax.random.key(3))
    end, found = predicted(*system, optimiser, step_size=eta)
    sgd, _ = predicted(*system, ut.SGD(weight_decay=optimiser.weight_decay), step_size=eta)
    assert run.diverged == 0
    assert abs(run.mean - end) < 4 * run.error + 4 * SECOND_ORDER  # the step is four times that of the tables
    assert abs(run.mean - sgd) > 0.2
    assert run.error < 0.004
    steps, means, errors = run.path
    assert list(steps[[0, -1]]) == [0, 64_000]
    assert means[0] == pytest.approx(0, abs=1e-6)  # the runs start with |U| = |W|
    assert abs(means[-1] - run.mean) < 5 * errors[-1]
    assert found.regime.valid


def test_the_run_compares_itself_with_the_equilibrium(x64):
    """`Equilibrium.compare` uses the expected charge of a run with fluctuations, and knows the optimiser."""
    problem, start = rank_one(jax.random.key(0))
    noise, optimiser = ut.Minibatch(problem, 1), ut.AdamW(b2=0.999, weight_decay=0.016)
    _, end = predicted(problem, start, optimiser, step_size=0.016)
    settings = {"step_size": 0.016, "steps": 40_000, "key": 0, "seeds": 64, "progress": False}
    found = end.compare(ut.descend(noise, start, optimiser=optimiser, **settings))
    assert found.distance[0] < 0.01
    assert found.relaxations[0] == pytest.approx(40_000 / float(end.relaxation_steps[0]), rel=1e-6)
    with pytest.raises(ValueError, match="the run has the optimiser SGD and the equilibrium is that of AdamW"):
        end.compare(ut.descend(noise, start, **settings | {"steps": 10}))
    with pytest.raises(ValueError, match=r"call `equilibrium\(\.\.\., step_size=0\.01\)`"):
        end.compare(ut.descend(noise, start, optimiser=optimiser, **settings | {"steps": 10, "step_size": 0.01}))


def test_the_study_measures_a_row_and_prints_its_tables(x64):
    row = measure(0.0, Row("AdamW", ut.AdamW(b2=0.99, weight_decay=0.05), 0.03), steps=4000, seeds=4)
    assert row["steps"] == 4000
    assert abs(row["measured"] - row["corrected"]) < 0.1
    assert "| AdamW |" in text({"one": [row]})


def check_tables(tables, widen):
    """Check every row inside the regime against the corrected prediction, and the order of the leading error."""
    assert set(tables) == set(TABLES)
    for rows in tables.values():
        for row in rows:
            if row["setting"].startswith("SGD") or not row["inside"]:
                continue
            assert row["ratio"] < 1
            assert abs(row["measured"] - row["corrected"]) < widen * row["error"] + SECOND_ORDER, row
    outside = [row for rows in tables.values() for row in rows if not row["inside"]]
    assert {row["setting"].split("b2 ")[1] for row in outside} == {".99"}
    tails = [row for row in tables["heavier tails"] if row["setting"].endswith("b2 0.9999")]
    eta = np.array([0.016, 0.008, 0.004, 0.002])
    wrong = np.array([row["leading"] - row["measured"] for row in tails])
    error = np.array([row["error"] for row in tails])
    slope = (wrong / error**2) @ eta / ((eta / error**2) @ eta)
    assert np.all(np.abs(wrong - slope * eta) < widen * error + SECOND_ORDER * (eta / 0.016))
    assert slope * 0.004 > 0.004


def test_the_stored_tables_agree_with_the_predictions():
    check_tables(load(NAME)["tables"], widen=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TABLES))
def test_the_tables_are_reproduced(x64, name):
    """A tenth of the steps of the study; the predictions must be those that are stored."""
    freedom, rows = TABLES[name]
    for row, stored in zip(rows, load(NAME)["tables"][name], strict=True):
        again = measure(freedom, row, steps=400_000, seeds=8)
        assert again["corrected"] == pytest.approx(stored["corrected"], abs=1e-5)
        if again["inside"] and again["steps"] > 12 * again["relaxation"]:
            assert abs(again["measured"] - again["corrected"]) < 5 * again["error"] + SECOND_ORDER, row
