"""`ut.sweep` and the commands `undertow sweep run`, `check` and `status`."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.execution import store
from undertow.execution.provenance import fingerprint
from undertow.execution.reading import DAMAGE, read_json
from undertow.execution.registry import diagrams
from undertow.execution.settings import settings
from undertow.execution.sweeps import drive
from undertow.execution.sweeps.blocks import Tiling
from undertow.execution.sweeps.digest import digest_of
from undertow.execution.sweeps.draw import Drawer
from undertow.execution.sweeps.live import Live
from undertow.execution.sweeps.plan import Job, make_plan, task_of
from undertow.execution.sweeps.records import BlockResult
from undertow.execution.sweeps.results import DATA, DONE, FAILED, Results, folder_of, read_folder
from undertow.execution.sweeps.spec import Spec, SpecError, as_spec
from undertow.execution.sweeps.units import in_bytes, in_words
from undertow.execution.workers import Cluster, InProcess, Processes, Workers

if TYPE_CHECKING:
    import xarray

__all__ = ["check", "phase_diagram", "run_spec", "status", "sweep"]

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(
    experiment: str | Callable,
    axes: Mapping[str, object],
    *,
    parameters: Mapping[str, object] | None = None,
    seeds: int = 1,
    seed: int = 0,
    scale: str = "smoke",
    out: Path | str = "undertow-sweep",
    on: str | None = None,
    jobs: int | None = None,
    time_limit: float | int | None = None,
    progress: bool | None = None,
) -> "xarray.Dataset":
    """Run an experiment at every point of a grid, in batches, into one dataset. Finished runs are never run again.

    **Arguments:**

    - `experiment`: the name of a claim, a phase diagram (`"hetero"`, `"recovery"`, `"stability"`), your function as
      `"file.py:name"`, or the function itself, which then runs in this process: f(key, *, parameters...) -> dict of
      arrays. If JAX can trace it, blocks of points and seeds run as one vmapped program: parameters that are floats are
      traced (in double precision, in other processes), whole numbers, text and flags are static.
    - `axes`: for each axis a list of values, `{"linear": [low, high, count]}`, `{"log": [low, high, count]}`,
      parameters that change together `{"zip": {"a": ..., "b": ...}}`, or random points
      `{"random": {"a": {"log": [low, high]}}, "count": 100}`.
    - `parameters`: other parameters, with the same value at every point. The remaining ones of a claim are those of
      `scale`: "smoke", "default" or "full".
    - `seeds`: runs at every point; the randomness of a run depends on `seed`, its point's values and its index alone.
    - `out`: a folder; each sweep has its own folder in it, named by a hash of its specification and code.
    - `on`: the address of a Dask scheduler; without it, `jobs` processes on this machine, by default one per core.
    - `time_limit`: seconds after which a block is ended, compilation included; not for a function that runs in this
      process.
    - `progress`: True prints the plan and the progress, False prints nothing; None prints them on a terminal only.

    **Returns** the dataset, in double precision, with the axes as labelled dimensions, then `seed`. Where `done` is 2 a
    run failed and its values are NaN; the attribute `folder` is the folder of the sweep.

    The results of a function are stored under a hash of its code, the functions of yours that it calls by name, the
    numbers, text, arrays, lists, tuples, dicts and sets that it refers to, and the settings of JAX that change numbers:
    double precision, random numbers, precision of matrix products, promotion of types. Modules and functions of
    installed packages count by their names, other objects (such as instances of your classes) by their types: delete
    the folder when those change.

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
    _check_call(experiment, out, on, jobs, progress)
    name = experiment if isinstance(experiment, str) else f"{getattr(experiment, '__name__', 'function')}"
    file, colon, function = name.rpartition(":")
    name = f"{Path(file).resolve()}:{function}" if colon else name
    try:
        spec = as_spec(name, axes, parameters, seeds, seed, scale, None, time_limit)
    except SpecError as error:
        raise SpecError(f"`ut.sweep(...)`: {error}") from None
    if callable(experiment) and jobs not in (None, 1):
        raise SpecError(f"`ut.sweep(jobs={jobs})`: other processes need the function by name, as 'file.py:name'.")
    if callable(experiment) and on is None and time_limit is not None:
        raise SpecError(
            f"`ut.sweep(time_limit={time_limit})`: a function that runs in this process cannot be ended; "
            "name it as 'file.py:name' to run it in others."
        )
    quiet = not (sys.stdout.isatty() if progress is None else progress)
    folder, state = run_spec(
        spec, Path(out), on=on, jobs=jobs, experiment=experiment if callable(experiment) else None, quiet=quiet
    )
    results = read_folder(folder)[1]
    if results is None:
        raise store.StoreError(f"{folder}: every run failed: {'; '.join(list(state.errors)[:3])}.")
    return results.open().load().assign_attrs(folder=str(folder), failed=state.failed)


def _check_call(experiment: object, out: object, on: object, jobs: object, progress: object) -> None:
    """Raise for arguments of `sweep` that are not part of the specification."""
    checks = (
        ("experiment", experiment, isinstance(experiment, str) or callable(experiment),
         "give 'file.py:name' or a function"),
        ("out", out, isinstance(out, str | Path), "give a path of a folder"),
        ("on", on, on is None or (isinstance(on, str) and on), "give the address of a Dask scheduler, such as tcp://host:8786"),
        ("jobs", jobs, jobs is None or (isinstance(jobs, Integral) and not isinstance(jobs, bool) and int(jobs) > 0),
         "give a whole number, at least 1"),
        ("progress", progress, progress is None or isinstance(progress, bool), "give True or False"),
    )  # fmt: skip
    for name, value, good, advice in checks:
        if not good:
            raise SpecError(f"`ut.sweep({name}={value!r})`: {advice} for `{name}`.")


