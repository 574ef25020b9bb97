"""Generate the page on the sizes, step sizes, cost and memory of each level from the files of results."""

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import in_words
from docs.setting import words
from studies.results import number, table
from undertow.dynamics.stiff_flow import MOST_EQUATIONS, MOST_PARAMETERS
from undertow.grouped.icp import MOST_COLUMNS as ICP_COLUMNS
from undertow.grouped.subsets import MOST_COLUMNS
from undertow.manifold.averaged import DENSE_LIMIT as AVERAGE_LIMIT
from undertow.manifold.geometry import DENSE_LIMIT as LIMIT_LIMIT
from undertow.symmetry.fluctuations import LIMIT as CORRECTED_LIMIT

__all__ = ["capabilities"]

ROOT = Path(__file__).parent.parent
Facts = dict[str, Any]

OVERVIEW = [
    ["[`descend`](api/dynamics.md#descend)", "any pytree of float arrays, any number of seeds",
     "any finite $\\eta \\ge 0$; a diverged run is marked and does not raise",
     "params of the seeds that advance together, and the observations"],
    ["[`diffuse`](api/dynamics.md#diffuse)", "as `descend`", "weak order one in $\\eta$: small $\\eta\\lambda_{\\max}$",
     "as `descend`, and one draw of the covariance per step"],
    ["[`average`](api/dynamics.md#average)", f"a `Regression` with fewer equations $n$ than parameters $D$; any other "
     f"problem with $D \\le {AVERAGE_LIMIT}$", "finite $\\eta$; the `regime` of the result has $\\eta\\lambda_{\\max}$",
     "$n \\times D$, or $D \\times D$ numbers"],
    ["[`Limit`](api/manifold.md#Limit)", "a `Regression` that fits all of its data; any other problem with "
     f"$D \\le {LIMIT_LIMIT}$; a gap between the curvatures across and along the manifold", "the limit $\\eta \\to 0$; "
     "`finite_step` and `step_size` correct for a finite one", "$n \\times D$, or $D \\times D$ numbers"],
    ["[`settle`](api/dynamics.md#settle)", "any problem with samples; where the problem is ill-conditioned, a "
     f"`Regression` of $n \\le {MOST_EQUATIONS}$ or $D \\le {MOST_PARAMETERS}$", "none: gradient flow",
     "a few copies of params; $n \\times n$ or $D \\times D$ numbers where ill-conditioned"],
    ["[`equilibrium`](api/symmetry.md#equilibrium)", "any number of parameters; with Adam's corrections "
     f"$D \\le {CORRECTED_LIMIT}$", "enters only with weight decay",
     "one number per parameter for diagonal symmetries"],
    ["[`find_symmetries`](api/symmetry.md#find_symmetries)", "$D \\le 30$ in full, larger models by the kinds that "
     "networks have", "none", "gradients at a few random points"],
    ["[`census`](api/torch.md#census)", "PyTorch models up to billions of parameters", "none",
     "copies of the model, see below"],
    ["[`NoiseMonitor`](api/torch.md#NoiseMonitor)", "PyTorch models in training, also DistributedDataParallel and "
     "FSDP2", "that of the training", "see below"],
    ["[`equilibrate`](api/torch.md#equilibrate)", "PyTorch models whose gradients fit in memory several times",
     "enters only with weight decay", "see below"],
    ["[`InvariantRegressor`](api/grouped.md#InvariantRegressor)", "any number of rows and columns; all subsets "
     f"of the {MOST_COLUMNS} screened columns, and supports of a flow over all columns; at least two groups", "none",
     "the rows, and the moments of each group"],
    ["[`sweep`](api/sweeps.md#sweep)", "up to 1,000,000 points per axis", "that of the experiment",
     "one block of points and seeds per process"],
]  # fmt: skip


