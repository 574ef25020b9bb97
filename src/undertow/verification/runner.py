"""Runs claims, here or in other processes, and keeps what is finished.

Each claim has a folder under the output folder with its data, its figure and, written last, `result.json`. A result
whose fingerprint (code, versions, parameters) is the one asked for is not run again, so an interrupted verification
goes on where it stopped. A claim that raises, or whose process dies, is a result too and stops nobody else.
"""

import json
import multiprocessing
import os
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from undertow.execution import store

__all__ = ["Inline", "configure", "end_with_parent", "make_executor", "processes", "run_claim", "run_claims", "task_of"]

Result = dict[str, Any]

ACCELERATED_AT_ONCE = 4
"""Claims that run on an accelerator at the same time: enough to fill it, not so many that they wait for each other."""

_QUICK = "--xla_backend_optimization_level=1"
_QUICKER = f"{_QUICK} --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def configure() -> None:
    """What every process that runs claims sets first: double precision, and a compilation cache that outlives it.

    The other settings of JAX that change numbers get their usual values whatever the environment says, because stored
    results are found again without them.

    Programs are small and many: a compiler that tries less hard takes a third of the time, and what it makes is as
    fast. The settings behind that are XLA's own, and it ends the process over one it does not know: they are set for
    the versions they were tried on. `XLA_FLAGS` in the environment goes before all of this.
    """
    import gc

    import jax

    from undertow.execution.provenance import SETTINGS

    # tracing makes many small objects that live: a tenth of its time is looking at them
    gc.set_threshold(200_000, 50, 100)
    os.environ.setdefault("XLA_FLAGS", _QUICKER if jax.__version__.startswith("0.10.") else _QUICK)
    for name, value in SETTINGS.items():
        if name in jax.config.values:  # other versions of JAX have others
            jax.config.update(name, value)
    jax.config.update("jax_traceback_in_locations_limit", 0)  # where each operation was written: nobody looks
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("UNDERTOW_CACHE") or Path(home) / "undertow")
    jax.config.update("jax_compilation_cache_dir", str(cache / "xla"))
    # small programs are many, and read ten times faster than compiled
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _start_worker() -> None:
    """A worker leaves Ctrl-C to the process that started it, and ends with it. NumPy gets one thread: jobs are many."""
    import atexit
    import signal

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    configure()
    atexit.register(os._exit, 0)  # its results are on disk; jax would take its programs apart for seconds


def end_with_parent() -> None:
    """Ends this process when the one that started it is gone, however that ended; a pool alone would wait for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()


class Inline(Executor):
    """An executor that runs each task at once, in this process."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def processes(jobs: int) -> Executor:
    """Spawned processes (never forked: jax has threads). They share an accelerator: none takes its memory at once."""
    if jobs > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)


def make_executor(jobs: int) -> Executor:
    """This process for one job, spawned processes for more."""
    if jobs == 1:
        configure()
        return Inline()
    return processes(jobs)


def task_of(claim_id: str, scale: str, parameters: dict[str, Any], seed: int) -> dict[str, Any]:
    """What a worker needs to run one claim, as plain values, with the fingerprint of the result it will make."""
    from undertow.execution.provenance import fingerprint

    facts = {"claim": claim_id, "scale": scale, "parameters": parameters, "seed": seed}
    return facts | {"fingerprint": fingerprint(facts)}