def run_spec(
    spec: Spec,
    out: Path,
    *,
    on: str | None = None,
    jobs: int | None = None,
    experiment: Callable | None = None,
    quiet: bool = False,
) -> tuple[Path, drive.State]:
    """Run or resume a sweep with live progress and partial figures; return its folder and its final state."""
    job = _job(spec, out, experiment, in_process=experiment is not None and on is None)
    make_workers = _workers(on, jobs, experiment)
    drawer = Drawer(spec, job.folder)
    with Live(spec, job.folder, quiet) as live:

        def report(state: drive.State, results: Results | None) -> None:
            live.update(state)
            drawer.draw_if_due(results)

        state = drive.run(job, make_workers, report_plan=live.print, report=report)
    results = read_folder(job.folder)[1]
    if results is not None and (state.done > state.reused or not (job.folder / "figure.svg").is_file()):
        drawer.draw(results)
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
    """Run one of undertow's phase diagrams on its usual grid, as a sweep."""
    diagram = diagrams[name]
    axes = diagram.axes(diagram.points if points is None else points)
    spec = as_spec(name, axes, seeds=diagram.seeds if seeds is None else seeds, seed=seed)
    return run_spec(spec, out, on=on, jobs=jobs)[1]


def _job(spec: Spec, out: Path, experiment: Callable | None = None, *, in_process: bool = False) -> Job:
    """Return the sweep and its folder. Workers configure JAX; the digest of a run in this process has its settings."""
    what = experiment or spec.experiment
    digest = fingerprint(digest_of(what), settings()) if in_process else digest_of(what)
    return Job(spec, what, digest, folder_of(spec, digest, out))


def _workers(on: str | None, jobs: int | None, experiment: Callable | None) -> Callable[[], Workers]:
    if jobs is not None and jobs < 1:
        raise SpecError(f"--jobs {jobs}: give at least 1.")
    if on is not None:
        return lambda: Cluster(on)
    return InProcess if experiment is not None else lambda: Processes(jobs or CORES)


def check(spec: Spec, *, on: str | None = None, jobs: int | None = None) -> list[str]:
    """Return the estimates of `undertow sweep check`, from one block that runs twice for its time and is not stored."""
    job = _job(spec, Path())
    workers = _workers(on, jobs, None)()
    sentences: list[str] = []
    try:
        plan = make_plan(job, workers, sentences.append)
        tiling = Tiling(spec.shape, plan.tile)
        task = task_of(job, plan, tiling, tiling.blocks()[0], workers)
        first: BlockResult = workers.submit(job.work, task).result()
        result: BlockResult = workers.submit(job.work, task).result()  # again, without tracing and compiling
        slots = workers.slots_on(plan.platform)
    finally:
        workers.close()
    total = result.run_seconds * -(-tiling.count // slots)
    sentences.append(
        f"One block takes {in_words(result.run_seconds)} and {in_words(first.compile_seconds)} of compilation: "
        f"about {in_words(total)} for all."
    )
    sentences += [f"{count} of its runs fail: {text}" for text, count in Counter(result.errors.values()).items()]
    size = sum(value.nbytes for value in result.values.values()) / len(task.seeds) * spec.runs
    return [*sentences, f"The results will take {in_bytes(size)} on the disk."]


def status(folder: Path) -> list[str]:
    """Return the progress of the sweep in a folder, or of every sweep under it."""
    if not (folder / "sweep.json").is_file():
        inside = sorted(path.parent for path in folder.glob("*/sweep.json")) if folder.is_dir() else []
        if not inside:
            raise store.StoreError(f"{folder}: there is no sweep here.")
        return [line for path in inside for line in _status_or_damage(path)]
    spec, results = read_folder(folder)
    flags, damaged = (None, []) if results is None else results.inspect()
    done = 0 if flags is None else int((flags == DONE).sum())
    failures = _failures(folder)
    failed = sum(failures.values()) if flags is None else int((flags == FAILED).sum())
    share = f"{done:,} of {spec.runs:,} runs done" + (f", {failed:,} failed" if failed else "")
    lines = [f"{folder}: {spec.experiment}: {share}; {_activity(folder, done == spec.runs)}"]
    if damaged:
        names = ", ".join(damaged[:3]) + (", ..." if len(damaged) > 3 else "")
        lines.append(f"  {len(damaged)} damaged in {DATA}: {names}; the same command repairs what is damaged.")
    return lines + [f"  {count} failed: {text}" for text, count in failures.items() if failed]


def _failures(folder: Path) -> dict[str, int]:
    """Return the number of failed runs by error message; none where they cannot be read."""
    try:
        failures = read_json(folder / "failures.json")["failures"]
        return {str(text): int(count) for text, count in failures.items()}
    except DAMAGE:
        return {}


def _status_or_damage(folder: Path) -> list[str]:
    """Return the progress of a sweep, or the error of a damaged folder, which must not hide the others."""
    try:
        return status(folder)
    except store.StoreError as error:
        return [str(error)]


def _activity(folder: Path, finished: bool) -> str:
    try:
        with drive.locked(folder, patience=0.1):
            return "finished." if finished else "not running; the same command continues from there."
    except store.FolderLockedError:
        pass
    except store.StoreError:
        return "finished." if finished else "whether it is running is not known: its lock cannot be opened."
    try:
        progress = read_json(folder / "progress.json")
        left = max(0.0, progress["left"] - (time.time() - progress["at"]))
        return f"running, {progress['rate']:.3g} runs per second, about {in_words(left)} left."
    except DAMAGE:
        return "running."
