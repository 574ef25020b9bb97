"""Label-noise SGD on the overparametrised linear model f_i = z_i.(u^2 - v^2), d=100, n=40, one sample per step.

undertow differentiates a generic loss. The numba and NumPy loops have the gradient written by hand and draw random
numbers themselves. PyTorch uses autograd.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from benchmarks.harness import in_words, interleaved, save

D, N, ETA, STRENGTH = 100, 40, 1e-3, 1.0


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(N, D)).astype(np.float32)
    return z, z[:, :5].sum(1)


def predict(p: Any, z: Any) -> Any:
    u, v = p
    return z @ (u**2 - v**2)


def undertow_loop(steps: int, seeds: int | None, lane_width: int | None = None) -> Any:
    z, y = data()
    noise = ut.LabelNoise(ut.Regression(predict, z, y), STRENGTH)
    start = (jnp.full(D, 0.1), jnp.full(D, 0.1))

    def run() -> None:
        result = ut.descend(
            noise, start, step_size=ETA, steps=steps, key=0, seeds=seeds, progress=False, lane_width=lane_width
        )
        jax.block_until_ready(result.params)
        assert not np.any(result.diverged)

    return run


def numba_loop(steps: int) -> Any:
    import numba

    @numba.njit(fastmath=True)
    def sgd(z, y, u, v, eta, strength, steps, seed):
        np.random.seed(seed)  # noqa: NPY002
        n, d = z.shape
        for _ in range(steps):
            i = np.random.randint(n)  # noqa: NPY002
            e = strength if np.random.random() < 0.5 else -strength  # noqa: NPY002
            f = np.float32(0.0)
            for j in range(d):
                f += z[i, j] * (u[j] * u[j] - v[j] * v[j])
            r = np.float32(2.0) * eta * (f - y[i] - e)
            for j in range(d):
                g = r * z[i, j]
                u[j] -= g * u[j]
                v[j] += g * v[j]

    z, y = data()

    def run() -> None:
        u, v = np.full(D, 0.1, np.float32), np.full(D, 0.1, np.float32)
        sgd(z, y, u, v, np.float32(ETA), np.float32(STRENGTH), steps, 0)
        assert np.isfinite(u).all()

    return run


def numpy_loop(steps: int) -> Any:
    z, y = data()

    def run() -> None:
        rng = np.random.default_rng(0)
        u, v = np.full(D, 0.1, np.float32), np.full(D, 0.1, np.float32)
        indices, signs = rng.integers(N, size=steps), rng.choice([-1.0, 1.0], steps).astype(np.float32)
        for i, e in zip(indices, signs, strict=True):
            r = 2 * ETA * (z[i] @ (u * u - v * v) - y[i] - STRENGTH * e)
            g = r * z[i]
            u -= g * u
            v += g * v

    return run


def torch_loop(steps: int, make_optimiser: Callable[[list[Any]], Any] | None = None) -> Any:
    """Return a run of an optimiser of PyTorch, given as a function of the parameters (None: SGD)."""
    import torch

    torch.set_num_threads(1)
    z, y = (torch.from_numpy(x) for x in data())

    def run() -> None:
        generator = torch.Generator().manual_seed(0)
        u = torch.full((D,), 0.1, requires_grad=True)
        v = torch.full((D,), 0.1, requires_grad=True)
        optimiser = torch.optim.SGD([u, v], lr=ETA) if make_optimiser is None else make_optimiser([u, v])
        for _ in range(steps):
            i = torch.randint(N, (), generator=generator)
            e = 2.0 * torch.randint(2, (), generator=generator) - 1.0
            loss = (z[i] @ (u**2 - v**2) - y[i] - STRENGTH * e) ** 2 / 2
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return run


def main() -> list[tuple[str, str, str]]:
    times = interleaved(
        {
            "numba": (numba_loop(2_000_000), 2_000_000),
            "numpy": (numpy_loop(10_000), 10_000),
            "torch": (torch_loop(1_000), 1_000),
            "undertow, one trajectory": (undertow_loop(2_000_000, None), 2_000_000),
            "undertow, 64 seeds": (undertow_loop(100_000, 64), 64 * 100_000),
        }
    )
    one, many = times["undertow, one trajectory"], times["undertow, 64 seeds"]
    ratios = {
        "64 seeds / numba": many / times["numba"],
        "one trajectory / numba": one / times["numba"],
        "torch / 64 seeds": times["torch"] / many,
        "torch / one trajectory": times["torch"] / one,
        "numpy / one trajectory": times["numpy"] / one,
        "numpy / 64 seeds": times["numpy"] / many,
    }
    save("linear_model", {"seconds_per_trajectory_step": times, "ratios": ratios})
    rows = [("linear model: " + name, in_words(value), "per trajectory and step") for name, value in times.items()]
    bars = {"64 seeds / numba": "<= 2", "one trajectory / numba": "<= 3.5", "torch / 64 seeds": ">= 300"}
    return rows + [("linear model: " + name, f"{value:.3g}x", bars.get(name, "")) for name, value in ratios.items()]
