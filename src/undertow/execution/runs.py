"""Saved runs: a trajectory and the state from which it continues, as a sealed zarr folder without pickle."""

import dataclasses
import json
import platform
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import PyTree

from undertow._calls import check_functions
from undertow._validate import instance
from undertow.dynamics.drive import Continuation
from undertow.dynamics.stored import (
    Functions,
    RunSettings,
    StoredRun,
    detached,
    functions_of,
    observed_like,
    optimiser_from,
)
from undertow.execution import store
from undertow.execution.provenance import provenance
from undertow.execution.pytrees import Packer, unpack
from undertow.execution.reading import DAMAGE, read_json
from undertow.execution.store import JSONObject, StoreError
from undertow.execution.sweeps.digest import digest_of_value
from undertow.noise.base import AbstractNoise
from undertow.optimisers.base import AbstractOptimiser
from undertow.optimisers.transformation import as_optimiser
from undertow.regime import Regime
from undertow.trajectory import CLOCKS, Trajectory

__all__ = ["load_run", "save_run"]

RUN = "run"
"""The attribute of the dataset that describes the run."""
DESCRIPTION: dict[str, type | tuple[type, ...]] = {
    "trees": dict, "observed": list, "seeds": (int, type(None)), "clock": str, "interrupted": bool, "facts": dict,
    "regime": (str, type(None)), "double_precision": bool, "state": (dict, type(None)),
}  # fmt: skip
"""The fields of that attribute, and their types in JSON."""
RESERVED = {*CLOCKS, "seed"}
STATE = ("lanes", "observed_steps", "observed")
"""The fields of a `StoredRun` that are pytrees of arrays."""


def save_run(path: Path | str, run: Trajectory) -> Path:
    """Write a run; see `Trajectory.save`."""
    path = Path(path)
    if path.exists() and not _is_run(path):
        raise StoreError(
            f"`run.save({str(path)!r})`: there is something else here, not a saved run; give another path."
        )
    state = run.continuation
    stored = _detached(state) if isinstance(state, Continuation) else state
    seed = () if run.seeds is None else ("seed",)
    packer = Packer(RESERVED)
    trees: dict[str, JSONObject | None] = {"params": packer.pack(run.params, "params", seed)}
    for name in ("diverged", "diverged_at"):
        trees[name] = packer.pack(getattr(run, name), name, seed)
    observed = {name: packer.pack(tree, name, (*seed, run.clock)) for name, tree in run.observed.items()}
    described = {
        "trees": trees,
        "observed": list(observed.items()),
        "seeds": run.seeds,
        "clock": run.clock,
        "interrupted": run.interrupted,
        "facts": run.facts,
        "regime": None if run.regime is None else run.regime.to_json(),
        "double_precision": _double_precision(),
        "state": _pack_state(packer, stored) if isinstance(stored, StoredRun) else None,
    }
    coordinates = {name: ((run.clock,), np.asarray(getattr(run, name))) for name in CLOCKS}
    attributes = {RUN: json.dumps(described, default=_plain)}
    dataset = xarray.Dataset(packer.variables, coords=coordinates, attrs=attributes)
    for variable in dataset.variables.values():
        variable.encoding["_FillValue"] = None  # no value stands for a missing one
    seconds = run.facts.get("seconds")
    facts = {name: value for name, value in run.facts.items() if value is not None}
    return store.save(path, dataset, provenance(facts, run.seeds, float(seconds or 0)).to_json())


def load_run(
    path: Path | str,
    noise: AbstractNoise | None,
    observe: dict[str, Callable] | None,
    average: dict[str, Callable] | None,
    step_size: Callable | None,
    optimiser: AbstractOptimiser | tuple | None,
    like: PyTree,
) -> Trajectory:
    """Return a saved run; see `Trajectory.load`."""
    _check_arguments(noise, observe, average, step_size)
    dataset = store.load(path)
    described = _description(path, dataset)
    arrays = {str(name): variable.values for name, variable in dataset.variables.items()}
    observe, average = dict(observe or {}), dict(average or {})
    observed = {} if like is None else observed_like(observe, average, like)
    trees = {name: unpack(tree, arrays, like, "params") for name, tree in described["trees"].items()}
    run = Trajectory(
        **trees,
        **{name: arrays[name] for name in CLOCKS},
        observed={n: unpack(t, arrays, observed.get(n), "observables") for n, t in described["observed"]},
        seeds=described["seeds"],
        clock=described["clock"],
        interrupted=described["interrupted"],
        facts=described["facts"],
        regime=None if described["regime"] is None else Regime.from_json(described["regime"]),
    )
    foreign = described["state"] is not None and described["state"]["settings"]["optimiser"] is None
    if foreign and optimiser is None:
        if noise is not None:
            raise TypeError(
                f"`Trajectory.load({str(path)!r}, noise=...)`: the optimiser of the run is an optax transformation, "
                "which cannot be stored; give it again as `optimiser=`."
            )
        return run
    if described["state"] is None:
        if noise is not None:
            raise TypeError(
                f"`Trajectory.load({str(path)!r}, noise=...)`: a run made by `{run.facts.get('made_by')}` cannot be "
                "continued; load it without `noise`."
            )
        return run
    one = run.params if run.seeds is None else jax.tree.map(lambda leaf: leaf[0], run.params)
    stored = _unpack_state(described["state"], arrays, one, observed, optimiser)
    if noise is None:
        return dataclasses.replace(run, continuation=stored)
    _check_precision(described["double_precision"])
    given = None if optimiser is None else as_optimiser("Trajectory.load", optimiser)
    functions = Functions(noise, observe, average, step_size, given)
    _check_identity(stored, functions)
    continuation = stored.attach(functions)
    if step_size is not None:
        stored.check_schedule(step_size, run)
    return dataclasses.replace(run, continuation=continuation)


