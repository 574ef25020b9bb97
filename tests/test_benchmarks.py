"""`python -m benchmarks` runs each benchmark in its own process, so that benchmarks do not affect each other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks import average, sweeps

ROOT = Path(__file__).parent.parent
GREEDY = """
import sys
import numpy as np
from benchmarks.harness import peak_mebibytes

arrays = []


def main():
    import jax

    jax.config.update("jax_enable_x64", True)
    arrays.append(np.ones(400 * 2**17))  # 400 MiB
    return [("greedy", f"{peak_mebibytes():.0f}", "MiB")]
"""
TINY = """
from pathlib import Path

from benchmarks import sweeps
import json
from benchmarks.harness import peak_mebibytes


def main():
    import jax

    facts = {"double": bool(jax.config.jax_enable_x64), "peak": peak_mebibytes()}
    with open(Path(__file__).parent / "facts.jsonl", "a") as file:
        file.write(json.dumps(facts) + "\\n")
    return [("tiny", str(facts["double"]), "")]
"""
FAILING = """
def main():
    raise ArithmeticError("no")
"""


def benchmarks(folder: Path, *names: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "benchmarks", *names]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_settings_and_memory_of_a_benchmark_do_not_affect_the_next(tmp_path):
    (tmp_path / "small").mkdir()
    for name, text in {"greedy": GREEDY, "tiny": TINY, "failing": FAILING}.items():
        (tmp_path / "small" / f"{name}.py").write_text(text)
    alone = benchmarks(tmp_path, "small.tiny")
    assert alone.returncode == 0, alone.stderr
    run = benchmarks(tmp_path, "small.greedy", "small.failing", "small.tiny")
    assert run.returncode == 1
    assert "failed: small.failing" in run.stderr
    assert "ArithmeticError: no" in run.stderr
    first, second = map(json.loads, (tmp_path / "small" / "facts.jsonl").read_text().splitlines())
    rows = [line.split() for line in run.stdout.splitlines()]
    greedy = next(float(row[1]) for row in rows if row[:1] == ["greedy"] and len(row) > 1)
    assert greedy > 400  # otherwise there would be nothing that could affect the next benchmark
    assert first["double"] is second["double"] is False
    assert abs(second["peak"] - first["peak"]) < 50


def test_the_peak_memory_excludes_the_parent_process(tmp_path):
    """`getrusage` would include the memory of the process that started this one."""
    code = (
        "import subprocess, sys\n"
        "memory = b'x' * (300 * 2**20)\n"
        "child = 'from benchmarks.harness import peak_mebibytes; print(peak_mebibytes())'\n"
        "print(subprocess.run([sys.executable, '-c', child], capture_output=True, text=True).stdout)\n"
        "from benchmarks.harness import peak_mebibytes; print(peak_mebibytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    child, parent = map(float, done.stdout.split())
    assert child < 100
    assert 300 < parent < 500


def test_the_overhead_of_sweeps_is_measured_with_the_records_of_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "BLOCKS", 16)
    per_block, reading = sweeps.overhead(tmp_path / "nothing")
    assert per_block > 0
    assert reading > 0


def test_the_flow_and_sgd_are_compared_at_the_same_time(monkeypatch):
    monkeypatch.setattr(average, "TIMED_STEPS", 100)
    with jax.enable_x64(True):
        result = average.measure(0.02, slow_time=1.0, seeds=average.SEEDS)
    assert result["steps"] == 2500
    error = result["standard_error"]["SGD"]
    assert result["start"] - result["tr_H"]["SGD"] > 20 * error  # the runs have left the start
    assert abs(result["tr_H"]["default"] - result["tr_H"]["SGD"]) < 5 * error
    assert np.isfinite([*result["core_ratios"].values(), *result["seconds"].values()]).all()
