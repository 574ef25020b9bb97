"""The memory of a program, counted by hand, and the memory of a device."""

import jax
import jax.numpy as jnp
import pytest

from undertow.execution.sweeps.memory import device_memory, peak_bytes

N = 100
VECTOR = 4 * N
"""The bytes of a vector of N single numbers."""


def peak(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return peak_bytes(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_an_empty_program_holds_its_arguments():
    assert peak(lambda x, y: (x, y), (N,), (2, N)) == 3 * VECTOR


def test_one_operation_holds_its_argument_and_its_result():
    assert peak(lambda x: x * 2.0, (N,)) == 2 * VECTOR


def test_values_are_freed_after_their_last_use():
    """A chain of operations holds two vectors at a time, however long it is."""

    def chain(x):
        for _ in range(10):
            x = jnp.sin(x)
        return x

    assert peak(chain, (N,)) == 2 * VECTOR


def test_values_that_are_used_later_are_kept():
    """sin x, cos x and x are alive when cos is computed; x is not needed for their sum."""
    assert peak(lambda x: jnp.sin(x) + jnp.cos(x), (N,)) == 3 * VECTOR


def test_an_outer_product_counts_as_a_matrix():
    assert peak(lambda x: jnp.sum(x[:, None] * x[None, :]), (N,)) > N * VECTOR


def test_a_program_inside_another_counts():
    """The body of a scan makes a matrix that no value outside of it shows."""

    def body(total, _):
        return total + jnp.sum(jnp.exp(total[:, None] - total[None, :]), axis=1), None

    scan = lambda x: jax.lax.scan(body, x, None, length=3)[0]
    assert peak(scan, (N,)) > N * VECTOR
    assert peak(jax.jit(lambda x: jnp.sin(x)), (N,)) >= 2 * VECTOR


def test_constants_of_a_program_count():
    table = jnp.arange(1000.0)
    assert peak(lambda x: x + table[0], ()) >= 4 * 1000


class Device:
    """A device that says how much memory it has."""

    def __init__(self, platform, statistics):
        self.platform, self.statistics = platform, statistics

    def memory_stats(self):
        return self.statistics


@pytest.mark.parametrize(
    ("statistics", "memory"),
    [({"bytes_limit": 123}, 123), ({}, 2**33), (None, 2**33)],
    ids=["stated", "silent", "none"],
)
def test_an_accelerator_says_how_much_memory_it_has(as_a_user, statistics, memory):
    assert device_memory(Device("gpu", statistics)) == memory


def test_the_memory_of_a_processor_is_the_free_memory_of_the_machine(as_a_user, monkeypatch):
    pages = {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert device_memory(Device("cpu", None)) == 4096000

    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.sysconf", unknown)
    assert device_memory(Device("cpu", None)) == 2**32
