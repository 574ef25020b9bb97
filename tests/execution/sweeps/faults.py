"""Run as a program: faults at random times while a sweep runs, and what is left of it after each.

usage: python -m tests.execution.sweeps.faults FOLDER COUNT SEED [TABLE.md]. Drivers are forked before anything starts a
thread; their workers are spawned, as in ordinary use.
"""

import contextlib
import errno
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from tests.execution import light
from tests.execution.children import in_a_child

SHAPE, SEEDS = (6, 5), 4
LANES = 3
"""Sweeps at the same time: most of it is waiting."""
KINDS = ("driver killed", "worker killed", "disk full", "task raises", "task hangs", "task kills its process",
         "task diverges", "two drivers")  # fmt: skip


def job(folder: Path):
    from undertow.execution.sweeps.plan import Job
    from undertow.execution.sweeps.spec import as_spec

    axes = {"a": list(range(SHAPE[0])), "b": list(range(SHAPE[1]))}
    spec = as_spec("light.py:work", axes, seeds=SEEDS, time_limit=4.0 if "hang" in faults_of(folder).values() else None)
    return Job(spec, "light", "", folder / "sweep", light.describe, light.work)


def drive(folder: Path, full_after: int | None = None) -> None:
    """One driver to its end; what it says goes to `said`."""
    from undertow.execution.store import StoreError
    from undertow.execution.sweeps import drive as driver
    from undertow.execution.workers import Processes

    os.environ["UNDERTOW_LIGHT"] = str(folder)
    if full_after is not None:
        fill_disk(full_after)
    try:
        state = driver.run(job(folder), lambda: Processes(2, light.pool))
        sentences = [*state.errors]
    except StoreError as error:
        sentences = [str(error)]
    with open(folder / "said", "a") as said:
        said.writelines(f"{sentence}\n" for sentence in sentences)


