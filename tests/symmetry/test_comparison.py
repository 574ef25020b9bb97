"""Runs of SGD compared with the equilibrium that was predicted for them."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry.comparison import FarFromEquilibrium
from undertow.symmetry.equilibrium import Equilibrium

PRODUCT = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
START = {"u": jnp.array(2.0), "w": jnp.array(0.5)}
NOISE = ut.Minibatch(ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0])), 1)
ETA = 0.02
END = ut.equilibrium(NOISE, START, PRODUCT, step_size=ETA)
"""C* = 0 and a relaxation time of 1/(4 eta^2) = 625 steps: the start is an amount of 15/16 away, to first order."""


def run_of(steps, **more):
    settings = {"step_size": ETA, "key": 0, "progress": False, "seeds": 16} | more
    return ut.descend(NOISE, START, steps=steps, **settings)


def test_a_short_run_is_reported_with_the_steps_that_are_missing():
    """After half a relaxation time the charge is 15/8 exp(-1/2): an amount of 0.57, to first order C over u^2 + w^2."""
    steps = 312
    with pytest.warns(FarFromEquilibrium) as caught:
        found = END.compare(run_of(steps))
    (distance,), (length,), (left,) = found.distance, found.relaxations, found.steps_left
    assert length == pytest.approx(steps / 625, rel=1e-3)
    # fluctuations of uw, which the flow leaves out, add a share of eta (u^2 + w^2) = 0.085 to the noise at the start
    assert distance == pytest.approx(15 / 16 * np.exp(-length), rel=0.085)
    np.testing.assert_allclose(left, 625 * np.log(distance / 0.1), rtol=1e-3)
    text = str(caught[0].message)
    assert "rescaling, w against u: after 312 steps, 0.5 relaxation times" in text
    assert f"`run.resume(steps={left:.0f})`" in text


def test_the_missing_steps_bring_the_run_to_the_equilibrium():
    run = run_of(312)
    with pytest.warns(FarFromEquilibrium):
        left = END.compare(run).steps_left[0]
    longer = run.resume(steps=round(left) + 625, progress=False)  # one relaxation time more than to the tolerance
    with warnings.catch_warnings():
        warnings.simplefilter("error", FarFromEquilibrium)
        found = END.compare(longer)
    assert found.distance[0] < 0.1
    assert found.steps_left == (0.0,)


def test_a_long_run_that_is_far_away_is_told_to_predict_again():
    """A prediction from a point with another product uw has another equilibrium than the run."""
    with pytest.warns(FarFromEquilibrium, match=r"Predict again from `run\.params`"):
        found = replace_charge(END, 3.0).compare(run_of(5000))
    assert found.relaxations[0] > 5
    assert found.steps_left == (0.0,)


def replace_charge(end, value):
    """Return an equilibrium with another predicted charge."""
    fields = {name: getattr(end, name) for name in end.__dataclass_fields__}
    return Equilibrium(**fields | {"charge": (jnp.asarray(value),)})


def test_a_schedule_counts_by_its_own_steps():
    """Steps of twice the size relax four times as fast; without weight decay the equilibrium is the same."""
    with pytest.warns(FarFromEquilibrium):
        found = END.compare(run_of(100, step_size=2 * ETA))
    assert found.relaxations[0] == pytest.approx(400 / 625, rel=1e-3)
    decayed = ut.equilibrium(NOISE, START, PRODUCT, step_size=ETA, weight_decay=0.1)
    with pytest.raises(ValueError, match=r"step size 0.04 .* call `equilibrium\(..., step_size=0.04\)`"):
        decayed.compare(run_of(100, step_size=2 * ETA, weight_decay=0.1))
    ramp = lambda step: jnp.where(step < 100, ETA, ETA / 2)
    with pytest.warns(FarFromEquilibrium):
        found = decayed.compare(run_of(200, step_size=ramp, weight_decay=0.1))
    rate = lambda eta: eta * (2 * 0.1 + 4 * eta)
    assert found.relaxations[0] == pytest.approx(100 * (rate(ETA) + rate(ETA / 2)), rel=1e-4)


def test_a_single_run_and_a_run_that_diverged():
    with pytest.warns(FarFromEquilibrium):
        found = END.compare(run_of(50, seeds=None))
    np.testing.assert_array_equal(found.standard_error[0], 0.0)
    run = run_of(50)
    lost = replace(run, diverged=np.arange(16) > 0, params={n: run.params[n].at[1:].set(jnp.nan) for n in run.params})
    with pytest.warns(FarFromEquilibrium):
        assert np.isfinite(END.compare(lost).charge[0])
    with pytest.raises(ValueError, match="every run diverged"):
        END.compare(replace(run, diverged=np.ones(16, bool)))


def test_matrices_of_charges_give_the_amount_of_the_move(x64):
    """A point moved by a small amount X along GL(3) is at the distance |X| to first order in X."""
    double = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)
    params = double(nets.weights(U=(4, 3), W=(3, 4)))
    noise = ut.Minibatch(ut.Problem(nets.linear_net, double(nets.data(inputs=4, outputs=4))), 4)
    end = ut.equilibrium(noise, params, nets.FACTORS, step_size=0.01)
    amount = 1e-4 * np.array([[3.0, 1.0, 0.0], [1.0, -2.0, 0.5], [0.0, 0.5, 1.0]])
    run = ut.descend(noise, nets.FACTORS.orbit(end.params, amount), step_size=1e-9, steps=1, key=0, progress=False)
    assert end.compare(run).distance[0] == pytest.approx(np.abs(np.linalg.eigvalsh(amount)).max(), rel=1e-3)
    with pytest.warns(FarFromEquilibrium):
        end.compare(run, tolerance=1e-5)


def test_generators_without_a_relaxation_time_are_left_out():
    """A dead neuron keeps its charge: it is not compared."""
    x = jnp.ones((4, 2)) + jax.random.normal(jax.random.key(0), (4, 2)) / 9
    problem = ut.Problem(lambda p, s: (p["o"] @ jax.nn.relu(p["i"] @ s) - s[0] ** 2) ** 2, x)
    neurons = ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True)
    params = {"o": jnp.array([1.0, 9.0]), "i": jnp.array([[1.0, 1.0], [-1.0, -1.0]])}
    noise = ut.Minibatch(problem, 1)
    end = ut.equilibrium(noise, params, neurons, step_size=1e-3)
    run = ut.descend(noise, end.params, step_size=1e-3, steps=1, key=0, progress=False)
    assert end.compare(run).distance[0] < 1e-3


def test_what_is_not_a_run_is_refused(as_a_user):
    with pytest.raises(TypeError, match="give a run of `descend`"):
        END.compare({"u": 1.0})
