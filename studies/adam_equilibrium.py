"""Where on a symmetry orbit do Adam, AdamW and RMSProp end? Predicted and measured, on f(x) = U (W.x).

    python -m studies.adam_equilibrium

The loss has a rescaling symmetry between U (2 numbers) and W (5 numbers), 64 samples that it does not fit, batches of
one. The measured number is log(|U|/|W|), averaged over the second half of a run. The leading prediction is the point of
the orbit with the least sum of standard deviations (of variances for SGD) plus decay; the corrected one includes the
fluctuations of params and of the metric. In the last table inputs and residuals have Student's t distribution with 5
degrees of freedom, and lambda/eta is fixed.
"""

import argparse
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from studies.results import RESULTS, save
from undertow import SGD, Adam, AdamW, RMSProp
from undertow.optimisers.base import AbstractOptimiser
from undertow.papers.optimisers._equilibria import long_run, predicted
from undertow.papers.optimisers.models.rank_one import rank_one

__all__ = ["TABLES", "Row", "measure", "study", "text"]

NAME = "adam_equilibrium"
FREEDOM = 5.0


class Row(NamedTuple):
    """One setting; `length` multiplies the number of steps."""

    title: str
    optimiser: AbstractOptimiser
    step_size: float
    length: float = 1.0


def _decayed(b2: float, step_sizes: Sequence[float]) -> list[Row]:
    return [
        Row(f"AdamW, lambda = eta = {eta:g}, b2 {b2:g}", AdamW(b2=b2, weight_decay=eta), eta, 0.004 / eta)
        for eta in step_sizes
    ]


TABLES: dict[str, tuple[float, list[Row]]] = {
    "optimisers": (0.0, [
        Row("SGD, eta .004", SGD(), 0.004),
        Row("Adam, eta .004, b2 .9999", Adam(b2=0.9999), 0.004),
        Row("Adam, eta .008, b2 .9999", Adam(b2=0.9999), 0.008),
        Row("AdamW, eta .004, b2 .9999, lambda .001", AdamW(b2=0.9999, weight_decay=0.001), 0.004),
        Row("AdamW, eta .004, b2 .9999, lambda .004", AdamW(b2=0.9999, weight_decay=0.004), 0.004),
        Row("Adam, eta .004, b2 .999", Adam(b2=0.999), 0.004),
        Row("Adam, eta .004, b2 .99", Adam(b2=0.99), 0.004),
    ]),
    "memory of v": (0.0, [
        Row("RMSProp, eta .004, b2 .9999", RMSProp(b2=0.9999), 0.004),
        Row("RMSProp, eta .004, b2 .999", RMSProp(b2=0.999), 0.004),
        Row("RMSProp, eta .002, b2 .999", RMSProp(b2=0.999), 0.002, 2.5),
        Row("RMSProp, eta .004, b2 .99", RMSProp(b2=0.99), 0.004),
        Row("RMSProp, eta .002, b2 .99", RMSProp(b2=0.99), 0.002, 2.5),
    ]),
    "heavier tails": (FREEDOM, [
        *_decayed(0.9999, (0.016, 0.008, 0.004, 0.002)),
        *_decayed(0.99998, (0.004, 0.002)),
    ]),
}  # fmt: skip
"""The degrees of freedom of the data, and the settings, by the title of the table."""


def measure(freedom: float, row: Row, steps: int, seeds: int, data: int = 0) -> dict[str, float | str | bool]:
    """Return the two predictions, the measured mean and the regime of a setting."""
    problem, start = rank_one(jax.random.key(data), freedom=freedom)
    leading, _ = predicted(problem, start, row.optimiser, step_size=row.step_size, corrected=False)
    corrected, end = predicted(problem, start, row.optimiser, step_size=row.step_size)
    count = max(1, round(steps * row.length / 400)) * 400
    run = long_run(
        problem, start, row.optimiser, step_size=row.step_size, steps=count, seeds=seeds, key=jax.random.key(1)
    )
    ratio = end.regime.parameters[0].value if end.regime.parameters else 0.0
    return {
        "setting": row.title, "ratio": ratio, "inside": end.regime.valid, "leading": leading, "corrected": corrected,
        "measured": run.mean, "error": run.error, "steps": count, "relaxation": float(np.max(end.relaxation_steps[0])),
    }  # fmt: skip


def study(steps: int = 4_000_000, seeds: int = 8) -> dict[str, list[dict[str, float | str | bool]]]:
    """Return all tables."""
    return {name: [measure(freedom, row, steps, seeds) for row in rows] for name, (freedom, rows) in TABLES.items()}


def text(tables: dict[str, list[dict]]) -> str:
    """Return the tables in Markdown."""
    lines = []
    for name, rows in tables.items():
        lines += [f"**{name}**", "", "| setting | (1 - b2)/(eta lambda) | leading | corrected | measured |",
                  "|---|---|---|---|---|"]  # fmt: skip
        for row in rows:
            mark = "" if row["inside"] else ", outside"
            lines.append(
                f"| {row['setting']} | {row['ratio']:.2g}{mark} | {row['leading']:.4f} | {row['corrected']:.4f} | "
                f"{row['measured']:.4f} ± {row['error']:.4f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run the study, save its results and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    before = time.perf_counter()
    tables = study(options.steps, options.seeds)
    facts = {"tables": tables, "seeds": options.seeds, "seconds": time.perf_counter() - before}
    save(NAME, facts, RESULTS)
    print(text(tables))


if __name__ == "__main__":
    main()
