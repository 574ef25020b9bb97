"""Run the blocks of a sweep in a worker.

An experiment that traces with its float parameters and its key as tracers runs as one vmapped program per block; whole
numbers, text and flags are static. Other experiments run one run at a time.
"""

import atexit
import functools
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from undertow.execution.compiling import compilations
from undertow.execution.error_text import error_message
from undertow.execution.provenance import Parameter
from undertow.execution.settings import configure
from undertow.execution.store import StoreError
from undertow.execution.sweeps.digest import digest_of
from undertow.execution.sweeps.experiments import Experiment, find, fit_value, fitted
from undertow.execution.sweeps.memory import device_memory, peak_bytes
from undertow.execution.sweeps.records import (
    BlockResult,
    BlockTask,
    Description,
    DescriptionRequest,
    ExperimentReference,
)
from undertow.execution.sweeps.spec import SpecError, point_words

if TYPE_CHECKING:
    import jax
    import numpy as np

__all__ = ["describe", "work"]


@functools.cache
def _prepare(in_process: bool) -> list[float]:
    """Prepare this process once; return the list that grows by the seconds of every compilation.

    A worker sets JAX up; in the user's own process the settings stay as they are.
    """
    if not in_process:
        configure()
    recording = compilations()
    atexit.register(recording.__exit__, None, None, None)  # while jax can still be used
    return recording.__enter__()


@functools.lru_cache(maxsize=8)
def _load(reference: ExperimentReference) -> Experiment:
    name = reference.experiment
    if isinstance(name, str) and digest_of(name) != reference.digest:
        raise SpecError(f"{name.rpartition(':')[0]}: the file on the worker is not the one the sweep began with.")
    return find(name, reference.scale)


