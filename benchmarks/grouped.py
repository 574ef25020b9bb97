"""Grouped regression data: the errors of all methods on nine designs. Writes docs/grouped-benchmark.md."""

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from sklearn.linear_model import LassoCV, RidgeCV

import undertow as ut
from benchmarks import invariance
from benchmarks.harness import RESULTS, in_words, save
from undertow.grouped.data import Moments, moments_of
from undertow.grouped.designs import DESIGNS, GroupedDesign, grouped_design
from undertow.grouped.icp import all_subsets
from undertow.grouped.invariance import invariance_test
from undertow.grouped.penalties import irm_penalty, smooth_max, vrex_penalty
from undertow.grouped.subsets import MOST_COLUMNS

SEEDS = 30
FIRST_SEED = 20_000
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
SHARPNESS = 100.0
SCREENED = 8
GROUPS = (2, 3, 5, 10)
CLOSE = 0.1
"""Errors below this count as right."""
PAGE = Path(__file__).parent.parent / "docs" / "grouped-benchmark.md"
DIFFERENCES = {
    "flip": "the effect of $y$ on a child, 1.5 to 2.1 in some groups and −1.5 to −0.9 in the others",
    "mild": "the same with a weaker change of sign: 1.5 to 1.9 and −0.5 to −0.1",
    "consistent": "the effect of $y$ on a child, between 0.5 and 1.5: its sign is the same in all groups",
    "flip with covariate shift": "as in flip; also the scale and the means of the causes",
    "chain": "the scale of the causes and the noise of $y$; the effect of $y$ on a child is 1",
    "child noise": "the noise of the children; the effect of $y$ on a child is 1",
    "shift": "the means of the causes and of the children; the effect of $y$ on a child is 1",
    "iid": "nothing; $y$ has no effect on other columns",
    "dag": "the weights and the noise of half of the nodes of a random graph, which contains all columns and $y$",
}
"""What differs between the groups of each design (`undertow.grouped.designs`)."""

Fit = tuple[np.ndarray, float]


