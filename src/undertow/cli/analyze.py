"""`undertow analyze`: analyse a user's own problem."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from undertow.cli._status import SUCCESS, complain

if TYPE_CHECKING:
    from undertow.analysis.result import Analysis

__all__ = ["Analyze", "analyze"]


@dataclasses.dataclass(frozen=True)
class Analyze:
    """Analyse your own problem: its symmetries, the equilibrium of their charges, its sharpness, and advice.

    Writes analysis.html with figures, analysis.json with the same numbers, and equilibrium.npz with the params at
    equilibrium (the same function, balanced noise).
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.py:OBJECT")]
    """A problem, a noise, (one of them, params), PyTorch's (model, batches, loss), or a function that returns one."""
    params: str = "params"
    """The variable of the file with the params, where OBJECT does not contain them."""
    step_size: float = 0.01
    """The step size of training."""
    weight_decay: float = 0.0
    """lambda of loss + lambda/2 |params|^2, as in PyTorch and optax."""
    batch_size: int = 32
    """The batch size of training, where OBJECT is a problem and not a noise."""
    seed: int = 0
    """The seed of the random points and probes."""
    out: Path = Path("undertow-analysis")
    """The folder for the page, the numbers and the params."""
    json: bool = False
    """Print the numbers as JSON, and nothing else, on the standard output."""


def analyze(command: Analyze) -> int:
    """Analyse the problem, print a table or JSON, and write the page, the numbers and the params."""
    from undertow.analysis import page as pages
    from undertow.execution import store
    from undertow.execution.registry import UserFileError
    from undertow.execution.settings import compile_fast

    for name, value in (("--step-size", command.step_size), ("--batch-size", command.batch_size)):
        if not 0 < value < math.inf:
            return complain(f"{name} {value}: give a finite number above 0.")
    if not 0 <= command.weight_decay < math.inf:
        return complain(f"--weight-decay {command.weight_decay}: give 0 or more, a finite number.")
    if not 0 <= command.seed < 2**63:
        return complain(f"--seed {command.seed}: give a whole number from 0 to 2^63 - 1.")
    out = store.writable_folder(command.out)
    compile_fast()
    try:
        analysis = _analysis(command)
    except (UserFileError, ValueError, TypeError) as error:
        return complain(str(error))
    page = pages.write_page(analysis, command.target, out)
    numbers = pages.write_json(analysis, command.target, out)
    saved = pages.write_params(analysis, out)
    if command.json:
        print(numbers.read_text(encoding="utf-8"), end="")
        return SUCCESS
    pages.print_table(analysis)
    print(f"Page: {page}; numbers: {numbers}" + (f"; params at equilibrium: {saved}" if saved else ""))
    return SUCCESS


def _analysis(command: Analyze) -> "Analysis":
    """Load the target and analyse it in the library that it belongs to."""
    from undertow.analysis import jax
    from undertow.analysis.target import TorchTarget, load

    target = load(command.target, command.params)
    report = lambda stage: print(f"{stage} ...", file=sys.stderr, flush=True)
    if isinstance(target, TorchTarget):
        from undertow.analysis import torch

        return torch.analyze(
            target.model, target.data, target.loss, step_size=command.step_size, weight_decay=command.weight_decay,
            batch_size=command.batch_size, seed=command.seed, report=report,
        )  # fmt: skip
    return jax.analyze(
        target.noise, target.params, step_size=command.step_size, weight_decay=command.weight_decay,
        batch_size=command.batch_size, key=command.seed, report=report,
    )  # fmt: skip
