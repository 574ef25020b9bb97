"""The engine against a plain loop; the same bits however a run is cut, observed or widened; divergence as data."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import undertow as ut
from tests.dynamics.runs import BLOCK, FLAT, KEY, NOISE, descend, plain_loop
from tests.kinds import KINDS, params, point
from undertow import _trees as trees
from undertow.dynamics import engine
from undertow.noise.additive import noiseless


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("short_blocks")
def test_against_a_plain_loop(kind):
    noise = KINDS[kind]()
    start = point(kind)
    run = ut.descend(noise, start, step_size=0.05, steps=12, key=KEY, observe=FLAT, every=1)
    np.testing.assert_allclose(run.observed["flat"], plain_loop(noise, start, 12, 0.05), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(run.step, np.arange(13))


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.1), (0.9, 0.0), (0.5, 0.2)])
@pytest.mark.parametrize("schedule", [0.05, optax.linear_schedule(0.1, 0.01, 20)])
@pytest.mark.usefixtures("short_blocks")
def test_momentum_weight_decay_and_schedules(momentum, weight_decay, schedule):
    settings = {"momentum": momentum, "weight_decay": weight_decay}
    run = ut.descend(NOISE, params(), step_size=schedule, steps=40, key=KEY, observe=FLAT, every=8, seeds=3, **settings)
    for seed in range(3):
        expected = plain_loop(NOISE, params(), 40, schedule, seed, **settings)[::8]
        np.testing.assert_allclose(run.observed["flat"][seed], expected, rtol=1e-4, atol=1e-5)
    etas = np.array([float(schedule(k)) if callable(schedule) else schedule for k in range(40)])
    np.testing.assert_allclose(run.time, np.concatenate([[0], np.cumsum(etas)])[::8], rtol=1e-6)
    np.testing.assert_allclose(run.slow_time, np.concatenate([[0], np.cumsum(etas**2)])[::8], rtol=1e-6)


@pytest.mark.usefixtures("short_blocks")
def test_no_randomness_is_used_twice():
    """Pure noise with step size 1: every increment, of every step, block, seed and coordinate, is another number."""
    flat = ut.Problem(lambda w, _: 0.0 * jnp.sum(w), jnp.zeros(1))
    for seeds in (None, 20):
        run = ut.descend(ut.Isotropic(flat), jnp.zeros(2), step_size=1.0, steps=23, key=KEY, every=1, seeds=seeds,
                         observe={"w": lambda w: w})  # fmt: skip
        steps = np.diff(run.observed["w"], axis=-2).round(4)
        assert np.unique(steps).size > 0.98 * steps.size  # 920 normals rounded to four digits: about four pairs meet
        other = ut.descend(ut.Isotropic(flat), jnp.zeros(2), step_size=1.0, steps=23, key=8, every=1, seeds=seeds,
                           observe={"w": lambda w: w})  # fmt: skip
        assert np.intersect1d(steps, np.diff(other.observed["w"], axis=-2).round(4)).size < 0.05 * steps.size


@pytest.mark.usefixtures("short_blocks")
def test_a_start_shares_no_randomness_with_the_steps():
    """A start that is drawn in the same way as a block of this noise has other numbers than every block."""
    flat = ut.Problem(lambda w, _: 0.0 * jnp.sum(w), jnp.zeros(1))
    start = lambda key: trees.standard_normal(jax.random.split(key, BLOCK)[0], jnp.zeros(2))
    run = ut.descend(ut.Isotropic(flat), start, step_size=1.0, steps=23, key=KEY, every=1, observe={"w": lambda w: w})
    steps = np.diff(run.observed["w"], axis=0)
    assert not np.any(np.isclose(np.abs(steps), np.abs(run.observed["w"][0]), rtol=1e-4))


@settings(max_examples=12, deadline=None)
@given(every=st.integers(1, 3000), seeds=st.integers(1, 20))
def test_the_same_bits_whatever_is_observed_and_however_many_seeds(reference, every, seeds):
    run = descend(2500, every=every, seeds=seeds)
    both = min(seeds, 3)
    np.testing.assert_array_equal(run.observed["flat"][:both], reference.observed["flat"][:both, ::every])
    for mine, theirs in zip(jax.tree.leaves(run.params), jax.tree.leaves(reference.params), strict=True):
        np.testing.assert_array_equal(mine[:both], theirs[:both])


@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(1, 2499), max_size=4, unique=True), every=st.sampled_from([1, 7, 1000, 1300]))
def test_the_same_bits_however_a_run_is_cut(reference, cuts, every):
    ends = [*sorted(cuts), 2500]
    run = descend(ends[0], every=every)
    for before, after in itertools.pairwise(ends):
        run = run.resume(steps=after - before)
    np.testing.assert_array_equal(run.observed["flat"], reference.observed["flat"][:, ::every])
    np.testing.assert_array_equal(run.step, np.arange(0, 2501, every))
    for mine, theirs in zip(jax.tree.leaves(run.params), jax.tree.leaves(reference.params), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_averages_are_means_over_the_steps_between(reference):
    average = {"mean": trees.ravel, "sign": lambda p: trees.ravel(p)[0] > 0}
    run = descend(2500, every=700, average=average)
    every_step = reference.observed["flat"].astype(float)
    np.testing.assert_allclose(run.observed["mean"][:, 0], every_step[:, 0], rtol=1e-6)
    for k in range(1, 4):
        window = every_step[:, 700 * (k - 1) + 1 : 700 * k + 1]
        np.testing.assert_allclose(run.observed["mean"][:, k], window.mean(1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(run.observed["sign"][:, k], (window[:, :, 0] > 0).mean(1), atol=1e-5)
    cut = descend(333, every=700, average=average).resume(steps=2167)
    np.testing.assert_allclose(cut.observed["mean"], run.observed["mean"], rtol=1e-5)


class TestDivergence:
    """w+ = (1 - eta x) w for x = 1, or 2.5 (growth) on some seeds' draws: overflow at a known step."""

    task = ut.Problem(lambda w, x: jnp.sum(x * w**2) / 2, jnp.array([1.0]))
    step_size = 3.0  # multiplies by -2: 1e38 is passed at step 127 or 128
    start = staticmethod(lambda key: jnp.where(jax.random.uniform(key) < 0.5, 0.0, 1.0) * jnp.ones(2))

    def run(self, steps=3000, **more):
        return ut.descend(
            ut.Minibatch(self.task, 1),
            self.start,
            step_size=self.step_size,
            steps=steps,
            key=KEY,
            observe={"w": lambda w: w},
            average={"size": lambda w: jnp.sum(jnp.abs(w))},
            seeds=20,
            **more,
        )

    def test_is_data(self):
        run = self.run(every=16)
        lives = run.observed["w"][:, 0, 0] == 0
        assert 0 < lives.sum() < 20
        np.testing.assert_array_equal(run.diverged, ~lives)
        # |w| = 2^k leaves single precision at k = 128
        np.testing.assert_array_equal(run.diverged_at, np.where(lives, -1, 128))
        np.testing.assert_array_equal(run.params[~lives], 1.0)  # frozen at the start of the first block
        before, after = run.step < 128, run.step >= 128
        assert np.all(np.isfinite(run.observed["w"][:, before]))
        assert np.all(np.isnan(run.observed["w"][~lives][:, after]))
        assert np.all(np.isnan(run.observed["size"][~lives][:, after]))
        assert np.all(run.observed["w"][lives] == 0)

    def test_later_blocks_and_continued_runs(self):
        self_like = ut.descend(
            ut.Minibatch(self.task, 1), jnp.full(2, 1e-30), step_size=2.06, steps=4000, key=KEY, every=500,
            observe={"w": lambda w: w[0]}, seeds=2,
        )  # fmt: skip
        # the derivative of w^2, 2 w = 2e-30 * 1.06^k, passes the largest number one step before w is infinite
        expected = 1 + np.ceil(np.log(float(jnp.finfo(jnp.float32).max) / 2e-30) / np.log(1.06))
        assert abs(self_like.diverged_at[0] - expected) <= 1
        np.testing.assert_allclose(self_like.params[0], 1e-30 * 1.06**2000, rtol=1e-3)
        first = ut.descend(
            ut.Minibatch(self.task, 1), jnp.full(2, 1e-30), step_size=2.06, steps=2600, key=KEY, every=500,
            observe={"w": lambda w: w[0]}, seeds=2,
        )  # fmt: skip
        assert not first.diverged.any()
        rest = first.resume(steps=1400)
        np.testing.assert_array_equal(rest.diverged_at, self_like.diverged_at)
        np.testing.assert_array_equal(rest.params, self_like.params)
        np.testing.assert_array_equal(rest.observed["w"], self_like.observed["w"])

    def test_a_single_run(self):
        run = ut.descend(
            ut.Minibatch(self.task, 1), jnp.ones(2), step_size=3.0, steps=500, key=KEY, observe={"n": lambda w: 3}
        )
        assert bool(run.diverged)
        assert int(run.diverged_at) == 128
        assert run.observed["n"][0] == 3
        assert np.isnan(run.observed["n"][1])

    def test_the_schedule_counts_from_the_start_of_the_run(self):
        """Nothing moves in the first block; in the second block the growth is that of the other tests."""
        schedule = lambda step: jnp.where(step < 1000, 0.0, 3.0)
        run = ut.descend(ut.Minibatch(self.task, 1), jnp.ones(2), step_size=schedule, steps=1500, key=KEY)
        assert int(run.diverged_at) == 1128

    def test_padding_is_not_counted(self):
        run = ut.descend(
            ut.Minibatch(self.task, 1),
            lambda key: jnp.ones(2) * 0.5,
            step_size=1.0,
            steps=100,
            key=KEY,
            seeds=3,
        )
        assert run.diverged.shape == (3,)
        assert not run.diverged.any()