def quadratics(beta: jax.Array, second: jax.Array, cross: jax.Array, power: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return half the mean squared error of each group, and its derivative in a scale on the predictions."""
    energy, overlap = jnp.einsum("i,eij,j->e", beta, second, beta), cross @ beta
    return energy / 2 - overlap + power / 2, energy - overlap


def irm_loss(beta: jax.Array, penalty: float, shares: jax.Array, *data: jax.Array) -> jax.Array:
    risks, slopes = quadratics(beta, *data)
    return shares @ risks + penalty * irm_penalty(slopes, shares)


def vrex_loss(beta: jax.Array, penalty: float, shares: jax.Array, *data: jax.Array) -> jax.Array:
    risks, _ = quadratics(beta, *data)
    return shares @ risks + penalty * vrex_penalty(risks, shares)


def dro_loss(beta: jax.Array, sharpness: float, shares: jax.Array, *data: jax.Array) -> jax.Array:
    return smooth_max(quadratics(beta, *data)[0], shares, sharpness)


LOSSES = {
    name: jax.jit(jax.value_and_grad(f)) for name, f in (("irm", irm_loss), ("vrex", vrex_loss), ("dro", dro_loss))
}


def penalised(loss: str, strength: float, moments: Moments) -> Fit:
    """Minimise a loss of the risks of the groups from the least-squares solution, with an intercept."""
    joint = moments.joint
    data = tuple(jnp.asarray(x) for x in (moments.shares, joint[:, :-1, :-1], joint[:, :-1, -1], joint[:, -1, -1]))

    def value(beta: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = LOSSES[loss](jnp.asarray(beta), strength, *data)
        return float(f), np.asarray(g)

    start = np.concatenate([[0.0], moments.least_squares()])
    beta = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    return moments.original(beta[1:], float(beta[0]))


def screened(moments: Moments) -> Fit:
    """Test all subsets of the columns with the largest ridge coefficients; use least squares if no subset passes."""
    candidates = np.argsort(-np.abs(moments.ridge(0.02)))[:SCREENED]
    result = all_subsets(moments, candidates, 0.05)
    if result.coef is None or result.intercept is None:
        return moments.original(moments.least_squares())
    return result.coef, result.intercept


def oracle(design: GroupedDesign) -> Fit:
    causes = design.truth != 0
    columns = np.concatenate([np.ones((len(design.y), 1)), design.X[:, causes]], axis=1)
    beta = np.linalg.lstsq(columns, design.y, rcond=None)[0]
    coef = np.zeros(len(causes))
    coef[causes] = beta[1:]
    return coef, float(beta[0])


def fits(design: GroupedDesign) -> tuple[dict[str, Fit], dict[str, float], dict[str, bool]]:
    """Return coefficients and intercept of every method, its seconds, and the decisions of the test."""
    X, y, groups = design.X, design.y, design.groups
    moments, _, _ = moments_of("benchmark", X, y, groups)
    solutions: dict[str, Fit] = {}
    seconds: dict[str, float] = {}

    def add(name: str, method: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = method()
        seconds[name] = time.perf_counter() - began
        solutions[name] = result if isinstance(result, tuple) else (result.coef_, result.intercept_)
        return result

    add("least squares", lambda: moments.original(moments.least_squares()))
    add("ridge", lambda: RidgeCV(np.geomspace(1e-2, 1e4, 13)).fit(X, y))
    add("lasso", lambda: LassoCV(cv=5, alphas=30).fit(X, y))
    hetero = add("HeteroRegressor", lambda: ut.HeteroRegressor().fit(X, y, groups))
    solutions["pooled u^2 - v^2"] = (hetero.pooled_coef_, hetero.pooled_intercept_)
    invariant = add("InvariantRegressor", lambda: ut.InvariantRegressor().fit(X, y, groups))
    for penalty in PENALTIES:
        add(f"IRM {penalty:g}", lambda p=penalty: penalised("irm", p, moments))
        add(f"V-REx {penalty:g}", lambda p=penalty: penalised("vrex", p, moments))
    add("GroupDRO", lambda: penalised("dro", SHARPNESS, moments))
    add("ICP (screened)", lambda: screened(moments))
    add("oracle", lambda: oracle(design))
    decisions = {
        "passes": invariant.invariant_,
        "causes rejected": invariance_test(moments, design.truth != 0).p_value <= invariant.level,
        "warned": not invariant.invariant_ or invariant.rejected_support_ is not None or not invariant.support_.any(),
        "right": design.error(invariant.coef_) < CLOSE,
    }
    return solutions, seconds, decisions


def number_of_groups(groups: int) -> dict[str, Any]:
    """Return the errors of `InvariantRegressor` and of ICP if means shift, for a number of groups."""
    errors, others, passed = [], [], []
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        design = grouped_design("shift", seed, environments=groups)
        moments, _, _ = moments_of("benchmark", design.X, design.y, design.groups)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ut.InvariantRegressor().fit(design.X, design.y, design.groups)
        errors.append(design.error(model.coef_))
        others.append(design.error(screened(moments)[0]))
        passed.append(model.invariant_)
    return {"error": interval(np.array(errors)), "icp": interval(np.array(others)), "passes": float(np.mean(passed))}


def interval(values: np.ndarray) -> list[float]:
    """Return the median with a 95% bootstrap interval."""
    drawn = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return [float(np.median(values)), float(low), float(high)]


def in_hindsight(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the row of the penalty with the smallest median error in this design."""
    best = min(PENALTIES, key=lambda p: table[f"{name} {p:g}"]["error"][0])
    return table[f"{name} {best:g}"] | {"penalty": best}


METHODS = (
    "least squares", "ridge", "lasso", "pooled u^2 - v^2", "HeteroRegressor", "InvariantRegressor", "IRM", "V-REx",
    "GroupDRO", "ICP (screened)", "oracle",
)  # fmt: skip


def measure() -> dict[str, Any]:
    results: dict[str, Any] = {"seeds": SEEDS, "designs": {}, "accepted": {}}
    every: list[dict[str, bool]] = []
    times: dict[str, list[float]] = {}
    for name in DESIGNS:
        print(f"  {name}", flush=True)
        rows: dict[str, list[tuple[float, float]]] = {}
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
            design = grouped_design(name, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solutions, seconds, decisions = fits(design)
            every.append(decisions)
            for method, (coef, intercept) in solutions.items():
                rows.setdefault(method, []).append((design.error(coef), design.risk(coef, intercept)))
            for method, value in seconds.items():
                times.setdefault(method.rstrip(" 01"), []).append(value)
        table: dict[str, Any] = {}
        for method, pairs in rows.items():
            errors, risks = np.array(pairs).T
            table[method] = {
                "error": interval(errors), "risk": interval(risks), "below_0.1": float(np.mean(errors < CLOSE)),
            }  # fmt: skip
        table["IRM"], table["V-REx"] = in_hindsight(table, "IRM"), in_hindsight(table, "V-REx")
        results["designs"][name] = table
        results["accepted"][name] = float(np.mean([each["passes"] for each in every[-SEEDS:]]))
    results["seconds_per_fit"] = {method: float(np.median(values)) for method, values in times.items()}
    rejected = [each for each in every if each["causes rejected"]]
    results["false_rejections"] = {
        "data sets": len(every),
        "causes rejected": len(rejected),
        "right": sum(each["right"] for each in rejected),
        "wrong and warned": sum(each["warned"] and not each["right"] for each in rejected),
        "warned, causes not rejected": sum(each["warned"] and not each["causes rejected"] for each in every),
    }
    print("  the number of groups", flush=True)
    results["groups"] = {groups: number_of_groups(groups) for groups in GROUPS}
    large = grouped_design("flip", FIRST_SEED, d=60, causes=8, children=8)
    began = time.perf_counter()
    ut.InvariantRegressor().fit(large.X, large.y, large.groups)
    results["seconds_at_d_60"] = time.perf_counter() - began
    results["test"] = invariance.measure()
    return results


def number(x: float) -> str:
    return f"{x:.3f}" if x < 1 else f"{x:.2f}" if x < 9.995 else f"{x:.0f}"


def cell(table: dict[str, Any], method: str, what: str, *, ends: bool = True) -> str:
    """Return a median with its interval, in bold if only the oracle has a smaller one."""
    middle, low, high = map(number, table[method][what])
    least = number(min(table[m][what][0] for m in METHODS if m != "oracle"))
    shown = f"**{middle}**" if middle == least and method != "oracle" else middle
    return f"{shown} [{low}, {high}]" if ends else shown


def false_rejections(counts: dict[str, int]) -> list[str]:
    """Return the lines on data sets in which the test rejects a true model."""
    rejected, right = counts["causes rejected"], counts["right"]
    return [
        f"- The test rejects the causes alone, a true model, on {rejected} of {counts['data sets']} data sets "
        f"({rejected / counts['data sets']:.1%}, level 5%).",
        f"  The model returned on these has an error below {CLOSE} on {right}, and a warning is issued on "
        f"{counts['wrong and warned']} of the other {rejected - right}. On the data sets",
        f"  in which the causes are not rejected, {counts['warned, causes not rejected']} fits warn.",
        "  Warnings that the groups do not differ, as in *iid*, are not counted.",
    ]


def label_of(method: str) -> str:
    """Return the name of a method with its mathematics typeset."""
    return method.replace("u^2 - v^2", "$u^2 - v^2$")


def days_of_all_subsets(results: dict[str, Any], columns: int = 30) -> float:
    """Return the time of ICP on all subsets of all columns, in proportion to that of the screened columns."""
    return results["seconds_per_fit"]["ICP (screened)"] * 2.0 ** (columns - SCREENED) / 86_400


def page(results: dict[str, Any]) -> str:
    """Return the text of the page."""
    designs = results["designs"]
    lines = [
        "# Grouped regression data: a benchmark",
        "",
        "Written by `python -m benchmarks grouped` from `benchmarks/results/grouped.json`; do not edit by hand.",
        "",
        f"Nine designs with known coefficients $w^*$ (`undertow.grouped.designs`), {results['seeds']} data sets each,",
        "with 30 columns and five groups of 1,000 rows. *Error* is $|w - w^*|/|w^*|$ in units of the standard",
        "deviations of the columns. *Risk* is the largest mean squared error over test environments beyond the",
        "training range, divided by that of $w^*$. The tables show medians with 95% bootstrap intervals over the data",
        "sets. The best value of a column is bold; the oracle (least squares on the causes alone) is not compared.",
        "",
        "In eight designs $y$ is a linear function of four *causes* with the same coefficients in every group, three",
        "*children* depend on $y$, and the other columns are irrelevant but correlated with a cause. Least squares",
        "uses the children, and fails where their relation to $y$ changes.",
        "",
        "| design | what differs between groups |",
        "|---|---|",
        *(f"| {name} | {what} |" for name, what in DIFFERENCES.items()),
        "",
        "## Summary",
        "",
        f"- `InvariantRegressor` tests all subsets of {MOST_COLUMNS} screened columns together, from moments, and the",
        "  supports (sets of columns) that a flow proposes ([grouped data](howto/grouped-data.md)). ICP, invariant",
        f"  causal prediction, tests all subsets of {SCREENED} screened columns, with a pass over the rows for each;",
        "  all $2^{30}$ subsets of the 30 columns would take "
        f"{days_of_all_subsets(results):.0f} days. Both use the same test. ICP",
        "  chooses the passing model of least pooled risk, `InvariantRegressor` that of the least information",
        "  criterion, which leaves out columns without effect.",
        "- `InvariantRegressor` fails on some data sets, as the last column of each table below shows. Share of data",
        "  sets in which a model passes: "
        + ", ".join(f"{name} {share:.0%}" for name, share in results["accepted"].items())
        + ".",
        *false_rejections(results["false_rejections"]),
        "- `HeteroRegressor`, SGD with one group per step, helps where the effect of a child changes sign (flip) and",
        '  little in other designs. The row "pooled $u^2 - v^2$" stops at the same time and uses no groups: part of',
        "  the gain of both is due to early stopping.",
        "- IRM (invariant risk minimisation) and V-REx (variance risk extrapolation) add a penalty to the risk;",
        "  GroupDRO minimises a smooth maximum of the risks of the groups.",
        "  The penalties of IRM and V-REx were chosen in hindsight: the best of "
        + ", ".join(f"{p:g}" for p in PENALTIES)
        + " by median error",
        "  in each design. A user, who does not know the coefficients, cannot choose in this way. Another optimiser",
        "  may be better than L-BFGS from least squares.",
        "- In *chain*, where the noise differs between groups, `InvariantRegressor` and ICP weight the groups by their",
        "  noise; the oracle does not, and has a larger error.",
        "- All models are linear and all data synthetic, with children of the kind for which these methods are made.",
        "  The results do not extend to networks or real data. An invariant model need not be causal.",
        "",
        "## Median errors",
        "",
        "| | " + " | ".join(designs) + " |",
        "|---|" + "---|" * len(designs),
    ]
    for method in METHODS:
        shown = [cell(table, method, "error", ends=False) for table in designs.values()]
        lines.append(f"| {label_of(method)} | " + " | ".join(shown) + " |")
    for name, table in designs.items():
        lines += ["", f"## {name}", "", "| | error | risk | share with error < 0.1 |", "|---|---|---|---|"]
        for method in METHODS:
            row = table[method]
            label = f"{method}, penalty {row['penalty']:g}" if "penalty" in row else label_of(method)
            error, risk = cell(table, method, "error"), cell(table, method, "risk")
            lines.append(f"| {label} | {error} | {risk} | {row['below_0.1']:.2f} |")
    lines += [
        "",
        "## Shifts of means and the number of groups",
        "",
        "In the design *shift* with two groups a support has only one condition on means, so several wrong supports",
        "pass the test, and the least information criterion selects one of them. ICP has the same limit.",
        "",
        "| groups | error of InvariantRegressor | error of ICP (screened) | share in which a model passes |",
        "|---|---|---|---|",
    ]
    for groups, row in results["groups"].items():
        ends = [f"{number(row[what][0])} [{number(row[what][1])}, {number(row[what][2])}]" for what in ("error", "icp")]
        lines.append(f"| {groups} | {ends[0]} | {ends[1]} | {row['passes']:.2f} |")
    lines += invariance.lines(results["test"])
    seconds = results["seconds_per_fit"]
    lines += [
        "",
        "## Time per fit",
        "",
        ", ".join(f"{m} {in_words(seconds[m])}" for m in METHODS if m in seconds)
        + f". `InvariantRegressor` with 60 columns: {in_words(results['seconds_at_d_60'])}.",
        "The methods are fitted in turn to each data set. The time of ICP does not include the computation of the",
        "moments.",
        "",
    ]
    return "\n".join(lines)


def main() -> list[tuple[str, str, str]]:
    with jax.enable_x64(True):
        results = measure()
    save("grouped", results)
    PAGE.write_text(page(json.loads((RESULTS / "grouped.json").read_text())))
    rows = [
        (f"grouped: {name}, median error of InvariantRegressor", f"{table['InvariantRegressor']['error'][0]:.3f}",
         f"least squares {table['least squares']['error'][0]:.3f}")
        for name, table in results["designs"].items()
    ]  # fmt: skip
    return [*rows, ("grouped: InvariantRegressor, d = 60", in_words(results["seconds_at_d_60"]), "< 2 s")]
