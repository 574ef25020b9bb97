"""The commands into which faults are injected: a sweep, a sweep on a Dask cluster, `verify` and `report`.

A subject runs its command in a process (`command`), says which parts of its result are finished on the disk
(`finished`) and which parts a process ran (`ran`), and compares the bytes of the result with those of an undisturbed
run (`difference`).
"""

import abc
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.execution.faults import claims, work
from tests.execution.faults.processes import Child, pool
from undertow.cli import main
from undertow.execution import store
from undertow.execution.store import StoreError
from undertow.execution.sweeps import drive
from undertow.execution.sweeps.plan import Job
from undertow.execution.sweeps.results import DONE, read_folder
from undertow.execution.sweeps.spec import as_spec
from undertow.execution.workers import Cluster, InProcess, Processes
from undertow.verification import runner

IGNORED = (".lock", "progress.json", "failures.json")
Prepare = Callable[[], object]
nothing: Prepare = lambda: None


def content_of(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder; those that say how a run went do not count."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in IGNORED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Subject(abc.ABC):
    """A command with the folder `out` of its results, beside `log` with a line for each part that it ran."""

    name: str
    reference: Path
    """The folder of an undisturbed run."""

    def __init__(self, folder: Path):
        self.folder, self.out, self.drivers = folder, folder / "out", 0
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, prepare: Prepare = nothing, **options: object) -> Child:
        """Start the command; `prepare` runs in its process first."""
        self.drivers += 1
        said = self.folder / f"said.{self.drivers}"
        return Child(said, functools.partial(self._started, prepare, str(self.drivers), **options))

    def _started(self, prepare: Prepare, driver: str, **options: object) -> int:
        prepare()
        return self.command(driver, **options)

    @abc.abstractmethod
    def command(self, driver: str, **options: object) -> int:
        """Run the command; return its exit status."""

    @abc.abstractmethod
    def finished(self) -> set[str]:
        """Return the parts that are finished."""

    def ran(self, driver: int) -> list[str]:
        """Return the parts that a driver ran, in order."""
        log = self.folder / "log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [line[0] for line in lines if line[1] == str(driver)]

    def workers(self) -> list[int]:
        """Return the processes that ran a part for the latest driver."""
        log = self.folder / "log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return sorted({int(line[2]) for line in lines if line[1] == str(self.drivers)})

    def difference(self) -> str:
        """Return how the result differs from that of an undisturbed run; empty if no byte does."""
        found, wanted = content_of(self.out), content_of(self.reference)
        names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        return ", ".join(names[:4])


class Sweep(Subject):
    """A sweep of 12 blocks in this process or in two others."""

    name = "sweep"
    jobs = 2

    def job(self, driver: str, time_limit: float | None = None) -> Job:
        spec = as_spec("light.py:work", {"a": [0, 1, 2, 3], "b": [0, 1, 2]}, seeds=2, time_limit=time_limit)
        return Job(spec, f"{self.folder}:{driver}", "", self.out, work.describe, work.work)

    def workers_for(self):
        return InProcess() if self.jobs == 1 else Processes(self.jobs, pool)

    def command(self, driver: str, time_limit: float | None = None) -> int:
        try:
            state = drive.run(self.job(driver, time_limit), self.workers_for)
        except StoreError as error:
            print(f"undertow: {error}", flush=True)
            return 2
        print(*state.errors, sep="\n", flush=True)
        return 1 if state.failed else 0

    def finished(self) -> set[str]:
        try:
            _, results = read_folder(self.out)
        except StoreError:
            return set()
        if results is None:
            return set()
        flags, tiling = results.flags(), results.tiling
        return {".".join(map(str, b)) for b in tiling.blocks() if (flags[tiling.region(b)] == DONE).all()}


class DaskSweep(Sweep):
    """A sweep on the workers of a Dask scheduler."""

    name = "sweep on Dask"
    address = ""

    def workers_for(self):
        return Cluster(self.address, patience=20)


class Verify(Subject):
    """`undertow verify` with another seed than that of the results in its folder."""

    name = "verify"
    jobs = 1
    seed = 1
    earlier: Path
    """The folder of an undisturbed run with seed 0."""
    exchange = True
    """Whether the system can exchange two folders."""
    worker_fault: tuple = ("", 0, os.getpid)

    def __init__(self, folder: Path):
        super().__init__(folder)
        shutil.copytree(self.earlier, self.out, symlinks=True)

    def command(self, driver: str, seed: int | None = None) -> int:
        os.environ["UNDERTOW_TINY"] = str(self.folder / "log")
        os.environ["UNDERTOW_DRIVER"] = driver
        claims.install()
        if not self.exchange:
            store._exchange = lambda one, other: False
        start = (claims.start_worker, str(self.folder / "log"), driver, *self.worker_fault)
        if self.jobs > 1:
            runner.make_workers = lambda jobs: Processes(self.jobs, lambda jobs: pool(jobs, *start))
        main(["verify", *claims.NAMES, "--scale", "smoke", "--jobs", str(self.jobs), "--out", str(self.out),
              "--seed", str(self.seed if seed is None else seed)])  # fmt: skip
        return 0

    def finished(self) -> set[str]:
        try:
            tasks = claims.tasks(self.seed)
            return {task.claim for task in tasks if runner._finished(self.out, task, lambda message: None)}
        except StoreError:
            return set()


class Report(Subject):
    """`undertow report` on the folder of a verification; it has no parts."""

    name = "report"
    jobs = 1
    earlier: Path

    def __init__(self, folder: Path):
        super().__init__(folder)
        shutil.copytree(self.earlier, self.out, symlinks=True)
        (self.out / "report.html").unlink()

    def command(self, driver: str) -> int:
        claims.install()
        main(["report", str(self.out)])
        return 0

    def finished(self) -> set[str]:
        return set()
