"""The command line: one file per command. Nothing heavy is imported before a command needs it."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import tyro

import undertow
from undertow.cli._status import INTERRUPTED, SUCCESS, SURPRISE, complain, degrade_output, parsed
from undertow.cli.analyze import Analyze, analyze
from undertow.cli.census import Census, take_census
from undertow.cli.equilibrate import Equilibrate, equilibrate
from undertow.cli.errata import Errata, show_errata
from undertow.cli.explore import Explore, explore
from undertow.cli.listing import List, list_claims
from undertow.cli.report import Report, report
from undertow.cli.run import Run, run
from undertow.cli.sweep import Sweep, sweep
from undertow.cli.verify import Verify, verify
from undertow.execution.store import StoreError

__all__ = ["COMMANDS", "main"]

Command = (
    Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Analyze, tyro.conf.subcommand("analyze")]
    | Annotated[Census, tyro.conf.subcommand("census")]
    | Annotated[Equilibrate, tyro.conf.subcommand("equilibrate")]
    | Annotated[Explore, tyro.conf.subcommand("explore")]
    | Annotated[Errata, tyro.conf.subcommand("errata")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)

ACTIONS: dict[type, Callable[..., int]] = {
    Verify: verify, List: list_claims, Sweep: sweep, Analyze: analyze, Census: take_census, Equilibrate: equilibrate,
    Explore: explore, Errata: show_errata, Report: report,
}  # fmt: skip
COMMANDS: dict[str, type] = {
    "verify": Verify, "list": List, "run": Run, "sweep": Sweep, "analyze": Analyze, "census": Census,
    "equilibrate": Equilibrate, "explore": Explore, "errata": Errata, "report": Report,
}  # fmt: skip
"""The commands by name, in the order of `undertow --help`."""
RESUMED = (["verify"], ["sweep"], ["run", "phase-diagram"])
"""The first arguments of commands that keep finished results, and continue when they are called again."""


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments, run the command, and turn errors of the user into messages and exit statuses."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    degrade_output()
    try:
        if arguments[:1] == ["run"]:
            status = run(arguments[1:])
        elif arguments[:1] == ["--version"]:
            print(f"undertow {undertow.__version__}")
            status = SUCCESS
        else:
            command = _parse(arguments)
            status = _act(command)
        sys.stdout.flush()
    except StoreError as error:
        status = complain(str(error))
    except MemoryError:
        status = complain("there is not enough memory; finished results are kept, and fewer --jobs need less.")
    except BrokenPipeError:  # the reader of a pipe ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = SURPRISE
    except OSError as error:
        status = complain(f"{error.filename or 'a file'}: {error.strerror or error}.")
    except KeyboardInterrupt:
        resumed = any(arguments[: len(first)] == first for first in RESUMED)
        kept = " Finished results are kept; the same command continues from there." if resumed else ""
        print(f"\nStopped.{kept}", file=sys.stderr)
        status = INTERRUPTED
    raise SystemExit(status)


def _act(command: object) -> int:
    """Run a command. It returns its status: a `SystemExit` comes from code of the user."""
    try:
        return ACTIONS[type(command)](command)
    except SystemExit as stop:
        from undertow.execution.registry import exit_message

        return complain(f"your code ended the command: {exit_message(stop)}")


def _parse(arguments: list[str]) -> object:
    """Return one of the dataclasses of `COMMANDS`, filled in."""
    description = "What the noise of stochastic gradient descent does to a model: predicted, simulated, verified."
    config = (tyro.conf.OmitArgPrefixes,)
    return parsed(lambda: tyro.cli(Command, prog="undertow", description=description, args=arguments, config=config))
