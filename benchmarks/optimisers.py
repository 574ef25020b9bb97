"""Adam with label noise on the overparametrised linear model f_i = z_i.(u^2 - v^2), d=100, n=40, one sample per step.

The settings are those of `linear_model`. The numba and NumPy loops have the gradient and the update written by hand.
PyTorch uses autograd and `torch.optim.AdamW`, plain and fused.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from benchmarks.harness import in_words, interleaved, save
from benchmarks.linear_model import ETA, STRENGTH, D, N, data, predict, torch_loop

B1, B2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.01
SLOW_TIME = 0.1
"""The slow time of the limiting flow, in which the params move by 7 % of their norm."""
STEP_SIZES = (2e-4, 1e-4, 5e-5)
"""Step sizes at which one run of Adam to that slow time takes SLOW_TIME/step_size^2 steps."""


def undertow_loop(steps: int, seeds: int | None) -> Any:
    z, y = data()
    noise = ut.LabelNoise(ut.Regression(predict, z, y), STRENGTH)
    start = (jnp.full(D, 0.1), jnp.full(D, 0.1))
    optimiser = ut.AdamW(B1, B2, EPS, DECAY)

    def run() -> None:
        result = ut.descend(
            noise, start, optimiser=optimiser, step_size=ETA, steps=steps, key=0, seeds=seeds, progress=False
        )
        jax.block_until_ready(result.params)
        assert not np.any(result.diverged)

    return run


def numba_loop(steps: int) -> Any:
    import numba

    @numba.njit(fastmath=True)
    def adam(z, y, params, m, v, eta, strength, steps, seed):
        np.random.seed(seed)  # noqa: NPY002
        n, d = z.shape
        one = np.float32(1.0)
        b1, b2, eps, kept = np.float32(B1), np.float32(B2), np.float32(EPS), one - eta * np.float32(DECAY)
        power1, power2 = 1.0, 1.0
        for _ in range(steps):
            i = np.random.randint(n)  # noqa: NPY002
            e = strength if np.random.random() < 0.5 else -strength  # noqa: NPY002
            power1, power2 = power1 * B1, power2 * B2
            step, root = np.float32(eta / (1 - power1)), np.float32(1 / np.sqrt(1 - power2))
            f = np.float32(0.0)
            for j in range(d):
                f += z[i, j] * (params[0, j] * params[0, j] - params[1, j] * params[1, j])
            r = np.float32(2.0) * (f - y[i] - e)
            for side in range(2):
                sign = one if side == 0 else -one
                for j in range(d):
                    g = sign * r * z[i, j] * params[side, j]
                    m[side, j] = b1 * m[side, j] + (one - b1) * g
                    v[side, j] = b2 * v[side, j] + (one - b2) * g * g
                    update = step * m[side, j] / (np.sqrt(v[side, j]) * root + eps)
                    params[side, j] = kept * params[side, j] - update

    z, y = data()

    def run() -> None:
        params, m, v = np.full((2, D), 0.1, np.float32), np.zeros((2, D), np.float32), np.zeros((2, D), np.float32)
        adam(z, y, params, m, v, np.float32(ETA), np.float32(STRENGTH), steps, 0)
        assert np.isfinite(params).all()

    return run


def numpy_loop(steps: int) -> Any:
    z, y = data()

    def run() -> None:
        rng = np.random.default_rng(0)
        params, m, v = np.full((2, D), 0.1, np.float32), np.zeros((2, D), np.float32), np.zeros((2, D), np.float32)
        indices, signs = rng.integers(N, size=steps), rng.choice([-1.0, 1.0], steps).astype(np.float32)
        for t, (i, e) in enumerate(zip(indices, signs, strict=True), 1):
            u, w = params
            r = 2 * (z[i] @ (u * u - w * w) - y[i] - STRENGTH * e)
            g = np.stack([r * z[i] * u, -r * z[i] * w])
            m = B1 * m + (1 - B1) * g
            v = B2 * v + (1 - B2) * g * g
            params = (1 - ETA * DECAY) * params
            params -= ETA / (1 - B1**t) * m / (np.sqrt(v / (1 - B2**t)) + EPS)

    return run


def torch_adamw(steps: int, fused: bool) -> Any:
    import torch

    settings = {"lr": ETA, "betas": (B1, B2), "eps": EPS, "weight_decay": DECAY, "fused": fused}
    return torch_loop(steps, lambda params: torch.optim.AdamW(params, **settings))


def limit_solver(step_size: float) -> Callable[[float | None], tuple[np.ndarray, np.ndarray]]:
    """Return a function that solves the flow of Adam in (theta, v) up to SLOW_TIME and returns its start and end."""
    with jax.enable_x64(True):
        z, y = (jnp.asarray(x, float) for x in data())
        task = ut.Regression(predict, z, y)
        start = ut.settle(task, (jnp.ones(D), jnp.ones(D)), tolerance=1e-10).params
        limit = ut.Limit(ut.LabelNoise(task, STRENGTH), optimiser=ut.Adam(B1, 1 - 100 * step_size**2, 1e-3))

    def solve(tolerance: float | None) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            path = limit.solve(start, slow_time=SLOW_TIME, step_size=step_size, num_saves=1, tolerance=tolerance)
            return np.concatenate(start), np.concatenate(path.params)

    return solve


def solver_error(solve: Callable[[float | None], tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the distance of the end to that of a solution with the tolerance 1e-9, over the distance moved."""
    (start, end), (_, tight) = solve(None), solve(1e-9)
    return float(np.linalg.norm(end - tight) / np.linalg.norm(tight - start))


