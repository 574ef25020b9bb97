"""Progress, Ctrl-C, threads, compilations and continued runs."""

import itertools
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.dynamics.runs import FLAT, KEY, NOISE, descend, plain_loop
from tests.kinds import params, problem, regression
from undertow import _trees as trees
from undertow.dynamics import drive
from undertow.execution.compiling import compilations


class TestDriver:
    def test_the_facts_of_a_diffusion_count_steps_of_sgd(self):
        noise = ut.Isotropic(ut.Problem(lambda w, x: w * x, jnp.zeros(1)), 1.0)
        run = ut.diffuse(noise, jnp.array(1.0), step_size=0.2, time=0.33, key=KEY, substeps=4)
        np.testing.assert_allclose([run.facts["step_size"], run.facts["steps"]], [0.2, 1.75], rtol=1e-6)

    def test_observations_that_do_not_fit_are_refused_before_the_run(self, monkeypatch):
        """1,000,000,001 times 1,000 numbers of 4 bytes and 4 clocks of 8."""
        begun = time.process_time()
        flat = ut.Isotropic(ut.Problem(lambda w, x: jnp.sum(w) * x, jnp.zeros(1)))
        call = {"step_size": 0.1, "key": 0, "observe": {"w": lambda w: w}}
        with pytest.raises(
            ValueError, match=r"`descend\(every=1, seeds=None\)`: .* need 4,032,000,004,032 bytes .* are free"
        ):
            ut.descend(flat, jnp.zeros(1000, jnp.float32), steps=10**9, every=1, seeds=None, **call)
        assert time.process_time() - begun < 20
        monkeypatch.setattr(drive, "available_memory", lambda: 10_000)
        with pytest.raises(ValueError, match=r"101 observations of 112 bytes need 11,312 bytes .* 10,000 are free"):
            ut.descend(flat, jnp.zeros(4, jnp.float32), steps=100, every=1, seeds=5, **call)
        run = ut.descend(flat, jnp.zeros(4, jnp.float32), steps=80, every=1, seeds=5, **call)
        with pytest.raises(ValueError, match=r"20 observations of 112 bytes need 11,312 bytes"):
            run.resume(steps=20)

    @pytest.mark.slow
    def test_ten_million_observed_steps_need_the_memory_of_the_result(self):
        """In a process of its own, whose peak is known: the clocks and the values are 36 bytes per step."""
        code = (
            "import jax.numpy as jnp, undertow as ut\n"
            "from benchmarks.load import observed_memory\n"
            "facts = observed_memory(10_000_000)\n"
            "print(facts['observations'], facts['growth_MiB'], facts['result_MiB'])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        count, growth, result = map(float, done.stdout.split())
        assert count == 10_000_001
        assert result == pytest.approx(10_000_001 * (4 + 3 * 8) / 2**20)
        assert growth < 2 * result

    def test_progress_callback(self):
        seen = []
        descend(30_000, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (30_000, 30_000)
        assert len(seen) > 1
        assert all(a < b for (a, _), (b, _) in itertools.pairwise(seen))

    def test_interrupt_keeps_what_is_done(self, reference):
        def interrupt(done, total):
            if done >= 2000:
                raise KeyboardInterrupt

        with pytest.warns(RuntimeWarning, match="stopped by Ctrl-C") as caught:
            run = descend(400_000, every=500, progress=interrupt)
        assert f"after {run.step[-1]} of 400000 steps" in str(caught[0].message)
        assert run.interrupted
        assert 2000 <= run.step[-1] < 400_000
        np.testing.assert_array_equal(run.observed["flat"][:, :5], reference.observed["flat"][:, 0:2001:500])
        on = run.resume(steps=1000)
        assert not on.interrupted
        assert on.step[-1] == run.step[-1] + 1000

    def test_ctrl_c_in_a_real_process(self, tmp_path):
        code = """
import signal, warnings, jax, jax.numpy as jnp, undertow as ut
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with Ctrl-C ignored
warnings.simplefilter("ignore")
task = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
def report(done, total):
    print("going", flush=True)
run = ut.descend(ut.Minibatch(task, 1), jnp.array(0.0), step_size=0.1, steps=1_000_000_000, key=0, every=1_000_000,
                 observe={"w": lambda w: w}, seeds=40, progress=report)
print("returned", run.interrupted, run.observed["w"].shape[1] == len(run.step), bool(jnp.isfinite(run.params).all()))
"""
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline() == "going\n"
                time.sleep(0.7)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        assert "returned True True True" in out, out + err

    def test_lanes_follow_settings_made_for_one_thread(self, x64):
        """x64 by a context manager holds for the main thread alone; the lanes must not fall back to single."""
        noise = ut.Minibatch(problem(jnp.float64), 2)
        run = ut.descend(noise, params(dtype=jnp.float64), step_size=0.02, steps=20, key=KEY, observe=FLAT, seeds=40)
        assert run.observed["flat"].dtype == np.float64

    def test_other_numbers_compile_nothing_new(self):
        def go(task, strength, scale, eta, steps, seed, beta, gamma, every):
            noise = ut.LabelNoise(task, strength)
            start = trees.scale(scale, params())
            return ut.descend(
                noise, start, step_size=eta, steps=steps, key=jax.random.key(seed), momentum=beta, weight_decay=gamma,
                every=every, seeds=5, observe=FLAT,
            )  # fmt: skip

        task = regression()
        other = ut.Regression(task.predict, task.inputs + 1, task.targets * 2)
        go(task, 1.0, 1.0, 0.01, 1500, 0, 0.9, 0.0, 300)
        with compilations() as compiled:
            go(task, 0.5, 2.0, 0.02, 3700, 1, 0.5, 0.1, 170)
            go(other, 0.5, 2.0, 0.02, 3700, 1, 0.5, 0.1, 170)
        assert compiled == []

    def test_the_count_of_compilations_can_rise(self):
        with compilations() as compiled:
            ut.descend(ut.Minibatch(problem(), 3), params(), step_size=0.02, steps=10, key=KEY)
        assert compiled


@pytest.mark.parametrize("changed", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"step_size": 0.1}])
def test_a_continued_run_keeps_its_settings(changed):
    run = ut.descend(NOISE, params(), step_size=0.02, steps=5, key=KEY)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        run.resume(steps=5, **changed)


