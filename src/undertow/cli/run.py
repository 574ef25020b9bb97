"""`undertow run EXPERIMENT`: run one experiment, or a phase diagram, with the user's own parameters."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

import tyro

from undertow.cli._status import MISTAKE, SUCCESS, SURPRISE, complain, parsed
from undertow.cli.verify import run_and_report, status_of

if TYPE_CHECKING:
    from undertow.execution.provenance import Parameters

__all__ = ["PhaseDiagram", "Run", "run"]


@dataclasses.dataclass(frozen=True)
class Run:
    """Run one experiment with your own numbers: `undertow run EXPERIMENT --help` shows its parameters."""


@dataclasses.dataclass(frozen=True)
class PhaseDiagram:
    """A phase diagram with the boundary that theory predicts, run as a sweep."""

    of: Literal["hetero", "recovery", "stability"] = "hetero"
    """HeteroSGD over step size and heterogeneity, recovery by label noise, or stability at a noise equilibrium."""
    points: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Points along each axis."""
    seeds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Runs at every point."""
    seed: int = 0
    """Another number repeats the diagram with other random draws."""
    on: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """The address of a Dask scheduler."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """The number of processes on this machine; one per core by default."""
    out: Path = Path("undertow-sweep")
    """The folder; each diagram has its own folder in it."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The scale that gives default parameters, and the output folder."""

    scale: Literal["smoke", "default", "full"] = "smoke"
    """The scale whose parameters are the defaults."""
    seed: int = 0
    """Another number repeats the experiment with other random draws."""
    out: Path = Path("undertow-run")
    """The folder for the data, the figure and the report."""


class _Arguments(Protocol):
    """The arguments of `undertow run EXPERIMENT`."""

    parameters: "Parameters"
    settings: Settings


def run(arguments: list[str]) -> int:
    """`undertow run EXPERIMENT [--parameter value ...]`: a claim's experiment with the user's own parameters.

    EXPERIMENT is the name of a claim, or FILE.py:NAME.
    """
    from undertow.verification import claims

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: undertow run EXPERIMENT [--parameter VALUE ...] [--scale SCALE] [--out DIR]\n")
        print("Runs one experiment with your own numbers; `undertow run EXPERIMENT --help` shows its parameters.\n")
        for claim in claims.values():
            print(f"  {claim.id:<28}{claim.place} ({claim.paper})")
        print(f"  {'phase-diagram':<28}HeteroSGD, recovery by label noise, stability: a sweep over two parameters")
        return SUCCESS
    name, *rest = arguments
    if name == "phase-diagram":
        return _phase_diagram(rest)
    from undertow.execution.registry import UserFileError
    from undertow.verification.select import UnknownClaimError, select

    try:
        selection = select([name])
    except (UnknownClaimError, UserFileError) as error:
        return complain(str(error))
    if len(selection.chosen) != 1:
        of_pack = f"{name} has {len(selection.chosen)} claims; name one of them."
        return complain(" ".join(selection.problems) or of_pack)
    (one,) = selection.chosen
    claim = one.claim

    scale = _option(rest, "--scale") or "smoke"
    if scale not in claim.scales:
        return complain(f"--scale {scale}: choose one of {', '.join(claim.scales)}.")
    default = claim.scales[scale]
    fields = [("parameters", type(default), default), ("settings", Settings, Settings())]
    both = dataclasses.make_dataclass("Experiment", fields)
    omit = (tyro.conf.OmitArgPrefixes,)
    prog = f"undertow run {name}"
    given = parsed(lambda: tyro.cli(both, prog=prog, description=claim.statement, args=rest, config=omit))
    chosen = cast("_Arguments", given)
    settings = chosen.settings
    from undertow.execution import store
    from undertow.verification.runner import task_of

    task = task_of(claim.id, settings.scale, dataclasses.asdict(chosen.parameters), settings.seed, one.source)
    out = store.writable_folder(settings.out)
    with store.folder_lock(out) as check_folder:
        results = run_and_report([task], out, jobs=1, fresh=False, check_folder=check_folder)
    return MISTAKE if results[0].verdict == "error" else status_of(results)


def _phase_diagram(arguments: list[str]) -> int:
    command = parsed(lambda: tyro.cli(PhaseDiagram, prog="undertow run phase-diagram", args=arguments))
    from undertow.execution.sweeps.sweep import phase_diagram

    for name in ("points", "seeds"):
        value = getattr(command, name)
        if value is not None and value < (2 if name == "points" else 1):
            return complain(f"--{name} {value}: give a larger number.")
    state = phase_diagram(
        command.of, points=command.points, seeds=command.seeds, seed=command.seed, on=command.on, jobs=command.jobs,
        out=command.out,
    )  # fmt: skip
    return SURPRISE if state.failed else SUCCESS


def _option(arguments: list[str], name: str) -> str | None:
    """Return the value of an option among arguments that are not parsed yet."""
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
    return None
