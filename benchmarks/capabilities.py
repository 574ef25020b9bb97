"""Cost and memory of each level against the size and the conditioning of the problem, and the messages of calls beyond
the limits. One case per process, on one core; compilation is listed apart."""

import functools
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from benchmarks.harness import in_words, peak_mebibytes, save
from undertow.grouped.icp import icp

EQUATIONS = 20
Facts = dict[str, Any]


def timed(function: Callable[[], Any]) -> tuple[Any, Facts]:
    """Return the result of a second call, its CPU seconds, those of the first call, and the peak memory."""
    began = time.process_time()
    jax.block_until_ready(function())
    first = time.process_time() - began
    began = time.process_time()
    result = jax.block_until_ready(function())
    seconds = time.process_time() - began
    return result, {"seconds": seconds, "first_call_seconds": first, "MiB": peak_mebibytes()}


def factored(parameters: int) -> tuple[ut.LabelNoise, dict[str, jax.Array]]:
    """Return label noise for regression on w = u^2 - v^2 with 20 equations, and a start away from the minimisers."""
    inputs = jax.random.normal(jax.random.key(0), (EQUATIONS, parameters // 2)) / parameters**0.5
    problem = ut.Regression(lambda p, x: x @ (p["u"] ** 2 - p["v"] ** 2), inputs, inputs[:, 0])
    return ut.LabelNoise(problem), {"u": jnp.full(parameters // 2, 1.0), "v": jnp.full(parameters // 2, 0.9)}


def dense(parameters: int) -> tuple[ut.Minibatch, jax.Array]:
    """Return minibatch noise of a logistic regression, whose Hessian has no such structure."""
    inputs = jax.random.normal(jax.random.key(0), (200, parameters)) / parameters**0.5
    problem = ut.Problem(lambda w, x: jax.nn.softplus(-(w @ x)) + 0.05 * (w @ w) / parameters, inputs)
    return ut.Minibatch(problem, 1), jnp.zeros(parameters)


def descend(parameters: int, seeds: int, steps: int) -> Facts:
    noise, start = factored(parameters)
    run = lambda: ut.descend(noise, start, step_size=0.01, steps=steps, key=0, seeds=seeds, progress=False).params
    facts = timed(run)[1]
    return facts | {"seconds_per_step_and_seed": facts["seconds"] / (steps * seeds)}


def diffuse(parameters: int, seeds: int, steps: int) -> Facts:
    noise, start = factored(parameters)
    run = lambda: ut.diffuse(noise, start, step_size=0.01, time=0.01 * steps, key=0, seeds=seeds, progress=False).params
    facts = timed(run)[1]
    return facts | {"seconds_per_step_and_seed": facts["seconds"] / (steps * seeds)}


def observations(seeds: int, count: int) -> Facts:
    """Memory of a run that records one number per seed and observation."""
    noise, start = factored(20)
    run = functools.partial(ut.descend, noise, start, step_size=0.01, key=0, seeds=seeds, progress=False)
    run(steps=1000)
    before = peak_mebibytes()
    result = run(steps=count, every=1, observe={"u": lambda p: p["u"][0]})
    return {"recorded_MiB": result.observed["u"].nbytes / 2**20, "peak_growth_MiB": peak_mebibytes() - before}


def average(kind: str, parameters: int) -> Facts:
    noise, start = factored(parameters) if kind == "regression" else dense(parameters)
    flow = lambda: ut.average(noise, start, step_size=0.01, time=10.0, num_saves=1, estimate_error=False).params
    return timed(flow)[1]


def limit(parameters: int) -> Facts:
    noise, start = factored(parameters)
    start = ut.settle(noise.problem, start).params
    return timed(lambda: ut.Limit(noise).solve(start, slow_time=1.0, num_saves=1).params)[1]


def settle(condition: float) -> Facts:
    """Least squares with curvatures from 1 down to 1/condition, in double precision."""
    scales = jnp.logspace(0, -jnp.log10(condition) / 2, EQUATIONS) * EQUATIONS**0.5
    turn = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (EQUATIONS, EQUATIONS)))[0]
    inputs = scales[:, None] * turn  # the eigenvectors of the Hessian are the rows of `turn`
    problem = ut.Regression(lambda w, x: x @ w, inputs, inputs.sum(axis=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the resolution is recorded instead
        end, facts = timed(lambda: ut.settle(problem, jnp.zeros(EQUATIONS)))
    error = float(jnp.max(jnp.abs(end.params - 1)))
    return facts | {"resolution": float(end.resolution), "error": error}


def symmetries(hidden: int) -> Facts:
    """A two-layer ReLU network: the search for its symmetries, and their equilibrium."""
    inputs = 16
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"in": jax.random.normal(keys[0], (hidden, inputs)), "out": jax.random.normal(keys[1], (hidden,)) / hidden}
    data = (jax.random.normal(keys[2], (512, inputs)), jnp.ones(512))
    problem = ut.Problem(lambda p, s: (p["out"] @ jax.nn.relu(p["in"] @ s[0]) - s[1]) ** 2, data)
    began = time.process_time()
    found = ut.find_symmetries(problem, params, key=0)
    search = time.process_time() - began
    began = time.process_time()
    end = ut.equilibrium(ut.Minibatch(problem, 8), params, tuple(found), step_size=0.01)
    balance = time.process_time() - began
    generators = sum(symmetry.dimension(params) for symmetry in found)
    return {"parameters": hidden * (inputs + 1), "generators": int(generators), "search_seconds": search,
            "equilibrium_seconds": balance, "residual": float(end.residual), "MiB": peak_mebibytes()}  # fmt: skip


def grouped(rows: int, columns: int) -> Facts:
    """One fit of `InvariantRegressor` to rows in four groups."""
    rng = np.random.default_rng(0)
    groups = np.arange(rows) % 4
    inputs = rng.normal(size=(rows, columns))
    target = inputs[:, 0] + rng.normal(size=rows)
    inputs[:, 1] = target * (groups - 1.5) + rng.normal(size=rows)
    began = time.process_time()
    model = ut.InvariantRegressor().fit(inputs, target, groups)
    seconds = time.process_time() - began
    return {"seconds": seconds, "chosen": np.flatnonzero(model.support_).tolist(), "MiB": peak_mebibytes()}


CASES: dict[str, tuple[Callable[..., Facts], list[dict[str, Any]]]] = {
    "descend": (descend, [
        {"parameters": 20, "seeds": 100, "steps": 20_000}, {"parameters": 2000, "seeds": 16, "steps": 2000},
        {"parameters": 200_000, "seeds": 1, "steps": 500},
    ]),
    "diffuse": (diffuse, [
        {"parameters": 20, "seeds": 100, "steps": 2000}, {"parameters": 2000, "seeds": 16, "steps": 500},
    ]),
    "observations": (observations, [{"seeds": 100, "count": 10_000}, {"seeds": 100, "count": 100_000}]),
    "average": (average, [
        *({"kind": "regression", "parameters": n} for n in (400, 4000, 40_000)),
        *({"kind": "other", "parameters": n} for n in (20, 80)),
    ]),
    "limit": (limit, [{"parameters": n} for n in (400, 4000, 40_000)]),
    "settle": (settle, [{"condition": c} for c in (1e3, 1e5, 1e7)]),
    "symmetries": (symmetries, [{"hidden": n} for n in (32, 256)]),
    "grouped": (grouped, [
        {"rows": 1000, "columns": 10}, {"rows": 1_000_000, "columns": 10}, {"rows": 1000, "columns": 60},
    ]),
}  # fmt: skip
"""The measurements by name, each with the arguments of its cases."""

DOUBLE = {"settle", "limit", "average"}
"""Measurements in double precision."""


def message(call: Callable[[], Any]) -> str:
    """Return the sentence of the error that a call raises."""
    try:
        call()
    except (ValueError, TypeError) as error:
        return str(error).split("\n")[0]
    raise AssertionError("the call was not refused")


def refusals() -> dict[str, str]:
    """Return the sentences with which calls beyond the limits are refused; those of PyTorch need PyTorch."""
    noise, start = factored(20)
    wide, origin = dense(501)
    fits, point = factored(5000)
    other = ut.Minibatch(
        ut.Problem(lambda p, s: (s[0] @ (p["u"] ** 2 - p["v"] ** 2) - s[1]) ** 2, fits.problem.data), 1
    )
    population = ut.Population(lambda w, x: (w - x) ** 2 / 2, jax.random.normal)
    calls = {
        "descend": lambda: ut.descend(noise, start, key=0, step_size=-0.1, steps=10),
        "average": lambda: ut.average(wide, origin, step_size=0.01, time=1.0),
        "Limit": lambda: ut.Limit(other).drift(point),
        "settle": lambda: ut.settle(population, jnp.array(0.0)),
        "icp": lambda: icp(np.eye(60, 15), np.arange(60.0), np.arange(60) % 2),
        "sweep": lambda: ut.sweep(lambda key, *, x: {"y": x}, {"x": {"linear": [0, 1, 10**9]}}),
    }
    return {name: message(call) for name, call in calls.items()} | (torch_refusals() if find_spec("torch") else {})


def torch_refusals() -> dict[str, str]:
    import torch

    from undertow.torch import NoiseMonitor, census, equilibrate

    net = torch.nn.Linear(2, 1)
    loss = lambda model, x: model(x).square().mean()
    batch = torch.ones(4, 2)
    turned = torch.nn.Linear(2, 1, dtype=torch.complex64)
    calls = {
        "census": lambda: census(turned, batch, lambda model, x: model(x.to(torch.complex64)).abs().mean()),
        "NoiseMonitor": lambda: NoiseMonitor(torch.nn.DataParallel(net)),
        "equilibrate": lambda: equilibrate(net, [batch], loss, census(net, batch, loss), step_size=0.1),
    }
    return {name: message(call) for name, call in calls.items()}


def in_own_process(name: str, arguments: dict[str, Any]) -> Facts:
    """Return the facts of one case, measured in a new process on one core."""
    command = [sys.executable, "-m", "benchmarks.capabilities", name, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NPROC": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"{name} {arguments}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> list[tuple[str, str, str]]:
    if find_spec("torch") is None:
        raise ImportError("the stored refusals include those of PyTorch: pip install -e '.[bench]'")
    began = time.perf_counter()
    facts: Facts = {name: [arguments | in_own_process(name, arguments) for arguments in cases]
                    for name, (_, cases) in CASES.items()}  # fmt: skip
    facts |= {"refusals": refusals(), "load": os.getloadavg()[0]}
    save("capabilities", facts)
    return [("capabilities: all cases", in_words(time.perf_counter() - began), f"load {facts['load']:.1f}")]


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    jax.config.update("jax_enable_x64", sys.argv[1] in DOUBLE)
    print(json.dumps(CASES[sys.argv[1]][0](**json.loads(sys.argv[2]))))
