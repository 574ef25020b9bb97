"""Forty of the faults that `make faults` injects by the thousand."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
COUNT = 40


def test_faults_of_every_kind(tmp_path):
    """Kills, full disks, limits, damage: the same command then ends with the bits of an undisturbed run."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.execution.faults", str(tmp_path / "f"), str(COUNT), "0", str(tmp_path / "t.md")],
        capture_output=True, text=True, timeout=900, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{COUNT} of {COUNT} faults passed" in done.stdout
    rows = re.findall(
        r"(?m)^\| (sweep|sweep on Dask|verify|report) \| .* \| (\d+) \| (\d+) \|", (tmp_path / "t.md").read_text()
    )
    assert len(rows) == 29  # every command with every kind of fault
    assert sum(int(passed) for *_, passed in rows) == COUNT
