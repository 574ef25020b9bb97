"""Run the experiment of one claim and store its data, its figure and its result, all at once."""

import math
import time
import traceback
import zlib
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from undertow.execution import store
from undertow.execution.compiling import compilations
from undertow.execution.error_text import error_message
from undertow.execution.provenance import provenance
from undertow.execution.registry import exit_message
from undertow.figures import export, style
from undertow.verification.claim import Claim, ClaimError, Measurement, overall
from undertow.verification.criterion import Check, Criterion
from undertow.verification.errata import errata_of, expected
from undertow.verification.repeat import command, meanings
from undertow.verification.result import CheckResult, ClaimResult, Task, store_result
from undertow.verification.tasks import claim_of, title_of

if TYPE_CHECKING:
    import xarray

__all__ = ["error_result", "has_accelerator", "run_claim"]


def run_claim(out: str, task: Task) -> ClaimResult:
    """Run one claim and write its folder under `out`; an exception becomes a result with the verdict `error`."""
    began = time.perf_counter()
    claim = claim_of(task)
    files: dict[str, bytes] = {}
    try:
        with placed(claim.accelerated), _planted(claim, task):
            result, files = _measure(claim, task)
    except ClaimError as error:
        result = error_result(task, str(error), time.perf_counter() - began)
    except SystemExit as stop:
        result = error_result(
            task, f"the experiment ended the program: {exit_message(stop)}", time.perf_counter() - began
        )
    except Exception as error:
        result = error_result(task, error_message(error), time.perf_counter() - began, traceback.format_exc())
    return store_result(Path(out), result, files)


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


@contextmanager
def _planted(claim: Claim, task: Task) -> Generator[None]:
    """Plant the alternative of the claim if the task asks for that."""
    if task.planted and claim.plant is None:
        raise ClaimError("the claim has no plant, so nothing shows that it can fail; give Claim(..., plant=...).")
    with claim.plant() if task.planted and claim.plant is not None else nullcontext():
        yield


NUMBERS = ("measured", "predicted", "uncertainty", "printed", "alternative", "samples")
OPTIONAL = NUMBERS[3:]


def _validate(claim: Claim, measurement: Measurement) -> None:
    """Raise a `ClaimError` if the measurement has a wrong type, or a check no number or no alternative to reject."""
    import xarray

    kinds: dict[str, tuple[type, str]] = {
        "data": (xarray.Dataset, "an xarray.Dataset"), "note": (str, "text"), "seeds": (Integral, "a whole number"),
        "diverged": (Integral, "a whole number"),
    }  # fmt: skip
    for name, (kind, what) in kinds.items():
        value = getattr(measurement, name)
        if not isinstance(value, kind):
            raise ClaimError(f"`measure` returned a Measurement with {name} = {value!r}; give {what}.")
    for check in measurement.checks:
        _validate_check(check)
        if check.uncertainty > 0 and check.samples is None and measurement.seeds < 2:
            raise ClaimError(
                f"the check {check.what!r} has a standard error from an unknown number of values; give `samples`."
            )
        if check.alternative is None and not claim.controls:
            raise ClaimError(f"the check {check.what!r} names no alternative that it must reject; give `alternative`.")
    if all(check.alternative is None for check in measurement.checks):
        raise ClaimError("no check names the value that the alternative predicts; give one check an `alternative`.")


def _validate_check(check: Check) -> None:
    if not isinstance(check.what, str):
        raise ClaimError(f"a check has what = {check.what!r}; give text.")
    if not isinstance(check.criterion, Criterion):
        raise ClaimError(
            f"the check {check.what!r} has criterion = {check.criterion!r}; give Within, Below, Above or AtLevel."
        )
    values = {name: getattr(check, name) for name in NUMBERS}
    values |= {name: value for name, value in asdict(check.criterion).items() if name != "test"}
    for name, value in values.items():
        if value is None and name in OPTIONAL:
            continue
        if not hasattr(value, "__float__") or np.ndim(value) > 0:
            raise ClaimError(f"the check {check.what!r} has {name} = {value!r}, which is not a number.")
        if math.isnan(value):
            raise ClaimError(f"the check {check.what!r} has {name} = nan, which cannot be judged.")
    if check.uncertainty < 0:
        raise ClaimError(f"the check {check.what!r} has uncertainty = {check.uncertainty}; give a standard error.")
    if check.uncertainty > 0 and check.samples is not None and check.samples < 2:
        raise ClaimError(f"the check {check.what!r} has samples = {check.samples}; a standard error needs at least 2.")


def _data_of(measurement: Measurement) -> "xarray.Dataset":
    """Return the data of a measurement; the numbers of its checks where it has no other."""
    import xarray

    if measurement.data.variables:
        return measurement.data
    columns = {name: [float(getattr(check, name)) for check in measurement.checks] for name in Claim.COLUMNS[:-1]}
    names = [check.what for check in measurement.checks]
    return xarray.Dataset({name: ("check", values) for name, values in columns.items()}, coords={"check": names})


def _measure(claim: Claim, task: Task) -> tuple[ClaimResult, dict[str, bytes]]:
    """Return the result of an experiment, and the files of its data and its figure."""
    import jax
    from matplotlib.figure import Figure

    parameters = type(next(iter(claim.scales.values())))(**task.parameters)
    key = jax.random.fold_in(jax.random.key(task.seed), zlib.crc32(claim.id.encode()) & 0x7FFFFFFF)
    began = time.perf_counter()
    with compilations() as compiling:
        measurement = claim.run(parameters, key)
    seconds = time.perf_counter() - began
    _validate(claim, measurement)
    verdict, seeds_needed = overall(measurement)
    made = provenance(task.parameters, measurement.seeds, seconds)
    data = store.encoded(_data_of(measurement), made.to_json())
    with style.applied():
        figure = claim.draw(measurement, parameters)
    if not isinstance(figure, Figure):
        raise ClaimError(f"`draw` returned {figure!r}; return a matplotlib Figure.")
    files = {f"data.zarr/{name}": content for name, content in data.items()}
    files["figure.svg"] = export.to_svg(figure).encode()
    if task.scale != "smoke":  # a quick check with few seeds, not a figure for a paper
        files["figure.pdf"] = export.to_pdf(figure)
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
    return result, files


def _without_checks(task: Task) -> ClaimResult:
    """Return the result of a claim before its experiment has run, with the verdict `error`."""
    claim = claim_of(task)
    return ClaimResult(
        task=task,
        verdict="error",
        expected=expected(claim.id, task.source, planted=task.planted),
        paper=claim.paper,
        title=title_of(task),
        place=claim.place,
        statement=claim.statement,
        equation=claim.equation,
        alternative=claim.alternative,
        rests_on=claim.rests_on,
        errata=errata_of(claim.id, task.source),
        meanings=meanings(type(claim.scales[task.scale])),
        command=command(claim, task),
    )
