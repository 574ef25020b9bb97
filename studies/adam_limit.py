"""The limiting flow of Adam beside runs of Adam with label noise: `python -m studies.adam_limit`.

The model is u^2 - v^2 with 20 unknowns and 10 equations with inputs +-1, Sigma = 2 H, batches of one, from zero loss
near u = v = 0.8 up to slow time 0.3. Distances are those of the mean end of the runs on the manifold from the end of a
flow, in units of the params; each run ends by the flow -S grad L with its last metric S.

The first table is at kappa = (1 - b2)/eta^2 = 20, with and without momentum. The second one has the corrections for a
finite step size one after the other.
"""

import argparse

import jax
import numpy as np

from undertow import _trees as trees
from undertow.papers.optimisers.models.adam_probe import AdamProbe, draw_probe, predict_adam, run_adam

SLOW_TIME = 0.3
STEP_SIZES = (0.004, 0.002, 0.001)
SETTINGS = ((20, 0.004), (20, 0.001), (200, 0.004), (200, 0.001), (2000, 0.001))
FLOWS = {"plain": False, "fluctuating metric": ("fluctuating_metric",), "both": True}


def first_table(probe: AdamProbe, seeds: int) -> None:
    """Print the distances at kappa = 20 for three step sizes, without and with momentum."""
    print("| b1, eta | distance moved | plain flow | both corrections | standard error |")
    print("|" + "---|" * 5)
    begin = np.asarray(trees.ravel(probe.start))
    for b1 in (0.0, 0.9):
        for eta in STEP_SIZES:
            settings = (b1, 1 - 20 * eta**2, eta, SLOW_TIME)
            ends = run_adam(probe, *settings, seeds, jax.random.key(1))
            far = [np.linalg.norm(predict_adam(probe, *settings, flow) - ends.mean) for flow in (False, True)]
            length = np.linalg.norm(ends.mean - begin)
            print(
                f"| {b1:g}, {eta:g} | {length:.2f} | {far[0]:.4f} | {far[1]:.4f} | {ends.standard_error:.4f} |",
                flush=True,
            )


def second_table(probe: AdamProbe, seeds: int) -> None:
    """Print the distances from the flows without, with one and with both corrections, and tr diag(H)^(1/2)."""
    names = list(FLOWS)
    print(f"| kappa, eta, 1 - b2, ratio | {' | '.join(names)} | standard error | tr diag(H)^1/2: plain, both, Adam |")
    print("|" + "---|" * (len(names) + 3))
    unravel = jax.flatten_util.ravel_pytree(probe.start)[1]
    least = probe.least_curvature(probe.start)
    for kappa, eta in SETTINGS:
        settings = (0.0, 1 - kappa * eta**2, eta, SLOW_TIME)
        ends = run_adam(probe, *settings, seeds, jax.random.key(1))
        flows = {name: predict_adam(probe, *settings, corrections) for name, corrections in FLOWS.items()}
        far = " | ".join(f"{np.linalg.norm(end - ends.mean):.4f}" for end in flows.values())
        traces = ", ".join(f"{float(probe.trace(unravel(flows[name]))):.3f}" for name in ("plain", "both"))
        error = ends.traces.std(ddof=1) / seeds**0.5
        row = (
            f"| {kappa}, {eta:g}, {kappa * eta**2:.2g}, {kappa * eta / least:.2g} | {far} | {ends.standard_error:.4f} "
        )
        print(f"{row}| {traces}, {ends.traces.mean():.3f} +- {error:.3f} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.adam_limit", description=__doc__)
    parser.add_argument("--seeds", type=int, default=16, help="runs of Adam for each row")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    probe = draw_probe(jax.random.key(0))
    first_table(probe, options.seeds)
    print()
    second_table(probe, options.seeds)


if __name__ == "__main__":
    main()
