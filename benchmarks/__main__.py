"""Run all benchmarks, or those named on the command line, each in its own process (`make bench`).

Settings of one benchmark, such as double precision, and its memory do not affect the others.
"""

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ALL = [
    "linear_model",
    "optimisers",
    "factorisation",
    "memory",
    "manifold",
    "average",
    "symmetry",
    "sensing",
    "grouped",
    "sweeps",
    "load",
    "explore",
    "libraries",
    "capabilities",
    "torch_census",
    "torch_teleport",
    "torch_monitor",
]
ALONE = "--alone"
"""Marks the process of one benchmark: `python -m benchmarks --alone NAME ROWS`."""

Row = tuple[str, str, str]


def run_alone(name: str, rows: Path) -> None:
    """Run one benchmark in this process and write its rows to a file. A name with a dot is the name of a module."""
    module = importlib.import_module(name if "." in name else f"benchmarks.{name}")
    rows.write_text(json.dumps(module.main()))


def run_each(names: list[str]) -> tuple[list[Row], list[str]]:
    """Run each benchmark in its own process. Return the rows, and the names of the benchmarks that failed."""
    rows: list[Row] = []
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(name, flush=True)
            file = Path(folder) / f"{name}.json"
            done = subprocess.run([sys.executable, "-m", "benchmarks", ALONE, name, str(file)], check=False)
            if done.returncode == 0:
                rows += [tuple(row) for row in json.loads(file.read_text())]
            else:
                failed.append(name)
    return rows, failed


def main() -> None:
    rows, failed = run_each(sys.argv[1:] or ALL)
    width = max((len(row[0]) for row in rows), default=0)
    print()
    for label, value, remark in rows:
        print(f"{label:<{width}}  {value:>10}  {remark}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    if sys.argv[1:2] == [ALONE]:
        run_alone(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
