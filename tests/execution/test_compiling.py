"""The seconds of every compilation inside a block are recorded, and old programs are freed."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from undertow.execution import compiling, workers
from undertow.execution.compiling import EVENT, compilations, free_programs

DURATION = 0.25


def compile_once():
    jax.monitoring.record_event_duration_secs(EVENT, DURATION)


def test_a_program_that_jax_compiles_is_recorded():
    """The name of the event is one of JAX's own."""
    program = jax.jit(lambda x: 3 * x + 1)
    with compilations() as seconds:
        program(jnp.ones(3)).block_until_ready()
        count = len(seconds)
        program(jnp.ones(3)).block_until_ready()
    assert count >= 1
    assert len(seconds) == count  # the second call compiles nothing
    assert min(seconds) > 0


def test_other_events_are_not_recorded():
    with compilations() as seconds:
        jax.monitoring.record_event_duration_secs("/jax/core/other", 1.0)
        compile_once()
    assert seconds == [DURATION]


def test_nothing_is_recorded_outside_the_block():
    compile_once()
    with compilations() as seconds:
        pass
    compile_once()
    assert seconds == []


def test_blocks_may_be_nested():
    with compilations() as outer:
        compile_once()
        with compilations() as inner:
            compile_once()
        compile_once()
    assert (len(outer), len(inner)) == (3, 1)


def test_an_error_ends_the_recording():
    with pytest.raises(ArithmeticError), compilations() as seconds:
        raise ArithmeticError
    compile_once()
    assert seconds == []


def mappings():
    return Path("/proc/self/maps").read_bytes().count(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux")
def test_programs_are_freed_at_half_of_the_permitted_mappings(tmp_path, monkeypatch):
    """30 programs take more than 100 mappings, which are given back; below the limit nothing is compiled again."""
    start, kept = mappings(), []
    for k in range(30):
        kept.append(jax.jit(lambda x, k=k: jnp.sin(x) @ jnp.cos(x) + k))
        kept[-1](jnp.ones(40 + k)).block_until_ready()
    held = mappings()
    assert held > start + 100
    free_programs()
    assert mappings() >= held
    limit = tmp_path / "max_map_count"
    monkeypatch.setattr(compiling, "MOST_MAPPINGS", limit)
    for text in ("", "many"):
        limit.write_text(text)
        free_programs()
        assert mappings() >= held
    limit.write_text(str(held))
    free_programs()
    assert mappings() < held - 100
    assert kept[0](jnp.ones(40)).shape == ()
    limit.unlink()
    free_programs()  # another system


def test_tasks_free_programs_first(monkeypatch):
    called = []
    monkeypatch.setattr(workers, "free_programs", lambda: called.append("freed"))
    assert workers.InProcess().submit(lambda task: [*called, task], "run").result() == ["freed", "run"]