def main() -> list[tuple[str, str, str]]:
    limits = {step_size: limit_solver(step_size) for step_size in STEP_SIZES}
    times = interleaved(
        {
            "numba": (numba_loop(500_000), 500_000),
            "numpy": (numpy_loop(5_000), 5_000),
            "torch": (torch_adamw(1_000, fused=False), 1_000),
            "torch, fused": (torch_adamw(1_000, fused=True), 1_000),
            "undertow, one trajectory": (undertow_loop(500_000, None), 500_000),
            "undertow, 64 seeds": (undertow_loop(50_000, 64), 64 * 50_000),
            **{f"limit at step size {step_size:g}": (partial(solve, None), 1) for step_size, solve in limits.items()},
        }
    )
    load = os.getloadavg()[0]
    one, many = times["undertow, one trajectory"], times["undertow, 64 seeds"]
    ratios = {
        "64 seeds / numba": many / times["numba"],
        "one trajectory / numba": one / times["numba"],
        "torch / 64 seeds": times["torch"] / many,
        "torch, fused / 64 seeds": times["torch, fused"] / many,
        "torch, fused / one trajectory": times["torch, fused"] / one,
        "numpy / 64 seeds": times["numpy"] / many,
    }
    seconds = {
        f"limit at step size {step_size:g}": times.pop(f"limit at step size {step_size:g}") for step_size in limits
    }
    for step_size, limit in zip(limits, seconds.values(), strict=True):
        steps = SLOW_TIME / step_size**2
        ratios[f"one run to slow time {SLOW_TIME} at step size {step_size:g} / limit"] = steps * one / limit
    errors = {f"step size {step_size:g}": solver_error(solve) for step_size, solve in limits.items()}
    facts = {"seconds_per_trajectory_step": times, "limit_seconds": seconds, "ratios": ratios}
    remark = f"The load of the machine by all programs was {load:.1f}."
    save("optimisers", facts | {"solver_error_of_the_limit_over_distance_moved": errors, "remark": remark})
    rows = [("AdamW: " + name, in_words(value), "per trajectory and step") for name, value in times.items()]
    bars = {"64 seeds / numba": "<= 2.5", "torch, fused / 64 seeds": ">= 500", "torch / 64 seeds": ">= 500"}
    for step_size in STEP_SIZES[1:]:
        bars[f"one run to slow time {SLOW_TIME} at step size {step_size:g} / limit"] = ">= 50"
    rows += [("AdamW: " + name, f"{value:.3g}x", bars.get(name, "")) for name, value in ratios.items()]
    name = "AdamW: solver error of the limit over the distance moved, "
    return rows + [(name + setting, f"{error:.1g}", "<= 0.001") for setting, error in errors.items()]