def capabilities() -> str:
    """Return the page with the limits of every level and the measurements behind them."""
    facts = _read("capabilities")
    parts = [
        "# Which problems can undertow handle?",
        "This page gives the sizes, step sizes, cost and memory of each level. The tables are made from the files in "
        "`benchmarks/results` and `studies/results`; each section names the command that measured it. "
        "[Performance](performance.md) compares the times with those of other programs, and "
        "[When to use undertow](practice.md) lists where a prediction is useful.",
        table(["level", "sizes", "step sizes", "memory"], OVERVIEW),
        "$n$ counts the equations of a `Regression` (samples times outputs), $D$ the parameters, and "
        "$\\lambda_{\\max}$ is the largest curvature.",
        "Measurements by `python -m benchmarks capabilities`: every case ran in its own process on one core. Times are "
        "CPU seconds of a second call; the first call also compiles. Memory is the peak of the process, of which the "
        f"imports take a few hundred MiB. Other programs were running on the machine (load {facts['load']:.1f} on two "
        "cores), which also increases CPU seconds, although less than elapsed time.",
        *_simulation(facts), *_theory(facts), *_symmetry(facts), *_torch(), *_grouped(facts), *_sweeps(),
        "## Calls that raise an error",
        "A call beyond a limit raises an error. These are the messages of some calls, which are in "
        "`benchmarks/capabilities.py`:",
        table(["level", "message"], [[f"`{name}`", words(text)] for name, text in facts["refusals"].items()]),
        "`descend` and `diffuse` also reject observations that do not fit into the free memory, with the number of "
        "bytes that they need. `Limit` rejects a loss with kinks unless `piecewise=True`. `average` marks a run "
        "as diverged where its solver fails, and a `Trajectory` from `descend` has the first step that was not finite.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _read(name: str, folder: str = "benchmarks") -> Facts:
    return json.loads((ROOT / folder / "results" / f"{name}.json").read_text())


def _seconds(value: float) -> str:
    return in_words(value).replace("us", "μs")


def _cost(case: Facts) -> list[str]:
    return [_seconds(case["seconds"]), _seconds(case["first_call_seconds"]), f"{case['MiB']:,.0f} MiB"]


def _simulation(facts: Facts) -> list[str]:
    per_step = [
        [f"`{name}`", f"{case['parameters']:,}", str(case["seeds"]), _seconds(case["seconds_per_step_and_seed"]),
         _seconds(case["first_call_seconds"]), f"{case['MiB']:,.0f} MiB"]
        for name in ("descend", "diffuse")
        for case in facts[name]
    ]  # fmt: skip
    observed = [
        [str(case["seeds"]), f"{case['count']:,}", f"{case['recorded_MiB']:,.0f} MiB",
         f"{case['peak_growth_MiB']:,.0f} MiB"]
        for case in facts["observations"]
    ]  # fmt: skip
    memory = _read("memory")
    return [
        "## Simulation: `descend` and `diffuse`",
        "Label noise, one of 20 equations per step, $w = u^2 - v^2$. `diffuse` takes four substeps per step of SGD, "
        "and each draws from the whole covariance.",
        table(["level", "parameters", "seeds", "CPU time per step and seed", "first call", "peak memory"], per_step),
        "Memory of observations, one number per seed and observation:",
        table(["seeds", "observations", "recorded", "growth of the peak"], observed),
        f"The number of steps hardly changes the memory: the peak of a run of {memory['steps']:,} steps is "
        f"{memory['MiB_up_to_a_tenth']:.0f} MiB up to a tenth of the run and {memory['MiB_after']:.0f} MiB at its end "
        "(`python -m benchmarks memory`).",
    ]


def _theory(facts: Facts) -> list[str]:
    kinds = {"regression": "`Regression`, 20 equations", "other": "logistic regression, dense Hessian"}
    flows = [["`average` to time 10", kinds[c["kind"]], f"{c['parameters']:,}", *_cost(c)] for c in facts["average"]]
    flows += [["`Limit.solve` to slow time 1", kinds["regression"], f"{c['parameters']:,}", *_cost(c)]
              for c in facts["limit"]]  # fmt: skip
    ends = [
        [f"{c['condition']:.0e}", *_cost(c)[:2], number(c["error"]),
         "all directions" if c["resolution"] == 0 else f"curvatures above {c['resolution']:.1g}"]
        for c in facts["settle"]
    ]  # fmt: skip
    return [
        "## Theory: `average`, `Limit` and `settle`",
        "Both flows are solved in double precision. For a `Regression` no $D \\times D$ matrix is formed; other "
        "problems need the Hessian at every step of the solver.",
        table(["level", "problem", "parameters", "CPU time", "first call", "peak memory"], flows),
        "`settle` on least squares with 20 curvatures from 1 down to the inverse of the condition number, in double "
        "precision. An ill-conditioned flow is not resolved along its slowest directions; a warning then gives the "
        "curvature below which directions are not resolved. `average` needs no end point and no gap.",
        table(["condition number", "CPU time", "first call", "largest error of the end point", "resolved"], ends),
    ]


def _symmetry(facts: Facts) -> list[str]:
    rows = [
        [f"{c['parameters']:,}", f"{c['generators']:,}", _seconds(c["search_seconds"]),
         _seconds(c["equilibrium_seconds"]), f"{c['residual']:.0e}", f"{c['MiB']:,.0f} MiB"]
        for c in facts["symmetries"]
    ]  # fmt: skip
    taps = _read("symmetry")
    return [
        "## Symmetry in JAX: `find_symmetries` and `equilibrium`",
        "A two-layer ReLU network with 16 inputs and 512 samples. Times are CPU time, compilation included.",
        table(["parameters", "generators", "search", "equilibrium", "residual", "peak memory"], rows),
        f"The noise of every neuron of a 784-512-10 network costs {taps['ratios']['taps / gradient']:.2f} gradients "
        "(`python -m benchmarks symmetry`), so that the equilibrium of a larger network costs a few passes over its "
        "data.",
    ]


def _torch() -> list[str]:
    cpu, gpu, monitors = _read("torch_census"), _read("torch_census_gpu"), _read("llama_monitor_gpu")
    census = [
        [place, f"{c['parameters']:,}", str(c["symmetries"]), str(c["passes"]), _seconds(c["seconds"]),
         f"{c.get('gibibytes', c.get('gibibytes_peak')):.1f} GiB"]
        for place, c in [("CPU", cpu["census"]), ("CPU", cpu["large"]), ("H200", gpu["census"]),
                         ("H200, census of a narrow twin", gpu["transfer"])]
    ]  # fmt: skip
    moved = cpu["equilibrate"]
    watched = [
        [name, f"{c['parameters']:,}", f"{c['steps']:.2f} steps", f"{c['every_50']:.1%}", f"{c['memory']:.0%}"]
        for name, c in monitors.items()
        if isinstance(c, dict) and "every_50" in c
    ]
    zoo = [row for row in _read("zoo", "studies")["rows"] if not row["error"]]
    exact = sum(row["missed"] == row["false"] == 0 for row in zoo)
    return [
        "## PyTorch: `census`, `equilibrate` and `NoiseMonitor`",
        "`census` on Llama models with random weights (`python -m benchmarks torch_census`, "
        "`python -m benchmarks torch_census_gpu`):",
        table(["device", "parameters", "symmetries", "passes", "time", "peak memory"], census),
        f"The census has the right symmetries, none missed and none false, in {exact} of {len(zoo)} networks with a "
        "reference ([study](studies/zoo.md)).",
        f"`equilibrate` on the model with {moved['parameters']:,} parameters takes {_seconds(moved['cpu_seconds'])} of "
        f"CPU time and {moved['gibibytes']:.1f} GiB, {moved['bytes_per_parameter']:.0f} bytes per parameter; outputs "
        f"change by {moved['change']:.0e} (`python -m benchmarks torch_census`).",
        "`NoiseMonitor` on an H200, measured at every 50 steps (`python -m benchmarks llama_monitor`); "
        "[the cost of the monitor](monitor.md#cost) has the times:",
        table(["Llama, optimiser", "parameters", "cost of a measurement", "at every 50 steps", "memory beyond a step"],
              watched),
    ]  # fmt: skip


def _grouped(facts: Facts) -> list[str]:
    rows = [[f"{c['rows']:,}", str(c["columns"]), _seconds(c["seconds"]), f"{c['MiB']:,.0f} MiB"]
            for c in facts["grouped"]]  # fmt: skip
    fits = _read("grouped")["seconds_per_fit"]
    return [
        "## Grouped data",
        "`InvariantRegressor` on rows in four groups. Its cost is that of all subsets of the "
        f"{MOST_COLUMNS} screened columns and of the flow, and one pass over the rows per tested model.",
        table(["rows", "columns", "CPU time of a fit", "peak memory"], rows),
        f"`HeteroRegressor` takes {_seconds(fits['HeteroRegressor'])} on the designs of the "
        f"[benchmark](grouped-benchmark.md) (`python -m benchmarks grouped`). `icp` takes at most "
        f"{ICP_COLUMNS} columns.",
    ]


def _sweeps() -> list[str]:
    facts = _read("sweeps")
    return [
        "## Sweeps",
        f"The overhead is {_seconds(facts['seconds_per_block'])} per block of points and seeds; a finished sweep of "
        f"1,000 blocks is read in {_seconds(facts['resume_1000_blocks_seconds'])}. A diagram of 20 × 20 points with 50 "
        f"seeds each takes {_seconds(facts['hetero_20x20x50_seconds'])} on two cores "
        "(`python -m benchmarks sweeps`).",
    ]
