"""The linear model on whatever device JAX finds: trajectory-steps a second at growing numbers of seeds.

Not part of `make bench`: run `python -m benchmarks accelerator` on a machine with a GPU.
"""

import time

import jax
from benchmarks.harness import save
from benchmarks.linear_model import undertow_loop

STEPS = 20_000


def main() -> list[tuple[str, str, str]]:
    rates = {}
    for seeds in (1024, 16_384, 65_536):
        run = undertow_loop(STEPS, seeds)
        run()
        times = []
        for _ in range(3):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        rates[seeds] = seeds * STEPS / sorted(times)[1]
        print(f"  {seeds} seeds: {rates[seeds]:.3g} trajectory-steps a second", flush=True)
    device = jax.devices()[0]
    save(f"accelerator_{device.platform}", {"trajectory_steps_a_second": rates, "kind": device.device_kind})
    return [(f"linear model on {device.device_kind}, {s} seeds", f"{r:.3g} /s", "") for s, r in rates.items()]
