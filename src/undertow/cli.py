"""The command line. Nothing heavy is imported before a command needs it."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

__all__ = ["main"]

GOOD, SURPRISE, MISTAKE, INTERRUPTED = 0, 1, 2, 130

Names = tyro.conf.Positional[tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Verify:
    """Run the claims of the papers and judge each: live verdicts, report.html, results.json.

    Exits with 0 only when every verdict is the expected one. Finished claims are kept: after Ctrl-C, or when called
    again, only what is missing or changed is run.
    """

    claims: Annotated[Names, tyro.conf.arg(metavar="[CLAIM ...]")] = ()
    """Which claims; all of them when none is named. `undertow list` shows the names."""
    paper: Literal["heterogeneity", "zero_loss", "noise_equilibrium"] | None = None
    """Only the claims of one paper."""
    scale: Literal["smoke", "default", "full"] = "default"
    """How much to compute: smoke takes minutes, default tens of minutes, full wants a GPU."""
    jobs: int = min(2, os.cpu_count() or 1)
    """How many claims run at the same time, each in its own process."""
    out: Path = Path("undertow-report")
    """The folder for the report, the results and the data."""
    seed: int = 0
    """Another number repeats everything with other randomness."""
    fresh: bool = False
    """Run everything anew, even what is finished."""


@dataclasses.dataclass(frozen=True)
class List:
    """Show all claims with their places in the papers and the verdicts expected of them."""

    paper: Literal["heterogeneity", "zero_loss", "noise_equilibrium"] | None = None
    """Only the claims of one paper."""


@dataclasses.dataclass(frozen=True)
class Errata:
    """Show what the papers print wrongly, what is right, and the claim that decides."""

    json: bool = False
    """Print the list as JSON, for other programs."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Build report.html again from the results in a folder."""

    folder: tyro.conf.Positional[Path]
    """A folder that `undertow verify` wrote."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Run one experiment with your own numbers: `undertow run EXPERIMENT --help` shows its parameters."""


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


@dataclasses.dataclass(frozen=True)
class PhaseDiagram:
    """A phase diagram with the boundary that theory draws: undertow's own, run as a sweep."""

    of: Literal["hetero", "recovery", "stability"] = "hetero"
    """hetero: HeteroSGD over step size and heterogeneity. recovery: the limiting flow of label noise over equations and
    sparsity. stability: a badly balanced start, as it is and at its noise equilibrium, over step size and imbalance."""
    points: int | None = None
    """Points along each axis."""
    seeds: int | None = None
    """Runs at every point."""
    seed: int = 0
    """Another number repeats it with other randomness."""
    on: str | None = None
    """The address of a Dask scheduler."""
    jobs: int | None = None
    """How many processes here; as many as there are cores by default."""
    out: Path = Path("undertow-sweep")
    """The folder in which each diagram gets its own."""


@dataclasses.dataclass(frozen=True)
class Analyze:
    """Look at your own problem: its symmetries, where noise takes their charges, sharpness, and what to do about it.

    Writes analysis.html, and equilibrium.npz with the params at equilibrium (the same function, balanced noise).
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.py:OBJECT")]
    """A problem or a noise of a Python file, a pair of it and params, a triple (model, loss, data) of PyTorch, or a
    function that returns one of these."""
    params: str = "params"
    """The variable of the file with the params, where OBJECT does not bring them."""
    step_size: float = 0.01
    """The step size of training."""
    weight_decay: float = 0.0
    """gamma of loss + gamma |params|^2; half of what PyTorch calls weight decay."""
    batch_size: int = 32
    """The batch size of training, where OBJECT is a problem and not a noise."""
    seed: int = 0
    """Of the random points and probes."""
    out: Path = Path("undertow-analysis")
    """The folder for the page and the params."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where to start from and where to write."""

    scale: Literal["smoke", "default", "full"] = "smoke"
    """Where parameters that are not given come from."""
    seed: int = 0
    """Another number repeats the experiment with other randomness."""
    out: Path = Path("undertow-run")
    """The folder for the data, the figure and the report."""


Command = (
    Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Analyze, tyro.conf.subcommand("analyze")]
    | Annotated[Errata, tyro.conf.subcommand("errata")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)