def run_claims(
    tasks: Sequence[dict[str, Any]],
    out: Path,
    jobs: int,
    *,
    fresh: bool = False,
    report: Callable[[Result, bool], Any] = lambda result, reused: None,
    started: Callable[[str], Any] = lambda claim_id: None,
    warn: Callable[[str], Any] = lambda sentence: None,
    executor: Callable[[int], Executor] = make_executor,
    work: "Callable[[dict[str, Any], str], Result] | None" = None,
) -> list[Result]:
    """Runs the tasks and returns their results in the order of the tasks; `report` sees each as it comes.

    Ctrl-C and any other error leave finished results on disk; the next call takes them up.
    """
    from undertow.verification import registry

    work = work or run_claim
    results: dict[str, Result] = {}
    todo = []
    for task in tasks:
        kept = None if fresh else _finished(out, task, warn)
        if kept is None:
            todo.append(task)
        else:
            results[task["claim"]] = kept
            report(kept, True)
    todo.sort(key=lambda task: not (task["claim"] in registry and registry[task["claim"]].long))

    def keep(result: Result) -> None:
        results[result["claim"]] = result
        report(result, False)

    while todo:
        with _ended(executor(min(jobs, len(todo)))) as pool:
            todo, suspects = _run_pool(pool, partial(work, out=str(out)), todo, jobs, keep, started)
        for task in suspects:  # one of them killed its process: each gets one of its own to show which
            with _ended(processes(1)) as pool:
                _, dead = _run_pool(pool, partial(work, out=str(out)), [task], 1, keep, started)
            for lost in dead:
                keep(_keep(out, _failed(lost, "its process died (killed, or out of memory)", 0.0)))
    return [results[task["claim"]] for task in tasks]


