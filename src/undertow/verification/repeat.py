"""The command that repeats an experiment, and the meanings of its parameters."""

import ast
import inspect
import shlex
import textwrap

from undertow.verification.claim import Claim
from undertow.verification.result import Task

__all__ = ["command", "meanings"]


def meanings(parameters: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass of parameters; nothing where its source cannot be read.

    >>> from undertow.verification.repeat import meanings
    >>> from undertow.verification import claims
    >>> claim = claims["sensing-factor-two"]
    >>> meanings(type(claim.scales["smoke"]))["m"]
    'Measurements in a batch.'
    """
    try:
        source = inspect.getsource(parameters)
    except (OSError, TypeError):  # defined by exec, or the file is gone
        return {}
    (tree,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.ClassDef)
    sentences = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            sentences[field.target.id] = inspect.cleandoc(ast.literal_eval(below.value))
    return sentences


def command(claim: Claim, task: Task) -> str:
    """Return the command line that repeats an experiment: `verify`, or `run` if parameters differ from the scale's.

    >>> from undertow.verification.repeat import command
    >>> from undertow.verification import claims
    >>> from undertow.verification.result import Task
    >>> claim = claims["sensing-factor-two"]
    >>> command(claim, Task(claim.id, "smoke", claim.parameters("smoke"), 0))
    'undertow verify sensing-factor-two --scale smoke --seed 0'
    >>> command(claim, Task(claim.id, "smoke", claim.parameters("smoke") | {"d": 4}, 0))
    'undertow run sensing-factor-two --scale smoke --seed 0 --d 4'
    """
    usual = claim.parameters(task.scale)
    own = {name: value for name, value in task.parameters.items() if value != usual.get(name)}
    name = f"{task.source}:{claim.id}" if task.source.endswith(".py") else task.source or claim.id
    words = ["undertow", "run" if own else "verify", name, "--scale", task.scale, "--seed", str(task.seed)]
    words += ["--plant"] if task.planted else []
    for name, value in own.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return shlex.join(words)
