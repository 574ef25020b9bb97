"""Run the experiment of one claim and store its data, its figure and its result, all at once."""

import time
import traceback
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from undertow.execution import store
from undertow.execution.compiling import compilations
from undertow.execution.provenance import provenance
from undertow.figures import export, style
from undertow.verification import claims
from undertow.verification.claim import Claim, overall
from undertow.verification.errata import expected
from undertow.verification.repeat import command, meanings
from undertow.verification.result import CheckResult, ClaimResult, Task, store_result

__all__ = ["error_result", "has_accelerator", "run_claim"]


def run_claim(out: str, task: Task) -> ClaimResult:
    """Run one claim and write its folder under `out`; an exception becomes a result with the verdict `error`."""
    began = time.perf_counter()
    claim = claims[task.claim]
    try:
        with placed(claim.accelerated):
            return _measure(claim, task, Path(out))
    except store.StoreError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        seconds = time.perf_counter() - began
        return store_result(Path(out), error_result(task, message, seconds, traceback.format_exc()), {})


def error_result(task: Task, message: str, seconds: float, trace: str = "") -> ClaimResult:
    """Return the result of a claim whose experiment did not end."""
    return replace(_without_checks(task), note=message, traceback=trace, seconds=seconds)


def has_accelerator() -> bool:
    """Whether JAX runs on something faster than the processor."""
    import jax

    return jax.default_backend() != "cpu"


@contextmanager
def placed(accelerated: bool) -> Generator[None]:
    """Run small models on the processor even beside an accelerator.

    The device is set for the whole process, because claims may run their lanes in threads.
    """
    import jax

    before = jax.config.jax_default_device  # ty: ignore[missing-attribute]
    if before is None and not accelerated and has_accelerator():
        jax.config.update("jax_default_device", jax.devices("cpu")[0])
    try:
        yield
    finally:
        jax.config.update("jax_default_device", before)


def _measure(claim: Claim, task: Task, out: Path) -> ClaimResult:
    import jax

    parameters = type(next(iter(claim.scales.values())))(**task.parameters)
    key = jax.random.fold_in(jax.random.key(task.seed), zlib.crc32(claim.id.encode()) & 0x7FFFFFFF)
    began = time.perf_counter()
    with compilations() as compiling:
        measurement = claim.measure(parameters, key)
    seconds = time.perf_counter() - began
    verdict, seeds_needed = overall(measurement)
    made = provenance(task.parameters, measurement.seeds, seconds)
    data = store.encoded(measurement.data, made.to_json())
    with style.applied():
        figure = claim.draw(measurement, parameters)
    files = {f"data.zarr/{name}": content for name, content in data.items()}
    files |= {"figure.svg": export.to_svg(figure).encode(), "figure.pdf": export.to_pdf(figure)}
    result = replace(
        _without_checks(task),
        verdict=verdict,
        checks=tuple(CheckResult.of(check, measurement.seeds) for check in measurement.checks),
        seeds=measurement.seeds,
        seeds_needed=seeds_needed,
        diverged=measurement.diverged,
        note=measurement.note,
        seconds=seconds,
        compile_seconds=sum(compiling),
        provenance=made,
    )
    return store_result(out, result, files)


def _without_checks(task: Task) -> ClaimResult:
    """Return the result of a claim before its experiment has run, with the verdict `error`."""
    claim = claims[task.claim]
    return ClaimResult(
        task=task,
        verdict="error",
        expected=expected(claim.id),
        paper=claim.paper,
        place=claim.place,
        statement=claim.statement,
        equation=claim.equation,
        alternative=claim.alternative,
        meanings=meanings(type(claim.scales[task.scale])),
        command=command(claim, task.scale, task.parameters, task.seed),
    )
