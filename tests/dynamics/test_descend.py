"""`descend`: steps by hand and by optax, schedules, starts, and the steps at which a run is observed."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from tests.dynamics.runs import FLAT, KEY, NOISE, descend, plain_loop
from tests.kinds import params, problem
from tests.mistakes import assert_explained
from undertow import _trees as trees
from undertow.execution.compiling import compilations
from undertow.noise.additive import noiseless


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 3.415), (0.9, 3.145)])
def test_two_steps_with_weight_decay_by_hand(momentum, expected):
    """Gradient 1, eta = 0.1, lambda = 0.5, from 4: v = 1 + 0.5 * 4 = 3, so 4 - 0.3 = 3.7.

    Then g + lambda theta = 1 + 1.85 = 2.85: 3.7 - 0.285 without momentum; with beta = 0.9, v = 2.7 + 2.85 = 5.55.
    """
    steady = noiseless(ut.Problem(lambda w, _: w, jnp.zeros(1)))
    run = ut.descend(steady, jnp.array(4.0), step_size=0.1, steps=2, key=0, momentum=momentum, weight_decay=0.5)
    np.testing.assert_allclose(run.params, 3.7 - 0.1 * (momentum * 3 + 2.85), rtol=1e-6)
    np.testing.assert_allclose(run.params, expected, rtol=1e-6)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_weight_decay_is_that_of_optax(momentum):
    """`optax.add_decayed_weights` before `optax.sgd`, on the full gradient."""
    eta, decay, task = 0.05, 0.3, problem()
    run = ut.descend(noiseless(task), params(), step_size=eta, steps=20, key=0, momentum=momentum or 0.0,
                     weight_decay=decay, observe=FLAT)  # fmt: skip
    optimiser = optax.chain(optax.add_decayed_weights(decay), optax.sgd(eta, momentum))
    now = params()
    state = optimiser.init(now)
    for _ in range(20):
        updates, state = optimiser.update(task.gradient(now), state, now)
        now = optax.apply_updates(now, updates)
    np.testing.assert_allclose(run.observed["flat"][-1], trees.ravel(now), rtol=1e-5, atol=1e-6)


def test_a_schedule_counts_for_the_steps_that_run():
    schedule = lambda step: 0.105 - 0.01 * step  # negative from step 11 on
    run = ut.descend(NOISE, params(), step_size=schedule, steps=6, key=KEY, observe=FLAT)
    run = run.resume(steps=5)
    np.testing.assert_allclose(
        run.observed["flat"][-1], plain_loop(NOISE, params(), 11, schedule, block=1000)[-1], rtol=1e-4
    )
    np.testing.assert_allclose(run.time[-1], 0.605, rtol=1e-6)
    with pytest.raises(ValueError, match=r"the schedule gives -0.00.* at step 11"):
        run.resume(steps=1)
    with pytest.raises(ValueError, match="at step 11"):
        ut.descend(NOISE, params(), step_size=schedule, steps=12, key=KEY)


def test_a_single_run_is_seed_zero(reference):
    run = descend(2500, every=500, seeds=None)
    assert run.observed["flat"].shape == (6, 8)
    assert run.diverged.shape == ()
    np.testing.assert_allclose(run.observed["flat"], reference.observed["flat"][0, ::500], rtol=1e-3, atol=1e-4)


def test_without_every_a_run_is_observed_at_its_ends(reference):
    run = descend(1200).resume(steps=1300)
    np.testing.assert_array_equal(run.step, [0, 1200, 2500])
    np.testing.assert_array_equal(run.observed["flat"], reference.observed["flat"][:, [0, 1200, 2500]])


def test_one_start_per_seed():
    run = ut.descend(
        NOISE,
        lambda key: trees.standard_normal(key, params()),
        step_size=0.01,
        steps=5,
        key=KEY,
        observe=FLAT,
        seeds=20,
    )
    starts = run.observed["flat"][:, 0]
    assert np.unique(starts[:, 0]).size == 20
    again = ut.descend(
        NOISE, lambda key: trees.standard_normal(key, params()), step_size=0.3, steps=1, key=KEY, observe=FLAT, seeds=2
    )
    np.testing.assert_array_equal(again.observed["flat"][:, 0], starts[:2])


POINT = params()
X = jnp.arange(3.0)


def quadratic(w, x):
    return jnp.sum((w - x) ** 2)


ADAMW = {"optimiser": ut.AdamW(b2=0.95, weight_decay=0.1), "step_size": optax.cosine_decay_schedule(0.05, 3000)}


class TestOptimisers:
    """Runs of Adam have all that runs of SGD have."""

    def test_resumed_runs_have_the_same_bits(self):
        go = lambda steps: ut.descend(ut.Minibatch(problem(), 2), params(), steps=steps, key=1, seeds=3, **ADAMW)
        jax.tree.map(np.testing.assert_array_equal, go(1100).resume(steps=900).params, go(2000).params)

    def test_the_number_of_seeds_changes_no_bit(self):
        go = lambda seeds: ut.descend(ut.Minibatch(problem(), 2), params(), steps=1200, key=1, seeds=seeds, **ADAMW)
        few, many = go(3), go(20)
        state = lambda run: (run.params, run.optimiser_state)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:3]), state(few), state(many))

    def test_a_single_run_is_seed_zero(self):
        go = lambda seeds: ut.descend(ut.Minibatch(problem(), 2), params(), steps=200, key=1, seeds=seeds, **ADAMW)
        one, three = go(None), go(3)
        close = lambda a, b: np.testing.assert_allclose(a, b[0], rtol=2e-5, atol=1e-6)
        jax.tree.map(close, (one.params, one.optimiser_state), (three.params, three.optimiser_state))

    def test_divergence_is_data(self):
        """The square of the slope exp(w) overflows in float32 beyond w = 44, which RMSProp reaches from 0 in steps of
        about 1.4. Then v is infinite and params stay where they are: a divergence, too."""
        steep = noiseless(ut.Problem(lambda w, _: -jnp.exp(w), jnp.zeros(1)))
        run = ut.descend(steep, jnp.array(0.0), optimiser=ut.RMSProp(b2=0.5), step_size=1.0, steps=2000, key=0, seeds=2)
        assert run.diverged.all()
        assert ((run.diverged_at > 20) & (run.diverged_at < 100)).all()
        assert (run.params == 0).all()  # those at the start of the block

    def test_a_state_to_start_from(self, x64):
        """One step with b1 = 0 and a given v, by hand: v+ = 0.9 4 + 0.1 1, theta+ = 4 - 0.1/(sqrt(v+) + 0.5)."""
        steady = noiseless(ut.Problem(lambda w, _: w, jnp.zeros(1)))
        adam = ut.Adam(0.0, 0.9, 0.5, bias_correction=False)
        state = {"m": jnp.array(0.0), "v": jnp.array(4.0)}
        run = ut.descend(
            steady, jnp.array(4.0), optimiser=adam, optimiser_state=state, step_size=0.1, steps=1, key=0, seeds=2
        )
        np.testing.assert_allclose(run.params, 4 - 0.1 / (np.sqrt(3.7) + 0.5), rtol=1e-12)
        np.testing.assert_allclose(run.optimiser_state["v"], 3.7)

    def test_other_numbers_compile_nothing_new(self):
        go = lambda b2, decay: ut.descend(
            NOISE,
            params(),
            steps=20,
            key=1,
            step_size=0.1,
            optimiser=ut.AdamW(b2=b2, weight_decay=decay),
        )
        go(0.9, 0.1)
        with compilations() as compiled:
            go(0.99, 0.2)
        assert compiled == []


def run(**changes):
    settings = {"step_size": 0.1, "steps": 10, "key": jax.random.key(0)} | changes
    noise = settings.pop("noise", None) or ut.Minibatch(problem(), 1)
    return ut.descend(noise, settings.pop("params", POINT), **settings)


MISTAKES = {
    "integer params": (lambda: run(params={"w": jnp.arange(3)}), r"params\['w'\]` has dtype int32.*astype"),
    "params of a module with functions": (
        lambda: run(params=eqx.nn.MLP(1, 1, 2, 1, key=jax.random.key(0))),
        "partition",
    ),
    "params without leaves": (lambda: run(params={}), "no leaves"),
    "a negative step size": (lambda: run(step_size=-0.1), r"`descend\(step_size=-0.1\)`.*finite number"),
    "a NaN step size": (lambda: run(step_size=float("nan")), "`step_size` must be a finite number"),
    "no step size": (lambda: run(step_size=None), "`step_size` must be a number"),
    "a schedule that turns negative": (lambda: run(step_size=lambda k: 0.05 - 0.01 * k), "at step 6"),
    "a schedule of vectors": (lambda: run(step_size=lambda k: jnp.ones(2)), "one number per step"),
    "no steps": (lambda: run(steps=0), r"`descend\(steps=0\)`: `steps` must be at least 1"),
    "too many steps": (lambda: run(steps=2**31), "`steps` must be at most"),
    "a key that is a string": (lambda: run(key="seed"), r"jax.random.key\(0\)"),
    "no key": (lambda: run(key=None), r"jax.random.key\(0\)"),
    "no seeds": (lambda: run(seeds=0), "`seeds` must be at least 1"),
    "observing never": (lambda: run(every=0), "`every` must be at least 1"),
    "momentum of one": (lambda: run(momentum=1.0), "below 1"),
    "negative weight decay": (lambda: run(weight_decay=-1e-3), "`weight_decay` must be a finite number, at least 0"),
    "one name for two things": (lambda: run(observe={"w": jnp.sum}, average={"w": jnp.sum}), "different names"),
    "a problem where a noise is meant": (lambda: run(noise=problem()), r"give a noise, such as `Minibatch"),
    "a changed continuation": (
        lambda: ut.descend(run(), steps=3, step_size=0.3),
        r"continues with `run\.resume\(steps=",
    ),
    "a loss that returns a vector": (
        lambda: run(noise=ut.Minibatch(ut.Problem(lambda w, x: w * x, X), 1), params=jnp.ones(2)),
        r"one real number for one sample, not shape \(2,\).*sum or average",
    ),
    "a loss that is NaN at the start": (
        lambda: run(noise=ut.Minibatch(ut.Problem(lambda w, x: jnp.log(w - x), X), 1), params=jnp.array(1.5)),
        "the loss is nan at the given params",
    ),
    "NaN in the data": (
        lambda: run(noise=ut.Minibatch(ut.Problem(quadratic, jnp.array([1.0, np.nan])), 1), params=jnp.array(1.5)),
        "check the data",
    ),
    "a population loss that is a vector": (
        lambda: run(noise=ut.Minibatch(ut.Population(lambda w, x: w * x, jax.random.normal), 1), params=jnp.ones(2)),
        "one real number",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
