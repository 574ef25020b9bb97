"""Training scripts as their libraries' tutorials have them, with two lines added to each."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parent.parent.parent.parent

CASES = {
    "trainer_finetune": (
        "from undertow.torch.integrations.transformers import NoiseCallback",
        "trainer.add_callback(NoiseCallback(every=2))",
        "trainer.train()",
        ["accelerate"],
    ),
    "trl_sft": (
        "from undertow.torch.integrations.transformers import NoiseCallback",
        "trainer.add_callback(NoiseCallback(every=2))",
        "trainer.train()",
        ["trl", "datasets"],
    ),
    "lightning_classifier": (
        "from undertow.torch.integrations.lightning import NoiseCallback",
        "trainer.callbacks.append(NoiseCallback(every=2))",
        "trainer.fit(",
        ["lightning"],
    ),
    "accelerate_loop": (
        "from undertow.torch import NoiseMonitor",
        "monitor = NoiseMonitor(model, every=2)",
        "for epoch in",
        ["accelerate"],
    ),
    "bare_loop": (
        "from undertow.torch import NoiseMonitor",
        "monitor = NoiseMonitor(model, every=2)",
        "for epoch in",
        [],
    ),
}
"""The two lines, the line before which the second one stands, and the packages that the script needs."""


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_measured_with_two_more_lines(name, tmp_path):
    first, second, place, packages = CASES[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: `make test-integrations` installs it")
    text = (SCRIPTS / f"{name}.py").read_text()
    assert text.count(f"\n{place}") == 1
    changed = f"{first}\n" + text.replace(f"\n{place}", f"\n{second}\n{place}")
    assert len(changed.splitlines()) == len(text.splitlines()) + 2
    script = tmp_path / f"{name}.py"
    script.write_text(changed)
    command = [sys.executable, "-m", "tests.torch.integrations.measured", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout.splitlines()[-1])
    print(f"\n{name}: {result['steps']} steps, {result['symmetries']} symmetries, uncovered {result['uncovered']}")
    assert result["skipped"] == []
    assert result["measured"] == list(range(0, result["steps"], 2))
    assert len(result["measured"]) >= 3
    assert result["noise"] > 0
    assert sorted([*result["covered"], *result["uncovered"]]) == sorted(result["trainable"])
    assert result["rows"] == len(result["measured"]) * result["symmetries"]
    assert result["symmetries"] > 0 or "monitor =" in second  # a callback takes the census
