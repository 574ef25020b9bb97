"""`make bench`: all benchmarks, or the ones named on the command line."""

import importlib
import sys

ALL = [
    "linear_model",
    "factorisation",
    "memory",
    "manifold",
    "symmetry",
    "sensing",
    "grouped",
    "sweeps",
    "torch_census",
    "torch_teleport",
    "torch_monitor",
]


def main() -> None:
    rows: list[tuple[str, str, str]] = []
    for name in sys.argv[1:] or ALL:
        print(name, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").main()
    width = max(len(row[0]) for row in rows)
    print()
    for what, value, remark in rows:
        print(f"{what:<{width}}  {value:>10}  {remark}")


if __name__ == "__main__":
    main()
