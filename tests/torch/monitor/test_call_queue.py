"""Calls that a thread completes: all of them, one at a time, with their errors."""

import threading

import pytest
import torch

from undertow.torch.monitor import background, call_queue
from undertow.torch.monitor.call_queue import CallQueue
from undertow.torch.monitor.sites import Call

pytestmark = pytest.mark.torch

BACK = torch.zeros(4)


class NumberedCall(Call):
    """A call with a number."""

    def __init__(self, number):
        self.number, self.inputs = number, [torch.zeros(2)]


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(background, "DEVICES", ("cpu",))
    monkeypatch.setattr(call_queue, "SUBMITTED_BYTES", 3 * 24)


def test_without_a_gpu_a_call_is_completed_at_once():
    done = []
    queue = CallQueue(lambda one: done.append((one.number, threading.current_thread())), pytest.fail)
    queue.add(NumberedCall(1), BACK, alone=False)
    assert done == [(1, threading.main_thread())]


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_thread_completes_all_calls_in_order(threads, count):
    done = []
    queue = CallQueue(lambda one: done.append((one.number, threading.current_thread().name)), pytest.fail)
    for number in range(count):
        queue.add(NumberedCall(number), BACK, alone=False)
    queue.finish()
    assert [number for number, _ in done] == list(range(count))
    assert all(name.startswith("undertow") for _, name in done)
    queue.close()


def test_a_call_that_must_be_alone_waits_for_the_thread(threads):
    done, go_on = [], threading.Event()

    def complete(one):
        assert one.number == 3 or go_on.wait(10)
        done.append(one.number)

    queue = CallQueue(complete, pytest.fail)
    for number in range(3):
        queue.add(NumberedCall(number), BACK, alone=False)
    threading.Timer(0.1, go_on.set).start()
    while not done and not go_on.is_set():
        pass
    queue.add(NumberedCall(3), BACK, alone=True)
    queue.finish()
    assert sorted(done) == [0, 1, 2, 3]
    assert done.index(3) in (0, 3)  # before the three or after them, never between
    queue.close()


def test_discarded_calls_are_not_completed(threads):
    done = []
    queue = CallQueue(lambda one: done.append(one.number), pytest.fail)
    queue.add(NumberedCall(0), BACK, alone=False)
    queue.discard()
    queue.add(NumberedCall(1), BACK, alone=False)
    queue.finish()
    assert done == [1]
    queue.close()


def test_an_error_is_reported(threads):
    problems = []

    def complete(one):
        raise ArithmeticError("no gradients")

    queue = CallQueue(complete, problems.append)
    queue.add(NumberedCall(0), BACK, alone=False)
    queue.finish()
    assert problems == ["ArithmeticError: no gradients"]
    queue.close()
