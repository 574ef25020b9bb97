"""Tasks of a sweep that import nothing heavy: what a run gives is known, and how it misbehaves is written beside it.

A file `faults.json` in the folder named by UNDERTOW_LIGHT says which blocks misbehave the first time they run; every
run of a block leaves a line in `log` there, with the driver that asked for it.
"""

import json
import multiprocessing
import os
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from undertow.execution.sweeps.records import BlockResult, BlockTask, Description, DescriptionRequest
from undertow.execution.workers import end_with_parent


def pool(jobs: int) -> Executor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)


def value(a: float, b: float, seed: int) -> float:
    return a * 100 + b + seed / 1000


def describe(request: DescriptionRequest) -> Description:
    kinds = {"a": "float", "b": "float"}
    return Description(kinds, (), "cpu", "none", memory=2**30, batched=True, run_bytes=2**23)


def work(task: BlockTask) -> BlockResult:
    folder = Path(os.environ["UNDERTOW_LIGHT"])
    block = ".".join(str(b) for b in task.block)
    with open(folder / "log", "a") as log:
        log.write(f"{block} {os.getppid()}\n")
    misbehave(folder, block)
    time.sleep(0.03)
    import numpy as np

    rows = zip(task.columns["a"], task.columns["b"], task.seeds, strict=True)
    values = np.array([value(*row) for row in rows])
    if kind_of(folder, block) == "diverge":
        values[0] = np.nan
    outputs = {"x": values, "y": np.stack([values, -values], axis=1)}
    return BlockResult(outputs, {}, 0.01, 0.01, str(os.getpid()), compilations=0, compile_seconds=0.0)


def kind_of(folder: Path, block: str) -> str | None:
    try:
        return json.loads((folder / "faults.json").read_text()).get(block)
    except OSError:
        return None


def misbehave(folder: Path, block: str) -> None:
    kind = kind_of(folder, block)
    if kind in (None, "diverge") or (folder / f"{block}.{kind}").exists():
        return
    (folder / f"{block}.{kind}").touch()
    if kind == "raise":
        raise ArithmeticError(f"block {block} raised on purpose")
    if kind == "hang":
        time.sleep(600)
    if kind == "die":
        os._exit(9)
