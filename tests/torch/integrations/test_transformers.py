"""The callback in `transformers.Trainer`: logs, set-ups of training, and errors that do not stop it."""

import importlib.util
import math
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tests.torch.flows import hooks_on

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="Trainer needs accelerate"),
]


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def texts(count=18, length=7, padded=False):
    torch.manual_seed(1)
    rows = []
    for number in range(count):
        tokens = torch.randint(0, 8, (length,))
        labels = tokens.clone()
        if padded:
            labels[3 + number % 4 :] = -100
        rows.append({"input_ids": tokens, "labels": labels, "attention_mask": (labels >= 0).long()})
    return rows


def train(folder, callbacks, model=None, padded=False, adamw=None, **options):
    """Train for two epochs of five steps; the last batch of an epoch is smaller. `adamw` are arguments of `AdamW`."""
    given = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_train_epochs": 2, "logging_steps": 2,
        "report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False,
    } | options  # fmt: skip
    trainer = Trainer(
        model=llama() if model is None else model,
        args=TrainingArguments(**given),
        train_dataset=texts(padded=padded),
        callbacks=callbacks,
        optimizer_cls_and_kwargs=None if adamw is None else (torch.optim.AdamW, {"lr": 1e-3, **adamw}),
    )
    trainer.train()
    return trainer


def reset_accelerate():
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate has one state per process, with one precision."""
    reset_accelerate()
    yield
    reset_accelerate()


@pytest.mark.slow
def test_trainer_logs_the_noise_scale_and_keeps_the_same_weights(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from undertow.torch.integrations.transformers import NoiseCallback

    callback = NoiseCallback(every=2, report=tmp_path / "report.html")
    trainer = train(tmp_path, [callback], report_to=["tensorboard"])
    monitor = callback.monitor
    assert callback.problem is None
    assert not monitor.skipped
    assert monitor.steps == 10
    assert {row["step"] for row in monitor.rows} == {0, 2, 4, 6, 8}
    assert all(row["noise_plus"] > 0 for row in monitor.rows)
    assert all(row["note"] for row in monitor.rows if row["flow"] is None)
    assert hooks_on(trainer.model) == 0
    logged = [entry for entry in trainer.state.log_history if "noise/share" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 6, 8, 10]
    events = next(path for path in tmp_path.rglob("events.out*"))
    read = EventAccumulator(str(events.parent)).Reload()
    tag = next(tag for tag in read.Tags()["scalars"] if tag.endswith("noise/share"))
    assert [event.value for event in read.Scalars(tag)] == pytest.approx([entry["noise/share"] for entry in logged])
    assert "What not to conclude" in (tmp_path / "report.html").read_text()
    alone = train(tmp_path, [])
    pairs = zip(trainer.model.parameters(), alone.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


SET_UPS = {
    "SGD": {"optim": "sgd"},
    "AdamW, fused": {"optim": "adamw_torch_fused"},
    "AdamW, foreach": {"adamw": {"foreach": True, "weight_decay": 0.1}},
    "AdamW, plain": {"adamw": {"foreach": False, "fused": False}},
    "Adafactor": {"optim": "adafactor"},
    "accumulation": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "bf16 autocast": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    "reentrant checkpointing": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "clipping and a schedule": {"max_grad_norm": 1e-2, "lr_scheduler_type": "cosine", "warmup_steps": 3},
    "padding": {"padded": True},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SET_UPS, "bf16 weights", "LoRA"])
def test_every_set_up_has_numbers_in_every_measurement(name, tmp_path):
    """A row without a number has a note that says why."""
    from undertow.torch.integrations.transformers import NoiseCallback

    model = None
    if name == "bf16 weights":
        model = llama().bfloat16()
    if name == "LoRA":
        import peft

        model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    callback = NoiseCallback(every=2)
    train(tmp_path, [callback], model, **SET_UPS.get(name, {}))
    monitor = callback.monitor
    assert callback.problem is None
    assert list(monitor.skipped) == []
    assert [record.step for record in monitor.noise_scale.history] == list(range(0, monitor.steps, 2))
    assert len(monitor.rows) == len(monitor.census) * len(monitor.noise_scale.history) > 0
    assert monitor.noise_scale.uncovered == {}
    assert monitor.noise_scale.total.noise > 0
    for row in monitor.rows:
        assert math.isfinite(row["charge"])
        assert row["note"] or row["flow"] is not None


def test_a_set_up_that_cannot_be_measured_warns_once_and_trains(tmp_path):
    from undertow.torch.integrations.transformers import NoiseCallback

    callback = NoiseCallback(every=1, symmetries=False)
    with pytest.warns(UserWarning, match="use batches of at least 2") as caught:
        trainer = train(tmp_path, [callback], per_device_train_batch_size=1, max_steps=4)
    assert trainer.state.global_step == 4
    assert len([w for w in caught if "NoiseMonitor" in str(w.message)]) == 1
    assert [step for step, _ in callback.monitor.skipped] == [0, 1, 2, 3]


def test_options_are_validated_and_the_package_is_named_where_it_is_missing(monkeypatch):
    from undertow.torch.integrations.transformers import NoiseCallback

    with pytest.raises(ValueError, match="every=0"):
        NoiseCallback(every=0)
    monkeypatch.delitem(sys.modules, "undertow.torch.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers"):
        import undertow.torch.integrations.transformers  # noqa: F401
