"""The examples run without changes and print the results that their docstrings state."""

import functools
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parent.parent / "examples").glob("*.py"))}


@functools.cache
def output(name: str) -> str:
    """Return the output of an example; warnings are errors."""
    run = subprocess.run([sys.executable, "-W", "error", str(EXAMPLES[name])], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_every_example_has_a_test():
    source = Path(__file__).read_text()
    assert all(f'output("{name}")' in source for name in EXAMPLES)


def test_the_teleport_allows_larger_steps():
    out = output("teleport")
    losses = re.search(r"loss ([\d.]+) before, ([\d.]+) after", out)
    assert losses
    assert abs(float(losses[1]) - float(losses[2])) < 1e-3 * float(losses[1])
    rows = [line for line in out.splitlines() if re.match(r"\s+0\.\d", line)]
    largest = [max(float(r.split()[0]) for r in rows if "8/8" in r[12:][20 * k : 20 * k + 20]) for k in (0, 1)]
    assert largest[1] >= 4 * largest[0]


def test_label_noise_network_follows_its_limit():
    lines = output("label_noise_network").splitlines()
    rows = [list(map(float, line.split())) for line in lines if re.match(r"\s+\d", line)]
    assert len(rows) == 6
    assert rows[-1][1] < rows[0][1] / 2, "label noise flattens"
    for _, limit, sgd in rows:
        assert abs(limit - sgd) < 0.06 * limit
