"""The limiting drift and flow: matrix-free against dense, and the flow against SGD up to the same slow time."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import undertow as ut
from benchmarks.harness import in_words, interleaved, peak_mebibytes, save
from undertow.papers.zero_loss.models.linear import LinearModel
from undertow.papers.zero_loss.models.tanh_net import TanhNet


def settled_net(inputs: int, hidden: int, n: int, dtype: Any = jnp.float64) -> tuple[ut.Regression, dict]:
    """Return a tanh network whose labels are its own predictions, so that its params have zero loss."""
    net = TanhNet.draw(jax.random.key(0), inputs=inputs, hidden=hidden, n=n, dtype=dtype)
    problem = ut.Regression(net.problem.predict, net.problem.inputs, net.problem.predictions(net.params))
    return problem, net.params


def dense_drift(problem: ut.Regression, params: dict) -> Callable[[], None]:
    """Return the same drift from the dense Hessian and its D x D x D derivative."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    @jax.jit
    def drift(x: jax.Array) -> jax.Array:
        hessian = jax.hessian(lambda y: problem.loss(unravel(y)))
        values, vectors = jnp.linalg.eigh(hessian(x))
        normal = vectors * (values > 1e-7 * values[-1])
        third = jax.jacfwd(hessian)(x)
        inside = jnp.where((values > 1e-7 * values[-1])[:, None] & (values > 1e-7 * values[-1])[None], 1, 0)
        sums = jnp.where(inside, values[:, None] + values[None], 1)
        solution = vectors @ (inside * (vectors.T @ hessian(x) @ vectors) / sums) @ vectors.T
        gradient = jnp.einsum("ijk,ij->k", third, solution)
        return -(gradient - normal @ (normal.T @ gradient)) / 2

    noise = ut.Limit(ut.LabelNoise(problem, 1.0)).drift(params)
    np.testing.assert_allclose(drift(flat), jax.flatten_util.ravel_pytree(noise)[0], rtol=1e-6, atol=1e-8)
    return lambda: jax.block_until_ready(drift(flat))


def drift_of(noise: ut.AbstractNoise, params: dict) -> Callable[[], None]:
    limit = ut.Limit(noise)

    def run() -> None:
        jax.block_until_ready(limit.drift(params))

    return run


LARGE = "import benchmarks.manifold as m; m.large_drift_alone()"


def large_drift_alone() -> None:
    """Compute one label drift at D = 20,000 and print the peak memory of this process in MiB."""
    jax.config.update("jax_enable_x64", True)
    large, large_params = settled_net(inputs=99, hidden=200, n=20)
    drift_of(ut.LabelNoise(large, 1.0), large_params)()
    print(peak_mebibytes())


def peak_of_large_drift() -> float:
    """Return the peak memory of the large drift, measured in its own process."""
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> list[tuple[str, str, str]]:
    jax.config.update("jax_enable_x64", True)
    problem, params = settled_net(inputs=9, hidden=20, n=20)  # D = 200
    labels = ut.LabelNoise(problem, 1.0)
    large, large_params = settled_net(inputs=99, hidden=200, n=20)  # D = 20,000
    model = LinearModel.draw(jax.random.key(0), d=100, n=40, sparsity=5, dtype=jnp.float64)
    start = model.settle(model.start(1.0))
    flow = ut.Limit(ut.LabelNoise(model.problem, 1.0))
    single = LinearModel.draw(jax.random.key(0), d=100, n=40, sparsity=5)
    steps = round(4.0 / 8e-4**2)

    def solve() -> None:
        jax.block_until_ready(flow.solve(start, slow_time=4.0, num_saves=1).params)

    def descend() -> None:
        ut.descend(ut.LabelNoise(single.problem, 1.0), single.start(1.0), step_size=8e-4, steps=steps, key=0,
                   progress=False)  # fmt: skip

    times = interleaved(
        {
            "label drift, D = 200": (drift_of(labels, params), 1),
            "dense drift, D = 200": (dense_drift(problem, params), 1),
            "label drift, D = 20,000": (drift_of(ut.LabelNoise(large, 1.0), large_params), 1),
            "limiting flow to t = 4, d = 100": (solve, 1),
        },
        rounds=5,
    )
    began = time.perf_counter()
    descend()
    descend_time = time.perf_counter() - began
    ratios = {
        "dense / matrix-free drift, D = 200": times["dense drift, D = 200"] / times["label drift, D = 200"],
        "SGD to t = 4 / limiting flow": descend_time / times["limiting flow to t = 4, d = 100"],
    }
    peak = peak_of_large_drift()
    save("manifold", {"seconds": times | {"SGD to t = 4": descend_time}, "ratios": ratios, "MiB_large_drift": peak})
    rows = [("manifold: " + name, in_words(value), "") for name, value in times.items()]
    rows.append(("manifold: memory of a process with the drift at D = 20,000", f"{peak:.0f} MiB", "< 1024 MiB"))
    bars = dict(zip(ratios, (">= 300", ">= 100"), strict=True))
    assert np.isfinite(list(ratios.values())).all()
    return rows + [("manifold: " + name, f"{value:.3g}x", bars[name]) for name, value in ratios.items()]
