"""A phase diagram, SGD with many seeds, and the label drift of a large network, on the default device of JAX.

Not part of `make bench`: run `python -m benchmarks accelerator` on a machine with a GPU.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

import undertow as ut
from benchmarks.harness import in_words, save
from benchmarks.linear_model import undertow_loop
from benchmarks.manifold import settled_net
from benchmarks.sweeps import DIAGRAM, SEEDS, timed_sweep
from undertow.sensing.laws import two_point

STEPS = 20_000


def median_seconds(run: Callable[[], object], rounds: int = 3) -> float:
    """Return the median duration of `run` after one call that compiles."""
    run()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return sorted(times)[rounds // 2]


def sensing_rate(seeds: int, d: int = 100, steps: int = 400) -> float:
    """Return the steps per second of matrix sensing by its exact law, summed over seeds."""
    sensing = ut.MatrixSensing(d, 8000, two_point(1.0, 5.0), dtype=jnp.float32)
    run = lambda: ut.descend(sensing, sensing.start(1e-3), step_size=0.05, steps=steps, key=0, seeds=seeds,
                             observe={"measured": sensing.measure}, progress=False)  # fmt: skip
    return seeds * steps / median_seconds(run)


def diagrams() -> tuple[float, float]:
    """Return the seconds of a phase diagram of HeteroSGD with an empty compilation cache, and with a full one.

    The diagram has 20 x 20 points of 50 seeds at d = 40.
    """
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("UNDERTOW_CACHE")
        os.environ["UNDERTOW_CACHE"] = f"{folder}/cache"
        for name in ("empty", "cached"):
            spent, _, state = timed_sweep("hetero", DIAGRAM, SEEDS, Path(folder) / name)
            assert state.done == 20_000
            seconds.append(spent)
        os.environ.pop("UNDERTOW_CACHE")
        if before is not None:
            os.environ["UNDERTOW_CACHE"] = before
    return seconds[0], seconds[1]


def main() -> list[tuple[str, str, str]]:
    cold, warm = diagrams()  # before this process allocates memory on the device
    print(f"  phase diagram: {in_words(cold)}, with compiled programs: {in_words(warm)}", flush=True)
    sensing = sensing_rate(4096)
    print(f"  matrix sensing, d = 100, 4,096 seeds: {sensing:.3g} steps per second", flush=True)
    rates = {}
    for seeds in (1024, 16_384, 65_536):
        rates[seeds] = seeds * STEPS / median_seconds(undertow_loop(STEPS, seeds))
        print(f"  {seeds} seeds: {rates[seeds]:.3g} steps per second", flush=True)
    problem, params = settled_net(inputs=999, hidden=1000, n=256, dtype=jnp.float32)  # D = 1,000,000
    limit = ut.Limit(ut.LabelNoise(problem, 1.0))
    drift = median_seconds(lambda: jax.block_until_ready(limit.drift(params)), 5)
    print(f"  label drift, D = 1,000,000, n = 256: {in_words(drift)}", flush=True)
    device = jax.devices()[0]
    facts = {
        "diagram_seconds": cold,
        "diagram_compiled_seconds": warm,
        "trajectory_steps_per_second": rates,
        "sensing_steps_per_second": sensing,
        "label_drift_seconds": drift,
        "kind": device.device_kind,
    }
    save(f"accelerator_{device.platform}", facts)
    rows = [(f"HeteroSGD, 20 x 20 x 50, d = 40, on {device.device_kind}", in_words(cold), "< 20 s on an H200")]
    rows += [("the same with compiled programs", in_words(warm), "")]
    rows += [
        (f"matrix sensing on {device.device_kind}, d = 100, 4,096 seeds", f"{sensing:.3g} /s", ">= 3e6 on an H200")
    ]
    rows += [(f"linear model on {device.device_kind}, {s} seeds", f"{r:.3g} /s", "") for s, r in rates.items()]
    return [*rows, (f"label drift on {device.device_kind}, D = 1e6, n = 256", in_words(drift), "< 60 ms on an H200")]
