"""Repeated calls at any depth take no new memory below a large frame."""

import resource
from concurrent.futures import ThreadPoolExecutor

import pytest

from undertow._frames import call_in_one_block

CALLS = 500
DEPTHS = range(400)


def leaf(number):
    return number


def most_page_faults():
    """Return the most page faults of many calls at one depth."""
    return max(map(page_faults_at, DEPTHS))


def page_faults_at(depth):
    """Return the page faults of many calls at a depth below the caller."""
    if depth:
        return page_faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(CALLS):
        leaf(number)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_the_result_and_errors_are_those_of_the_function():
    assert call_in_one_block(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        call_in_one_block(divmod, 7, 0)


def test_calls_at_no_depth_take_a_block_each():
    """Calls at some depths take a block each without the large frame. With one large frame, or two, none does."""
    with ThreadPoolExecutor(1) as thread:  # a thread has frames of its own; tests run below a large frame
        assert thread.submit(most_page_faults).result() >= CALLS
        assert thread.submit(call_in_one_block, most_page_faults).result() < CALLS / 10
        assert thread.submit(call_in_one_block, call_in_one_block, most_page_faults).result() < CALLS / 10
