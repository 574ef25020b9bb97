"""Training scripts as their libraries' tutorials have them, with two lines added to each."""

import importlib.util
import json
import os
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


def test_the_training_script_inside_trl_is_measured_with_two_more_lines(tmp_path):
    """The script behind `trl sft`, unmodified but for the lines, with the options that its own docstring recommends."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("trl is not installed: `make test-integrations` installs it")
    _save_tiny_model(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    rows = [json.dumps({"text": " ".join(f"w{(7 * k + j) % 40}" for j in range(4 + k % 8))}) for k in range(36)]
    (tmp_path / "texts" / "train.jsonl").write_text("\n".join(rows))
    text = (Path(spec.origin).parent / "scripts" / "sft.py").read_text()
    place = "    trainer.train("
    assert text.count(f"\n{place}") == 1
    first, second, _, _ = CASES["trl_sft"]
    second = second.replace("every=2", "every=2, report='noise.html'")
    script = tmp_path / "sft.py"
    script.write_text(f"{first}\n" + text.replace(f"\n{place}", f"\n    {second}\n{place}"))
    options = {
        "model_name_or_path": "model", "dataset_name": "texts", "learning_rate": "2e-4", "num_train_epochs": "1",
        "per_device_train_batch_size": "2", "gradient_accumulation_steps": "3", "eos_token": "<eos>", "lora_r": "4",
        "lora_alpha": "8", "output_dir": "out", "logging_steps": "2", "report_to": "none", "bf16": "False",
    }  # fmt: skip
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    environment = os.environ | {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "sft.py", *arguments, "--use_peft", "--use_cpu", "--disable_tqdm", "True"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    logs = [line for line in run.stdout.splitlines() if "noise/share" in line]
    assert len(logs) == 3  # six steps, of which every second is measured and logged
    assert "What not to conclude" in (tmp_path / "noise.html").read_text()
    assert "NoiseMonitor" not in run.stderr  # no warning


def _save_tiny_model(folder):
    """Save a Llama of one layer and its tokenizer in a folder, as `from_pretrained` reads it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{k}" for k in range(40))])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=raw, **marks).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