def begun(run, params, keys):
    return engine.start(params, keys, run.optimiser, average=run.average, maximum=run.maximum)


def spec(noise, **changes):
    settings = {"step_size": jnp.asarray(0.1), "optimiser": ut.SGD().prepared(), "observe": {}, "average": {}}
    return engine.RunSpec(noise, **settings | changes)


@pytest.mark.parametrize(("size", "expected"), [(3, 1000), (2**16, 4), (3 * 2**16, 1), (2**20, 1)])
def test_a_block_is_as_long_as_its_randomness_allows(size, expected):
    """Isotropic noise draws four bytes per parameter and step, of 2^20 bytes per block."""
    noise = ut.Isotropic(ut.Problem(lambda w, _: jnp.sum(w), jnp.zeros(1)))
    assert engine.block_length(noise, jnp.zeros(size)) == expected


def test_the_key_of_a_seed_is_folded_in():
    expected = [jax.random.fold_in(KEY, seed) for seed in (4, 0, 7)]
    assert (engine.seed_keys(KEY, jnp.array([4, 0, 7])) == jnp.stack(expected)).all()
    assert engine.seed_keys(KEY, jnp.asarray(4)) == expected[0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lane", [(), (4,)])
def test_a_run_starts_at_step_zero_without_a_velocity(momentum, lane):
    """The average at the start is its value there; no maximum has been seen."""
    observed = {"first": lambda w: w[0] > 0}
    run = spec(
        ut.Isotropic(ut.Problem(lambda w, _: jnp.sum(w), jnp.zeros(1))),
        optimiser=ut.SGD(momentum).prepared(), average=observed, maximum=observed,
    )  # fmt: skip
    state = begun(run, jnp.ones((*lane, 2)), jax.random.split(KEY, lane) if lane else KEY)
    assert int(state.step) == int(state.window) == 0
    np.testing.assert_array_equal(state.diverged_block, np.full(lane, engine.NEVER))
    np.testing.assert_array_equal(state.means["first"], np.ones(lane))
    assert state.means["first"].dtype == jnp.float32
    np.testing.assert_array_equal(state.maxima["first"], np.full(lane, -np.inf))
    if momentum == 0:
        assert state.memory is None
    else:
        np.testing.assert_array_equal(state.memory, np.zeros((*lane, 2)))


def test_rows_of_the_buffer_that_are_not_observed_stay_zero():
    """Seven steps in blocks of five, observed after 2, 5 and no more than that, in a buffer of four rows."""
    steady = noiseless(ut.Problem(lambda w, _: -w, jnp.zeros(1)))
    run = spec(steady, step_size=jnp.asarray(1.0), observe={"w": lambda w: w}, average={"mean": lambda w: w})
    state = begun(run, jnp.asarray(0.0), KEY)
    numbers = [jnp.asarray(n, jnp.int32) for n in (7, 2, 3)]
    state, (observed, means) = engine.advance(run, state, *numbers, block=5, capacity=4)
    assert int(state.step) == 7
    assert float(state.params) == 7  # w+ = w + 1
    np.testing.assert_array_equal(observed["w"], [2.0, 5.0, 0.0, 0.0])
    np.testing.assert_allclose(means["mean"], [1.5, 4.0, 0.0, 0.0])  # of steps 1 and 2, and of steps 3, 4 and 5
    assert int(state.window) == 2
    np.testing.assert_allclose(state.means["mean"], 6.5)  # of steps 6 and 7, after the last observation


def test_the_replay_finds_the_first_step_that_is_not_finite():
    """w+ = 4 w from 1: finite up to 4^63, infinite after step 64, in the block that starts at step 50."""
    growing = noiseless(ut.Problem(lambda w, _: -3 * w**2 / 2, jnp.zeros(1)))
    run = spec(growing, step_size=jnp.asarray(1.0))
    state = begun(run, jnp.ones(2), jax.random.split(KEY, 2))
    never = jnp.asarray(engine.NEVER, jnp.int32)
    state, _ = engine.advance(run, state, jnp.asarray(100, jnp.int32), never, never, block=50, capacity=1)
    np.testing.assert_array_equal(state.diverged_block, [50, 50])
    np.testing.assert_allclose(state.params, np.full(2, 4.0**50))  # reset to the start of that block
    np.testing.assert_array_equal(engine.first_nonfinite(run, state, block=50), [64, 64])


def test_the_replay_draws_the_randomness_of_its_block():
    """One sample of thirty is so large that the step overflows; the step at which it is drawn first is known."""
    noise = ut.Minibatch(ut.Problem(lambda w, x: w * x, jnp.zeros(30).at[0].set(3e38)), 1)
    run, keys, block = spec(noise, step_size=jnp.asarray(10.0)), jax.random.split(KEY, 3), 7
    drawn = [
        np.concatenate([noise.randomness(jax.random.fold_in(key, b), block, jnp.array(0.0)) for b in range(40)])
        for key in keys
    ]
    expected = np.array([1 + np.flatnonzero(indices == 0)[0] for indices in drawn])
    assert (expected > 2 * block).any()
    state = begun(run, jnp.zeros(3), keys)
    never = jnp.asarray(engine.NEVER, jnp.int32)
    state, _ = engine.advance(run, state, jnp.asarray(40 * block, jnp.int32), never, never, block=block, capacity=1)
    np.testing.assert_array_equal(engine.first_nonfinite(run, state, block=block), expected)


def test_large_blocks_drawn_one_after_the_other_have_the_same_bits(monkeypatch):
    """On a CPU, blocks of many bytes are drawn for one trajectory at a time."""
    keys, drawn, programs = jax.random.split(KEY, 5), [], []
    for least in (0, 2**40):
        monkeypatch.setattr(engine, "CACHED_BYTES", least)
        draw = lambda keys: engine._block_randomness(NOISE, keys, jnp.asarray(3), 7, None)  # not traced before
        drawn.append(jax.jit(draw)(keys))
        programs.append("scan" in str(jax.make_jaxpr(draw)(keys)))
    assert programs == [True, False]
    assert drawn[0].shape == (7, 5, NOISE.batch_size)
    assert (drawn[0] == drawn[1]).all()
