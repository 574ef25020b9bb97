"""The faults: each starts the command of a subject, disturbs it, waits for its end and removes the cause."""

import contextlib
import functools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.execution.faults.processes import Dask, choose_signal, drop_privileges, sleep_while
from tests.execution.faults.subjects import DaskSweep, Report, Subject, Sweep, Verify, content_of
from tests.execution.faults.tracing import trace

MAY_MOUNT = os.geteuid() == 0

moments: dict[tuple[str, int], int] = {}
"""The number of operations on files of an undisturbed run, by subject and number of processes."""
seconds: dict[tuple[str, int], float] = {}
"""The seconds of an undisturbed run."""


def at_a_write(subject: Subject, rng: random.Random, act: Callable[[], object]) -> Callable[[], object]:
    """Return what prepares a process to `act` before one of its operations on files, each as likely as the others."""
    moment = rng.randint(1, moments[subject.name, subject.jobs])
    return lambda: trace(str(subject.out), moment, act)


def at_some_time(subject: Subject, rng: random.Random) -> float:
    return rng.uniform(0.0, 1.1 * seconds[subject.name, subject.jobs])


def driver_killed(subject: Subject, rng: random.Random) -> str:
    """A signal to the driver: four of five times between two writes, else at a random time."""
    which = choose_signal(rng)
    if rng.random() < 0.8:
        child = subject.start(at_a_write(subject, rng, lambda: os.kill(os.getpid(), which)))
    else:
        child = subject.start()
        sleep_while(child, at_some_time(subject, rng))
        child.kill(which)
    status = child.wait()
    interrupted = {Verify: (130,), Report: (130,)}.get(type(subject), (70,)) if which == signal.SIGINT else ()
    assert status in (0, -which, *interrupted), f"status {status}: {child.text()[-600:]}"
    return "finished before the fault" if status == 0 else f"ended by {signal.Signals(which).name}"