def test_resume_says_what_to_give(as_a_user):
    run = ut.descend(NOISE, params(), step_size=0.02, steps=5, key=KEY)
    for wrong in ({}, {"time": 1.0}, {"steps": 5, "time": 1.0}):
        with pytest.raises(TypeError, match="made by `descend`; give `steps=` and nothing else"):
            run.resume(**wrong)
    with pytest.raises(TypeError, match=r"`descend\(run, \.\.\.\)`.*continues with `run\.resume\(steps=\.\.\.\)`"):
        ut.descend(run, steps=5)
    with pytest.raises(ValueError, match="`steps` must be at least 1"):
        run.resume(steps=0)


def test_buffers_of_observations_are_bounded():
    """Wide observations of many seeds get fewer rows."""
    wide = {"wide": lambda p: jnp.zeros(2**14)}
    run = drive.start_run("descend", NOISE, params(), step_size=0.02, key=KEY, observe=wide, average={}, every=1,
                          seeds=8, optimiser=ut.SGD(), lanes_of=8)  # fmt: skip
    assert 2 < run.capacity <= drive.OBSERVATION_BYTES // (8 * 2**14 * 4)


def test_small_buffers_and_small_chunks_change_nothing(reference, monkeypatch):
    monkeypatch.setattr(drive, "MOST_OBSERVATIONS", 3)
    run = descend(2500, every=11)
    np.testing.assert_array_equal(run.observed["flat"], reference.observed["flat"][:, ::11])


@pytest.mark.usefixtures("short_blocks")
def test_a_run_goes_on_between_two_observations():
    """Steps 10 to 13 have no observation; the steps after them are observed at the multiples of ten."""
    run = descend(10, every=10, seeds=None).resume(steps=3)
    np.testing.assert_array_equal(run.step, [0, 10])
    expected = plain_loop(NOISE, params(), 20, 0.02)
    np.testing.assert_allclose(trees.ravel(run.params), expected[13], rtol=1e-5)
    rest = run.resume(steps=7)
    np.testing.assert_array_equal(rest.step, [0, 10, 20])
    np.testing.assert_allclose(rest.observed["flat"], expected[::10], rtol=1e-5)
