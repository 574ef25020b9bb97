"""Matrix sensing at d = 100, m = 8,000: a step by the exact law, with fresh measurements, and with a reused batch."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import undertow as ut
from benchmarks.harness import in_words, interleaved, save
from undertow.sensing.laws import two_point
from undertow.sensing.measurements import FreshMeasurements

D, M, ETA = 100, 8000, 0.05


@eqx.filter_jit
def reused_step(
    u: Float[Array, "d d"], x: Float[Array, "m dd"], sensing: ut.MatrixSensing, sizes: Float[Array, " k"]
) -> Float[Array, "d d"]:
    """Take one step with a fixed batch of measurements, as experiments without the exact law do."""
    target = sensing.problem.residual(u) - sensing.problem.spurious(sizes)
    g = ((x @ target.ravel()) @ x).reshape(u.shape) / x.shape[0]
    return u - ETA * (g @ u)


def sweep(values: int = 14, seeds: int = 50, steps: int = 200) -> float:
    """Return the seconds of the experiment of Figure 3, including compilation."""
    began = time.perf_counter()
    for index in range(values):
        sensing = ut.MatrixSensing(D, M, two_point(1.0, 1.0 + index * 9 / (values - 1)), dtype=jnp.float32)
        ut.descend(sensing, sensing.start(1e-3), step_size=ETA, steps=steps, key=index, seeds=seeds,
                   observe={"measured": sensing.measure}, progress=False)  # fmt: skip
    return time.perf_counter() - began


def main() -> list[tuple[str, str, str]]:
    sensing = ut.MatrixSensing(D, M, two_point(1.0, 5.0), dtype=jnp.float32)
    fresh = FreshMeasurements(sensing, chunk=250)
    start = sensing.start(1e-3)
    x = sensing.ensemble.draw(jax.random.key(0), M, D, jnp.float32).reshape(M, D * D)
    sizes = jnp.ones(1, jnp.float32)
    one = eqx.filter_jit(lambda noise, key, u: u - ETA * noise.draw(key, u))

    def exact(seeds: int | None, steps: int) -> None:
        ut.descend(sensing, start, step_size=ETA, steps=steps, key=0, seeds=seeds, progress=False)

    times = interleaved(
        {
            "exact law, 32 seeds": (lambda: exact(32, 200), 32 * 200),
            "exact law, one trajectory": (lambda: exact(None, 500), 500),
            "reused batch": (
                lambda: [jax.block_until_ready(reused_step(start, x, sensing, sizes)) for _ in range(3)],
                3,
            ),
            "fresh measurements": (lambda: jax.block_until_ready(one(fresh, jax.random.key(1), start)), 1),
        },
        rounds=5,
    )
    fast = times["exact law, 32 seeds"]
    ratios = {"fresh / exact": times["fresh measurements"] / fast, "reused / exact": times["reused batch"] / fast}
    seconds = sweep()
    save("sensing", {"seconds_per_step": times, "ratios": ratios, "figure_3_seconds": seconds})
    rows = [("sensing: " + name, in_words(value), "") for name, value in times.items()]
    rows += [("sensing: fresh measurements / exact law", f"{ratios['fresh / exact']:.4g}x", ">= 1000")]
    rows += [("sensing: reused batch / exact law", f"{ratios['reused / exact']:.3g}x", ">= 200")]
    return [*rows, ("sensing: Figure 3, 14 x 50 runs of 200 steps", in_words(seconds), "<= 120 s")]