def kill_once(marker: str, which: int) -> None:
    """End this process, the first time that a process does this."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), which)


def worker_killed(subject: Subject, rng: random.Random) -> str:
    """A signal to a worker: in `verify`, whose workers write, between two writes; else after a random part."""
    subject.jobs = 2
    which = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    if isinstance(subject, Verify):
        act = functools.partial(kill_once, str(subject.folder / "killed"), which)
        subject.worker_fault = (str(subject.out), rng.randint(1, max(1, moments["verify", 1] // 3)), act)
        child = subject.start()
    else:
        child = subject.start()
        parts, deadline = rng.randint(1, 12), time.monotonic() + 30
        while child.alive() and len(subject.ran(subject.drivers)) < parts and time.monotonic() < deadline:
            time.sleep(0.002)
        for worker in rng.sample(subject.workers(), min(1, len(subject.workers()))):
            _signal(worker, which)
    status = child.wait()
    subject.worker_fault = Verify.worker_fault
    assert status == 0, f"status {status}: {child.text()[-300:]}"
    return "the command continued"


def _signal(process: int, which: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, which)


def task_fails(subject: Subject, rng: random.Random) -> str:
    """A task raises an error, hangs or kills its process, once."""
    subject.jobs = 2
    kind = rng.choice(["raise", "raise", "die", "die", "hang"])
    block = f"{rng.randrange(4)}.{rng.randrange(3)}.0"
    (subject.folder / "faults.json").write_text(json.dumps({block: kind}))
    child = subject.start(time_limit=1.5 if kind == "hang" else None)
    status = child.wait()
    assert status == (0 if kind == "die" else 1), f"{kind}: status {status}: {child.text()[-300:]}"
    return {"raise": "the error is recorded", "hang": "the time limit is recorded", "die": "the task ran again"}[kind]


def disk_full(subject: Subject, rng: random.Random) -> str:
    """A file system too small for the results; without the right to mount one, a limit on the size of files."""
    wanted = subject.reference
    if not MAY_MOUNT:
        largest = max(path.stat().st_size for path in wanted.rglob("*") if path.is_file())
        limit = rng.randint(1, largest)
        prepare = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return _ends_with(subject.start(prepare), "the disk is full")
    begun, needed = _pages(subject.out), _pages(wanted)
    more = {Sweep: needed, Verify: needed // 4, Report: needed - begun}[type(subject)]
    room = begun + 1 + rng.randint(0, max(1, more))
    kept = subject.folder / "kept"
    if subject.out.exists():
        shutil.move(subject.out, kept)
    subject.out.mkdir()
    mount = lambda *words: subprocess.run(["mount", *words, str(subject.out)], check=True)
    mount("-t", "tmpfs", "-o", f"size={4 * room}k", "tmpfs")
    try:
        if kept.exists():
            shutil.copytree(kept, subject.out, dirs_exist_ok=True)
        outcome = _ends_with(subject.start(), "the disk is full", "disk has")
        shutil.copytree(subject.out, subject.folder / "after", symlinks=True)  # to a disk with space
    finally:
        subprocess.run(["umount", "-l", str(subject.out)], check=True)
    subject.out.rmdir()
    shutil.move(subject.folder / "after", subject.out)
    return outcome


def _pages(folder: Path) -> int:
    """Return the pages that the files of a folder take on a tmpfs."""
    return sum(-(-path.stat().st_size // 4096) for path in folder.rglob("*") if path.is_file())


def memory_limit(subject: Subject, rng: random.Random) -> str:
    """The driver may use hardly more memory from some write on."""
    room = rng.choice([0, 2**16, 2**18, 2**20])

    def limit() -> None:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + room, resource.RLIM_INFINITY))

    child = subject.start(at_a_write(subject, rng, limit))
    status = child.wait()
    return "finished within the limit" if status == 0 else "ended with an error" if status > 0 else "killed"


def folder_removed(subject: Subject, rng: random.Random) -> str:
    """The folder of the results, or one inside, is removed while the command runs."""

    def remove() -> None:
        inside = [path for path in subject.out.rglob("*") if path.is_dir()]
        shutil.rmtree(rng.choice([subject.out, *inside]), ignore_errors=True)

    child = subject.start(at_a_write(subject, rng, remove))
    status = child.wait()
    text = child.text()
    assert status in (0, 1, 2), f"status {status}: {text[-300:]}"
    assert "Traceback" not in text, text[-600:]
    if isinstance(subject, Report):  # what it reads is gone
        shutil.rmtree(subject.out, ignore_errors=True)
        shutil.copytree(subject.earlier, subject.out)
    return "finished" if status < 2 else "error message"


def read_only(subject: Subject, rng: random.Random) -> str:
    """The folder becomes read-only while the command runs without the privileges of root."""

    def forbid() -> None:
        for path in [subject.out, *subject.out.rglob("*")]:
            if path.is_dir():
                path.chmod(0o555)

    act = at_a_write(subject, rng, forbid)

    def prepare() -> None:
        drop_privileges()
        act()

    child = subject.start(prepare)
    outcome = _ends_with(child, "cannot write here")
    for path in [subject.out, *subject.out.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    return outcome


def _ends_with(child, *sentences: str) -> str:
    """Wait for a command that ends well, or with exit status 2 and one of the sentences."""
    status, text = child.wait(), child.text()
    if status == 0:
        return "finished before the fault"
    assert status == 2, f"status {status}: {text[-600:]}"
    assert any(sentence in text for sentence in sentences), f"no sentence: {text[-300:]}"
    assert "Traceback" not in text or "distributed" in text, text[-600:]  # Dask logs its own
    return f'"{next(sentence for sentence in sentences if sentence in text)}"'


def _begun(subject: Subject, rng: random.Random) -> None:
    """Run the command to its end, or to some write of it."""
    prepare = at_a_write(subject, rng, lambda: os.kill(os.getpid(), signal.SIGKILL)) if rng.random() < 0.3 else None
    child = subject.start(prepare) if prepare else subject.start()
    child.wait()


def _damaged(subject: Subject, rng: random.Random, change: Callable[[bytes], bytes]) -> str:
    _begun(subject, rng)
    before = subject.finished()
    files = [name for name, content in content_of(subject.out).items() if content]
    if not files:
        return "nothing to damage"
    file = subject.out / rng.choice(sorted(files))
    file.write_bytes(change(file.read_bytes()))
    lost = before - subject.finished()
    assert len(lost) <= 1 or file.name == "sweep.json", f"{file}: {lost} are lost"
    return "the damaged part ran again" if lost else "nothing ran again"


def byte_flipped(subject: Subject, rng: random.Random) -> str:
    """One bit of one file is another."""

    def flip(content: bytes) -> bytes:
        index = rng.randrange(len(content))
        return content[:index] + bytes([content[index] ^ 1 << rng.randrange(8)]) + content[index + 1 :]

    return _damaged(subject, rng, flip)


def file_truncated(subject: Subject, rng: random.Random) -> str:
    """A file has lost its end."""
    return _damaged(subject, rng, lambda content: content[: rng.randrange(len(content))])


def report_damaged(subject: Report, rng: random.Random) -> str:
    """One bit of the figure or of the numbers of a claim is another: the report leaves the figure out, and says so."""
    wanted = content_of(subject.reference)
    names = [name for name in wanted if name.startswith("claims/")]
    file = subject.out / rng.choice(sorted(names))
    content = file.read_bytes()
    index = rng.randrange(len(content))
    file.write_bytes(content[:index] + bytes([content[index] ^ 1 << rng.randrange(8)]) + content[index + 1 :])
    child = subject.start()
    status, text = child.wait(), child.text()
    assert status == 0, f"status {status}: {text[-300:]}"
    assert "has no figure in the report" in text, text[-300:]
    assert "damaged" in text, text[-300:]
    file.write_bytes(content)
    return "the figure was left out, with a message"


def two_drivers(subject: Subject, rng: random.Random) -> str:
    """The same command starts a second time while it runs."""
    first = subject.start()
    sleep_while(first, at_some_time(subject, rng))
    second = subject.start()
    statuses = [first.wait(), second.wait()]
    assert sorted(statuses) in ([0, 0], [0, 2]), f"{statuses}: {first.text()[-200:]} {second.text()[-200:]}"
    refused = next((child for child, status in zip((first, second), statuses, strict=True) if status == 2), None)
    if refused is not None:
        assert "another run is writing" in refused.text(), refused.text()
    return "one raised an error" if refused else "one ran after the other"


def clock_jumps(subject: Subject, rng: random.Random) -> str:
    """The time of day jumps by years, forwards and backwards, also that of files."""
    real, other = time.time, random.Random(rng.random())

    def prepare() -> None:
        time.time = lambda: real() + other.uniform(-3e8, 3e8)
        for path in subject.out.rglob("*") if subject.out.exists() else ():
            os.utime(path, (other.uniform(0, 4e9), other.uniform(0, 4e9)))

    which = choose_signal(rng)
    kill = at_a_write(subject, rng, lambda: os.kill(os.getpid(), which))
    interrupted = rng.random() < 0.5
    child = subject.start(lambda: (prepare(), kill() if interrupted else None))
    status = child.wait()
    assert status == 0 or interrupted, f"status {status}: {child.text()[-300:]}"
    return "finished" if status == 0 else "also killed"


def dask_driver_killed(subject: Subject, rng: random.Random, cluster: Dask) -> str:
    return driver_killed(subject, rng)


def dask_worker_killed(subject: Subject, rng: random.Random, cluster: Dask) -> str:
    """A signal to a worker of the cluster at a random time."""
    child = subject.start()
    sleep_while(child, at_some_time(subject, rng))
    rng.choice(cluster.workers).kill(rng.choice([signal.SIGKILL, signal.SIGTERM]))
    status = child.wait()
    assert status == 0, f"status {status}: {child.text()[-300:]}"
    return "the command continued"


def dask_scheduler_killed(subject: Subject, rng: random.Random, cluster: Dask) -> str:
    """The scheduler is killed at a random time, and another one is started."""
    child = subject.start()
    sleep_while(child, at_some_time(subject, rng))
    cluster.scheduler.kill(signal.SIGKILL)
    return _ends_with(child, "scheduler", "the workers cannot be reached")


def dask_other_version(subject: Subject, rng: random.Random, cluster: Dask) -> str:
    """One more worker has another version of a package that computes."""
    worker = cluster.worker(other_version=True)
    sleep_while(worker, rng.uniform(0.2, 0.6))
    child = subject.start()
    status, text = child.wait(), child.text()
    worker.kill(signal.SIGKILL)
    worker.wait()
    assert status in (0, 2), f"status {status}: {text[-300:]}"
    assert status == 0 or "has another version of undertow" in text, text[-300:]
    return "the worker was rejected" if status else "the worker got no task"


Fault = Callable[..., str]
KINDS: list[tuple[str, type[Subject], Fault, int]] = [
    ("driver killed", Sweep, driver_killed, 10),
    ("worker killed", Sweep, worker_killed, 5),
    ("task raises, hangs or kills its process", Sweep, task_fails, 4),
    ("disk full", Sweep, disk_full, 5),
    ("memory limit", Sweep, memory_limit, 4),
    ("folder removed", Sweep, folder_removed, 4),
    ("folder read-only", Sweep, read_only, 4),
    ("byte flipped", Sweep, byte_flipped, 7),
    ("file truncated", Sweep, file_truncated, 4),
    ("two drivers", Sweep, two_drivers, 4),
    ("clock jumps", Sweep, clock_jumps, 3),
    ("driver killed", DaskSweep, dask_driver_killed, 2),
    ("worker killed", DaskSweep, dask_worker_killed, 3),
    ("scheduler killed", DaskSweep, dask_scheduler_killed, 2),
    ("worker of another version", DaskSweep, dask_other_version, 2),
    ("driver killed", Verify, driver_killed, 8),
    ("worker killed", Verify, worker_killed, 4),
    ("disk full", Verify, disk_full, 3),
    ("memory limit", Verify, memory_limit, 2),
    ("folder removed", Verify, folder_removed, 3),
    ("folder read-only", Verify, read_only, 2),
    ("byte flipped", Verify, byte_flipped, 4),
    ("file truncated", Verify, file_truncated, 3),
    ("two drivers", Verify, two_drivers, 2),
    ("clock jumps", Verify, clock_jumps, 2),
    ("killed", Report, driver_killed, 4),
    ("disk full", Report, disk_full, 2),
    ("folder read-only", Report, read_only, 2),
    ("byte flipped", Report, report_damaged, 2),
]
"""Each fault with its command and its share."""
