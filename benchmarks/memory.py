"""The memory of a long run: resident size after 1e6 and after 1e7 steps of the linear model, observed as it goes."""

import os

import jax.numpy as jnp

import undertow as ut
from benchmarks.harness import save
from benchmarks.linear_model import ETA, STRENGTH, D, data, predict

STEPS = 10_000_000


def resident() -> float:
    """MiB in memory now (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> list[tuple[str, str, str]]:
    z, y = data()
    noise = ut.LabelNoise(ut.Regression(predict, z, y), STRENGTH)
    start = (jnp.full(D, 0.1), jnp.full(D, 0.1))
    seen: list[tuple[int, float]] = []
    ut.descend(
        noise, start, step_size=ETA, steps=STEPS, key=0, every=100_000, observe={"w": lambda p: p[0] ** 2 - p[1] ** 2},
        progress=lambda done, total: seen.append((done, resident())),
    )  # fmt: skip
    early = max(size for done, size in seen if done <= STEPS // 10)
    late = max(size for done, size in seen if done > STEPS // 10)
    save("memory", {"steps": STEPS, "MiB_up_to_a_tenth": early, "MiB_after": late})
    return [("memory: growth from step 1e6 to 1e7", f"{late - early:+.1f} MiB", f"of {late:.0f} MiB")]
