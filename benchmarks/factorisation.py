"""Minibatch SGD on the matrix factorisation |U W x - y|^2, U 30 x 40, W 40 x 30, batches of 10, 16 seeds."""

from typing import Any

import jax
import numpy as np

import undertow as ut
from benchmarks.harness import in_words, interleaved, save

OUTER, INNER, N, S, ETA, SEEDS = 30, 40, 1000, 10, 1e-3, 16


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, OUTER)).astype(np.float32)
    y = x + 0.1 * rng.normal(size=(N, OUTER)).astype(np.float32)
    u = rng.normal(size=(OUTER, INNER)).astype(np.float32) / INNER**0.5
    w = rng.normal(size=(INNER, OUTER)).astype(np.float32) / OUTER**0.5
    return x, y, u, w


def loss(p: Any, sample: Any) -> Any:
    x, y = sample
    r = p["U"] @ (p["W"] @ x) - y
    return r @ r


def undertow_loop(steps: int) -> Any:
    x, y, u, w = data()
    noise = ut.Minibatch(ut.Problem(loss, (x, y)), S)

    def run() -> None:
        result = ut.descend(noise, {"U": u, "W": w}, step_size=ETA, steps=steps, key=0, seeds=SEEDS, progress=False)
        jax.block_until_ready(result.params)
        assert not np.any(result.diverged)

    return run


def torch_loop(steps: int) -> Any:
    import torch

    torch.set_num_threads(2)
    x, y, u0, w0 = (torch.from_numpy(a) for a in data())

    def run() -> None:
        generator = torch.Generator().manual_seed(0)
        u, w = u0.clone().requires_grad_(), w0.clone().requires_grad_()
        optimiser = torch.optim.SGD([u, w], lr=ETA)
        for _ in range(steps):
            i = torch.randint(N, (S,), generator=generator)
            value = ((x[i] @ w.T @ u.T - y[i]) ** 2).sum(1).mean()
            optimiser.zero_grad()
            value.backward()
            optimiser.step()

    return run


def main() -> list[tuple[str, str, str]]:
    times = interleaved({"torch": (torch_loop(500), 500), "undertow": (undertow_loop(2000), 2000 * SEEDS)})
    ratio = times["torch"] / times["undertow"]
    save("factorisation", {"seconds_per_trajectory_step": times, "ratios": {"torch / 16 seeds": ratio}})
    return [
        ("factorisation: torch", in_words(times["torch"]), "per step"),
        ("factorisation: undertow, 16 seeds", in_words(times["undertow"]), "per trajectory and step"),
        ("factorisation: torch / 16 seeds", f"{ratio:.3g}x", ">= 10"),
    ]
