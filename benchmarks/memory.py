"""Memory of a long run: the resident size up to and after a tenth of 1e7 observed steps of the linear model."""

import os

import jax.numpy as jnp

import undertow as ut
from benchmarks.harness import save
from benchmarks.linear_model import ETA, STRENGTH, D, data, predict

STEPS = 10_000_000


def resident() -> float:
    """Return the resident memory of this process in MiB (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> list[tuple[str, str, str]]:
    z, y = data()
    noise = ut.LabelNoise(ut.Regression(predict, z, y), STRENGTH)
    start = (jnp.full(D, 0.1), jnp.full(D, 0.1))
    sizes: list[tuple[int, float]] = []
    ut.descend(
        noise, start, step_size=ETA, steps=STEPS, key=0, every=100_000, observe={"w": lambda p: p[0] ** 2 - p[1] ** 2},
        progress=lambda done, total: sizes.append((done, resident())),
    )  # fmt: skip
    early = max(size for done, size in sizes if done <= STEPS // 10)
    late = max(size for done, size in sizes if done > STEPS // 10)
    save("memory", {"steps": STEPS, "MiB_up_to_a_tenth": early, "MiB_after": late})
    return [("memory: growth from step 1e6 to 1e7", f"{late - early:+.1f} MiB", f"of {late:.0f} MiB")]
