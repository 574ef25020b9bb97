"""The averaged flow against 64 seeds of SGD up to the same time: tr H of a tanh network of width 40 on 30 points of
sin(2x), label noise of strength 1, one sample per step, double precision, at the slow time steps * step_size^2 = 10.
The error of the flow is not estimated, which is the default for these 120 parameters."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import undertow as ut
from benchmarks.harness import in_words, interleaved, save

STEP_SIZES = (0.01, 0.005, 0.002)
SLOW_TIME = 10.0
SEEDS = 64
REFERENCE_SEEDS = 256
TIMED_STEPS = 20_000
"""The number of steps of SGD in each round; the cost of a whole run is proportional to its number of steps."""
BAR = 50
LOOSE = 1e-3
"""A tolerance that changes tr H by less than the standard error of 64 seeds."""


def network() -> tuple[ut.LabelNoise, dict[str, jax.Array], Callable[[dict], jax.Array]]:
    """Return the noise, the start and tr H = (1/n) sum_i |grad f(x_i)|^2 of the network of the tutorial."""
    x = jnp.linspace(-2, 2, 30)
    a, b, o = jax.random.normal(jax.random.key(0), (3, 40))
    predict = lambda p, x: p["o"] @ jnp.tanh(p["a"] * x + p["b"])
    gradients = jax.vmap(jax.grad(predict), (None, 0))
    trace = lambda p: sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients(p, x))) / 30
    noise = ut.LabelNoise(ut.Regression(predict, x, jnp.sin(2 * x)), strength=1.0, batch_size=1)
    return noise, {"a": 1.5 * a, "b": b, "o": o / 40**0.5}, trace


def measure(step_size: float, slow_time: float = SLOW_TIME, seeds: int = REFERENCE_SEEDS) -> dict[str, Any]:
    """Return both errors of tr H and the times of the averaged flow and of 64 seeds of SGD."""
    noise, start, trace = network()
    steps, observe = round(slow_time / step_size**2), {"tr H": trace}

    def solve(tolerance: float | None) -> ut.Trajectory:
        return ut.average(noise, start, step_size=step_size, time=steps * step_size, observe=observe, num_saves=1,
                          tolerance=tolerance, estimate_error=False)  # fmt: skip

    def descend(steps: int, seeds: int) -> ut.Trajectory:
        return ut.descend(noise, start, step_size=step_size, steps=steps, key=1, seeds=seeds, observe=observe,
                          progress=False)  # fmt: skip

    began = time.perf_counter()
    solve(None)
    first = time.perf_counter() - began
    programs = {
        "flow": (lambda: solve(None), 1),
        "flow, tolerance 1e-3": (lambda: solve(LOOSE), 1),
        "SGD": (lambda: descend(TIMED_STEPS, SEEDS), TIMED_STEPS / steps),
    }
    times, cores = interleaved(programs), interleaved(programs, clock=time.process_time)
    load = os.getloadavg()[0]
    against = lambda seconds: {name: seconds["SGD"] / seconds[name] for name in seconds if name != "SGD"}
    runs = descend(steps, seeds)
    flows = {"default": solve(None), "tolerance 1e-3": solve(LOOSE)}
    predicted = {name: float(flow.observed["mean_tr H"][-1]) for name, flow in flows.items()}
    whole, few = (ut.Estimate.of(runs.observed["tr H"][:count, -1]) for count in (seeds, SEEDS))
    return {
        "step_size": step_size,
        "steps": steps,
        "seconds": times | {"compile": first - times["flow"]},
        "core_seconds": cores,
        "ratios": against(times),
        "core_ratios": against(cores),
        "load": load,
        "solver_steps": [int(flow.facts["solver_steps"]) for flow in flows.values()],
        "tr_H": predicted | {"SGD": float(few.value), "reference": float(whole.value)},
        "standard_error": {"SGD": float(few.standard_error), "reference": float(whole.standard_error)},
        "start": float(trace(start)),
    }


def main() -> list[tuple[str, str, str]]:
    jax.config.update("jax_enable_x64", True)
    results = [measure(step_size) for step_size in STEP_SIZES]
    facts = {"slow_time": SLOW_TIME, "seeds": [SEEDS, REFERENCE_SEEDS], "cores": os.cpu_count(), "settings": results}
    save("average", facts)
    rows = []
    for result in results:
        at = f"average: step size {result['step_size']}, "
        away = result["tr_H"]["default"] - result["tr_H"]["reference"]
        errors = result["standard_error"]
        rows += [
            (at + "flow", in_words(result["seconds"]["flow"]), f"{in_words(result['seconds']['compile'])} to compile"),
            (at + "64 seeds of SGD", in_words(result["seconds"]["SGD"]), f"standard error {errors['SGD']:.2g}"),
            (at + "tr H, flow - SGD", f"{away:.2g}", f"standard error {errors['reference']:.2g}"),
            *((f"{at}SGD / {name}", f"{ratio:.3g}x", f"{result['core_ratios'][name]:.3g}x in core seconds, >= {BAR}")
              for name, ratio in result["ratios"].items()),
        ]  # fmt: skip
    return rows
