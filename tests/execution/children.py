"""A function in a forked process of its own, for tests that kill it."""

import os


def in_a_child(function, *arguments) -> int:
    """The number of the process; it ends with 1 where the function raises."""
    pid = os.fork()
    if pid:
        return pid
    try:
        function(*arguments)
    except BaseException as error:
        print(f"child: {type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)
