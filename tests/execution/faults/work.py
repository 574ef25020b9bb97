"""The tasks of the sweep into which faults are injected: they import nothing heavy, and their numbers are known.

The experiment of a task is the folder for its log and the number of the driver. A file `faults.json` in that folder
says which block misbehaves the first time it runs.
"""

import json
import os
import time
from pathlib import Path

import numpy as np

from undertow.execution.sweeps.records import BlockResult, BlockTask, Description, DescriptionRequest


def describe(request: DescriptionRequest) -> Description:
    kinds = {"a": "float", "b": "float"}
    return Description(kinds, (), "cpu", "none", memory=2**30, batched=True, run_bytes=2**23)


def work(task: BlockTask) -> BlockResult:
    where, _, driver = str(task.reference.experiment).rpartition(":")
    folder = Path(where)
    block = ".".join(map(str, task.block))
    handle = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)  # whole lines, whoever writes
    os.write(handle, f"{block} {driver} {os.getpid()}\n".encode())
    os.close(handle)
    misbehave(folder, block)
    time.sleep(0.004)
    rows = np.array(list(zip(task.columns["a"], task.columns["b"], task.seeds, strict=True)))
    values = np.sin(rows @ [100.0, 10.0, 1.0])
    outputs = {"x": values, "y": np.stack([values, values**2], axis=1)}
    return BlockResult(outputs, {}, 0.01, 0.01, str(os.getpid()), compilations=0, compile_seconds=0.0)


def misbehave(folder: Path, block: str) -> None:
    try:
        kind = json.loads((folder / "faults.json").read_text()).get(block)
    except OSError:
        return
    marker = folder / f"{block}.{kind}"
    if kind is None or marker.exists():
        return
    marker.touch()
    if kind == "raise":
        raise ArithmeticError(f"block {block} raised on purpose")
    if kind == "hang":
        time.sleep(600)
    if kind == "die":
        os._exit(9)
