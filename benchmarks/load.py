"""Load: a store of 5,000 results, a report of 500 claims in Chromium, and 1e7 steps observed at every step.

Seconds are given as elapsed time and as processor time of the program and its children, which other load on the machine
changes less.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness import in_words, peak_mebibytes, save

RESULTS = 5000
CLAIMS = 500
STEPS = 10_000_000
GALLERY = Path(__file__).parent.parent / "docs" / "gallery"


def timed(action: Callable[[], Any]) -> dict[str, float]:
    """Return the elapsed seconds of an action, and the processor seconds of this process and of ended children."""

    def processor() -> float:
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime

    began, busy = time.perf_counter(), processor()
    action()
    return {"seconds": time.perf_counter() - began, "processor_seconds": processor() - busy}


def undertow(*arguments: object) -> Callable[[], None]:
    """Return a call of the command line in a process of its own."""
    code = "from undertow.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ) and None


def make_report_folder(folder: Path, count: int) -> Path:
    """Write `count` sealed results, with the statements of the claims and the checks and figures of the gallery."""
    from undertow.verification import claims
    from undertow.verification.result import ClaimResult, store_result, write_results

    stored = [ClaimResult.from_json(result) for result in json.loads((GALLERY / "results.json").read_text())]
    results = []
    for number in range(count):
        one = stored[number % len(stored)]
        claim, name = claims[one.claim], f"{one.claim}-{number}"
        result = replace(
            one, task=replace(one.task, claim=name), paper=claim.paper, place=claim.place,
            statement=claim.statement, equation=claim.equation, alternative=claim.alternative,
        )  # fmt: skip
        figure = (GALLERY / f"{one.claim}.svg").read_bytes()
        with patch("os.fsync"):
            results.append(store_result(folder, result, {"figure.svg": figure}))
    write_results(folder, results)
    return folder


def make_sweep(folder: Path, count: int) -> Path:
    """Write a finished sweep of `count` runs, each in a block of its own, without waiting for the disk."""
    import numpy as np

    from undertow.execution.sweeps.blocks import Tiling
    from undertow.execution.sweeps.records import Plan
    from undertow.execution.sweeps.results import DONE, Output, Results, write_plan, write_spec
    from undertow.execution.sweeps.spec import as_spec

    folder.mkdir(parents=True)
    spec = as_spec("nothing.py:f", {"a": {"linear": [0.0, 1.0, count]}})
    tiling = Tiling(spec.shape, (1, 1))
    write_spec(folder, spec, "")
    plan = Plan(tiling.tile, True, {}, {}, "cpu")
    write_plan(folder, plan)
    results = Results.created(folder, spec, plan, {"x": Output((), "<f8", ())})
    with patch("os.fsync"):
        for block in tiling.blocks():
            results.write(block, {"x": np.zeros(1)}, np.full(1, DONE, np.int8))
    return folder


def opened_in_chromium(page: Path) -> dict[str, float] | None:
    """Return the seconds until Chromium has loaded and painted a page; None where there is no Chromium."""
    import psutil

    from tests.chromium import Tab

    try:
        tab = Tab()
    except FileNotFoundError:
        return None
    try:
        tab.open(Path("benchmarks/__main__.py"))  # the first page takes longer than others
        browser = psutil.Process(tab.process.pid)
        processor = lambda: sum(sum(p.cpu_times()[:2]) for p in [browser, *browser.children(recursive=True)])
        began, busy = time.perf_counter(), processor()
        tab.open(page)
        tab.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return {"seconds": time.perf_counter() - began, "processor_seconds": processor() - busy}
    finally:
        tab.close()


def observed_memory(steps: int) -> dict[str, float]:
    """Return the memory of a run observed at every step: that of its result, and the growth of this process."""
    import jax.numpy as jnp

    import undertow as ut

    noise = ut.Minibatch(ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0])), batch_size=1)
    call = {"step_size": 0.01, "key": 0, "observe": {"w": lambda w: w}, "every": 1}
    ut.descend(noise, jnp.array(0.0), steps=20_000, **call)  # compiles
    before, busy = peak_mebibytes(), time.process_time()
    run = ut.descend(noise, jnp.array(0.0), steps=steps, **call)
    size = sum(array.nbytes for array in (run.observed["w"], run.step, run.time, run.slow_time)) / 2**20
    return {
        "observations": len(run.step), "result_MiB": size, "growth_MiB": peak_mebibytes() - before,
        "processor_seconds": time.process_time() - busy,
    }  # fmt: skip


def main() -> list[tuple[str, str, str]]:
    facts: dict[str, Any] = {"results": RESULTS, "claims": CLAIMS, "observed": observed_memory(STEPS)}
    folder = Path(tempfile.mkdtemp())
    try:
        many = make_report_folder(folder / "many", RESULTS)
        facts["report"] = timed(undertow("report", many))
        facts["report_MB"] = (many / "report.html").stat().st_size / 1e6
        facts["status"] = timed(undertow("sweep", "status", make_sweep(folder / "sweep", RESULTS)))
        some = make_report_folder(folder / "some", CLAIMS)
        facts["report_of_claims"] = timed(undertow("report", some))
        facts["chromium"] = opened_in_chromium(some / "report.html")
    finally:
        shutil.rmtree(folder)
    save("load", facts)

    def words(name: str) -> tuple[str, str]:
        return in_words(facts[name]["seconds"]), f"{in_words(facts[name]['processor_seconds'])} of processor time"

    rows = [
        (f"load: `undertow report` of {RESULTS:,} results", *words("report")),
        (f"load: `undertow sweep status` of {RESULTS:,} blocks", *words("status")),
    ]
    if facts["chromium"]:
        rows.append((f"load: a report of {CLAIMS} claims in Chromium", *words("chromium")))
    observed = facts["observed"]
    remark = f"the result has {observed['result_MiB']:.0f} MiB; {in_words(observed['processor_seconds'])}"
    return [*rows, (f"load: {STEPS:.0e} steps, each observed", f"+{observed['growth_MiB']:.0f} MiB", remark)]


if __name__ == "__main__":
    sys.exit("run python -m benchmarks load")
