"""Count the operations of a process on the files of a folder, and act before one of them: between two writes."""

import os
import sys
from collections.abc import Callable

RENAMES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "ctypes.dlsym")


def trace(folder: str, moment: int, act: Callable[[], object]) -> list[int]:
    """Call `act` before operation number `moment` under `folder`; the list that is returned holds the count so far.

    An operation is a file opened for writing or a folder opened for flushing, a flush, a rename, a removal, or the
    exchange of two folders.
    """
    count, acting = [0], []
    real_fsync = os.fsync

    def step() -> None:
        if acting:  # what `act` does to files is not counted
            return
        count[0] += 1
        if count[0] == moment:
            acting.append(True)
            act()
            acting.clear()

    def hook(event: str, arguments: tuple) -> None:
        if event in RENAMES:
            if event != "ctypes.dlsym" or arguments[1] == "renameat2":
                step()
        elif event == "open":
            path, mode, flags = arguments
            writing = (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (
                mode or "r"
            ) != "r"
            if writing and str(path).startswith(folder):
                step()

    def fsync(handle: int) -> None:
        step()
        real_fsync(handle)

    sys.addaudithook(hook)
    os.fsync = fsync
    return count