def _run_pool(
    pool: Executor,
    work: Callable[[dict[str, Any]], Result],
    todo: list[dict[str, Any]],
    jobs: int,
    keep: Callable[[Result], Any],
    started: Callable[[str], Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs tasks on a pool, as many at a time as there are jobs.

    Where a process of the pool dies, returns the tasks that had not begun and those that were running, the suspects.
    """
    waiting, running = list(todo), {}
    while waiting or running:
        while len(running) < jobs and (task := _next(waiting, list(running.values()))) is not None:
            try:
                future = pool.submit(work, task)
            except BrokenProcessPool:
                return waiting, list(running.values())
            waiting.remove(task)
            running[future] = task
            started(task["claim"])
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            try:
                result = future.result()
            except BrokenProcessPool:
                return waiting, list(running.values())
            del running[future]
            keep(result)
    return [], []


def _next(waiting: list[dict[str, Any]], running: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first task from another module than those that run: claims of one share programs, to be compiled once.

    None when all that wait would go to an accelerator that is full.
    """
    from undertow.verification import registry

    module = lambda task: registry[task["claim"]].module if task["claim"] in registry else task["claim"]
    accelerated = lambda task: task["claim"] in registry and registry[task["claim"]].accelerated
    if sum(map(accelerated, running)) >= ACCELERATED_AT_ONCE and _has_accelerator():
        waiting = [task for task in waiting if not accelerated(task)]
    busy = {module(task) for task in running}
    return next((task for task in waiting if module(task) not in busy), waiting[0] if waiting else None)


def _has_accelerator() -> bool:
    import jax

    return jax.default_backend() != "cpu"


@contextmanager
def _placed(accelerated: bool) -> Generator[None]:
    """Small models go to a processor, beside an accelerator too. A setting of the process: lanes run in threads."""
    import jax

    before = jax.config.jax_default_device  # ty: ignore[missing-attribute]
    if before is None and not accelerated and _has_accelerator():
        jax.config.update("jax_default_device", jax.devices("cpu")[0])
    try:
        yield
    finally:
        jax.config.update("jax_default_device", before)


@contextmanager
def _ended(pool: Executor) -> Generator[Executor]:
    """A pool that is closed in peace at the end, and at once on an error or Ctrl-C."""
    try:
        yield pool
    except BaseException:
        children = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.terminate()
        raise
    pool.shutdown()


def run_claim(task: dict[str, Any], out: str) -> Result:
    """Runs one claim and writes its folder; an exception becomes a result with the verdict `error`."""
    from undertow.verification import registry

    began = time.perf_counter()
    claim = registry[task["claim"]]
    try:
        with _placed(claim.accelerated):
            return _measure(claim, task, Path(out))
    except store.StoreError:
        raise
    except Exception as error:
        sentence = f"{type(error).__name__}: {error}".splitlines()[0]
        return _keep(Path(out), _failed(task, sentence, time.perf_counter() - began, traceback.format_exc()))


def _measure(claim: Any, task: dict[str, Any], out: Path) -> Result:
    import jax

    from undertow.execution.compiling import compilations
    from undertow.execution.provenance import provenance
    from undertow.figures import export, style
    from undertow.verification.claim import overall
    from undertow.verification.criterion import judge, power
    from undertow.verification.errata import expected

    kind = type(next(iter(claim.scales.values())))
    parameters = kind(**task["parameters"])
    key = jax.random.fold_in(jax.random.key(task["seed"]), zlib.crc32(claim.id.encode()) & 0x7FFFFFFF)
    began = time.perf_counter()
    with compilations() as compiling:
        measurement = claim.measure(parameters, key)
    seconds = time.perf_counter() - began
    verdict, seeds_needed = overall(measurement)
    folder = out / "claims" / claim.id
    facts = provenance(task["parameters"], measurement.seeds, seconds)
    store.save(folder / "data.zarr", measurement.data, facts)
    with style.applied():
        figure = claim.draw(measurement, parameters)
    store.write_bytes(folder / "figure.svg", export.to_svg(figure).encode())
    store.write_bytes(out / "figures" / f"{claim.id}.pdf", export.to_pdf(figure))
    head = measurement.checks[0]
    checks = [
        {name: value for name, value in asdict(check).items() if name != "samples"}
        | {
            "criterion": str(check.criterion),
            "verdict": judge(check, measurement.seeds)[0],
            "power": power(check, measurement.seeds),
        }
        for check in measurement.checks
    ]
    result = _identity(task) | {
        "verdict": verdict,
        "measured": head.measured,
        "predicted": head.predicted,
        "uncertainty": head.uncertainty,
        "printed": head.printed,
        "what": head.what,
        "criterion": str(head.criterion),
        "checks": checks,
        "seeds": measurement.seeds,
        "seeds_needed": seeds_needed,
        "diverged": measurement.diverged,
        "note": measurement.note,
        "seconds": seconds,
        "compile_seconds": sum(compiling),
        "run_seconds": max(0.0, seconds - sum(compiling)),
        "provenance": facts,
    }
    return _keep(out, result | {"expected": expected(claim.id)})


def _identity(task: dict[str, Any]) -> Result:
    """What a result says about its claim, whatever came of it."""
    from undertow.verification import registry
    from undertow.verification.errata import expected
    from undertow.verification.repeat import command, meanings

    claim = registry[task["claim"]]
    about = {name: getattr(claim, name) for name in ("paper", "place", "statement", "equation", "alternative")} | {
        "meanings": meanings(type(claim.scales[task["scale"]])),
        "command": command(claim, task["scale"], task["parameters"], task["seed"]),
    }
    return {"claim": claim.id, **about, "expected": expected(claim.id), **task}


def _failed(task: dict[str, Any], message: str, seconds: float, trace: str = "") -> Result:
    nothing = dict.fromkeys(("measured", "predicted", "uncertainty", "printed", "what", "criterion", "seeds_needed"))
    return (
        _identity(task)
        | nothing
        | {
            "verdict": "error",
            "checks": [],
            "seeds": 0,
            "diverged": 0,
            "note": message,
            "traceback": trace,
            "seconds": seconds,
            "compile_seconds": 0.0,
            "run_seconds": seconds,
            "provenance": {},
        }
    )


def _keep(out: Path, result: Result) -> Result:
    """Writes result.json, last of a claim's files: its presence says that the others are whole."""
    text = json.dumps(result, indent=1, default=float)
    store.write_bytes(out / "claims" / result["claim"] / "result.json", text.encode())
    return json.loads(text)


def _finished(out: Path, task: dict[str, Any], warn: Callable[[str], Any]) -> Result | None:
    """The result of an earlier run of the very same task, unless it was an error. A damaged one is run again."""
    folder = out / "claims" / task["claim"]
    if not (folder / "result.json").is_file():
        return None
    try:
        result = json.loads((folder / "result.json").read_text())
        if result["verdict"] == "error":
            return None
        store.provenance_of(folder / "data.zarr")
    except store.NewerFormatError:
        raise
    except (OSError, ValueError, KeyError, store.StoreError) as error:
        warn(f"the result of {task['claim']} is damaged and runs again ({error})")
        return None
    same = result.get("fingerprint") == task["fingerprint"]
    return result if same and (folder / "figure.svg").is_file() else None
