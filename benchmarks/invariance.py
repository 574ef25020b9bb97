"""Rejection rates of the test of invariance, and of a test that assumes homoscedastic noise, by model and noise."""

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
    "constant within each group": lambda x, e: (0.2, 1.0, 5.0, 2.0, 0.5)[e],
    "sqrt(1 + x^2)": lambda x, e: np.sqrt(1 + x**2),
    "abs(x)": lambda x, e: np.abs(x),
    "abs(x) in one group, else 1": lambda x, e: np.abs(x) if e == 0 else 1.0,
    "exp(x)": lambda x, e: np.exp(x),
    "abs(x), skewed noise": lambda x, e: np.abs(x),
    "abs(x), x with heavy tails": lambda x, e: np.abs(x),
}
"""Standard deviation of the noise in group e, as a function of the first column in the units of its group."""


def assuming_independence(moments: Moments, support: np.ndarray) -> float:
    """Return the p-value of sum_e (n_e/R_e) E_e[z r]' E_e[z z']^-1 E_e[z r], assuming noise independent of x."""
    fit = invariance_test(moments, support)
    chosen = np.concatenate([[0], 1 + np.flatnonzero(support)])
    beta = np.concatenate([[fit.intercept], fit.coef[support]])
    statistic = 0.0
    for e, size in enumerate(moments.sizes):
        second, cross = moments.joint[e][np.ix_(chosen, chosen)], moments.joint[e][chosen, -1]
        moment = cross - second @ beta
        noise = moments.power[e] - 2 * cross @ beta + beta @ second @ beta
        statistic += size / noise * moment @ np.linalg.solve(second, moment)
    return float(chi2.sf(statistic, (len(moments.sizes) - 1) * len(chosen)))


def rejected(moments: Moments, support: np.ndarray) -> tuple[bool, bool]:
    """Return whether the test rejects, and whether the test that assumes independence rejects."""
    return invariance_test(moments, support).p_value < LEVEL, assuming_independence(moments, support) < LEVEL


def true_model(rng: np.random.Generator, noise: str, n: int) -> Moments:
    """Return the moments of four columns whose distribution differs between groups, under one linear model."""
    xs, ys = [], []
    for e in range(GROUPS):
        x = rng.standard_t(5, (n, 4)) if noise.endswith("tails") else rng.standard_normal((n, 4))
        error = rng.exponential(size=n) - 1 if noise.endswith("skewed noise") else rng.standard_normal(n)
        xs.append(e % 2 + (1 + e % 3) * x)
        ys.append(xs[-1] @ SLOPES + 3 + NOISES[noise](x[:, 0], e) * error)
    return moments_of("benchmark", np.concatenate(xs), np.concatenate(ys), np.repeat(np.arange(GROUPS), n))[0]


def size(noise: str, n: int) -> list[float]:
    """Return the share of true models that each test rejects."""
    rng = np.random.default_rng([n, list(NOISES).index(noise)])
    every = [rejected(true_model(rng, noise, n), np.ones(4, bool)) for _ in range(TRUE_MODELS)]
    return np.mean(every, axis=0).tolist()


def power(name: str, n: int) -> dict[str, list[float]]:
    """Return the share of data sets in which each test rejects the causes, these and one child, and all columns."""
    flags: dict[str, list[tuple[bool, bool]]] = {"causes": [], "child": [], "all": []}
    for seed in range(DATA_SETS):
        design = grouped_design(name, seed, n=n)
        moments = moments_of("benchmark", design.X, design.y, design.groups)[0]
        causes = design.truth != 0
        first = np.arange(len(causes)) == np.flatnonzero(design.children)[0]
        for kind, support in (("causes", causes), ("child", causes | first), ("all", np.ones(len(causes), bool))):
            flags[kind].append(rejected(moments, support))
    return {kind: np.mean(pairs, axis=0).tolist() for kind, pairs in flags.items()}


def measure() -> dict[str, Any]:
    """Return the rejection rates of all settings."""
    print("  the test of invariance", flush=True)
    return {
        "size": {noise: {n: size(noise, n) for n in (50, 200, 1000)} for noise in NOISES},
        "power": {name: power(name, 100) for name in DESIGNS},
    }


def lines(results: dict[str, Any]) -> list[str]:
    """Return the lines of the section; `results` are those of `measure` as read from JSON."""
    shares = lambda pair: f"{pair[0]:.1%} ({pair[1]:.1%})"
    text = [
        "",
        "## The test of invariance",
        "",
        f"Share of data sets in which the test at level {LEVEL:.0%} rejects. In brackets: the share of a test that",
        "assumes noise that is independent of $x$, with one standard deviation per group.",
        "",
        f"**A true model**, with four columns in five groups, {TRUE_MODELS:,} data sets (standard error 0.7% at 5%).",
        "The first column is the standard deviation of the noise:",
        "",
        "| noise | 50 rows per group | 200 rows | 1,000 rows |",
        "|---|---|---|---|",
    ]
    for noise, by_rows in results["size"].items():
        text.append(f"| {noise} | " + " | ".join(shares(pair) for pair in by_rows.values()) + " |")
    text += [
        "",
        "In small groups the test rejects less often than its level: the contribution of a group to the",
        "statistic is at most its number of rows.",
        "",
        f"**The designs**, 100 rows in each of five groups, {DATA_SETS} data sets. The causes alone are a true",
        "model. The causes with one child of $y$, and all 30 columns, are wrong models, except in iid. A test that",
        "allows any noise loses power if there are few rows per condition: here 100 rows for the 31 conditions of",
        "all columns.",
        "",
        "| design | causes | causes and a child | all columns |",
        "|---|---|---|---|",
    ]
    for name, by_support in results["power"].items():
        text.append(f"| {name} | " + " | ".join(shares(pair) for pair in by_support.values()) + " |")
    return text
