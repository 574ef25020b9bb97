"""How often the test of invariance rejects a true model and a wrong one, beside a test that assumes simpler noise."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import chi2

from undertow.grouped.data import Moments, moments_of
from undertow.grouped.designs import DESIGNS, grouped_design
from undertow.grouped.invariance import invariance_test

LEVEL = 0.05
TRUE_MODELS = 1000
DATA_SETS = 200
GROUPS = 5
SLOPES = np.array([1.0, 0.5, 0.0, -0.5])

Shape = Callable[[np.ndarray, int], Any]
NOISES: dict[str, Shape] = {
    "1": lambda x, e: 1.0,
    "its own in each group": lambda x, e: (0.2, 1.0, 5.0, 2.0, 0.5)[e],
    "sqrt(1 + x^2)": lambda x, e: np.sqrt(1 + x**2),
    "abs(x)": lambda x, e: np.abs(x),
    "abs(x) in one group, else 1": lambda x, e: np.abs(x) if e == 0 else 1.0,
    "exp(x)": lambda x, e: np.exp(x),
    "abs(x), skewed noise": lambda x, e: np.abs(x),
    "abs(x), x with heavy tails": lambda x, e: np.abs(x),
}
"""Standard deviation of the noise in group e, as a function of the first column in its group's own units."""


def assuming_independence(moments: Moments, support: np.ndarray) -> float:
    """The p-value of sum_e (n_e/R_e) E_e[z r]' E_e[z z']^-1 E_e[z r], chi-squared if noise does not depend on x."""
    fit = invariance_test(moments, support)
    chosen = np.concatenate([[0], 1 + np.flatnonzero(support)])
    beta = np.concatenate([[fit.intercept], fit.coef[support]])
    statistic = 0.0
    for e, size in enumerate(moments.sizes):
        second, cross = moments.joint[e][np.ix_(chosen, chosen)], moments.joint[e][chosen, -1]
        left = cross - second @ beta
        noise = moments.power[e] - 2 * cross @ beta + beta @ second @ beta
        statistic += size / noise * left @ np.linalg.solve(second, left)
    return float(chi2.sf(statistic, (len(moments.sizes) - 1) * len(chosen)))


def rejected(moments: Moments, support: np.ndarray) -> tuple[bool, bool]:
    """By the test, and by the one that assumes independence."""
    return invariance_test(moments, support).p_value < LEVEL, assuming_independence(moments, support) < LEVEL


def true_model(rng: np.random.Generator, noise: str, n: int) -> Moments:
    """Four columns with their own law in each group, and the same linear model in all."""
    xs, ys = [], []
    for e in range(GROUPS):
        own = rng.standard_t(5, (n, 4)) if noise.endswith("tails") else rng.standard_normal((n, 4))
        error = rng.exponential(size=n) - 1 if noise.endswith("skewed noise") else rng.standard_normal(n)
        xs.append(e % 2 + (1 + e % 3) * own)
        ys.append(xs[-1] @ SLOPES + 3 + NOISES[noise](own[:, 0], e) * error)
    return moments_of("benchmark", np.concatenate(xs), np.concatenate(ys), np.repeat(np.arange(GROUPS), n))[0]


def size(noise: str, n: int) -> list[float]:
    """The share of true models that each test rejects."""
    rng = np.random.default_rng([n, list(NOISES).index(noise)])
    every = [rejected(true_model(rng, noise, n), np.ones(4, bool)) for _ in range(TRUE_MODELS)]
    return np.mean(every, axis=0).tolist()


def power(name: str, n: int) -> dict[str, list[float]]:
    """The share of data sets of a design in which each test rejects the causes, one child more, and all columns."""
    found: dict[str, list[tuple[bool, bool]]] = {"causes": [], "child": [], "all": []}
    for seed in range(DATA_SETS):
        design = grouped_design(name, seed, n=n)
        moments = moments_of("benchmark", design.X, design.y, design.groups)[0]
        causes = design.truth != 0
        first = np.arange(len(causes)) == np.flatnonzero(design.children)[0]
        for kind, support in (("causes", causes), ("child", causes | first), ("all", np.ones(len(causes), bool))):
            found[kind].append(rejected(moments, support))
    return {kind: np.mean(flags, axis=0).tolist() for kind, flags in found.items()}


def measure() -> dict[str, Any]:
    print("  the test of invariance", flush=True)
    return {
        "size": {noise: {n: size(noise, n) for n in (50, 200, 1000)} for noise in NOISES},
        "power": {name: power(name, 100) for name in DESIGNS},
    }


def lines(results: dict[str, Any]) -> list[str]:
    """The section of the page; results are those of `measure` after a round trip through JSON."""
    shares = lambda pair: f"{pair[0]:.1%} ({pair[1]:.1%})"
    told = [
        "",
        "## The test of invariance",
        "",
        f"Share of data sets in which the test at level {LEVEL:.0%} rejects. In brackets: a test that assumes noise",
        "independent of x, with one level in each group.",
        "",
        f"**A true model**, four columns in five groups, {TRUE_MODELS:,} data sets (standard error .7% at 5%), by the",
        "standard deviation of the noise:",
        "",
        "| noise | 50 rows a group | 200 rows | 1,000 rows |",
        "|---|---|---|---|",
    ]
    for noise, by_rows in results["size"].items():
        told.append(f"| {noise} | " + " | ".join(shares(pair) for pair in by_rows.values()) + " |")
    told += [
        "",
        "In small groups the test rejects less often than its level: each group adds at most as much to the statistic",
        "as it has rows.",
        "",
        f"**The designs**, 100 rows in each of five groups, {DATA_SETS} data sets. The causes alone are the true",
        "model; with one child of y they are not, nor are all 30 columns, except in iid. Allowing for any noise costs",
        "power where there are few rows for each condition: here 100 for the 31 of all columns.",
        "",
        "| design | causes | causes and a child | all columns |",
        "|---|---|---|---|",
    ]
    for name, by_support in results["power"].items():
        told.append(f"| {name} | " + " | ".join(shares(pair) for pair in by_support.values()) + " |")
    return told
