"""`undertow census`: find the symmetries of a network and prove them."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from undertow.cli._status import SUCCESS, SURPRISE, complain

if TYPE_CHECKING:
    from undertow.analysis.census import Census as Symmetries
    from undertow.analysis.census import ScalingMap

__all__ = ["Census", "take_census"]


@dataclasses.dataclass(frozen=True)
class Census:
    """Find the exponential symmetries of a PyTorch network, prove them, and print a table.

    For a folder the census is taken of a narrow twin, from config.json alone. With weights in safetensors it is
    transferred to the model and proved there. Files that can execute code (pickle, code in the folder) are not read.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.py:OBJECT|FOLDER")]
    """(model, batch, loss) of a Python file, or a function that returns them; or the folder of a transformers model."""
    seed: int = 0
    """The seed of the random weights and transformations."""
    json: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[FILE]")] = None
    """Write the census as JSON to FILE, which `Census.load` reads; without FILE print it, and nothing else."""
    check: Annotated[Path | None, tyro.conf.arg(metavar="MAP.toml|MAP.json")] = None
    """Check whether each entry of a quantiser's scaling map preserves the function; exit status 1 if one does not."""


def take_census(command: Census) -> int:
    """Take the census and print a table, or write it as JSON."""
    if command.json is not None and len(command.json) > 1:
        return complain(f"--json {' '.join(command.json)}: give one file.")
    out = Path(command.json[0]) if command.json else None
    if out is not None and not out.parent.is_dir():
        return complain(f"--json {out}: there is no folder {out.parent}; create it first.")
    from undertow.execution.registry import UserFileError

    try:
        entries = _scaling_map(command.check) if command.check is not None else None
        symmetries, note = _census(command)
    except (UserFileError, ValueError, TypeError) as error:
        return complain(str(error))
    if command.json == ():
        print(symmetries.to_json())
        return SUCCESS
    if entries is not None:
        from undertow.analysis.census import check_scaling_map

        report = check_scaling_map(symmetries, entries)
        print(report)
        return SUCCESS if report else SURPRISE
    print(symmetries.table())
    if note:
        print(note)
    if out is not None:
        symmetries.save(out)
        print(f"Census: {out}")
    return SUCCESS


def _scaling_map(path: Path) -> "ScalingMap":
    """Return the entries of a file; a file that is not there is a mistake of the user."""
    _need_torch()
    from undertow.analysis.census import load_scaling_map

    try:
        return load_scaling_map(path)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ValueError("a census needs PyTorch: install it with `pip install 'undertow[torch]'`.") from None


def _census(command: Census) -> "tuple[Symmetries, str]":
    """Return the census of the target, and a sentence on where it was proved."""
    folder = Path(command.target).is_dir()
    if not folder and ":" not in command.target and not command.target.endswith(".py"):
        raise ValueError(f"{command.target}: there is no such folder; give FILE.py:OBJECT or the folder of a model.")
    _need_torch()
    from undertow.analysis.census import census_of_file, census_of_folder

    report = lambda stage: print(f"{stage} ...", file=sys.stderr, flush=True)
    if folder:
        return census_of_folder(Path(command.target), seed=command.seed, report=report)
    return census_of_file(command.target, seed=command.seed, report=report), ""
