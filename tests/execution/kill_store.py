"""Run as a program: kills a process that keeps replacing a stored result, again and again, and checks what is left.

usage: python -m tests.execution.kill_store FOLDER KILLS SEED. Children are forked before anything starts a thread, so
that each of them begins at once.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import xarray
import zarr  # noqa: F401  imported before the forks, which then cost nothing

from tests.execution.children import in_a_child
from undertow.execution import store


def dataset(version: int) -> xarray.Dataset:
    values = np.full((40, 50), float(version))
    return xarray.Dataset({"a": (("x", "y"), values), "b": (("x",), values[:, 0])}, attrs={"version": version})


def write_for_ever(path: Path, ready: int) -> None:
    version = 0
    while True:
        version += 1
        store.save(path, dataset(version), {"version": version})
        if version == 1:
            os.write(ready, b"!")


def check(path: Path) -> None:
    """Whole, of one version, by our reader and by plain xarray."""
    loaded = store.load(path)
    version = loaded.attrs["version"]
    assert version >= 1
    assert np.all(loaded.a == version)
    assert np.all(loaded.b == version)
    assert store.provenance_of(path) == {"version": version}
    assert np.all(xarray.open_zarr(path).load().a == version)


def main(folder: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    path = folder / "result.zarr"
    for index in range(kills):
        reading, writing = os.pipe()
        pid = in_a_child(write_for_ever, path, writing)
        os.read(reading, 1)  # at least one version is there
        time.sleep(rng.uniform(0, 0.15))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
        _, status = os.waitpid(in_a_child(check, path), 0)
        if status:
            print(f"kill {index}: damaged")
            sys.exit(1)
    print(f"{kills} kills, all results whole")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
