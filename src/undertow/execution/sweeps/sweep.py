"""`ut.sweep`, `undertow sweep run`, `check` and `status`: a sweep from its specification to its dataset."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undertow.execution import store
from undertow.execution.provenance import fingerprint
from undertow.execution.registry import diagrams
from undertow.execution.settings import settings
from undertow.execution.sweeps import drive
from undertow.execution.sweeps.blocks import Tiling
from undertow.execution.sweeps.digest import digest_of
from undertow.execution.sweeps.draw import Drawer
from undertow.execution.sweeps.results import DONE, FAILED, Results, folder_of, read_folder
from undertow.execution.sweeps.spec import Spec, SpecError, as_spec
from undertow.execution.workers import Cluster, InProcess, Processes, Workers

if TYPE_CHECKING:
    import xarray

__all__ = ["check", "phase_diagram", "run_spec", "status", "sweep"]

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(
    experiment: str | Callable,
    axes: Mapping[str, Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    seeds: int = 1,
    seed: int = 0,
    scale: str = "smoke",
    out: Path | str = "undertow-sweep",
    on: str | None = None,
    jobs: int | None = None,
    time_limit: float | int | None = None,
    progress: bool | None = None,
) -> "xarray.Dataset":
    """Runs an experiment at every point of a grid, in batches, into one dataset. What is finished is never run again.

    **Arguments:**

    - `experiment`: a claim's id, a phase diagram (`"hetero"`, `"recovery"`, `"stability"`), your function as
      `"file.py:name"`, or the function itself, which then runs in this process: f(key, *, parameters...) -> dict of
      arrays. If it traces, blocks of points and seeds run as one vmapped program: parameters that are floats are traced
      (in double precision, in other processes), whole numbers, text and flags are static.
    - `axes`: for each a list of values, `{"linear": [low, high, count]}`, `{"log": [low, high, count]}`, parameters
      that change together `{"zip": {"a": ..., "b": ...}}`, or random points
      `{"random": {"a": {"log": [low, high]}}, "count": 100}`.
    - `parameters`: the values of others, the same at every point; `scale` gives those of a claim that are left.
    - `seeds`: runs at every point; the randomness of a run depends on `seed`, its point's values and its index alone.
    - `out`: a folder; each sweep has its own in it, found again by its content.
    - `on`: the address of a Dask scheduler; else `jobs` processes here, as many as there are cores.
    - `time_limit`: seconds a block may take, compilation included, before it is given up; not for a function that runs
      in this process.

    **Returns** the dataset, in double precision, with the axes as labelled dimensions, then `seed`. Where `done` is 2 a
    run failed and its values are NaN; the attribute `folder` says where everything is.

    A function's results are found again while it does the same: its code, the functions of yours that it calls by name,
    and the numbers, text, arrays, lists, tuples, dicts and sets that it takes from around it; and while JAX computes in
    the same way: double precision, random numbers, precision of matrix products, promotion of types. Modules and
    functions of installed packages count by their names, other objects (such as instances of your classes) by their
    types: delete the folder when those change.

    >>> import tempfile
    >>> import jax
    >>> import undertow as ut
    >>> def walk(key, *, step_size: float, steps: int = 100):
    ...     return {"end": step_size * jax.random.normal(key, (steps,)).sum()}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = ut.sweep(walk, {"step_size": {"log": [0.1, 10, 3]}}, seeds=200, out=folder, progress=False)
    >>> spread = data.end.std("seed") / data.step_size  # the root of 100 steps
    >>> print(dict(data.sizes), bool((abs(spread - 10) < 2).all()))
    {'step_size': 3, 'seed': 200} True
    """
    name = experiment if isinstance(experiment, str) else f"{getattr(experiment, '__name__', 'function')}"
    file, colon, function = name.rpartition(":")
    name = f"{Path(file).resolve()}:{function}" if colon else name
    spec = as_spec(name, axes, parameters, seeds, seed, scale, None, time_limit)
    if callable(experiment) and jobs not in (None, 1):
        raise SpecError("`ut.sweep(jobs=...)`: other processes need the function by name, as 'file.py:name'.")
    if callable(experiment) and on is None and time_limit is not None:
        raise SpecError(
            f"`ut.sweep(time_limit={time_limit})`: a function that runs in this process cannot be ended; "
            "name it as 'file.py:name' to run it in others."
        )
    folder, state = run_spec(
        spec, Path(out), on=on, jobs=jobs, experiment=experiment if callable(experiment) else None, quiet=not progress
    )
    found = read_folder(folder)[1]
    if found is None:
        raise store.StoreError(f"{folder}: every run failed: {'; '.join(list(state.sentences)[:3])}.")
    return found.open().load().assign_attrs(folder=str(folder), failed=state.failed)


def run_spec(
    spec: Spec,
    out: Path,
    *,
    on: str | None = None,
    jobs: int | None = None,
    experiment: Callable | None = None,
    quiet: bool = False,
) -> tuple[Path, drive.State]:
    """Runs or resumes a sweep with live progress and partial figures; returns its folder and how it went."""
    job = _job(spec, out, experiment, in_process=experiment is not None and on is None)
    engine = _engine(on, jobs, experiment)
    from undertow.execution.sweeps.live import Live

    drawer = Drawer(spec, job.folder)
    with Live(spec, job.folder, quiet) as live:

        def report(state: drive.State, results: Results | None) -> None:
            live.update(state)
            drawer.maybe(results)

        state = drive.run(job, engine, tell=live.tell, report=report)
    results = read_folder(job.folder)[1]
    if results is not None and (state.done > state.reused or not (job.folder / "figure.svg").is_file()):
        drawer.now(results)
    live.end(state)
    return job.folder, state


def phase_diagram(
    name: str,
    *,
    points: int | None = None,
    seeds: int | None = None,
    seed: int = 0,
    on: str | None = None,
    jobs: int | None = None,
    out: Path = Path("undertow-sweep"),
) -> drive.State:
    """One of undertow's phase diagrams on its usual grid, through the same machinery as every sweep."""
    diagram = diagrams[name]
    axes = diagram.axes(diagram.points if points is None else points)
    spec = as_spec(name, axes, seeds=diagram.seeds if seeds is None else seeds, seed=seed)
    return run_spec(spec, out, on=on, jobs=jobs)[1]