def fill_disk(after: int) -> None:
    """From the given flush on, every flush to the disk fails as on a full one, after half of the bytes are written."""
    real, count = os.fsync, [0]

    def fsync(handle: int) -> None:
        count[0] += 1
        if count[0] > after:
            with contextlib.suppress(OSError):  # a folder, or opened for reading
                os.truncate(handle, os.fstat(handle).st_size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    os.fsync = fsync


def ended(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def finished(folder: Path) -> set[str]:
    """The blocks whose flags say that they are done; checks that plain xarray reads the right numbers there."""
    import numpy as np
    import xarray

    from undertow.execution.sweeps.results import DONE, read_folder

    _, results = read_folder(folder / "sweep")
    if results is None:
        return set()
    data = xarray.open_zarr(results.path).load()
    a, b, seed = np.meshgrid(data.a, data.b, data.seed, indexing="ij")
    right = light.value(a, b, seed)
    done = data.done.values == DONE
    diverged = np.isnan(data.x.values) & done
    assert (
        diverged.sum() == len([k for k in faults_of(folder).values() if k == "diverge" and done.all()])
        or not done.all()
    )
    same = np.isclose(data.x.values, right, rtol=0, atol=1e-12) & np.isclose(data.y.values[..., 1], -right, atol=1e-12)
    assert np.all(same | diverged | ~done), "a finished run has a wrong number"
    for found, told in ((data.x.values, right), (data.y.values[..., 0], right), (data.y.values[..., 1], -right)):
        assert np.all(np.isclose(found, told, atol=1e-12) | np.isnan(found)), "an unfinished run has a wrong number"
    flags = results.flags()
    tiling = results.tiling
    return {".".join(map(str, b)) for b in tiling.blocks() if (flags[tiling.region(b)] == DONE).all()}


def faults_of(folder: Path) -> dict[str, str]:
    path = folder / "faults.json"
    return json.loads(path.read_text()) if path.exists() else {}


def log(folder: Path, driver: int) -> list[str]:
    """The blocks that a driver's workers ran."""
    path = folder / "log"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [block for block, asked in lines if int(asked) == driver]


def said(folder: Path) -> list[str]:
    path = folder / "said"
    return path.read_text().splitlines() if path.exists() else []


def workers_of(pid: int) -> list[int]:
    """Spawned workers among a process's children (another child of it tracks resources)."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
        except OSError:
            pass
    return found


def inject(kind: str, folder: Path, rng: random.Random) -> str:
    """One sweep with one fault, up to the moment after the fault; the outcome as a sentence."""
    names = {"task raises": "raise", "task hangs": "hang", "task kills its process": "die", "task diverges": "diverge"}
    if kind in names:
        from undertow.execution.sweeps.blocks import Tiling

        blocks = Tiling((*SHAPE, SEEDS), (1, 2, 4)).blocks()
        block = ".".join(map(str, rng.choice(blocks)))
        (folder / "faults.json").write_text(json.dumps({block: names[kind]}))
    pid = in_a_child(drive, folder, rng.randrange(4, 130) if kind == "disk full" else None)
    if kind in ("driver killed", "worker killed", "two drivers"):
        wait_a_while(folder, rng)
    if kind == "driver killed":
        os.kill(pid, signal.SIGKILL)
    elif kind == "worker killed":
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
            workers = workers_of(pid)
            if workers:
                os.kill(rng.choice(workers), signal.SIGKILL)
                break
            time.sleep(0.02)
    elif kind == "two drivers":
        other = in_a_child(drive, folder)
        assert ended(other) == 0
    status = ended(pid)
    assert status in (0, signal.SIGKILL), f"the driver ended with {status}"
    return "; ".join(said(folder)) or {
        "driver killed": "killed without a message",
        "worker killed": "the sweep continued",
    }.get(kind, "finished before the fault" if kind in ("disk full", "two drivers") else "all runs done")


def wait_a_while(folder: Path, rng: random.Random) -> None:
    """A random time after the start or, more often, after a random number of blocks is finished."""
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0.0, 1.0))
        return
    deadline, blocks = time.monotonic() + 20, rng.randrange(0, 17)
    flags = folder / "sweep" / "results.zarr" / "done"
    while time.monotonic() < deadline and (not flags.exists() or len(list(flags.glob("[0-9]*"))) < blocks):
        time.sleep(0.002)
    time.sleep(rng.uniform(0.0, 0.05))


def one(kind: str, folder: Path, rng: random.Random) -> tuple[str, int, int]:
    """A fault, then a driver that goes on: (outcome, blocks kept, blocks run after)."""
    folder.mkdir(parents=True)
    outcome = inject(kind, folder, rng)
    kept = finished(folder) if (folder / "sweep" / "sweep.json").exists() else set()
    driver = in_a_child(drive, folder)
    assert ended(driver) == 0
    after = log(folder, driver)
    assert not kept & set(after), "a finished block ran again"
    whole = finished(folder)
    assert len(whole) == 6 * 3, f"{len(whole)} blocks at the end"
    assert max(Counter(after).values(), default=0) <= 1, "a block ran twice after the fault"
    return outcome, len(kept), len(after)


def expected(kind: str, outcome: str) -> bool:
    """Whether the sentence is one that the fault may have."""
    words = {
        "driver killed": ("killed without a message",),
        "worker killed": ("the sweep continued",),
        "disk full": ("the disk is full", "finished before"),
        "task raises": ("raised on purpose",),
        "task hangs": ("longer than the limit",),
        "task kills its process": ("all runs done",),  # alone it is tried again, and then it lives
        "task diverges": ("all runs done",),
        "two drivers": ("another run is writing", "finished before"),
    }
    return any(word in outcome for word in words[kind])


def lane(folder: Path, indices: range, seed: int) -> None:
    """Several faults, one after the other."""
    for index in indices:
        kind = KINDS[index % len(KINDS)]
        try:
            found = one(kind, folder / str(index), random.Random(f"{seed}.{index}"))
            assert expected(kind, found[0]), f"an unexpected sentence: {found[0]!r}"
        except AssertionError as error:
            print(f"fault {index}, {kind}: {error}", flush=True)
            raise
        (folder / str(index) / "found.json").write_text(json.dumps(found))


def main(folder: Path, count: int, seed: int, table: Path | None) -> None:
    import numpy  # noqa: F401  before the forks, which then cost nothing
    import xarray  # noqa: F401
    import zarr  # noqa: F401

    import undertow.execution.sweeps.drive  # noqa: F401

    os.environ["PYTHONWARNINGS"] = "ignore"  # of semaphores that killed drivers leave to the system
    lanes = [in_a_child(lane, folder, range(k, count, LANES), seed) for k in range(LANES)]
    statuses = [ended(pid) for pid in lanes]
    if any(statuses):
        sys.exit(1)
    rows: dict[str, list[tuple[str, int, int]]] = {kind: [] for kind in KINDS}
    for index in range(count):
        rows[KINDS[index % len(KINDS)]].append(json.loads((folder / str(index) / "found.json").read_text()))
    for kind, found in rows.items():
        if found:
            kept = sorted(row[1] for row in found)
            print(f"{kind:<24}{len(found):>4} times, {kept[0]} to {kept[-1]} of 18 blocks kept, all whole in the end")
    print(f"{count} faults: nothing lost, nothing run twice, nothing corrupt")
    if table is not None:
        write_table(table, rows, count, seed)


def write_table(path: Path, rows: dict[str, list[tuple[str, int, int]]], count: int, seed: int) -> None:
    import re

    lines = [
        "# Faults",
        "",
        f"`make faults` injected {count} faults at random times (seed {seed}) into sweeps of 18 blocks on two "
        "processes. After each fault the same command continued the sweep. Four conditions were checked each time: "
        "plain `xarray.open_zarr` reads the right number wherever `done` is 1 and no wrong number elsewhere; no "
        "finished block ran again; no block ran twice after the fault; all blocks were complete at the end.",
        "",
        "| fault | times | passed | blocks kept (least, median, most) | blocks run after it (median) | message |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for kind, found in rows.items():
        if not found:
            continue
        kept, after = sorted(row[1] for row in found), sorted(row[2] for row in found)
        sentence = Counter(re.sub(r"\S+: (?=the disk|another)|block [\d.]+ ", "", row[0]) for row in found).most_common(
            1
        )[0][0]
        middle = len(found) // 2
        lines.append(
            f"| {kind} | {len(found)} | {len(found)} | {kept[0]}, {kept[middle]}, {kept[-1]} | {after[middle]} | "
            f"{sentence} |"
        )
    lines += [
        "",
        "A full disk is simulated: from a random flush on, each flush truncates its file to half and fails with "
        '"no space left". "Killed" is `kill -9`. Workers and schedulers of Dask are killed in `tests/execution/sweeps/'
        "test_cluster.py`.",
        "",
    ]
    path.write_text("\n".join(lines))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    main(where, int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
