"""The averaged flow against 64 seeds of SGD up to the same time: tr H of a tanh network of width 40 on 30 points of
sin(2x), label noise of strength 1, one sample per step, double precision, at the slow time steps * step_size^2 = 10.
The error of the flow is not estimated, which is the default for these 120 parameters. The error of the solver is
measured on five problems, as the distance of its solution to that with a small tolerance, over the length of the path.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from benchmarks.harness import in_words, interleaved, save
from undertow.manifold.averaged import TOLERANCE
from undertow.papers.zero_loss.models.linear import LinearModel

STEP_SIZES = (0.01, 0.005, 0.002)
SLOW_TIME = 10.0
SEEDS = 64
REFERENCE_SEEDS = 256
TIMED_STEPS = 20_000
"""The number of steps of SGD in each round; the cost of a whole run is proportional to its number of steps."""
BAR = 50
TOLERANCES = (1e-3, 1e-4, TOLERANCE)
FINEST = 1e-8
"""The tolerance of the reference, in double precision."""


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

    def solve() -> ut.Trajectory:
        return ut.average(noise, start, step_size=step_size, time=steps * step_size, observe=observe, num_saves=1,
                          estimate_error=False)  # fmt: skip

    def descend(steps: int, seeds: int) -> ut.Trajectory:
        return ut.descend(noise, start, step_size=step_size, steps=steps, key=1, seeds=seeds, observe=observe,
                          progress=False)  # fmt: skip

    began = time.perf_counter()
    solve()
    first = time.perf_counter() - began
    programs = {
        "flow": (solve, 1),
        "SGD": (lambda: descend(TIMED_STEPS, SEEDS), TIMED_STEPS / steps),
    }
    times, cores = interleaved(programs), interleaved(programs, clock=time.process_time)
    load = os.getloadavg()[0]
    against = lambda seconds: {name: seconds["SGD"] / seconds[name] for name in seconds if name != "SGD"}
    runs = descend(steps, seeds)
    flow = solve()
    whole, few = (ut.Estimate.of(runs.observed["tr H"][:count, -1]) for count in (seeds, SEEDS))
    return {
        "step_size": step_size,
        "steps": steps,
        "seconds": times | {"compile": first - times["flow"]},
        "core_seconds": cores,
        "ratios": against(times),
        "core_ratios": against(cores),
        "load": load,
        "solver_steps": int(flow.facts["solver_steps"]),
        "tr_H": {
            "flow": float(flow.observed["mean_tr H"][-1]),
            "SGD": float(few.value),
            "reference": float(whole.value),
        },
        "standard_error": {"SGD": float(few.standard_error), "reference": float(whole.standard_error)},
        "start": float(trace(start)),
    }


def problems() -> dict[str, tuple[ut.AbstractNoise, Any, dict[str, Any]]]:
    """Return the noise, the start and the settings of each problem of the error of the solver."""
    tanh, start, _ = network()
    product = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.ones(1), jnp.ones(1))
    sparse = LinearModel.draw(jax.random.key(3), d=100, n=40, sparsity=5, dtype=jnp.float64)
    keys = jax.random.split(jax.random.key(5), 4)
    x, y = jax.random.normal(keys[0], (60, 6)), jax.random.normal(keys[1], (60, 3))
    layers = ut.Minibatch(ut.Regression(lambda p, x: p[1] @ (p[0] @ x), x, y), 4)
    factors = (0.7 * jax.random.normal(keys[2], (4, 6)), 0.3 * jax.random.normal(keys[3], (3, 4)))
    adam = {"optimiser": ut.Adam(b2=0.99)}
    return {
        "tanh network, label noise": (tanh, start, {"step_size": 0.02, "time": 600.0}),
        "uv = 1, label noise": (
            ut.LabelNoise(product, 1.0),
            jnp.array([2.0, 0.5]),
            {"step_size": 0.0025, "time": 800.0},
        ),
        "sparse regression, label noise": (
            ut.LabelNoise(sparse.problem, 1.0),
            sparse.start(1.0),
            {"step_size": 0.002, "time": 400.0},
        ),
        "two linear layers, minibatches": (layers, factors, {"step_size": 0.02, "time": 200.0}),
        "two linear layers, minibatches, Adam": (layers, factors, {"step_size": 0.001, "time": 20.0} | adam),
    }


def solver_errors(noise: ut.AbstractNoise, start: Any, settings: dict[str, Any]) -> dict[str, list[float]]:
    """Return the largest distance to the reference at nine times, over the length of its path, by precision."""
    flat = lambda p: jax.flatten_util.ravel_pytree(p)[0]
    plain = {} if "optimiser" in settings else {"estimate_error": False}

    def solve(tolerance: float) -> np.ndarray:
        arguments = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)) if eqx.is_array(x) else x, (noise, start))
        flow = ut.average(
            *arguments, **settings, **plain, observe={"p": flat}, num_saves=8, tolerance=tolerance, max_steps=100_000
        )
        return np.asarray(flow.observed["p"], float)

    reference = solve(FINEST)
    length = np.linalg.norm(np.diff(reference, axis=0), axis=1).sum()
    errors = {}
    for precision in ("double", "single"):
        with jax.enable_x64(precision == "double"):
            paths = [solve(tolerance) for tolerance in TOLERANCES]
        errors[precision] = [float(np.linalg.norm(path - reference, axis=1).max() / length) for path in paths]
    return errors


def main() -> list[tuple[str, str, str]]:
    jax.config.update("jax_enable_x64", True)
    results = [measure(step_size) for step_size in STEP_SIZES]
    solver = {name: solver_errors(*problem) for name, problem in problems().items()}
    facts = {
        "slow_time": SLOW_TIME,
        "seeds": [SEEDS, REFERENCE_SEEDS],
        "cores": os.cpu_count(),
        "settings": results,
        "solver": {"tolerances": TOLERANCES, "finest": FINEST, "errors": solver},
    }
    save("average", facts)
    rows = []
    for result in results:
        at = f"average: step size {result['step_size']}, "
        away = result["tr_H"]["flow"] - result["tr_H"]["reference"]
        errors = result["standard_error"]
        rows += [
            (at + "flow", in_words(result["seconds"]["flow"]), f"{in_words(result['seconds']['compile'])} to compile"),
            (at + "64 seeds of SGD", in_words(result["seconds"]["SGD"]), f"standard error {errors['SGD']:.2g}"),
            (at + "tr H, flow - SGD", f"{away:.2g}", f"standard error {errors['reference']:.2g}"),
            *((f"{at}SGD / {name}", f"{ratio:.3g}x", f"{result['core_ratios'][name]:.3g}x in core seconds, >= {BAR}")
              for name, ratio in result["ratios"].items()),
        ]  # fmt: skip
    for name, found in solver.items():
        rows += [
            (f"average: {name}", f"{found[precision][-1]:.1e}", f"error of the solver, {precision} precision, <= 1e-3")
            for precision in found
        ]
    return rows
