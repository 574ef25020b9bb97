"""`undertow equilibrate`: move a network to its noise equilibrium and write the weights."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from undertow.cli._status import SUCCESS, complain

if TYPE_CHECKING:
    from undertow.analysis.equilibrate import Equilibrium

__all__ = ["Equilibrate", "equilibrate"]


@dataclasses.dataclass(frozen=True)
class Equilibrate:
    """Move a PyTorch network to its noise equilibrium: the same function, with balanced noise.

    Prints what is moved and by how much, with noise, cost and curvature before and after, and writes the weights in
    safetensors. A model of a folder is moved in float32, with the batches of --batches: the noise is that of your data.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.py:OBJECT|FOLDER")]
    """(model, batches, loss) of a file, or a function that returns them; or the folder of a transformers model."""
    step_size: float
    """The step size of training. Without weight decay it does not matter."""
    weight_decay: float = 0.0
    """Weight decay as in torch.optim.SGD or AdamW."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    """The optimiser of training."""
    batches: Annotated[str | None, tyro.conf.arg(metavar="FILE.py:OBJECT")] = None
    """For a folder: batches of a Python file, or (batches, loss), or a function that returns them."""
    batch_size: int = 32
    """The batch size of training, where the batches are a Dataset."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print what would be moved and write nothing."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.safetensors")] = None
    """The file for the moved weights. Tied weights are written once."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace the file if it exists."""
    seed: int = 0
    """The seed of the census and of random numbers of the loss."""


def equilibrate(command: Equilibrate) -> int:
    """Move the network, print what was moved, and write the weights."""
    mistake = _mistake(command)
    if mistake:
        return complain(mistake)
    from undertow.execution.registry import UserFileError

    try:
        result = _run(command)
    except (UserFileError, ValueError, TypeError) as error:
        return complain(str(error))
    except RuntimeError as error:
        if not str(error).startswith("`equilibrate`"):
            raise
        return complain(str(error))
    print(result.table())
    print(result)
    if command.out is not None:
        print(f"Weights: {command.out}")
    return SUCCESS


def _mistake(command: Equilibrate) -> str:
    """Return what is wrong with the options, before anything is measured."""
    out, folder = command.out, Path(command.target).is_dir()
    if not 0 < command.step_size < math.inf:
        return f"--step-size {command.step_size}: give a finite number above 0."
    if not 0 <= command.weight_decay < math.inf:
        return f"--weight-decay {command.weight_decay}: give 0 or more, a finite number."
    if command.batch_size < 1:
        return f"--batch-size {command.batch_size}: give a number above 0."
    if command.dry_run and out is not None:
        return f"--dry-run --out {out}: a dry run writes nothing; leave one of them out."
    if not command.dry_run and out is None:
        return "give --out FILE.safetensors for the moved weights, or --dry-run."
    if out is not None and out.suffix != ".safetensors":
        return f"--out {out}: give a file that ends in .safetensors."
    if out is not None and not out.parent.is_dir():
        return f"--out {out}: there is no folder {out.parent}; create it first."
    if out is not None and out.exists() and not command.force:
        return f"--out {out}: the file exists; give another name, or --force to replace it."
    if not folder and ":" not in command.target and not command.target.endswith(".py"):
        return f"{command.target}: there is no such folder; give FILE.py:OBJECT or the folder of a model."
    if folder and command.batches is None:
        return f"{command.target}: give --batches FILE.py:OBJECT too; the noise is that of your batches."
    if not folder and command.batches is not None:
        return f"--batches {command.batches}: {command.target} has its own batches; leave --batches out."
    return ""


def _run(command: Equilibrate) -> "Equilibrium":
    """Move the network of the target and write its weights."""
    try:
        import safetensors
        import torch  # noqa: F401
    except ImportError:
        raise ValueError(
            "this needs PyTorch and safetensors: install them with `pip install 'undertow[torch]'`."
        ) from None
    from undertow.analysis import equilibrate as analysis

    report = lambda stage: print(f"{stage} ...", file=sys.stderr, flush=True)
    settings = analysis.Settings(
        command.step_size, command.weight_decay, command.optimiser, command.dry_run, command.batch_size, command.seed
    )
    folder = Path(command.target).is_dir()
    if folder and command.batches is not None:
        model, result = analysis.equilibrate_folder(Path(command.target), command.batches, settings, report)
    else:
        model, result = analysis.equilibrate_file(command.target, settings, report)
    if command.out is not None:
        write = analysis.save_pretrained if folder else analysis.save_weights
        try:
            write(model, command.out)
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            raise ValueError(f"--out {command.out}: the weights cannot be written: {error}") from error
    return result
