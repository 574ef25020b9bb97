"""Readings that a thread computes: order, errors, and the number that may wait."""

import threading

import pytest

from undertow.torch.monitor.background import BackgroundQueue

pytestmark = pytest.mark.torch


def test_readings_come_in_the_order_of_their_steps_and_only_when_complete():
    queue, go_on = BackgroundQueue(most=4), threading.Event()
    queue.submit(0, lambda: go_on.wait(10) and "slow")
    queue.submit(1, lambda: "quick")
    assert list(queue.take(wait=False)) == []
    assert len(queue) == 2
    go_on.set()
    assert list(queue.take(wait=True)) == [(0, "slow"), (1, "quick")]
    queue.submit(2, lambda: "again")
    assert list(queue.take(wait=True)) == [(2, "again")]


def test_an_error_is_returned_with_its_step():
    def fails():
        raise ArithmeticError("no eigenvalues")

    queue = BackgroundQueue(most=4)
    queue.submit(5, fails)
    queue.submit(6, lambda: "fine")
    (step, error), after = queue.take(wait=True)
    assert (step, type(error), str(error)) == (5, ArithmeticError, "no eigenvalues")
    assert after == (6, "fine")


def test_sizes_count_towards_the_limit():
    queue, go_on = BackgroundQueue(most=10), threading.Event()
    queue.submit("large", lambda: go_on.wait(10), size=8)
    queue.submit("small", lambda: go_on.wait(10), size=2)
    assert list(queue.take(wait=False)) == []
    queue.submit("one more", lambda: None)
    threading.Timer(0.1, go_on.set).start()
    assert next(queue.take(wait=False))[0] == "large"
    list(queue.take(wait=True))
    queue.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("undertow")]


def test_readings_above_the_limit_are_waited_for():
    queue, go_on = BackgroundQueue(most=4), threading.Event()
    for step in range(6):
        queue.submit(step, lambda: go_on.wait(10))
    threading.Timer(0.1, go_on.set).start()
    taken = [step for step, _ in queue.take(wait=False)]
    assert taken[:2] == [0, 1]
    list(queue.take(wait=True))
    assert len(queue) == 0
