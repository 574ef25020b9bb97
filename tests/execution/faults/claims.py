"""The claims into which faults are injected, and a registry that has no others."""

import contextlib
import os
import types
from collections.abc import Callable

import jax  # noqa: F401  before the forks
import matplotlib.backends.backend_pdf
import matplotlib.backends.backend_svg  # noqa: F401
import xarray  # noqa: F401
import zarr  # noqa: F401

from tests.execution.faults.tracing import trace
from tests.verification.tiny import CLAIMS
from undertow.execution.settings import configure
from undertow.verification import claims, measure, runner
from undertow.verification.result import Task

NAMES = ("tiny-one", "tiny-two")


def install() -> None:
    """Make the tiny claims the only ones, and results independent of the time that they take."""
    claims._loaded = {name: CLAIMS[name] for name in NAMES}
    measure.time = types.SimpleNamespace(perf_counter=lambda: 0.0)
    measure.compilations = lambda: contextlib.nullcontext([])


def tasks(seed: int) -> list[Task]:
    """Return the tasks of all claims; the first call reads the code for the fingerprint."""
    return [runner.task_of(name, "smoke", CLAIMS[name].parameters("smoke"), seed) for name in NAMES]


def start_worker(log: str, driver: str, folder: str, moment: int, act: Callable[[], object]) -> None:
    """Prepare a worker of `verify`, with an action before one of its writes."""
    os.environ |= {"UNDERTOW_TINY": log, "UNDERTOW_DRIVER": driver}
    configure()
    install()
    if moment:
        trace(folder, moment, act)
