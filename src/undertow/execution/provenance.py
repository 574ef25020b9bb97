"""The provenance of a result (versions, device, parameters, seconds), and a fingerprint of the code that made it."""

import hashlib
import json
import platform
from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar, Protocol, runtime_checkable

import undertow
from undertow.execution.sources import installed_sources
from undertow.execution.store import JSONObject

__all__ = ["Parameter", "Parameters", "Provenance", "fingerprint", "provenance"]

PACKAGES = ("jax", "jaxlib", "equinox", "numpy", "scipy", "xarray", "zarr")
Parameter = bool | int | float | str
"""The value of a parameter of an experiment."""


@runtime_checkable
class Parameters(Protocol):
    """All parameters of an experiment: an instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field]]


@dataclass(frozen=True)
class Provenance:
    """How a result was made."""

    undertow: str
    """The version of undertow."""
    device: str
    """Platform and kind of the device, such as `gpu: NVIDIA H200`."""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    seeds: int | None = None
    seconds: float | int | None = None
    double_precision: bool | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    """The versions of Python and of the packages that compute."""

    def to_json(self) -> JSONObject:
        """Return the record as plain values."""
        return asdict(self)

    @staticmethod
    def from_json(data: JSONObject) -> "Provenance":
        """Return the record that `to_json` wrote."""
        return Provenance(**data)


def provenance(parameters: dict[str, Parameter], seeds: int | None, seconds: float | int) -> Provenance:
    """Return the provenance of a result that this process made."""
    import jax.numpy as jnp

    from undertow._device import device

    used = device()
    return Provenance(
        undertow=undertow.__version__,
        device=f"{used.platform}: {used.device_kind}",
        parameters=parameters,
        seeds=seeds,
        seconds=seconds,
        double_precision=jnp.result_type(float) == jnp.float64,
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    )


def fingerprint(*facts: object, modules: Iterable[str] | None = None) -> str:
    """Return a short hash of the facts, of source files and of the versions of the packages that compute.

    The source files are those of the modules and of all modules of undertow that they import; without `modules` they
    are all files of undertow. Equal fingerprints mean the same computation.
    """
    text = json.dumps([_source(None if modules is None else frozenset(modules)), *facts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _source(modules: frozenset[str] | None) -> str:
    """Return a hash of the source files of the modules, and of the versions that they run on."""
    sources = installed_sources()
    files = sources.digest(sources.modules() if modules is None else sources.closure(modules))
    return hashlib.sha256(json.dumps([files, *map(_version, PACKAGES)]).encode()).hexdigest()


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
