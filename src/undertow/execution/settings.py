"""The settings of JAX in a process that runs experiments."""

import gc
import os
from pathlib import Path

__all__ = ["SETTINGS", "compile_fast", "configure", "settings"]

SETTINGS: dict[str, bool | int | str | None] = {
    "jax_enable_x64": True,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_allow_f16_reductions": True,
}
"""The settings of JAX that change numbers, with their values in every process that runs claims or sweeps."""

_FAST_COMPILATION = "--xla_backend_optimization_level=1"
_FASTER_COMPILATION = (
    f"{_FAST_COMPILATION} --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def settings() -> dict[str, str]:
    """Return the values of `SETTINGS` in this process and thread, as text."""
    import jax

    return {name: str(getattr(jax.config, name, None)) for name in SETTINGS}


def configure() -> None:
    """Set JAX up for experiments: double precision, and fast compilation.

    The other settings that change numbers get their default values regardless of the environment, because
    stored results are looked up without them.
    """
    import jax

    for name, value in SETTINGS.items():
        if name in jax.config.values:  # other versions of JAX have other settings
            jax.config.update(name, value)
    compile_fast()


def compile_fast() -> None:
    """Make JAX compile faster, with a compilation cache that outlives the process.

    The programs are many and small. With less optimisation XLA compiles them in a third of the time, and they run as
    fast. XLA ends the process at an unknown flag, so the flags are set only for the versions they were tested with.
    `XLA_FLAGS` in the environment takes precedence. JAX does not store programs that call back to Python, as solvers of
    diffrax do to report errors: with EQX_ON_ERROR=nan, which equinox reads when it is imported, they give NaN instead.
    """
    os.environ.setdefault("EQX_ON_ERROR", "nan")

    import jax

    # tracing creates many small objects that live long: by default a tenth of its time is garbage collection
    gc.set_threshold(200_000, 50, 100)
    faster = jax.__version__.startswith("0.10.")
    os.environ.setdefault("XLA_FLAGS", _FASTER_COMPILATION if faster else _FAST_COMPILATION)
    jax.config.update("jax_traceback_in_locations_limit", 0)  # source locations in programs cost time and are not read
    cache = _cache_folder()
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache / "xla"))
        # by default JAX does not store programs that compile in under a second
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _cache_folder() -> Path | None:
    """Return the folder of the compilation cache; None without a home directory, or one that cannot be written.

    Compiled programs are executed, so that the cache is never in a folder such as /tmp that others can write to.
    """
    chosen, base = os.environ.get("UNDERTOW_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        cache = Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "undertow"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # `Path.home` raises where HOME is not set and the user has no passwd entry
        return None
    return cache if os.access(cache, os.W_OK | os.X_OK) else None
