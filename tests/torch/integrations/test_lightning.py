"""The callback in Lightning's Trainer."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("default")]
STEPS = 15


def build(style="net", optimiser="SGD", **settings):
    pl = pytest.importorskip("lightning.pytorch", reason="`make test-integrations` installs lightning")

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, index):
            x, y = batch
            calls = {"self": self, "net": self.net, "parts": lambda x: self.net[2](torch.relu(self.net[0](x)))}
            loss = (calls[style](x) - y).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return getattr(torch.optim, optimiser)(self.parameters(), lr=0.01, **settings)

    return pl, Model()


def fit(pl, model, callback, **options):
    torch.manual_seed(0)
    x = torch.randn(36, 5)
    loader = DataLoader(TensorDataset(x, x[:, :3].sin()), batch_size=8)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback], **options,
    )  # fmt: skip
    trainer.fit(model, loader)
    return trainer


CASES = {
    "the network is called": ({}, {}),
    "the module is called": ({"style": "self"}, {}),
    "AdamW, fused": ({"optimiser": "AdamW", "fused": True}, {}),
    "AdamW, clipped": ({"optimiser": "AdamW"}, {"gradient_clip_val": 0.1}),
    "accumulation": ({}, {"accumulate_grad_batches": 2}),
    "bf16 autocast": ({}, {"precision": "bf16-mixed"}),
    "bf16 weights": ({}, {"precision": "bf16-true"}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_second_step_is_measured(name):
    made, options = CASES[name]
    pl, model = build(**made)
    from undertow.torch.integrations.lightning import NoiseCallback

    callback = NoiseCallback(every=2)
    trainer = fit(pl, model, callback, **options)
    steps = 9 if "accumulate_grad_batches" in options else STEPS
    assert callback.problem is None
    assert callback.monitor.steps == steps
    assert not callback.monitor.skipped
    assert [row["step"] for row in callback.monitor.rows] == list(range(0, steps, 2))
    assert "noise/share" in trainer.callback_metrics
    assert callback.monitor.noise_scale.uncovered == {}


def test_a_training_step_that_calls_parts_has_the_noise_scale():
    pl, model = build("parts")
    from undertow.torch.integrations.lightning import NoiseCallback

    callback = NoiseCallback(every=5)
    with pytest.warns(UserWarning, match="calls Linear first"):
        fit(pl, model, callback)
    assert [record.step for record in callback.monitor.noise_scale.history] == [0, 5, 10]


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "undertow.torch.integrations.lightning", raising=False)
    with pytest.raises(ImportError, match="pip install lightning"):
        import undertow.torch.integrations.lightning  # noqa: F401