def _run_one(
    experiment: Experiment, root: int, static: dict[str, Parameter], high: "jax.Array", low: "jax.Array",
    seed: "jax.Array", traced: "dict[str, jax.Array]",
) -> "dict[str, jax.Array]":  # fmt: skip
    """Compute one run as a function of arrays: its key depends on the point's parameters and the seed's index alone."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(root)
    for word in (high, low, seed):
        key = jax.random.fold_in(key, word)
    outputs = experiment.call(key, static | traced)
    return {name: jnp.asarray(value) for name, value in outputs.items()}


@functools.lru_cache(maxsize=64)
def _program(
    reference: ExperimentReference, root: int, static: tuple[tuple[str, Parameter], ...]
) -> "Callable[..., dict[str, jax.Array]]":
    """Return the vmapped, compiled form of an experiment with these static parameters."""
    import jax

    return jax.jit(jax.vmap(functools.partial(_run_one, _load(reference), root, dict(static))))


def describe(request: DescriptionRequest) -> Description:
    """Describe an experiment: its parameters, whether it traces, the memory of a run, and the device."""
    from undertow._device import device

    _prepare(request.reference.in_process)
    experiment = _load(request.reference)
    used = device()
    description = Description(
        kinds=experiment.kinds,
        needed=experiment.needed,
        platform=used.platform,
        device=used.device_kind,
        memory=device_memory(used),
        batched=False,
        why="" if experiment.batched else "its experiment is a program of its own",
        dimensions=experiment.dimensions,
        attributes=experiment.attributes,
    )
    first = fitted(experiment.kinds, experiment.needed, request.first)
    return _traced(experiment, request.seed, first, description) if experiment.batched else description


def _traced(experiment: Experiment, seed: int, first: dict[str, Parameter], description: Description) -> Description:
    """Complete the description of an experiment from its trace, or with the reason why it does not trace."""
    import jax

    traced = {name for name in first if experiment.kinds[name] == "float"}
    static = {name: value for name, value in first.items() if name not in traced}
    word = jax.ShapeDtypeStruct((), "uint32")
    abstract = {name: jax.ShapeDtypeStruct((), jax.numpy.result_type(float)) for name in first if name in traced}
    try:
        one = functools.partial(_run_one, experiment, seed, static)
        program, outputs = jax.make_jaxpr(one, return_shape=True)(word, word, word, abstract)
        ranks = {name: len(output.shape) for name, output in outputs.items()}
        return replace(description, batched=True, run_bytes=peak_bytes(program.jaxpr), ranks=ranks)
    except SpecError:
        raise
    except Exception as error:
        return replace(description, why=f"it does not trace ({type(error).__name__})")


def work(task: BlockTask) -> BlockResult:
    """Run one block."""
    compiled = _prepare(task.reference.in_process)
    experiment = _load(task.reference)
    began, before = time.perf_counter(), sum(compiled)
    values, errors = _compute(experiment, task)
    seconds = time.perf_counter() - began
    return BlockResult(
        values=values,
        errors=errors,
        seconds=seconds,
        run_seconds=max(0.0, seconds - (sum(compiled) - before)),
        worker=f"{socket.gethostname()}:{os.getpid()}",
        compilations=len(compiled),
        compile_seconds=sum(compiled, 0.0),
    )


def _compute(experiment: Experiment, task: BlockTask) -> "tuple[dict[str, np.ndarray], dict[int, str]]":
    """Run one program for the block; run by run if that raises an error, so that the other runs finish."""
    if task.batched:
        try:
            return _compute_together(experiment, task), {}
        except (StoreError, SpecError):
            raise
        except Exception:
            pass
    return _compute_one_by_one(experiment, task)


def _compute_together(experiment: Experiment, task: BlockTask) -> "dict[str, np.ndarray]":
    import jax.numpy as jnp
    import numpy as np

    count = len(task.seeds)
    points: dict[tuple[Parameter, ...], tuple[int, int]] = {}
    words = np.empty((count, 2), np.uint32)
    names, columns = list(task.columns), list(task.columns.values())
    for index, point in enumerate(zip(*columns, strict=True)):
        if point not in points:
            points[point] = point_words(dict(zip(names, point, strict=True)))
        words[index] = points[point]
    kinds = experiment.kinds
    fit = {name: [fit_value(name, kinds[name], v) for v in column] for name, column in task.columns.items()}
    traced = {name: np.asarray(column) for name, column in fit.items() if kinds[name] == "float"}
    static = tuple(sorted((name, column[0]) for name, column in fit.items() if name not in traced))
    padded = lambda array: jnp.asarray(np.concatenate([array, np.repeat(array[-1:], task.width - count, axis=0)]))
    program = _program(task.reference, task.root, static)
    seeds = np.asarray(task.seeds, np.uint32)
    outputs = program(
        padded(words[:, 0]), padded(words[:, 1]), padded(seeds), {name: padded(x) for name, x in traced.items()}
    )
    return {name: _as_floats(np.asarray(value)[:count]) for name, value in outputs.items()}


def _compute_one_by_one(experiment: Experiment, task: BlockTask) -> "tuple[dict[str, np.ndarray], dict[int, str]]":
    """Run the block run by run. A run that raises an error has NaN outputs and a message."""
    import jax
    import numpy as np

    rows: list[dict[str, np.ndarray] | None] = []
    errors: dict[int, str] = {}
    for index, seed in enumerate(task.seeds):
        point = task.point(index)
        key = jax.random.key(task.root)
        for word in (*point_words(point), seed):
            key = jax.random.fold_in(key, word)
        try:
            outputs = experiment.call(key, fitted(experiment.kinds, (), point))
            rows.append({name: _as_floats(np.asarray(value)) for name, value in outputs.items()})
        except StoreError:
            raise
        except Exception as error:
            rows.append(None)
            errors[index] = error_message(error)
    first = next((row for row in rows if row is not None), None)
    if first is None:
        return {}, errors
    for index, row in enumerate(rows):
        shapes = {name: value.shape for name, value in (row or {}).items()}
        if row is not None and shapes != {name: value.shape for name, value in first.items()}:
            rows[index], errors[index] = None, f"its outputs have shapes {shapes}, unlike those of other points"
    return {
        name: np.stack([np.full(value.shape, np.nan, value.dtype) if row is None else row[name] for row in rows])
        for name, value in first.items()
    }, errors


def _as_floats(array: "np.ndarray") -> "np.ndarray":
    """Return the array in double precision: missing values can be NaN, and no value is rounded to another's dtype."""
    import numpy as np

    if array.dtype.kind not in "fiub":
        raise SpecError(f"outputs must be real numbers or flags; one has the dtype {array.dtype}.")
    return array.astype(np.float64, copy=False)
