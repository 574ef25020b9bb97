"""Where a result comes from: versions, device, settings, seconds; and a fingerprint of the code that made it."""

import hashlib
import json
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import undertow

__all__ = ["SETTINGS", "fingerprint", "provenance", "settings"]

PACKAGES = ("jax", "jaxlib", "equinox", "numpy", "scipy", "xarray", "zarr")


SETTINGS: dict[str, Any] = {
    "jax_enable_x64": True,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_allow_f16_reductions": True,
}
"""JAX's settings that change numbers, with their values in every process that runs claims or sweeps."""


def settings() -> dict[str, str]:
    """The values of `SETTINGS` in this process and thread, as text."""
    import jax

    return {name: str(getattr(jax.config, name, None)) for name in SETTINGS}


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
