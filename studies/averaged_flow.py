"""The averaged flow beside SGD on an ill-conditioned network: `python -m studies.averaged_flow`.

One tanh layer of width 40 on 30 points of sin(2x), from a random start: the eigenvalues of its kernel fall to 1e-15,
and the Hessian has no sharp rank. The study prints the predicted tr H over that of SGD for each equation of the
fluctuations (`closure=`), at three times, several step sizes and strengths of the label noise, averaged over starts.
"""

import argparse

import jax
import numpy as np

import undertow as ut
from undertow.manifold.fluctuations import CLOSURES
from undertow.papers.optimisers.models.networks import HessianTrace, sine_net

SETTINGS = ((0.04, 1.0), (0.02, 1.0), (0.01, 1.0), (0.005, 1.0), (0.02, 0.5))
TIMES = (100, 300, 600)


def ratios(start: int, step_size: float, strength: float, seeds: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return predicted over measured tr H at the three times for each closure, and SGD's relative standard error."""
    task, params = sine_net(jax.random.key(start))
    noise, observe = ut.LabelNoise(task, strength), {"trace": HessianTrace(task)}
    every = round(100 / step_size)
    run = ut.descend(
        noise, params, step_size=step_size, steps=6 * every, every=every, seeds=seeds, key=start, observe=observe
    )
    index = [t // 100 for t in TIMES]
    sgd = run.series()["trace"]
    table = {}
    for closure in CLOSURES:
        flow = ut.average(noise, params, step_size=step_size, time=600.0, num_saves=6, observe=observe, closure=closure)
        table[closure] = flow.observed["mean_trace"][index] / sgd.mean[index]
    return table, sgd.standard_error[index] / sgd.mean[index]


def main() -> None:
    """Print one table, averaged over the starts."""
    parser = argparse.ArgumentParser(prog="python -m studies.averaged_flow", description=__doc__)
    parser.add_argument("--starts", type=int, default=4, help="number of random starts")
    parser.add_argument("--seeds", type=int, default=64, help="runs of SGD from each start")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| eta, delta | " + " | ".join(CLOSURES) + " | standard error |")
    print("|" + "---|" * (len(CLOSURES) + 2))
    for step_size, strength in SETTINGS:
        results = [ratios(start, step_size, strength, options.seeds) for start in range(options.starts)]
        cells = [
            " ".join(f"{value:.3f}" for value in np.mean([table[closure] for table, _ in results], axis=0))
            for closure in CLOSURES
        ]
        error = np.linalg.norm([e for _, e in results], axis=0) / options.starts
        print(f"| {step_size:g}, {strength:g} | " + " | ".join(cells) + f" | {error.max():.3f} |", flush=True)


if __name__ == "__main__":
    main()
