"""Sweeps on a real Dask scheduler and workers over TCP: the same numbers, and nothing lost when parts are killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import xarray

from tests.execution.light import describe, value, work
from undertow.execution.sweeps import drive, sweep
from undertow.execution.sweeps.plan import Job
from undertow.execution.sweeps.spec import as_spec
from undertow.execution.workers import Cluster, WorkersUnreachableError

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dask's own, about sockets of schedulers that were killed

FILE = str(Path(__file__).with_name("functions.py"))


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Dask:
    """A scheduler and two workers of one thread each, as processes of their own."""

    def __init__(self, folder: Path, protocol: str = "tcp"):
        self.address = f"{protocol}://127.0.0.1:{free_port()}"
        paths = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": paths, "UNDERTOW_LIGHT": str(folder),
                            "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "2s"}  # fmt: skip
        self.scheduler = self.started("scheduler", "--port", self.address.rpartition(":")[2], "--host", "127.0.0.1",
                                      "--no-dashboard", "--no-jupyter", "--protocol", protocol)  # fmt: skip
        self.workers = [self.worker() for _ in range(2)]

    def started(self, *command: str) -> subprocess.Popen:
        with open(self.folder / f"{command[0]}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + command[0], *command[1:]],
                env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def worker(self) -> subprocess.Popen:
        return self.started("worker", self.address, "--nthreads", "1", "--nworkers", "1", "--no-dashboard",
                            "--local-directory", str(self.folder), "--host", "127.0.0.1")  # fmt: skip

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def dask(tmp_path):
    cluster = Dask(tmp_path)
    yield cluster
    cluster.end()


def job(folder: Path, points: int, **more) -> Job:
    spec = as_spec("light.py:work", {"a": list(range(points)), "b": [0, 1, 2, 3]}, seeds=4, **more)
    return Job(spec, "light", "", folder / "sweep", describe, work)


def right(folder: Path) -> bool:
    data = xarray.open_zarr(folder / "sweep" / "results.zarr").load()
    a, b, seed = np.meshgrid(data.a, data.b, data.seed, indexing="ij")
    return bool((data.done == 1).all()) and bool(np.allclose(data.x, value(a, b, seed)))


def after_some_blocks(folder: Path, count: int, then) -> threading.Thread:
    def wait() -> None:
        log = folder / "log"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not log.exists() or len(log.read_text().splitlines()) < count):
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_workers_die_a_task_hangs_and_the_scheduler_goes(dask, tmp_path):
    """One cluster, three accidents: all but the block that hangs is done, and a new cluster does the rest."""
    (tmp_path / "faults.json").write_text(json.dumps({"19.0.0": "hang"}))
    task = job(tmp_path, 20, time_limit=4.0)
    kill_a_worker = lambda: os.killpg(dask.workers[0].pid, signal.SIGKILL)
    thread = after_some_blocks(tmp_path, 4, kill_a_worker)
    state = drive.run(task, lambda: Cluster(dask.address))
    thread.join()
    assert state.errors == {"it took longer than the limit of 4 s": state.failed}
    kept = state.done
    assert kept == state.runs - state.failed
    thread = after_some_blocks(tmp_path, 0, lambda: os.killpg(dask.scheduler.pid, signal.SIGKILL))
    thread.join()
    with pytest.raises(WorkersUnreachableError, match="scheduler"):
        drive.run(task, lambda: Cluster(dask.address, patience=3))
    other = Dask(tmp_path)
    try:
        again = drive.run(task, lambda: Cluster(other.address))
        assert (again.reused, again.done) == (kept, again.runs)
    finally:
        other.end()
    assert right(tmp_path)


SBATCH = """#!/bin/sh
for script; do :; done
setsid sh -c '. "$0"' "$script" >> "$(dirname "$0")/jobs.log" 2>&1 &
echo "Submitted batch job $!"
sleep 0.5
"""
SCANCEL = """#!/bin/sh
for job; do kill -TERM -- "-$job"; done
"""


@pytest.mark.slow
def test_workers_that_dask_jobqueue_submits(tmp_path, monkeypatch):
    """The way the documentation names for Slurm; `sbatch` is ours, and runs what it is given here."""
    from dask_jobqueue import SLURMCluster

    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]))
    monkeypatch.setenv("UNDERTOW_LIGHT", str(tmp_path))
    with SLURMCluster(cores=1, memory="1GB", walltime="00:10:00", interface="lo") as cluster:
        cluster.scale(jobs=2)
        state = drive.run(job(tmp_path, 20), lambda: Cluster(cluster.scheduler_address, patience=60))
    assert state.done == state.runs
    assert right(tmp_path)


@pytest.mark.slow
def test_a_scheduler_that_dies_while_blocks_run(dask, tmp_path):
    task = job(tmp_path, 60)
    thread = after_some_blocks(tmp_path, 10, lambda: os.killpg(dask.scheduler.pid, signal.SIGKILL))
    with pytest.raises(WorkersUnreachableError, match="Finished runs are stored"):
        drive.run(task, lambda: Cluster(dask.address))
    thread.join()
    other = Dask(tmp_path)
    try:
        again = drive.run(task, lambda: Cluster(other.address))
    finally:
        other.end()
    assert again.reused > 0
    assert right(tmp_path)


@pytest.mark.slow
def test_the_same_bits_as_here(dask, tmp_path):
    spec = as_spec(f"{FILE}:walk", {"step_size": {"log": [0.1, 10.0, 6]}}, seeds=20)
    there, _ = sweep.run_spec(spec, tmp_path / "there", on=dask.address, quiet=True)
    here, _ = sweep.run_spec(spec, tmp_path / "here", jobs=2, quiet=True)
    first, second = (xarray.open_zarr(folder / "results.zarr").load() for folder in (there, here))
    np.testing.assert_array_equal(first.end, second.end)
    np.testing.assert_array_equal(first.path, second.path)


def test_nobody_answers():
    with pytest.raises(WorkersUnreachableError, match="no Dask scheduler answers"):
        Cluster(f"tcp://127.0.0.1:{free_port()}", patience=1)


def certificates(folder: Path) -> dict[str, str]:
    """Make an authority and a certificate as docs/security.md shows, and return the variables of that page."""
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    commands = next(part for part in page.split("```bash\n")[1:] if part.startswith("openssl")).partition("```")[0]
    subprocess.run(["bash", "-ec", commands], cwd=folder, check=True, capture_output=True)
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    sides = {
        f"{tls}{side}__{kind}": str(folder / file)
        for side in ("SCHEDULER", "WORKER", "CLIENT")
        for kind, file in (("CERT", "node.pem"), ("KEY", "node.key"))
    }
    needed = {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true", f"{tls}CA_FILE": str(folder / "ca.pem")}
    assert all(name.replace("SCHEDULER", "${side}") in page for name in needed | sides if "SCHEDULER" in name)
    return sides | needed


@pytest.mark.slow
def test_a_sweep_over_tls_and_a_client_without_a_certificate(tmp_path, monkeypatch):
    for name, path in certificates(tmp_path).items():
        monkeypatch.setenv(name, path)
    cluster = Dask(tmp_path, "tls")
    try:
        (tmp_path / "s.toml").write_text(f'experiment = "{FILE}:walk"\n[axes]\nstep_size = [0.1, 0.2]\n')
        code = "from undertow.cli import main; main()"
        command = [sys.executable, "-c", code, "sweep", "run", tmp_path / "s.toml", "--on", cluster.address]
        done = subprocess.run(
            [*command, "--out", tmp_path / "out"], env=cluster.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "2 runs in" in done.stdout
        plain = {name: text for name, text in cluster.environment.items() if "__TLS__CLIENT" not in name}
        refused = subprocess.run([*command, "--out", tmp_path / "other"], env=plain, capture_output=True, text=True)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"undertow: {cluster.address}: ")
        assert len(refused.stderr.strip().splitlines()) == 1
    finally:
        cluster.end()
