"""Tutorials: the time to execute each notebook of docs/tutorials from its first cell to its last, solution included.

Every notebook starts a new Python process, and the compilation cache is empty. The limit is ten minutes on two cores.
Needs the packages of `make docs`.
"""

import os
import sys
import tempfile
import time
from unittest.mock import patch

from benchmarks.harness import in_words, save

LIMIT = 600.0
"""Seconds that a tutorial may take."""


def main() -> list[tuple[str, str, str]]:
    from docs import notebooks

    seconds = {}
    for path in sorted(notebooks.FOLDER.glob("*.ipynb")):
        print(f"  {path.stem}", flush=True)
        with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, XDG_CACHE_HOME=cache):
            began = time.perf_counter()
            notebooks.execute(path)
            seconds[path.stem] = time.perf_counter() - began
    load = os.getloadavg()[2]
    save("tutorials", {"cores": len(os.sched_getaffinity(0)), "load": load, "seconds": seconds})
    slow = [name for name, taken in seconds.items() if taken > LIMIT]
    if slow:
        raise TimeoutError(f"longer than {LIMIT / 60:.0f} minutes: {', '.join(slow)}")
    return [(f"tutorial: {name}", in_words(taken), "executed") for name, taken in seconds.items()]


if __name__ == "__main__":
    sys.exit("run python -m benchmarks tutorials")
