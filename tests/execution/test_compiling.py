"""The seconds of every compilation inside a block are recorded."""

import jax
import jax.numpy as jnp
import pytest

from undertow.execution.compiling import EVENT, compilations

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
