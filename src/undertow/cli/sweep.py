"""`undertow sweep run|check|status`: run an experiment at many points."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from undertow.cli._status import SUCCESS, SURPRISE

__all__ = ["Sweep", "sweep"]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """Run a sweep, or go on with it: live progress, a figure that fills up, one dataset that xarray opens.

    The same file finds what is finished, whatever interrupted it; a changed one starts beside it.
    """

    spec: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SPEC.toml")]
    """The file that says what to run: experiment, [axes], [parameters], seeds."""
    on: str | None = None
    """The address of a Dask scheduler, such as tcp://10.0.0.1:8786; without it, processes on this machine."""
    jobs: int | None = None
    """How many processes here; as many as there are cores by default."""
    out: Path = Path("undertow-sweep")
    """The folder in which each sweep gets its own."""


@dataclasses.dataclass(frozen=True)
class SweepCheck:
    """Check a sweep before it runs: its parameters, the number of points, time and memory, from one block."""

    spec: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SPEC.toml")]
    """The file that says what to run."""
    on: str | None = None
    """The address of a Dask scheduler."""
    jobs: int | None = None
    """How many processes here; as many as there are cores by default."""


@dataclasses.dataclass(frozen=True)
class SweepStatus:
    """Say how far a sweep is, what failed, and whether it is running."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder of a sweep, or one with several."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Run one experiment at many points: grids, ranges, random samples, seeds; on this machine or on a cluster."""

    action: (
        Annotated[SweepRun, tyro.conf.subcommand("run", prefix_name=False)]
        | Annotated[SweepCheck, tyro.conf.subcommand("check", prefix_name=False)]
        | Annotated[SweepStatus, tyro.conf.subcommand("status", prefix_name=False)]
    )


def sweep(command: Sweep) -> int:
    """Run, check or describe a sweep."""
    from undertow.execution.sweeps import sweep as sweeps
    from undertow.execution.sweeps.spec import read_spec

    action = command.action
    if isinstance(action, SweepStatus):
        print(*sweeps.status(action.folder), sep="\n")
        return SUCCESS
    spec = read_spec(action.spec)
    if isinstance(action, SweepCheck):
        print(*sweeps.check(spec, on=action.on, jobs=action.jobs), sep="\n")
        return SUCCESS
    _, state = sweeps.run_spec(spec, action.out, on=action.on, jobs=action.jobs)
    return SURPRISE if state.failed else SUCCESS
