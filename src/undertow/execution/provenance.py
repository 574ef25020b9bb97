"""Where a result comes from: versions, device, settings, seconds; and a fingerprint of the code that made it."""

import hashlib
import json
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import undertow

__all__ = ["fingerprint", "provenance"]

PACKAGES = ("jax", "jaxlib", "equinox", "numpy", "scipy", "xarray", "zarr")


def provenance(parameters: dict[str, Any], seeds: int | None, seconds: float) -> dict[str, Any]:
    """Everything needed to say how a result was made, as plain JSON."""
    import jax.numpy as jnp

    from undertow._device import device

    used = device()
    return {
        "undertow": undertow.__version__,
        "parameters": parameters,
        "seeds": seeds,
        "seconds": seconds,
        "device": f"{used.platform}: {used.device_kind}",
        "double_precision": jnp.result_type(float) == jnp.float64,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def fingerprint(*facts: Any) -> str:
    """A short hash of the given facts and of undertow's own source: equal fingerprints mean the same computation."""
    text = json.dumps([_source(), *facts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _source() -> str:
    """A hash of every source file of the package, and of the versions it runs on."""
    digest = hashlib.sha256()
    root = Path(undertow.__file__).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    digest.update(json.dumps([_version(name) for name in PACKAGES]).encode())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
