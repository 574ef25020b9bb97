"""Generate the performance page from the files in benchmarks/results."""

import ast
import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.harness import in_words
from docs.setting import words
from studies.results import table

__all__ = ["benchmark_of", "performance"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def performance() -> str:
    """Return the page with the numbers of every file of benchmarks/results and a description of its benchmark."""
    parts = [
        "# Performance",
        "Made from `benchmarks/results`. `make bench` runs all benchmarks except the tutorials and those for "
        "accelerators. Each benchmark runs in its own process, interleaves the programs that it compares, and takes "
        "medians. Each section gives the command of its benchmark. Compare numbers within one section only: sections "
        "may have been measured at different times.",
    ]
    order = list(HEADS)
    files = RESULTS.glob("*.json")
    for file in sorted(files, key=lambda f: (order.index(f.stem) if f.stem in order else len(order), f.stem)):
        facts = json.loads(file.read_text())
        name = benchmark_of(file.stem)
        source = ROOT / "benchmarks" / f"{name}.py"
        description = (ast.get_docstring(ast.parse(source.read_text())) if source.is_file() else "") or ""
        device = facts.pop("device", "")
        remark = facts.pop("remark", "")
        kind = facts.pop("kind", "CPU" if device.startswith("cpu") else device)
        known = [
            kind,
            *(f"{of} {facts.pop(key)}" for key, of in (("python", "Python"), ("jax", "JAX")) if key in facts),
        ]
        versions = f"{', '.join(filter(None, known))}. "
        description = re.sub(r" Writes \S+$", "", description.split("\n\n")[0])
        parts += [f"## {HEADS.get(file.stem, name.replace('_', ' ').capitalize())}", words(description)]
        parts.append(ELSEWHERE.get(name) or TABLES.get(name, _table)(facts))
        parts.append(f"{versions if any(known) else ''}Command: `python -m benchmarks {name}`. {remark}".rstrip())
    return "\n\n".join(parts) + "\n"


def benchmark_of(stem: str) -> str:
    """Return the name of the benchmark that writes the file of results with this stem."""
    own = (ROOT / "benchmarks" / f"{stem}.py").is_file()
    return stem if own else ACCELERATOR.get(stem, stem.removesuffix("_gpu"))


ACCELERATOR = {"optimisers_gpu": "optimisers_accelerator"}
"""Files of results from a GPU whose benchmark has another name than the file."""

HEADS = {
    "linear_model": "SGD on a small model",
    "factorisation": "Matrix factorisation",
    "memory": "Memory of a long run",
    "manifold": "The limiting drift and flow",
    "average": "The averaged flow",
    "symmetry": "Noise of every neuron",
    "sensing": "Matrix sensing",
    "grouped": "Grouped data",
    "libraries": "Own code and libraries",
    "accelerator_gpu": "On a GPU",
    "precision_gpu": "Single precision on a GPU",
    "torch_census": "PyTorch: census and equilibrium",
    "torch_monitor": "PyTorch: the monitor",
    "torch_teleport": "PyTorch: training after the move",
    "torch_cuda": "PyTorch on a GPU",
    "torch_census_gpu": "PyTorch: the census on a GPU",
    "llama_monitor_gpu": "PyTorch: the monitor on a GPU",
    "capabilities": "Sizes of problems",
    "load": "Large stores and reports",
    "explore": "The explorer",
    "tutorials": "The tutorials",
    "optimisers": "Adam on a small model",
    "optimisers_gpu": "AdamW on a GPU",
}
"""Titles of the benchmarks, in the order of the page; others follow."""

ELSEWHERE = {
    "capabilities": "Results: [which problems can undertow handle?](capabilities.md).",
    "torch_monitor": "Results: [the cost of the monitor](monitor.md#cost).",
    "torch_teleport": "Results: [the effects of the move](torch.md#expected-effects).",
}
"""Benchmarks whose results are shown on another page."""

MEANINGS = {
    "figure_3_seconds": "Figure 3 of the paper, 14 spreads with 50 seeds each, compilation included",
    "sensing_steps_per_second": "matrix sensing, d = 100, steps per second over all seeds",
    "diagram_seconds": "HeteroSGD at d = 40, 20 x 20 points of 50 seeds, with an empty compilation cache",
    "diagram_compiled_seconds": "the same with compiled programs",
    "MiB_large_drift": "memory at the largest drift",
    "MiB_up_to_a_tenth": "memory up to a tenth of the run",
    "MiB_after": "memory at the end of the run",
    "relative_difference": "relative difference between the two methods",
    "seconds_per_block": "overhead per block",
    "resume_1000_blocks_seconds": "reading a finished sweep of 1,000 blocks",
    "scalar_map_10000_points_seconds": "10,000 points of the scalar map",
    "hetero_20x20x50_seconds": "HeteroSGD at d = 40, 20 x 20 points of 50 seeds",
    "hetero_block_seconds": "the same, summed over blocks and processes",
    "hetero_blocks": "its number of blocks",
    "machinery_share": "share of the overhead",
    "compilations": "its number of compilations",
    "compile_seconds": "compile time, summed over processes",
}
"""The meaning of names in files of results that do not explain themselves."""


def _table(facts: dict[str, Any]) -> str:
    rows = [f"| {label} | {amount} |" for label, amount in _rows(facts, ())]
    return "\n".join(["| quantity | measured |", "|---|---|", *rows])


def _rows(value: Any, path: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the values of nested facts, each with a label made from its path."""
    if isinstance(value, dict):
        return [row for key, inside in value.items() for row in _rows(inside, (*path, str(key)))]
    if isinstance(value, list) and value and isinstance(value[0], dict):  # one for each repetition
        return _rows({f"{key}, median": statistics.median(one[key] for one in value) for key in value[0]}, path)
    return [(_label(path), _amount(path, value))]


def _label(path: tuple[str, ...]) -> str:
    path = tuple(part.replace("vmap(grad)", "`vmap(grad)`") for part in path)  # no mathematics
    first, rest = path[0], path[1:]
    if first in MEANINGS:
        return words(MEANINGS[first])
    if not rest:
        return words(first.removesuffix("_seconds").replace("_", " "))
    if len(rest) == 1 and re.fullmatch(r"\d+", rest[0]):
        return f"{words(first.replace('_', ' '))}, {int(rest[0]):,} seeds"
    if first == "ratios":
        return words(f"{', '.join(rest)}, ratio")
    return words(", ".join(rest if "seconds" in first else path).replace("_", " "))


def _amount(path: tuple[str, ...], value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_amount(path, each) for each in value)
    if isinstance(value, str | bool) or value is None:
        return words(str(value))
    if any("seconds" in part for part in path):
        return in_words(value).replace("us", "μs")
    if path[0].startswith("MiB"):
        return f"{value:,.0f} MiB"
    if isinstance(value, int):
        return f"{value:,}"
    return words(f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}")


def _grouped(facts: dict[str, Any]) -> str:
    designs = facts["designs"]
    methods = list(dict.fromkeys(method for rows in designs.values() for method in rows if method != "passes"))
    best = [method for method in methods if any(other.startswith(f"{method} 1") for other in methods)]
    methods = [
        m for m in methods if not any(m.startswith(f"{one} 1") for one in best)
    ]  # only the best of several strengths
    head = "| median error | " + " | ".join(designs) + " |\n|---|" + "---|" * len(designs)
    rows = [f"| {words(method)} | " + " | ".join(_error(designs[d].get(method)) for d in designs) + " |"
            for method in methods]  # fmt: skip
    more = "Intervals, risks and failures: [grouped data: a benchmark](grouped-benchmark.md)."
    return "\n".join([head, *rows]) + "\n\n" + more


def _cuda(facts: dict[str, Any]) -> str:
    monitors = {
        name.removeprefix("monitor, "): values for name, values in facts.items() if name.startswith("monitor, ")
    }
    networks = {name: values for name, values in facts.items() if isinstance(values, dict) and "parameters" in values}
    census_rows = [
        [name, f"{values['parameters']:,}", str(len(values["exact"])), in_words(values["seconds_census"]),
         in_words(values["seconds_equilibrate"]), f"{values['worst_proof']:.0e}", f"{values['change']:.0e}",
         f"{values['noise'][1] / values['noise'][0]:.2f}"]
        for name, values in networks.items()
    ]  # fmt: skip
    monitored = [
        [name, in_words(values["seconds_plain"]), f"{values['ratio']:.1f} times that", f"{values['every_50']:+.0%}",
         f"{values['error_single']:.0e}", f"{values['error_double']:.0e}"]
        for name, values in monitors.items()
    ]  # fmt: skip
    return "\n\n".join([
        table(["network", "parameters", "symmetries", "census", "equilibrate", "worst proof", "outputs changed by",
                "noise power, after/before"], census_rows),
        table(["monitor", "plain step", "monitored at every step", "monitored every 50 steps",
                "error, single precision", "error, double precision"], monitored),
    ])  # fmt: skip


def _average(facts: dict[str, Any]) -> str:
    few, many = facts["seeds"]
    cost, accuracy = [], []
    for s in facts["settings"]:
        seconds, values, errors = s["seconds"], s["tr_H"], s["standard_error"]
        cost.append(
            [str(s["step_size"]), f"{s['steps']:,}", in_words(seconds["SGD"]), in_words(seconds["flow"]),
             f"{s['ratios']['flow']:.3g}", f"{s['core_ratios']['flow']:.3g}", in_words(seconds["compile"])]
        )  # fmt: skip
        accuracy.append(
            [str(s["step_size"]), f"{values['SGD']:.3f} ± {errors['SGD']:.3f}",
             f"{values['reference']:.3f} ± {errors['reference']:.3f}", f"{values['flow']:.3f}",
             f"{values['flow'] - values['reference']:+.3f}", f"{s['solver_steps']:,}"]
        )  # fmt: skip
    solver = facts["solver"]
    digits = lambda x: f"{x:.0e}".replace("e-0", "e-")
    tolerances = [digits(x) for x in solver["tolerances"]]
    solved = [
        [name, *(f"{100 * e:.2g} %" for e in (*found["double"], found["single"][-1]))]
        for name, found in solver["errors"].items()
    ]
    return "\n\n".join([
        "Times exclude compilation except in the last column, and the estimate of the error, which is not made by "
        f"default for 120 parameters. SGD uses all {facts['cores']} cores and the flow mostly one: the ratio of core "
        "seconds counts the time of all cores. The mean load of the machine was "
        f"{' / '.join(format(s['load'], '.1f') for s in facts['settings'])}; on idle cores the ratio of wall times "
        f"can fall to the ratio of core seconds divided by {facts['cores']}.",
        table(["step size", "steps", f"SGD, {few} seeds", "flow", "ratio", "core seconds, ratio",
               "compiling the flow"], cost),
        f"The next table has $\\operatorname{{tr}} H$ at the end; it is {facts['settings'][0]['start']:.2f} at the "
        f"start. The reference has {many} seeds, which include the {few}.",
        table(["step size", f"SGD, {few} seeds", f"SGD, {many} seeds", "flow", "flow − reference",
               "steps of the solver"], accuracy),
        "The error of the solver depends on `tolerance`, the error per step. The next table has the largest distance "
        f"of the solution to that with the tolerance {digits(solver['finest'])} at nine times, relative to the length "
        f"of its path. The default tolerance is {tolerances[-1]}.",
        table(["problem", *(f"error, tolerance {t}" for t in tolerances),
               f"error, tolerance {tolerances[-1]}, single precision"], solved),
    ])  # fmt: skip


def _tutorials(facts: dict[str, Any]) -> str:
    rows = [
        [f"[{name}](tutorials/{name}.md)", in_words(seconds), in_words(facts["processor_seconds"][name])]
        for name, seconds in facts["seconds"].items()
    ]
    load = f"{facts['cores']} cores; the mean load of the machine was {facts['load']:.1f}."
    return "\n\n".join([load, table(["tutorial", "elapsed time", "processor time"], rows)])


TABLES = {"average": _average, "grouped": _grouped, "torch_cuda": _cuda, "tutorials": _tutorials}
"""Results with a table of a special form."""


def _error(entry: Any) -> str:
    if not isinstance(entry, dict) or "error" not in entry:
        return ""
    error = entry["error"][0]
    return f"{error:.2f}" if error >= 0.1 else f"{error:.3f}"
