"""Plan a sweep: describe the experiment on a worker, check the parameters, and divide the grid into blocks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from undertow.execution.pool import WorkerDiedError, run_tasks
from undertow.execution.provenance import Parameter
from undertow.execution.sweeps import worker
from undertow.execution.sweeps.blocks import Tiling, width_for
from undertow.execution.sweeps.experiments import fitted
from undertow.execution.sweeps.records import (
    BlockResult,
    BlockTask,
    Description,
    DescriptionRequest,
    ExperimentReference,
    Plan,
)
from undertow.execution.sweeps.spec import Spec, check_outputs
from undertow.execution.sweeps.units import in_bytes
from undertow.execution.workers import Workers, WorkersUnreachableError

__all__ = ["Block", "Job", "dimensions_of", "make_plan", "task_of"]

Block = tuple[int, ...]


@dataclass
class Job:
    """A sweep to run and its folder. `describe` and `work` are the functions that workers run."""

    spec: Spec
    experiment: str | Callable
    digest: str
    folder: Path
    describe: Callable[[DescriptionRequest], Description] = worker.describe
    work: Callable[[BlockTask], BlockResult] = worker.work

    def reference(self, workers: Workers) -> ExperimentReference:
        """Return the experiment as the workers look it up."""
        return ExperimentReference(self.experiment, self.digest, self.spec.scale, workers.in_process)


def make_plan(job: Job, workers: Workers, report: Callable[[str], object]) -> Plan:
    """Describe the experiment on a worker, check every value of every axis, and divide the grid into blocks."""
    spec = job.spec
    request = DescriptionRequest(job.reference(workers), spec.seed, spec.point((0,) * len(spec.axes)))
    description = _describe(job, workers, request)
    _check(spec, description, request.first)
    kinds, batched = description.kinds, description.batched
    together = [not batched or all(kinds[name] == "float" for name in axis.values) for axis in spec.axes]
    slots = workers.slots_on(description.platform)
    width = width_for(
        spec.runs, batched=batched, run_bytes=description.run_bytes, memory=description.memory,
        platform=description.platform, slots=slots,
    )  # fmt: skip
    width = 1 if description.attributes.get("claim") else width
    tiling = Tiling.of(spec.shape, (*together, True), width)
    report(_summary(spec, tiling, description, f"{slots} at a time {workers.description}"))
    return Plan(tiling.tile, batched, description.dimensions, description.attributes, description.platform)


def _describe(job: Job, workers: Workers, request: DescriptionRequest) -> Description:
    (outcome,) = run_tasks(workers, job.describe, [request])
    if isinstance(outcome.error, WorkerDiedError):
        raise WorkersUnreachableError(
            f"{job.experiment}: the worker died while it described the experiment ({outcome.error})."
        )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.result is not None
    return outcome.result


def _check(spec: Spec, description: Description, first: dict[str, Parameter]) -> None:
    """Check the parameters of the first point, every value of every axis, and the names of the outputs."""
    fitted(description.kinds, description.needed, first)
    for axis in spec.axes:
        for name, values in axis.values.items():
            for value in values:
                fitted(description.kinds, (), {name: value})
    named = description.dimensions
    check_outputs(spec, named | {name: dimensions_of(name, rank, named) for name, rank in description.ranks.items()})


def _summary(spec: Spec, tiling: Tiling, description: Description, where: str) -> str:
    """Return the plan in one sentence."""
    grid = " x ".join(str(n) for n in spec.shape[:-1])
    changing = ", ".join(sorted(name for axis in spec.axes for name in axis.values))
    if description.batched:
        memory = in_bytes(tiling.width * description.run_bytes)
        how = f"each one program of {tiling.width} runs; about {memory} of memory per block"
    else:
        how = f"run one by one: {description.why}"
    return (
        f"{grid} points ({changing}) of {spec.seeds} seed{'s' if spec.seeds > 1 else ''}: "
        f"{spec.runs:,} runs in {tiling.count:,} block{'s' if tiling.count > 1 else ''}, {how}; "
        f"{where} ({description.device})."
    )


def dimensions_of(output: str, rank: int, named: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the dimensions that the experiment names, or numbered ones."""
    return tuple(named.get(output, [f"{output}_{k}" for k in range(rank)]))


def task_of(job: Job, plan: Plan, tiling: Tiling, block: Block, workers: Workers) -> BlockTask:
    """Return the task of one block."""
    spec, region = job.spec, tiling.region(block)
    sizes = [part.stop - part.start for part in region]
    rows = np.indices(sizes).reshape(len(sizes), -1)
    columns: dict[str, list[Parameter]] = {name: [value] * rows.shape[1] for name, value in spec.parameters.items()}
    for axis, part, row in zip(spec.axes, region[:-1], rows[:-1], strict=True):
        for name, values in axis.values.items():
            inside = values[part]
            columns[name] = [inside[i] for i in row]
    return BlockTask(
        reference=job.reference(workers),
        block=block,
        root=spec.seed,
        columns=columns,
        seeds=(rows[-1] + region[-1].start).tolist(),
        width=tiling.width,
        batched=plan.batched,
    )
