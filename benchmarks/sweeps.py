"""Sweeps: the overhead per block, the time to read a finished sweep, and two sweeps of realistic size."""

import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.harness import in_words, save
from undertow.execution.sweeps.records import BlockResult, BlockTask, Description, DescriptionRequest

BLOCKS = 1000
DIAGRAM = {"step_size": {"log": [0.01, 0.1, 20]}, "spread": {"linear": [0.5, 9.0, 20]}}
"""Axes of HeteroSGD at d = 40 on both sides of the filtering transition, with SEEDS runs per point."""
SEEDS = 50


def scalar(key, *, step_size: float, spread: float, mean: float = 1.0, steps: int = 200, runs: int = 64):
    """Return the share of `runs` runs of the scalar map of undertow.sensing.growth that filter the spurious signal."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from undertow.sensing.growth import _iterate
    from undertow.sensing.laws import two_point

    values = jnp.stack([mean - jnp.asarray(spread), mean + jnp.asarray(spread)])[:, None]
    with jax.ensure_compile_time_eval():
        law = two_point(1.0, 1.0)
    law = eqx.tree_at(lambda table: table.values, law, values)
    numbers = (jnp.asarray(step_size), jnp.asarray(1e-3), jnp.asarray(0.0))
    end, top = _iterate(law, key, *numbers, jnp.asarray(steps), runs)
    return {"filtered": jnp.mean(end < 0.1), "top": jnp.max(top)}


def describe_nothing(request: DescriptionRequest | None) -> Description:
    """Return the description of an experiment that does no work."""
    return Description(
        {"a": "float"}, (), platform="cpu", device="", memory=2**30, batched=True, run_bytes=2**27
    )  # fmt: skip


def work_nothing(task: BlockTask) -> BlockResult:
    """Return the result of a block without any work, so that only the overhead is measured."""
    values = np.zeros(len(task.seeds))
    return BlockResult({"x": values, "y": values}, {}, 0.0, 0.0, "", 0, 0.0)


def light_pool(jobs: int) -> ProcessPoolExecutor:
    import multiprocessing

    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def overhead(folder: Path) -> tuple[float, float]:
    """Return the seconds per block without work, and the seconds to read a finished sweep of BLOCKS blocks."""
    from undertow.execution.sweeps import drive
    from undertow.execution.sweeps.spec import as_spec
    from undertow.execution.workers import Processes

    spec = as_spec("nothing.py:f", {"a": {"linear": [0.0, 1.0, BLOCKS]}}, seeds=2)
    job = drive.Job(spec, "nothing", "", folder, describe_nothing, work_nothing)
    engine = Processes(2, light_pool)
    engine.submit(describe_nothing, None).result()  # wait until the processes have started
    began = time.perf_counter()
    drive.run(job, lambda: engine)
    per_block = (time.perf_counter() - began) / BLOCKS
    began = time.perf_counter()
    state = drive.run(job, lambda: engine)
    reading = time.perf_counter() - began
    assert (state.reused, state.blocks) == (2 * BLOCKS, BLOCKS)
    return per_block, reading


def timed_sweep(experiment: str, axes: dict, seeds: int, folder: Path) -> tuple[float, float, object]:
    """Return the seconds of a sweep with an empty cache, the seconds of its blocks, and its final state."""
    from undertow.execution.sweeps.spec import as_spec
    from undertow.execution.sweeps.sweep import run_spec

    began = time.perf_counter()
    _, state = run_spec(as_spec(experiment, axes, seeds=seeds), folder)
    return time.perf_counter() - began, state.work_seconds, state


def main() -> list[tuple[str, str, str]]:
    folder = Path(tempfile.mkdtemp())
    try:
        per_block, reading = overhead(folder / "nothing")
        axes = {"step_size": {"log": [0.01, 0.1, 100]}, "spread": {"linear": [0.5, 9.0, 100]}}
        points, _, _ = timed_sweep(f"{Path(__file__).resolve()}:scalar", axes, 1, folder)
        diagram, worked, state = timed_sweep("hetero", DIAGRAM, SEEDS, folder)
    finally:
        shutil.rmtree(folder)
    assert state.done == 20_000
    share = state.blocks * per_block / diagram
    facts = {
        "seconds_per_block": per_block, "resume_1000_blocks_seconds": reading,
        "scalar_map_10000_points_seconds": points,
        "hetero_20x20x50_seconds": diagram, "hetero_block_seconds": worked, "hetero_blocks": state.blocks,
        "machinery_share": share, "compilations": state.compilations[0], "compile_seconds": state.compilations[1],
    }  # fmt: skip
    save("sweeps", facts)
    return [
        ("sweep: overhead per block", in_words(per_block), f"{BLOCKS} blocks without work, two processes"),
        ("sweep: reading a finished sweep", in_words(reading), f"{BLOCKS} blocks"),
        ("sweep: 10,000 points of the scalar map", in_words(points), "64 runs each, empty cache, two processes"),
        ("sweep: HeteroSGD, 20 x 20 x 50, d = 40", in_words(diagram), f"overhead {share:.1%} of it"),
    ]


if __name__ == "__main__":
    sys.exit("run python -m benchmarks sweeps")
