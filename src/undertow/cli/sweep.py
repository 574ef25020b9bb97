"""`undertow sweep run|check|status`: run an experiment at many points."""

import dataclasses
from functools import singledispatch
from pathlib import Path
from typing import Annotated

import tyro

from undertow.cli._status import SUCCESS, SURPRISE

__all__ = ["Sweep", "sweep"]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """Run or resume a sweep: live progress, a figure that is updated, one dataset that xarray opens.

    The same file resumes an interrupted sweep; a changed file starts a new sweep beside it.
    """

    spec: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SPEC.toml")]
    """The specification: experiment, [axes], [parameters], seeds."""
    on: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """The address of a Dask scheduler, such as tcp://10.0.0.1:8786; without it, processes on this machine."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """The number of processes on this machine; one per core by default."""
    out: Path = Path("undertow-sweep")
    """The folder; each sweep has its own folder in it."""


@dataclasses.dataclass(frozen=True)
class SweepCheck:
    """Check a sweep before it runs: its parameters, the number of points, time and memory, from one block."""

    spec: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SPEC.toml")]
    """The specification."""
    on: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """The address of a Dask scheduler."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """The number of processes on this machine; one per core by default."""


@dataclasses.dataclass(frozen=True)
class SweepStatus:
    """Show the progress of a sweep, its errors, and whether it is running."""

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
    return _act(command.action)


@singledispatch
def _act(action: SweepRun) -> int:
    from undertow.execution.sweeps import sweep as sweeps
    from undertow.execution.sweeps.spec import read_spec

    _, state = sweeps.run_spec(read_spec(action.spec), action.out, on=action.on, jobs=action.jobs)
    return SURPRISE if state.failed else SUCCESS


@_act.register
def _(action: SweepCheck) -> int:
    from undertow.execution.sweeps import sweep as sweeps
    from undertow.execution.sweeps.spec import read_spec

    print(*sweeps.check(read_spec(action.spec), on=action.on, jobs=action.jobs), sep="\n")
    return SUCCESS


@_act.register
def _(action: SweepStatus) -> int:
    from undertow.execution.sweeps import sweep as sweeps

    print(*sweeps.status(action.folder), sep="\n")
    return SUCCESS