def _job(spec: Spec, out: Path, experiment: Callable | None = None, *, in_process: bool = False) -> drive.Job:
    """What to run and where. Workers have settings of their own; this process has those its person chose."""
    what = experiment or spec.experiment
    digest = fingerprint(digest_of(what), settings()) if in_process else digest_of(what)
    return drive.Job(spec, what, digest, folder_of(spec, digest, out))


def _engine(on: str | None, jobs: int | None, experiment: Callable | None) -> Callable[[], Workers]:
    if jobs is not None and jobs < 1:
        raise SpecError(f"--jobs {jobs}: give at least 1.")
    if on is not None:
        return lambda: Cluster(on)
    return InProcess if experiment is not None else lambda: Processes(jobs or CORES)


def check(spec: Spec, *, on: str | None = None, jobs: int | None = None) -> list[str]:
    """All that can be told before a sweep runs, from one block that is run twice for its time and thrown away."""
    job = _job(spec, Path())
    there = _engine(on, jobs, None)()
    said: list[str] = []
    try:
        plan = drive.make_plan(job, there, said.append)
        tiling = Tiling(spec.shape, tuple(plan["tile"]))
        task = drive.task_of(job, plan, tiling, tiling.blocks()[0], there.own)
        first = there.submit(job.work, task).result()
        result = there.submit(job.work, task).result()  # again, without tracing and compiling
        slots = drive.slots_on(there, plan["platform"])
    finally:
        there.close()
    whole = result["run_seconds"] * -(-tiling.count // slots)
    said.append(
        f"One block takes {in_words(result['run_seconds'])} and {in_words(first['compiled'][1])} of compilation: "
        f"about {in_words(whole)} for all."
    )
    said += [f"{count} of its runs fail: {text}" for text, count in _counted(result["errors"]).items()]
    size = sum(value.nbytes for value in result["values"].values()) / len(task["seeds"]) * spec.runs
    return [*said, f"The results will take {drive.in_bytes(size)} on the disk."]


def _counted(errors: dict[int, str]) -> dict[str, int]:
    return {text: list(errors.values()).count(text) for text in dict.fromkeys(errors.values())}


def in_words(seconds: float | int) -> str:
    """A time as people say it.

    >>> from undertow.execution.sweeps.sweep import in_words
    >>> in_words(0.25), in_words(75), in_words(119.9), in_words(9000)
    ('0.25 s', '1 min 15 s', '2 min 0 s', '2 h 30 min')
    """
    if seconds < 0:
        return f"-{in_words(-seconds)}"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def status(folder: Path) -> list[str]:
    """How far the sweep in a folder is, or every sweep under it, a sentence each."""
    if not (folder / "sweep.json").is_file():
        inside = sorted(path.parent for path in folder.glob("*/sweep.json")) if folder.is_dir() else []
        if not inside:
            raise store.StoreError(f"{folder}: there is no sweep here.")
        return [line for path in inside for line in _status_or_damage(path)]
    spec, results = read_folder(folder)
    flags = None if results is None else results.flags()
    done = 0 if flags is None else int((flags == DONE).sum())
    failed = 0 if flags is None else int((flags == FAILED).sum())
    share = f"{done:,} of {spec.runs:,} runs done" + (f", {failed:,} failed" if failed else "")
    lines = [f"{folder}: {spec.experiment}: {share}; {_activity(folder, done == spec.runs)}"]
    try:
        told = json.loads((folder / "failures.json").read_text())["failures"]
    except (OSError, ValueError, KeyError):
        told = {}
    return lines + [f"  {count} failed: {text}" for text, count in told.items() if failed]


def _status_or_damage(folder: Path) -> list[str]:
    """One damaged folder does not hide the others."""
    try:
        return status(folder)
    except store.StoreError as error:
        return [str(error)]


def _activity(folder: Path, finished: bool) -> str:
    try:
        with drive.held(folder, patience=0.1):
            return "finished." if finished else "not running; the same command goes on from there."
    except store.StoreError:
        pass
    try:
        told = json.loads((folder / "progress.json").read_text())
        ago = time.time() - told["at"]
        return f"running, {told['rate']:.3g} runs a second, about {in_words(max(0.0, told['left'] - ago))} left."
    except (OSError, ValueError, KeyError, TypeError):
        return "running."
