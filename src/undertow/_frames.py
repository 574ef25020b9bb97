"""Calls whose Python frames share one block of memory.

CPython keeps frames in blocks of 16 KiB. A block is taken from the operating system when a call does not fit in the
last one, and given back when this call returns. Where a loop calls functions at a depth at which a block is full, every
call takes a block and gives it back. The recursion of JAX's tracing has such loops at many depths. Below a call that
needs a large frame, the rest of its block serves all further frames.
"""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["call_in_one_block"]

Result = TypeVar("Result")

SLOTS = 70_000
"""Slots of 8 bytes for the large frame: a little more than half a block of 1 MiB. They are never written."""


def call_in_one_block(function: Callable[..., Result], *arguments: object) -> Result:
    """Return `function(*arguments)`, with half a mebibyte for the frames below it.

    >>> from undertow._frames import call_in_one_block
    >>> call_in_one_block(max, 1, 2)
    2
    """
    return function(*arguments)


call_in_one_block.__code__ = call_in_one_block.__code__.replace(co_stacksize=SLOTS)
