"""AdamW with many seeds on the default device of JAX, on the linear model of `optimisers`.

Not part of `make bench`: run `python -m benchmarks optimisers_accelerator` on a machine with a GPU.
"""

import jax

from benchmarks.accelerator import STEPS, median_seconds
from benchmarks.harness import save
from benchmarks.optimisers import undertow_loop


def main() -> list[tuple[str, str, str]]:
    rates = {}
    for seeds in (1024, 16_384, 65_536):
        rates[seeds] = seeds * STEPS / median_seconds(undertow_loop(STEPS, seeds))
        print(f"  {seeds} seeds: {rates[seeds]:.3g} steps per second", flush=True)
    device = jax.devices()[0]
    save(f"optimisers_{device.platform}", {"trajectory_steps_per_second": rates, "kind": device.device_kind})
    bars = {65_536: ">= 5e8 on an H200"}
    return [
        (f"AdamW on {device.device_kind}, {seeds} seeds", f"{rate:.3g} /s", bars.get(seeds, ""))
        for seeds, rate in rates.items()
    ]
