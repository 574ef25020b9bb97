"""The claim of a task, the title of its paper, and the fingerprint of the result that it will make."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from undertow.execution.packs import OWN_PACKS
from undertow.execution.provenance import Parameter, fingerprint
from undertow.execution.registry import titles
from undertow.execution.user_packs import digest_with_neighbours, user_pack
from undertow.verification import claims
from undertow.verification.claim import Claim, Scale
from undertow.verification.result import Task

__all__ = ["RUNNER", "claim_of", "task_of", "title_of"]

RUNNER = "undertow.verification.measure"
"""The module whose code runs all claims."""


def claim_of(task: Task) -> Claim:
    """Return the claim of a task, from an installed pack or from a user's file."""
    return cast("Claim", user_pack(task.source).claims[task.claim]) if task.source else claims[task.claim]


def title_of(task: Task) -> str:
    """Return the title of the paper of a task's claim; its name where there is no title."""
    paper = claim_of(task).paper
    return user_pack(task.source).title if task.source else titles().get(paper, paper)


def task_of(
    claim_id: str, scale: Scale, parameters: dict[str, Parameter], seed: int, source: str = "", *, planted: bool = False
) -> Task:
    """Return the task of a claim, with the fingerprint of the result that it will make.

    For a claim of undertow's packs the fingerprint covers the module of the claim, the code that runs it, the modules
    that these import and, if the alternative is planted, the plants. For a claim of another pack it covers its file,
    the files beside it that it imports, and all of undertow.
    """
    task = Task(claim_id, scale, parameters, seed, source, planted)
    module = claim_of(task).module
    facts = {name: value for name, value in asdict(task).items() if name not in ("fingerprint", "source")}
    own = next((pack for pack in OWN_PACKS if module.startswith(f"{pack}.")), None)
    if own is not None:
        plants = [f"{own}.plants"] if planted else []
        return replace(task, fingerprint=fingerprint(facts, modules=[module, RUNNER, *plants]))
    file = getattr(sys.modules.get(module), "__file__", None)
    return replace(task, fingerprint=fingerprint(facts, digest_with_neighbours(Path(file)) if file else ""))
