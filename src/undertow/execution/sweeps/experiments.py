"""What runs in a worker: an experiment looked up by name, its parameters, and one block of its runs.

An experiment is a claim's, one of undertow's phase diagrams, or a person's own function f(key, *, parameters...) that
returns a dict of arrays. A function that traces with its float parameters and its key as tracers runs as one vmapped
program a block; whole numbers, text and flags are static. Any other runs one by one.
"""

import atexit
import difflib
import functools
import inspect
import os
import socket
import time
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undertow.execution.registry import UserFileError, claims, diagrams, load_file
from undertow.execution.store import StoreError
from undertow.execution.sweeps.digest import digest_of
from undertow.execution.sweeps.spec import SpecError, point_words

__all__ = ["Experiment", "describe", "find", "work"]

Result = dict[str, Any]
KINDS = {float: "float", int: "int", bool: "bool", str: "str"}


@dataclass(frozen=True)
class Experiment:
    """A function of a key and parameters, and what is known of them."""

    call: Callable[[Any, dict[str, Any]], dict[str, Any]]
    kinds: dict[str, str]
    """float (traced), int, bool or str (static) for every parameter; "any" where the function does not say."""
    needed: tuple[str, ...]
    """Parameters without a default."""
    batched: bool
    """Whether to try to trace it."""
    dimensions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def find(experiment: str | Callable, scale: str) -> Experiment:
    """The experiment of a name: FILE.py:FUNCTION, a phase diagram, or a claim."""
    if callable(experiment):
        return of_function(experiment)
    file, colon, name = experiment.rpartition(":")
    if colon:
        if not Path(file).is_file():
            raise SpecError(f"{file}: there is no such file.")
        try:
            module = load_file(Path(file))
        except UserFileError as error:
            raise SpecError(str(error)) from None
        if not callable(getattr(module, name, None)):
            raise SpecError(f"{file} has no function {name!r}.")
        return of_function(getattr(module, name))
    if experiment in diagrams:
        return of_function(diagrams[experiment].run)
    if experiment not in claims:
        near = difflib.get_close_matches(experiment, [*diagrams, *claims], n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`undertow list` shows the claims."
        raise SpecError(f"there is no experiment {experiment!r}; {hint} Your own is FILE.py:FUNCTION.")
    return _of_claim(claims[experiment], scale)


def of_function(function: Callable) -> Experiment:
    given = list(inspect.signature(function).parameters.values())
    rest = given[1:]
    if not given or given[0].name != "key" or any(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in rest):
        name = getattr(function, "__name__", "the function")
        raise SpecError(f"{name}: write it as {name}(key, *, parameters...).")
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # annotations that exist for a type checker alone
        hints = {}
    empty = inspect.Parameter.empty
    kinds = {p.name: _kind(hints.get(p.name, None if p.default is empty else type(p.default))) for p in rest}

    def call(key: Any, parameters: dict[str, Any]) -> dict[str, Any]:
        found = function(key, **parameters)
        outputs = dict(found) if isinstance(found, Mapping) else {"value": found}
        if not outputs:
            raise SpecError("the experiment returns no outputs; return a dict of arrays, such as {'loss': loss}.")
        return outputs

    return Experiment(call, kinds, tuple(p.name for p in rest if p.default is empty), batched=True)


def _kind(hint: Any) -> str:
    """A union with float, such as `float | Array`, is a float."""
    return "float" if float in typing.get_args(hint) else KINDS.get(hint, "any")


def _of_claim(claim: Any, scale: str) -> Experiment:
    if scale not in claim.scales:
        raise SpecError(f"scale = {scale!r}: choose one of {', '.join(claim.scales)}.")
    usual = claim.parameters(scale)
    kind = type(claim.scales[scale])
    return Experiment(
        lambda key, parameters: claim.columns(kind(**usual | parameters), key),
        {name: _kind(type(value)) for name, value in usual.items()},
        (),
        batched=False,
        dimensions=dict.fromkeys(claim.COLUMNS, ("check",)),
        attributes={"verdicts": list(claim.VERDICTS), "claim": claim.id},
    )


def fitted(kinds: Mapping[str, str], needed: tuple[str, ...], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as their kinds want them; a sentence for one that is unknown, missing or of another kind.

    >>> from undertow.execution.sweeps.experiments import fitted
    >>> fitted({"eta": "float", "n": "int"}, (), {"eta": 1, "n": 20.0})
    {'eta': 1.0, 'n': 20}
    """
    for name in needed:
        if name not in parameters:
            raise SpecError(f"the parameter {name} has no value and no default; give it on an axis or in [parameters].")
    fit = {}
    for name, value in parameters.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, list(kinds), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(kinds) or 'none'}."
            raise SpecError(f"the experiment has no parameter {name!r}; {hint}")
        fit[name] = _fitted(name, kinds[name], value)
    return fit


def _fitted(name: str, kind: str, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "float" and number:
        return float(value)
    if kind == "int" and number and float(value).is_integer():
        return int(value)
    if kind == "any" or (kind in ("bool", "str") and type(value).__name__ == kind):
        return value
    wanted = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}[kind]
    raise SpecError(f"{name} = {value!r}: {name} is {wanted}.")


@functools.cache
def _ready(own: bool) -> list[float]:
    """Once in every process: returns the list that grows by the seconds of every compilation.

    A worker sets jax up; a person's `own` process is left as it is.
    """
    from undertow.execution.compiling import compilations
    from undertow.execution.settings import configure

    if not own:
        configure()
    listening = compilations()
    atexit.register(listening.__exit__, None, None, None)  # while jax is still there
    return listening.__enter__()


@functools.lru_cache(maxsize=8)
def _loaded(experiment: str | Callable, digest: str, scale: str) -> Experiment:
    if not callable(experiment) and digest_of(experiment) != digest:
        raise SpecError(f"{experiment.rpartition(':')[0]}: the file on the worker is not the one the sweep began with.")
    return find(experiment, scale)


def _one(found: Experiment, root: int, static: dict[str, Any], high: Any, low: Any, seed: Any, traced: Any) -> Any:
    """One run as a function of arrays: its key depends on the point's parameters and the seed's index alone."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(root)
    for word in (high, low, seed):
        key = jax.random.fold_in(key, word)
    outputs = found.call(key, static | traced)
    return {name: jnp.asarray(value) for name, value in outputs.items()}


@functools.lru_cache(maxsize=64)
def _program(experiment: Any, digest: str, scale: str, root: int, static: tuple) -> Any:
    """The vmapped, compiled form of an experiment with these static parameters."""
    import jax

    one = functools.partial(_one, _loaded(experiment, digest, scale), root, dict(static))
    return jax.jit(jax.vmap(one))


def describe(request: dict[str, Any]) -> Result:
    """What the driver must know before it cuts the grid: parameters, whether it traces, memory of a run, the device."""
    import jax

    from undertow._device import device

    _ready(request["own"])
    found = _loaded(request["experiment"], request["digest"], request["scale"])
    used = device()
    answer = {
        "kinds": found.kinds,
        "needed": found.needed,
        "dimensions": found.dimensions,
        "attributes": found.attributes,
        "platform": used.platform,
        "device": used.device_kind,
        "memory": _memory(used),
        "batched": False,
        "ranks": {},
        "run_bytes": 0,
        "why": "its experiment is a program of its own" if not found.batched else "",
    }
    first = fitted(found.kinds, found.needed, request["first"])
    if found.batched:
        traced = {name: value for name, value in first.items() if found.kinds[name] == "float"}
        static = {name: value for name, value in first.items() if name not in traced}
        word = jax.ShapeDtypeStruct((), "uint32")
        abstract = {name: jax.ShapeDtypeStruct((), jax.numpy.result_type(float)) for name in traced}
        try:
            one = functools.partial(_one, found, request["seed"], static)
            traced_once, outputs = jax.make_jaxpr(one, return_shape=True)(word, word, word, abstract)
            answer |= {"batched": True, "run_bytes": _peak(traced_once.jaxpr)}
            answer["ranks"] = {name: len(output.shape) for name, output in outputs.items()}
        except SpecError:
            raise
        except Exception as error:
            answer["why"] = f"it does not trace ({type(error).__name__})"
    return answer


def _memory(device: Any) -> int:
    """Bytes that may be used: of the accelerator, or what is free here."""
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("bytes_limit", 2**33))
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 2**32


def _peak(jaxpr: Any) -> int:
    """The most bytes alive at one time while a program runs as it is written, without what the compiler saves."""
    size = lambda v: getattr(v.aval, "size", 1) * getattr(getattr(v.aval, "dtype", None), "itemsize", 8)
    last: dict[Any, int] = {}
    for index, equation in enumerate(jaxpr.eqns):
        for variable in equation.invars:
            if not hasattr(variable, "val"):
                last[variable] = index
    for variable in jaxpr.outvars:
        if not hasattr(variable, "val"):
            last[variable] = len(jaxpr.eqns)
    alive = {variable: size(variable) for variable in [*jaxpr.invars, *jaxpr.constvars]}
    now = most = sum(alive.values())
    for index, equation in enumerate(jaxpr.eqns):
        made = {variable: size(variable) for variable in equation.outvars}
        inside = max((_peak(inner) for inner in _inner(equation.params)), default=0)
        most = max(most, now + max(inside, sum(made.values())))
        alive |= made
        now += sum(made.values())
        for variable in [v for v in alive if last.get(v, -1) <= index]:
            now -= alive.pop(variable)
    return most


def _inner(parameters: dict[str, Any]) -> list[Any]:
    found = []
    for value in parameters.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                found.append(inner)
    return found


def work(task: dict[str, Any]) -> Result:
    """Runs one block: its values with a leading axis over the runs, sentences of those that raised, and its cost."""
    compiled = _ready(task["own"])
    found = _loaded(task["experiment"], task["digest"], task["scale"])
    began, before = time.perf_counter(), sum(compiled)
    values, errors = _computed(found, task)
    seconds = time.perf_counter() - began
    return {
        "values": values,
        "errors": errors,
        "seconds": seconds,
        "run_seconds": max(0.0, seconds - (sum(compiled) - before)),
        "worker": f"{socket.gethostname()}:{os.getpid()}",
        "compiled": (len(compiled), sum(compiled)),
    }


def _computed(found: Experiment, task: dict[str, Any]) -> tuple[dict[str, Any], dict[int, str]]:
    """One program where it traces and none of its runs raises; else one by one, so that those that are well finish."""
    if task["batched"]:
        try:
            return _together(found, task)
        except (StoreError, SpecError):
            raise
        except Exception:
            pass
    return _one_by_one(found, task)


def _point(task: dict[str, Any], index: int) -> dict[str, Any]:
    return {name: column[index] for name, column in task["columns"].items()}


def _together(found: Experiment, task: dict[str, Any]) -> tuple[dict[str, Any], dict[int, str]]:
    import jax.numpy as jnp
    import numpy as np

    count, width = len(task["seeds"]), task["width"]
    points: dict[tuple, tuple[int, int]] = {}
    words = np.empty((count, 2), np.uint32)
    names, columns = list(task["columns"]), list(task["columns"].values())
    for index, point in enumerate(zip(*columns, strict=True)):
        if point not in points:
            points[point] = point_words(dict(zip(names, point, strict=True)))
        words[index] = points[point]
    fit = {name: [_fitted(name, found.kinds[name], v) for v in column] for name, column in task["columns"].items()}
    traced = {name: np.asarray(column) for name, column in fit.items() if found.kinds[name] == "float"}
    static = tuple(sorted((name, column[0]) for name, column in fit.items() if name not in traced))
    filled = lambda array: jnp.asarray(np.concatenate([array, np.repeat(array[-1:], width - count, axis=0)]))
    program = _program(task["experiment"], task["digest"], task["scale"], task["root"], static)
    seeds = np.asarray(task["seeds"], np.uint32)
    outputs = program(
        filled(words[:, 0]), filled(words[:, 1]), filled(seeds), {name: filled(x) for name, x in traced.items()}
    )
    return {name: _floats(np.asarray(value)[:count]) for name, value in outputs.items()}, {}


def _one_by_one(found: Experiment, task: dict[str, Any]) -> tuple[dict[str, Any], dict[int, str]]:
    """A run that raises is told by its sentence and leaves the others alone."""
    import jax
    import numpy as np

    rows: list[dict[str, Any] | None] = []
    errors: dict[int, str] = {}
    for index, seed in enumerate(task["seeds"]):
        point = _point(task, index)
        key = jax.random.key(task["root"])
        for word in (*point_words(point), seed):
            key = jax.random.fold_in(key, word)
        try:
            outputs = found.call(key, fitted(found.kinds, (), point))
            rows.append({name: _floats(np.asarray(value)) for name, value in outputs.items()})
        except StoreError:
            raise
        except Exception as error:
            rows.append(None)
            errors[index] = sentence(error)
    like = next((row for row in rows if row is not None), None)
    if like is None:
        return {}, errors
    for index, row in enumerate(rows):
        shapes = {name: value.shape for name, value in (row or {}).items()}
        if row is not None and shapes != {name: value.shape for name, value in like.items()}:
            rows[index], errors[index] = None, f"its outputs have shapes {shapes}, unlike those of other points"
    return {
        name: np.stack([np.full(value.shape, np.nan, value.dtype) if row is None else row[name] for row in rows])
        for name, value in like.items()
    }, errors


def sentence(error: BaseException) -> str:
    """The first line of what an exception says."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _floats(array: Any) -> Any:
    """In double precision: what is missing can be NaN, and no point's numbers are rounded to those of another."""
    import numpy as np

    if array.dtype.kind not in "fiub":
        raise SpecError(f"outputs must be real numbers or flags; one has the dtype {array.dtype}.")
    return array.astype(np.float64, copy=False)
