"""Runs claims, here or in other processes, and keeps what is finished.

Each claim has a folder under the output folder with its data, its figure and, written last, `result.json`. A result
whose fingerprint (code, versions, parameters) is the one asked for is not run again, so an interrupted verification
goes on where it stopped. A claim that raises, or whose process dies, is a result too and stops nobody else.
"""

import json
import time
import traceback
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from undertow.execution import store
from undertow.execution.pool import WorkerDiedError, run_tasks
from undertow.execution.settings import configure
from undertow.execution.workers import InProcess, Processes, Workers

__all__ = ["make_workers", "run_claim", "run_claims", "task_of"]

Result = dict[str, Any]

ACCELERATED_AT_ONCE = 4
"""Claims that run on an accelerator at the same time: enough to fill it, not so many that they wait for each other."""


def make_workers(jobs: int) -> Workers:
    """Return this process for one job, and spawned processes for more."""
    if jobs == 1:
        configure()
        return InProcess()
    return Processes(jobs)


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
    workers: Callable[[int], Workers] = make_workers,
    work: "Callable[[dict[str, Any], str], Result] | None" = None,
) -> list[Result]:
    """Runs the tasks and returns their results in the order of the tasks; `report` sees each as it comes.

    Ctrl-C and any other error leave finished results on disk; the next call takes them up.
    """
    from undertow.verification import claims

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
    todo.sort(key=lambda task: not (task["claim"] in claims and claims[task["claim"]].long))

    def announce(task: dict[str, Any]) -> None:
        started(task["claim"])

    def keep(result: Result) -> None:
        results[result["claim"]] = result
        report(result, False)

    pool = workers(min(jobs, len(todo))) if todo else None
    try:
        for outcome in (
            run_tasks(pool, partial(work, out=str(out)), todo, choose=_next, started=announce) if pool else ()
        ):
            if isinstance(outcome.error, WorkerDiedError):
                keep(_keep(out, _failed(outcome.task, str(outcome.error), 0.0)))
            elif outcome.error is not None:
                raise outcome.error
            else:
                keep(outcome.result)
    finally:
        if pool is not None:
            pool.close()
    return [results[task["claim"]] for task in tasks]


def _next(waiting: Sequence[dict[str, Any]], running: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The first task from another module than those that run: claims of one share programs, to be compiled once.

    None when all that wait would go to an accelerator that is full.
    """
    from undertow.verification import claims

    module = lambda task: claims[task["claim"]].module if task["claim"] in claims else task["claim"]
    accelerated = lambda task: task["claim"] in claims and claims[task["claim"]].accelerated
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


def run_claim(task: dict[str, Any], out: str) -> Result:
    """Runs one claim and writes its folder; an exception becomes a result with the verdict `error`."""
    from undertow.verification import claims

    began = time.perf_counter()
    claim = claims[task["claim"]]
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
    from undertow.verification import claims
    from undertow.verification.errata import expected
    from undertow.verification.repeat import command, meanings

    claim = claims[task["claim"]]
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
