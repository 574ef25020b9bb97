"""Tutorials: the time to execute each notebook of docs/tutorials from its first cell to its last, solution included.

Every notebook starts a new Python process, and the compilation cache is empty. The limit is ten minutes on two cores.
Processor seconds are those of all cores and processes of a notebook, which other load on the machine changes less.
As in `make docs`, whose packages it needs, PyTorch uses one thread: its threads wait for each other on a busy machine.
"""

import os
import sys
import tempfile
from unittest.mock import patch

from benchmarks.harness import in_words, save
from benchmarks.load import timed

LIMIT = 600.0
"""Seconds that a tutorial may take."""


def main() -> list[tuple[str, str, str]]:
    from docs import notebooks

    facts: dict[str, dict[str, float]] = {"seconds": {}, "processor_seconds": {}}
    for path in sorted(notebooks.FOLDER.glob("*.ipynb")):
        print(f"  {path.stem}", flush=True)
        with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, XDG_CACHE_HOME=cache, OMP_NUM_THREADS="1"):
            taken = timed(lambda path=path: notebooks.execute(path))
        for name, of in facts.items():
            of[path.stem] = taken[name]
    save("tutorials", {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[2]} | facts)
    slow = [name for name, seconds in facts["seconds"].items() if seconds > LIMIT]
    if slow:
        raise TimeoutError(f"longer than {LIMIT / 60:.0f} minutes: {', '.join(slow)}")
    return [
        (f"tutorial: {name}", in_words(seconds), f"{in_words(facts['processor_seconds'][name])} of processor time")
        for name, seconds in facts["seconds"].items()
    ]


if __name__ == "__main__":
    sys.exit("run python -m benchmarks tutorials")