def _description(path: Path | str, dataset: xarray.Dataset) -> JSONObject:
    """Return the description of a run in a dataset; raise where there is none, or another structure."""
    if RUN not in dataset.attrs:
        raise StoreError(f"{path}: a result of undertow, but not a saved run; give a path that `run.save` wrote.")
    try:
        described = json.loads(dataset.attrs[RUN])
        wrong = [name for name, kinds in DESCRIPTION.items() if not isinstance(described[name], kinds)]
        missing = {*CLOCKS} - {str(name) for name in dataset.variables}
    except (*DAMAGE, RecursionError):
        wrong, missing = [RUN], set()
    if wrong or missing:
        raise StoreError(f"{path}: damaged, its description of the run cannot be read; save the run again.")
    return described


def _is_run(path: Path) -> bool:
    """Return whether there is a saved run, whole or damaged, which may be replaced."""
    try:
        return (path / store.SEAL).is_file() and RUN in read_json(path / ".zattrs")
    except DAMAGE:
        return False


def _check_arguments(noise: object, observe: object, average: object, step_size: object) -> None:
    if noise is not None:
        instance(
            "Trajectory.load", "noise", noise, AbstractNoise, "the noise of the run, or nothing to read the run only"
        )
    if noise is None and step_size is not None:
        raise TypeError("`Trajectory.load(path, step_size=...)`: a schedule continues a run; give `noise=` too.")
    for name, functions in (("observe", observe), ("average", average)):
        check_functions("Trajectory.load", name, functions)


def _detached(run: Continuation) -> StoredRun:
    return detached(run, _identities(functions_of(run)))


def _pack_state(packer: Packer, stored: StoredRun) -> JSONObject:
    trees = {name: packer.pack(getattr(stored, name), f"state.{name}") for name in STATE}
    return {"settings": stored.settings.to_json(), "trees": trees, "identities": stored.identities}


def _unpack_state(
    described: JSONObject,
    arrays: dict[str, np.ndarray],
    like: PyTree,
    observed: dict[str, PyTree],
    optimiser: AbstractOptimiser | tuple | None,
) -> StoredRun:
    settings = RunSettings.from_json(described["settings"])
    averaged = {name: observed[name] for name in settings.average if name in observed}
    memory = _memory_like(settings, optimiser, like)
    lane = {"params": like, "memory": memory, "anchor": (like, memory), "means": averaged}
    trees = described["trees"]
    structures = {"lanes": (lane,) * len(trees["lanes"]["tuple"]), "observed": observed}
    parts = {name: unpack(trees[name], arrays, structures.get(name), _where(name)) for name in STATE}
    return StoredRun(settings=settings, identities=described["identities"], **parts)


def _memory_like(settings: RunSettings, optimiser: AbstractOptimiser | tuple | None, like: PyTree) -> PyTree:
    """Return the structure of the state of the optimiser, for params like `like`."""
    if settings.optimiser is not None:
        return jax.eval_shape(optimiser_from(settings.optimiser).prepared().init, like)
    return None if optimiser is None else jax.eval_shape(as_optimiser("Trajectory.load", optimiser).init, like)


def _where(name: str) -> str:
    return "observables" if name == "observed" else "params"


def _identities(functions: Functions) -> dict[str, str]:
    """Return hashes of the noise, field by field, and of the other functions, by the names that errors use."""
    identities = _identity_of("noise", functions.noise)
    for argument in ("observe", "average"):
        for name, function in getattr(functions, argument).items():
            identities |= _identity_of(f"{argument}[{name!r}]", function)
    return identities


def _identity_of(name: str, value: object) -> dict[str, str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {name: f"{type(value).__module__}.{type(value).__qualname__}"}
        parts = [_identity_of(f"{name}.{f.name}", getattr(value, f.name, None)) for f in dataclasses.fields(value)]
        return {key: text for part in (own, *parts) for key, text in part.items()}
    version = f"python{'.'.join(platform.python_version_tuple()[:2])}:" if callable(value) else ""
    return {name: version + digest_of_value(value)}


def _check_identity(stored: StoredRun, functions: Functions) -> None:
    """Raise where the functions are not those of the run. Bytecode is compared within one version of Python only."""
    given = _identities(functions)
    for name, known in stored.identities.items():
        other_python = ":" in known and ":" in given.get(name, "") and known.split(":")[0] != given[name].split(":")[0]
        if not other_python and given.get(name, known) != known:
            raise ValueError(
                f"`Trajectory.load(path, ...)`: `{name}` is not that of the run: it has the hash {given[name]}, not "
                f"{known}; give the noise, data and functions of the run."
            )


def _double_precision() -> bool:
    return jnp.result_type(float) == jnp.float64


def _check_precision(stored: bool) -> None:
    if stored != _double_precision():
        raise ValueError(
            f"`Trajectory.load(path, noise=...)`: the run was made with `jax_enable_x64` {stored}, and it is "
            f"{not stored} now; call `jax.config.update('jax_enable_x64', {stored})` first."
        )


def _plain(value: object) -> object:
    """Return a number of NumPy or JAX as one of Python."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return value.item()
    raise TypeError(f"`run.save`: `facts` holds a {type(value).__name__}; store text and numbers.")
