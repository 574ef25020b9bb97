"""The examples run as they are, and show what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path):
    out = subprocess.run([sys.executable, "-W", "error", str(path)], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout.strip()


def test_label_noise_network_follows_its_limit():
    (path,) = [p for p in EXAMPLES if p.stem == "label_noise_network"]
    out = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout
    rows = [list(map(float, line.split())) for line in out.splitlines() if re.match(r"\s+\d", line)]
    assert len(rows) == 6
    assert rows[-1][1] < rows[0][1] / 2, "label noise flattens"
    for _, limit, sgd in rows:
        assert abs(limit - sgd) < 0.06 * limit