def main(arguments: list[str] | None = None) -> None:
    """The entry point: parses, runs, and turns mistakes into sentences and exit statuses."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    from undertow.execution.store import StoreError

    try:
        if arguments[:1] == ["run"]:
            status = _run(arguments[1:])
        elif arguments[:1] == ["--version"]:
            from undertow import __version__

            print(f"undertow {__version__}")
            status = GOOD
        else:
            status = _dispatch(_parse(arguments))
    except StoreError as error:
        status = _complain(str(error))
    except KeyboardInterrupt:
        print("\nStopped. What was finished is kept; the same command goes on from there.", file=sys.stderr)
        status = INTERRUPTED
    raise SystemExit(status)


def _parse(arguments: list[str]) -> Any:
    """One of the dataclasses above, filled in."""
    description = "What the noise of stochastic gradient descent does to a model: predicted, simulated, verified."
    config = (tyro.conf.OmitArgPrefixes,)
    return tyro.cli(Command, prog="undertow", description=description, args=arguments, config=config)


def _dispatch(command: Any) -> int:
    actions = {Verify: _verify, List: _list, Sweep: _sweep, Analyze: _analyze, Errata: _errata, Report: _report}
    return actions[type(command)](command)


def _complain(sentence: str) -> int:
    print(f"undertow: {sentence}", file=sys.stderr)
    return MISTAKE


def _verify(command: Verify) -> int:
    from undertow.execution import store
    from undertow.verification import registry
    from undertow.verification.runner import task_of

    if command.jobs < 1:
        return _complain(f"--jobs {command.jobs}: give at least 1.")
    for name in command.claims:
        if name not in registry:
            return _complain(registry.unknown(name))
    chosen = [
        claim
        for claim in registry.values()
        if (not command.claims or claim.id in command.claims) and command.paper in (None, claim.paper)
    ]
    if not chosen:
        return _complain(f"none of the claims named belongs to the paper {command.paper}.")
    tasks = [task_of(claim.id, command.scale, claim.parameters(command.scale), command.seed) for claim in chosen]
    out = store.writable_folder(command.out)
    with store.folder_lock(out):
        return _run_and_report(tasks, out, command.jobs, command.fresh)


def _run_and_report(tasks: list[dict[str, Any]], out: Path, jobs: int, fresh: bool) -> int:
    """Runs tasks with live progress, writes results.json and report.html, prints the verdicts."""
    from undertow.verification.live import Live
    from undertow.verification.report import build_report, write_results
    from undertow.verification.runner import run_claims

    finished: list[dict[str, Any]] = []
    with Live(len(tasks)) as live:
        try:
            results = run_claims(
                tasks,
                out,
                jobs,
                fresh=fresh,
                report=lambda result, reused: (finished.append(result), live.result(result, reused)),
                started=live.started,
                warn=lambda sentence: print(f"undertow: {sentence}", file=sys.stderr),
            )
        except KeyboardInterrupt:
            if finished:
                write_results(out, finished)
                build_report(out, finished)
            raise
    write_results(out, results)
    page = build_report(out, results)
    as_expected = sum(r["verdict"] == r["expected"] for r in results)
    print(f"\n{as_expected} of {len(results)} verdicts as expected. Report: {page}")
    return GOOD if as_expected == len(results) else SURPRISE


def _list(command: List) -> int:
    import shutil
    import textwrap

    from undertow.verification import registry
    from undertow.verification.errata import expected

    width = min(110, shutil.get_terminal_size().columns)
    for claim in registry.values():
        if command.paper in (None, claim.paper):
            print(f"{claim.id:<28} {claim.paper}, {claim.place}; expected: {expected(claim.id)}")
            print(textwrap.fill(claim.statement, width, initial_indent="    ", subsequent_indent="    "))
    return GOOD


def _errata(command: Errata) -> int:
    import json

    from undertow.verification.errata import ERRATA

    if command.json:
        print(json.dumps([dataclasses.asdict(erratum) for erratum in ERRATA], indent=1))
        return GOOD
    for erratum in ERRATA:
        print(f"{erratum.paper}, {erratum.place}")
        print(f"  printed: {erratum.printed}")
        print(f"  right:   {erratum.right}")
        decided = f"undertow verify {erratum.claim}" if erratum.claim else "by reading the paper"
        print(f"  decided: {decided}\n")
    return GOOD


def _sweep(command: Sweep) -> int:
    from undertow.execution.sweeps import sweep
    from undertow.execution.sweeps.spec import read_spec

    action = command.action
    if isinstance(action, SweepStatus):
        print(*sweep.status(action.folder), sep="\n")
        return GOOD
    spec = read_spec(action.spec)
    if isinstance(action, SweepCheck):
        print(*sweep.check(spec, on=action.on, jobs=action.jobs), sep="\n")
        return GOOD
    _, state = sweep.run_spec(spec, action.out, on=action.on, jobs=action.jobs)
    return SURPRISE if state.failed else GOOD


def _phase_diagram(arguments: list[str]) -> int:
    command = tyro.cli(PhaseDiagram, prog="undertow run phase-diagram", args=arguments)
    from undertow.execution.sweeps.sweep import phase_diagram

    for name in ("points", "seeds"):
        value = getattr(command, name)
        if value is not None and value < (2 if name == "points" else 1):
            return _complain(f"--{name} {value}: give a larger number.")
    state = phase_diagram(
        command.of, points=command.points, seeds=command.seeds, seed=command.seed, on=command.on, jobs=command.jobs,
        out=command.out,
    )  # fmt: skip
    return SURPRISE if state.failed else GOOD


def _analyze(command: Analyze) -> int:
    from undertow.analysis import page as pages
    from undertow.analysis.jax import analyze
    from undertow.execution import store

    for name, value in (("--step-size", command.step_size), ("--batch-size", command.batch_size)):
        if not value > 0:
            return _complain(f"{name} {value}: give a number above 0.")
    if command.weight_decay < 0:
        return _complain(f"--weight-decay {command.weight_decay}: give 0 or more.")
    out = store.writable_folder(command.out)
    try:
        what, params = pages.load(command.target, command.params)
        found = analyze(
            what, params, step_size=command.step_size, weight_decay=command.weight_decay,
            batch_size=command.batch_size, key=command.seed,
            tell=lambda stage: print(f"{stage} ...", file=sys.stderr, flush=True),
        )  # fmt: skip
    except (pages.UserFileError, ValueError, TypeError) as error:
        return _complain(str(error))
    pages.print_table(found)
    page = pages.write_page(found, command.target, out)
    saved = pages.write_params(found, out)
    print(f"Page: {page}" + (f"; params at equilibrium: {saved}" if saved else ""))
    return GOOD


def _report(command: Report) -> int:
    from undertow.verification.report import build_report, read_results

    print(build_report(command.folder, read_results(command.folder)))
    return GOOD


def _run(arguments: list[str]) -> int:
    """`undertow run EXPERIMENT [--parameter value ...]`: a claim's experiment with the user's own parameters."""
    from undertow.verification import registry

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: undertow run EXPERIMENT [--parameter VALUE ...] [--scale SCALE] [--out DIR]\n")
        print("Runs one experiment with your own numbers; `undertow run EXPERIMENT --help` shows its parameters.\n")
        for claim in registry.values():
            print(f"  {claim.id:<28}{claim.place} ({claim.paper})")
        print(f"  {'phase-diagram':<28}HeteroSGD, recovery by label noise, stability: a sweep over two parameters")
        return GOOD
    name, *rest = arguments
    if name == "phase-diagram":
        return _phase_diagram(rest)
    if name not in registry:
        return _complain(registry.unknown(name))
    claim = registry[name]

    scale = _option(rest, "--scale") or "smoke"
    if scale not in claim.scales:
        return _complain(f"--scale {scale}: choose one of {', '.join(claim.scales)}.")
    default: Any = claim.scales[scale]
    fields = [("parameters", type(default), default), ("settings", Settings, Settings())]
    both: Any = dataclasses.make_dataclass("Experiment", fields)
    omit = (tyro.conf.OmitArgPrefixes,)
    chosen: Any = tyro.cli(both, prog=f"undertow run {name}", description=claim.statement, args=rest, config=omit)
    settings = chosen.settings
    from undertow.execution import store
    from undertow.verification.runner import task_of

    task = task_of(name, settings.scale, dataclasses.asdict(chosen.parameters), settings.seed)
    out = store.writable_folder(settings.out)
    with store.folder_lock(out):
        return _run_and_report([task], out, jobs=1, fresh=False)


def _option(arguments: list[str], name: str) -> str | None:
    """The value of an option among arguments that are not parsed yet."""
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
    return None
